"""Cost against days: the points are the fastest rows of each number of GPUs."""

import numpy as np
import pandas as pd
import pytest
from results.frames import candidates, feasible, legend_texts, texts_of

from dsx import pictures as plot
from dsx.errors import InputError, UnknownNameError


def priced(**changes):
    df = candidates()
    df["gpu_hours"] = df["training_days"] * 24 * df["num_gpus"]
    df["cost_usd"] = 2 * df["gpu_hours"]
    for name in ("low", "high"):
        df[f"step_time_s_{name}"] = df["step_time_s"] * (0.9 if name == "low" else 1.2)
    return df.assign(**changes)


def test_points_are_the_fastest_of_each_number():
    df = priced()
    ax = plot.cost_curve(df, deadline_days=100.0, budget_usd=1e7, chosen=2048, title="a run")
    best = feasible(df).sort_values("training_days").drop_duplicates("num_gpus")
    drawn = np.concatenate([line.get_xdata() for line in ax.lines if line.get_marker() == "o"][:2])
    assert set(best["training_days"]) >= set(np.asarray(drawn, dtype=np.float32))
    assert {"1,024", "2,048", "4,096"} <= set(texts_of(ax.texts))
    assert "deadline: 100 days" in legend_texts(ax) and "chosen: 2,048 GPUs" in legend_texts(ax)
    assert ax.get_ylabel().startswith("cost [") and "USD" in ax.get_ylabel()


def test_without_a_price_hours_are_drawn():
    ax = plot.cost_curve(priced(cost_usd=np.nan), budget_usd=1.0)
    assert ax.get_ylabel().startswith("GPU hours [") or "GPU" in ax.get_ylabel()
    assert "budget" not in legend_texts(ax)


def test_a_frame_without_days_is_refused():
    with pytest.raises(InputError, match="state train_tokens"):
        plot.cost_curve(priced(training_days=np.nan))
    with pytest.raises(UnknownNameError):
        plot.cost_curve(pd.DataFrame({"reject": [0]}))
