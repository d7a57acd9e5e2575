"""Scaling: lines are the best feasible values."""

import math

import numpy as np
import pandas as pd
import pytest
from results.frames import candidates, feasible, is_whole, laid_out, legend_texts, overlapping, texts_of, title_of

from dsx import pictures as plot
from dsx.errors import InputError, UnknownNameError
from dsx.pictures.figure import dashes, marks

CAPACITY = {"device.hbm_capacity": (40e9, 60e9, 1e12)}


def drawn_lines(ax):
    """Return the lines of plans, without the ideal ones."""
    return [line for line in ax.lines if not line.get_label().startswith(("ideal", "_"))]


def lines_of(ax):
    return {line.get_label(): dict(zip(*line.get_data(), strict=True)) for line in drawn_lines(ax)}


def best(df, x, y, largest=False):
    found = feasible(df).groupby(x, observed=True)[y]
    return dict(found.max() if largest else found.min())


@pytest.mark.parametrize(("y", "largest"), [("step_time_s", False), ("mfu", True), ("peak_bytes", False)])
def test_points_are_the_best_that_is_feasible(y, largest):
    df = candidates()
    lines = lines_of(plot.scaling(df, y=y, by="strategy"))
    assert list(lines) == ["flat", "grid"]
    for name, line in lines.items():
        expected = best(df[df["strategy"] == name], "num_gpus", y, largest)
        assert list(line) == [1024, 2048, 4096]
        size = 1e9 if y == "peak_bytes" else 1
        assert [value * size for value in line.values()] == pytest.approx(list(expected.values()))


@pytest.mark.slow
def test_lines_axes_and_names_of_scaling():
    df = candidates(what_if=CAPACITY)
    (line,) = drawn_lines(plot.scaling(df, y="step_time_s"))
    assert list(line.get_ydata()) == pytest.approx(list(best(df, "num_gpus", "step_time_s").values()))
    ax = plot.scaling(df, y="step_time_s", by=["strategy", "device.hbm_capacity"])
    names = [f"{strategy}, {size}" for strategy in ("flat", "grid") for size in ("40 GB", "60 GB", "1 TB")]
    assert legend_texts(ax) == names
    assert ax.get_legend().get_title().get_text() == "strategy, HBM capacity"
    here = df[(df["strategy"] == "grid") & (df["device.hbm_capacity"] == 60e9) & (df["num_gpus"] == 2048)]
    assert lines_of(ax)["grid, 60 GB"][2048] == pytest.approx(feasible(here)["step_time_s"].min())
    # Axes have units and the values of x.
    ax = laid_out(plot.scaling(candidates(what_if=CAPACITY), "device.hbm_capacity", "step_time_s"))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("HBM capacity [GB]", "step time [s]")
    assert texts_of(ax.get_xticklabels()) == ["40", "60", "1000"]
    assert ax.xaxis.get_transform().base == 2
    ax = laid_out(plot.scaling(candidates(num_gpus=(1000, 1500, 2000)), y="tokens_per_s"))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("number of GPUs", "tokens [thousand/s]")
    assert texts_of(ax.get_xticklabels()) == ["1000", "1500", "2000"]
    assert ax.get_xscale() == "linear"
    # A wide y is logarithmic.
    df = candidates()
    assert plot.scaling(df, y="step_time_s").get_yscale() == "linear"
    wide = df.assign(step_time_s=df["step_time_s"] * (df["num_gpus"] / 1024) ** 4)
    ax = laid_out(plot.scaling(wide, y="step_time_s"))
    assert ax.get_yscale() == "log"
    assert len(texts_of(ax.get_yticklabels())) >= 3
    # Names along x come in the order of the sweep.
    df = candidates(cluster=("new", "old", "middle"))
    ax = laid_out(plot.scaling(df, "cluster", "step_time_s"))
    assert texts_of(ax.get_xticklabels()) == ["new", "old", "middle"]
    expected = best(df, "cluster", "step_time_s")
    assert list(ax.lines[0].get_ydata()) == pytest.approx([expected[name] for name in ("new", "old", "middle")])


