"""Pictures of stages and of costs, and of every kind."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from results.frames import candidates, feasible, is_whole, laid_out, legend_texts, texts_of, title_of

from dsx import pictures as plot
from dsx.errors import InputError, UnknownNameError
from dsx.pictures.breakdown import MAX_STAGES, StagePlacement, Unit, placement_of, stages
from dsx.pictures.figure import save
from dsx.pricing.one_plan import PlanStage, StageChunk


def found(count, domain=2, recompute_s=0.0):
    """Stages of 1, 2, 3, ... layers of 30 ms each, of which 10 are communication."""
    return tuple(
        PlanStage(
            chunks=(StageChunk(index * (index + 1) // 2, index + 1),),
            load_s=0.03 * (index + 1) + recompute_s,
            compute_s=0.02 * (index + 1),
            comm_s=0.01 * (index + 1),
            recompute_s=recompute_s,
            in_flight=count - index,
            peak_bytes=1e9,
            link=None if not index else "fast" if index % domain else "slow",
        )
        for index in range(count)
    )


def placed(domain, *outer, per_stage=1, gpus=8):
    """As many stages in a fast domain, and in a unit of each outer tier."""
    return StagePlacement(gpus, Unit("nvs", domain, per_stage), outer)


def texts(ax):
    return [text.get_text().strip() for text in ax.texts]


def test_bars_boxes_and_links_of_stages():
    ax = stages(found(4), placed(2), "a plan")
    tops = [max(bar.get_y() + bar.get_height() for bar in group) for group in zip(*ax.containers, strict=True)]
    assert tops == pytest.approx([30, 60, 90, 120])
    assert ax.get_title(loc="left") == "a plan"
    assert texts(ax) == ["1", "2", "3", "4"]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[:2] == ["communication", "compute and memory access"]
    assert "recompute" in [
        t.get_text() for t in stages(found(2, recompute_s=0.01), placed(1), "").get_legend().get_texts()
    ]
    # Boxes are domains and links are named.
    below = stages(found(5), placed(2), "").get_figure().axes[1]
    boxes = [patch for patch in below.patches if isinstance(patch, Rectangle)]
    assert [round(box.get_width()) for box in boxes] == [2, 2, 1]
    assert [text for text in texts(below) if text in ("fast", "slow")] == ["fast", "slow", "fast", "slow"]
    assert texts(below).count("8") == 5
    # A stage on several domains says so.
    below = stages(found(3), placed(1, per_stage=2, gpus=4), "").get_figure().axes[1]
    assert len(below.patches) == 6  # two of each stage
    assert texts(below).count("2 x 4") == 3
    assert "domains x GPUs of a stage, one replica" in texts(below)
    many = stages(found(3), placed(1, per_stage=16, gpus=4), "").get_figure().axes[1]
    assert (len(many.patches), texts(many).count("16 x 4")) == (9, 3)


@pytest.mark.parametrize("count", [8, MAX_STAGES])
def test_each_outer_tier_has_a_row_of_lines(count):
    outer = (Unit("leaf", 2, 1), Unit("pod", 4, 1))
    below = stages(found(count), placed(1, *outer), "").get_figure().axes[1]
    ends = [tuple(line.get_xdata()) for line in below.lines]
    assert len(ends) == count // 2 + count // 4
    assert [round(right - left) for left, right in ends] == [2] * (count // 2) + [4] * (count // 4)
    heights = [line.get_ydata()[0] for line in below.lines]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == 2
    assert {"a line: a unit of leaf", "a line: a unit of pod"} <= set(texts(below))
    # Names of links where there is room for them.
    assert ("the link between stages" in texts(below)) == (count == 8)


def test_units_of_a_stage():
    plan = {"tp": 4, "tp2": 1, "cp": 4, "tp_nvs": 2, "tp2_nvs": 1, "cp_nvs": 1, "pp_nvs": 1}
    plan |= {
        "tp_leaf": 4, "tp2_leaf": 1, "cp_leaf": 2, "pp_leaf": 1, "tp_pod": 4, "tp2_pod": 1, "cp_pod": 4, "pp_pod": 2,
    }  # fmt: skip
    made = placement_of(plan, ["nvs", "leaf", "pod", "spine"])
    assert made == StagePlacement(2, Unit("nvs", 1, 8), (Unit("leaf", 1, 2), Unit("pod", 2, 1)))
    below = stages(found(2), made, "").get_figure().axes[1]
    assert "a line: a unit of leaf, 2 of a stage" in texts(below)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_long_title_is_on_the_picture(count):
    title = "mixtral-8x7b on 64 x h100-nvs8: step 1.23 s\n"
    title += "tp=2 cp=2 pp=2 dp=8 microbatch_size=1 order=tp-cp-ep-pp-dp nvs.tp=2"
    ax = stages(found(count), placed(1), title)
    figure = ax.get_figure()
    figure.draw_without_rendering()
    (drawn,) = [text.get_window_extent() for text in ax.findobj(Text) if text.get_text().startswith("mixtral-8x7b")]
    assert drawn.x0 >= 0
    assert drawn.x1 <= figure.bbox.x1
    assert drawn.y1 <= figure.bbox.y1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("count", [1, 24, 25, MAX_STAGES])
def test_any_number_of_stages_can_be_drawn(count, tmp_path):
    save(stages(found(count, 4), placed(4), "a plan"), tmp_path / "stages.png")
    assert (tmp_path / "stages.png").stat().st_size > 5000


def test_too_many_stages():
    with pytest.raises(InputError, match="65 stages are too many for a picture"):
        stages(found(65), placed(1), "")


def priced(**changes):
    df = candidates()
    df["gpu_hours"] = df["training_days"] * 24 * df["num_gpus"]
    df["cost_usd"] = 2 * df["gpu_hours"]
    for name in ("low", "high"):
        df[f"step_time_s_{name}"] = df["step_time_s"] * (0.9 if name == "low" else 1.2)
    return df.assign(**changes)


def test_points_are_the_fastest_of_each_number_with_and_without_a_price():
    df = priced()
    ax = plot.cost_curve(df, deadline_days=100.0, budget_usd=1e7, chosen=2048, title="a run")
    best = feasible(df).sort_values("training_days").drop_duplicates("num_gpus")
    drawn = np.concatenate([line.get_xdata() for line in ax.lines if line.get_marker() == "o"][:2])
    assert set(best["training_days"]) >= set(np.asarray(drawn, dtype=np.float32))
    assert {"1,024", "2,048", "4,096"} <= set(texts_of(ax.texts))
    assert "deadline: 100 days" in legend_texts(ax) and "chosen: 2,048 GPUs" in legend_texts(ax)
    assert ax.get_ylabel().startswith("cost [") and "USD" in ax.get_ylabel()
    # Without a price hours are drawn.
    ax = plot.cost_curve(priced(cost_usd=np.nan), budget_usd=1.0)
    assert ax.get_ylabel().startswith("GPU hours [") or "GPU" in ax.get_ylabel()
    assert "budget" not in legend_texts(ax)
    # A frame without days is refused.
    with pytest.raises(InputError, match="state train_tokens"):
        plot.cost_curve(priced(training_days=np.nan))
    with pytest.raises(UnknownNameError):
        plot.cost_curve(pd.DataFrame({"reject": [0]}))


PICTURES = {
    "front": plot.front,
    "scaling": lambda df, ax=None: plot.scaling(df, y="step_time_s", by="strategy", baseline="flat", ax=ax),
    "heatmap": lambda df, ax=None: plot.heatmap(df, "tp", "num_gpus", ax=ax),
    "breakdown": plot.breakdown,
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("draw", [*PICTURES.values(), plot.breakdowns], ids=[*PICTURES, "breakdowns"])
def test_nothing_feasible_and_nothing_at_all(tmp_path, draw):
    df = candidates()
    nothing = [df.assign(reject=1), df.head(0)]
    nothing += [] if draw in (plot.breakdown, plot.breakdowns) else [df.assign(step_time_s=np.inf)]
    for rows in nothing:
        ax = draw(rows)
        assert title_of(ax)[0] == "no feasible candidate"
        plot.save(ax, tmp_path / "a.png")
        assert is_whole(laid_out(ax))


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
def test_draws_on_a_given_axis(draw):
    ax = Figure(figsize=(6, 4), layout="constrained").subplots()
    assert draw(candidates(), ax=ax) is ax
    assert ax.get_figure(root=True).get_size_inches() == pytest.approx((6, 4))
