import numpy as np
import pandas as pd
import pytest

import dsx
from dsx.errors import InputError, UnknownNameError


@pytest.fixture
def df():
    frame = pd.DataFrame(
        {
            "strategy": pd.Categorical(["a", "b", "a", "a", "b", "a"]),
            "step_time_s": np.float32([3, 1, 2, 2, 0.5, 4]),
            "peak_bytes": np.float32([1, 3, 2, 2, 0.5, 5]),
            "mfu": np.float32([0.1, 0.2, 0.3, 0.3, 0.9, 0.5]),
            "training_days": np.float32([np.nan] * 6),
            "reject": [0, 0, 0, 0, 1, 0],
        },
        index=[10, 11, 12, 13, 14, 15],
    )
    frame.attrs = {"units": {"mfu": ""}, "complete": True}
    return frame


def test_feasible_front_sorted_by_the_first(df):
    best = dsx.pareto(df, "step_time_s", "peak_bytes")
    assert list(best.index) == [11, 12, 13, 10]
    assert list(best.columns) == list(df.columns)
    assert best.attrs == df.attrs
    assert list(dsx.pareto(df, "peak_bytes", "step_time_s").index) == [10, 12, 13, 11]


def test_objectives_may_be_a_list(df):
    assert dsx.pareto(df, ["step_time_s", "peak_bytes"]).equals(dsx.pareto(df, "step_time_s", "peak_bytes"))


def test_minus_maximises(df):
    assert list(dsx.pareto(df, "-mfu").index) == [15]
    assert list(dsx.pareto(df, "-mfu", "peak_bytes").index) == [15, 12, 13, 10]


def test_nothing_on_the_front(df):
    assert len(dsx.pareto(df, "training_days")) == 0
    assert len(dsx.pareto(df[df["reject"] == 1], "mfu")) == 0
    assert list(dsx.pareto(df.iloc[:0], "mfu", "step_time_s", "peak_bytes").columns) == list(df.columns)


def test_of_a_stored_set(stored):
    df = dsx.load(stored)
    best = dsx.pareto(df, "step_time_s", "peak_bytes", "-mfu")
    assert len(best) > 0
    assert (best["reject"] == 0).all()
    assert best.attrs["spec"] == df.attrs["spec"]


def test_errors(df):
    with pytest.raises(UnknownNameError, match="unknown column 'mfv'; did you mean 'mfu'"):
        dsx.pareto(df, "-mfv")
    with pytest.raises(InputError, match="'strategy' cannot be an objective"):
        dsx.pareto(df, "strategy")
    with pytest.raises(InputError, match="needs an objective"):
        dsx.pareto(df)
    with pytest.raises(UnknownNameError, match="unknown column 'reject'"):
        dsx.pareto(df.drop(columns="reject"), "mfu")