def test_gaps():
    df = candidates(num_gpus=(1024, 2048, 4096, 8192))
    df.loc[(df["strategy"] == "grid") & (df["num_gpus"] == 2048), "reject"] = 1
    df.loc[df["num_gpus"] == 8192, "reject"] = 1
    df = df[(df["strategy"] != "flat") | (df["num_gpus"] != 1024)]
    ax = plot.scaling(df, by="strategy")
    lines = lines_of(ax)
    assert [x for x, y in lines["flat"].items() if math.isnan(y)] == [1024, 8192]
    assert [x for x, y in lines["grid"].items() if math.isnan(y)] == [2048, 8192]
    # A place without any point is on the axis all the same.
    assert texts_of(laid_out(ax).get_xticklabels()) == ["1024", "2048", "4096", "8192"]
    assert ax.get_xlim()[0] < 1024
    assert ax.get_xlim()[1] > 8192


def test_baseline():
    df = candidates(num_gpus=(1024, 2048, 4096, 8192))
    df.loc[(df["strategy"] == "flat") & (df["num_gpus"] == 8192), "reject"] = 1
    ax = plot.scaling(df, by="strategy", baseline="flat")
    assert ax.get_ylabel() == "speed-up over flat"
    lines = lines_of(ax)
    flat, grid = (best(df[df["strategy"] == name], "num_gpus", "step_time_s") for name in ("flat", "grid"))
    for gpus in (1024, 2048, 4096):
        assert lines["grid"][gpus] == pytest.approx(flat[gpus] / grid[gpus])
        assert lines["flat"][gpus] == 1
    assert math.isnan(lines["grid"][8192])


@pytest.mark.parametrize("baseline", [60e9, "60 GB", "0.06 TB"])
def test_baseline_of_numbers(baseline):
    df = candidates(what_if=CAPACITY)
    ax = plot.scaling(df, y="training_days", by="device.hbm_capacity", baseline=baseline)
    assert set(lines_of(ax)["60 GB"].values()) == {1.0}
    assert ax.get_ylabel() == "speed-up over 60 GB"


@pytest.mark.parametrize("count", [1, 9, 30])
def test_lines_can_be_told_apart_and_nothing_overlaps(count):
    names = [f"cluster-with-a-long-name-{i}" for i in range(count)]
    ax = laid_out(plot.scaling(candidates(4, cluster=names), by="cluster"))
    assert len({(mark["marker"], str(dash)) for mark, dash in zip(marks(60), dashes(60), strict=True)}) == 60
    assert [line.get_marker() for line in drawn_lines(ax)] == [mark["marker"] for mark in marks(count)]
    lightness = [np.dot(colour[:3], (0.299, 0.587, 0.114)) for colour in (line.get_color() for line in drawn_lines(ax))]
    assert (np.diff(lightness) > 0).all()
    assert [text for text in legend_texts(ax) if not text.startswith("ideal")] == names
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1 - 1
    assert overlapping(ax.get_legend().get_texts()) == []
    assert is_whole(ax)


@pytest.mark.parametrize("num_gpus", [(8,), range(1000, 1100), [2**i for i in range(20)], [1, 1000, 1001]])
def test_ticks_do_not_overlap(num_gpus):
    ax = laid_out(plot.scaling(candidates(2, num_gpus=num_gpus)))
    labels = ax.get_xticklabels()
    assert overlapping(labels) == []
    assert len(texts_of(labels)) >= min(len(num_gpus), 2)
    assert is_whole(ax)


def test_units_and_rates_that_are_drawn():
    df = pd.concat([candidates(what_if=CAPACITY), candidates(what_if=CAPACITY).assign(num_gpus=8192)])
    df.attrs = {}
    ax = plot.scaling(df, "device.hbm_capacity", y="peak_bytes")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("HBM capacity [GB]", "peak memory [GB]")
    # The rate of a gpu is drawn unless another column is asked for.
    df = candidates()
    ax = laid_out(plot.scaling(df))
    assert (ax.get_ylabel(), title_of(ax)[0]) == ("tokens/s/GPU", "tokens/s/GPU by number of GPUs")
    expected = best(df, "num_gpus", "tokens_per_s_per_gpu", largest=True)
    assert lines_of(ax)["best plan"] == pytest.approx(expected)
    assert ax.get_ylim()[0] == 0.0


def test_errors():
    df = candidates()
    for arguments in ({"x": "num_gpu"}, {"by": "num_gpu"}, {"y": "num_gpu"}, {"y": "num_gpu", "baseline": "flat"}):
        with pytest.raises(UnknownNameError, match="did you mean 'num_gpus'"):
            plot.scaling(df, **({"by": "strategy"} | arguments))
    with pytest.raises(UnknownNameError, match=r"unknown baseline 'flt'; did you mean 'flat'.*of the column strategy"):
        plot.scaling(df, by="strategy", baseline="flt")
    with pytest.raises(InputError, match="`by` must name the column"):
        plot.scaling(df, baseline="flat")
    with pytest.raises(InputError, match="'peak_bytes' is neither time nor rate"):
        plot.scaling(df, y="peak_bytes", by="strategy", baseline="flat")
    with pytest.raises(InputError, match="does not hold quantities"):
        plot.scaling(df, y="strategy")
    with pytest.raises(InputError, match="candidate: 120 lines, but a picture has room for 40"):
        plot.scaling(df, by="candidate")


@pytest.mark.parametrize(
    ("y", "power"),
    [("tokens_per_s_per_gpu", 0), ("mfu", 0), ("step_time_s", -1), ("training_days", -1), ("tokens_per_s", 1)],
)
def test_the_ideal_line_is_that_of_the_fewest_gpus(y, power):
    df = candidates(num_gpus=(1024, 2048, 4096))
    df.loc[df["num_gpus"] == 1024, "reject"] = 1
    ax = plot.scaling(df, y=y)
    (ideal,) = [line.get_ydata() for line in ax.lines if line.get_label().startswith("ideal")]
    (drawn,) = [line.get_ydata() for line in drawn_lines(ax)]
    assert math.isnan(ideal[0])
    assert list(ideal[1:]) == pytest.approx([drawn[1], drawn[1] * 2.0**power])
    assert not any(line.get_label().startswith("ideal") for line in plot.scaling(df, y="peak_bytes").lines)
    assert not any(line.get_label().startswith("ideal") for line in plot.scaling(df, "tp", y).lines)


@pytest.mark.parametrize(("y", "power"), [("step_time_s", 1), ("training_days", 1), ("tokens_per_s_per_gpu", -1)])
def test_intervals(y, power):
    df = candidates(num_gpus=(1024, 2048))
    df = df.assign(step_time_s_low=0.8 * df["step_time_s"], step_time_s_high=1.25 * df["step_time_s"])
    ax = plot.scaling(df, y=y)
    (drawn,) = [line.get_ydata() for line in drawn_lines(ax)]
    (bars,) = [bars for bars in ax.containers if bars.get_label() == "80 % interval"]
    ends = np.array([segment[:, 1] for segment in bars[2][0].get_segments()])
    np.testing.assert_allclose(ends, np.outer(drawn, sorted((0.8**power, 1.25**power))), rtol=1e-6)
    assert "80 % interval" in legend_texts(ax)
    for without in (df.assign(step_time_s_low=np.nan, step_time_s_high=np.nan), df.drop(columns="step_time_s_low")):
        assert not plot.scaling(without, y=y).containers
    assert not plot.scaling(df, y=y, by="strategy", baseline="flat").containers


def test_what_a_point_is_the_best_of():
    df = candidates()
    of_times, of_rates = (
        plot.scaling(df, y=y, by="strategy", baseline="flat") for y in ("step_time_s", "tokens_per_s")
    )
    assert lines_of(of_times)["grid"] == pytest.approx(lines_of(of_rates)["grid"])
    # The title says over what a point is the best.
    df = candidates(what_if=CAPACITY)
    assert title_of(plot.scaling(df))[1] == "near each point: the best feasible plan, and over HBM capacity"
    own = df[df["device.hbm_capacity"] == 60e9]
    assert title_of(plot.scaling(own))[1] == "near, HBM capacity 60 GB each point: the best feasible plan"
    own.attrs["spec"] = {"train_tokens": 15e12}
    assert title_of(plot.scaling(own, y="training_days"))[1].startswith("near, 15 T tokens in all, ")
    assert "tokens" not in title_of(plot.scaling(own))[1]
