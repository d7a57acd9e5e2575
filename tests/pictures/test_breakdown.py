"""Breakdowns: bars are the fastest plans, and their parts add up."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from results.bars import fastest, headings, stacks_of, totals
from results.frames import MEMORY_PARTS, NOT_PRICED, TIME_PARTS, candidates, laid_out, legend_texts, texts_of, title_of

from dsx import pictures as plot
from dsx.errors import InputError, UnknownNameError
from dsx.pictures.breakdown import MAX_BARS, STACKS

GB = 1e9


@pytest.mark.parametrize(
    ("of", "parts", "total", "size"),
    [("time", TIME_PARTS, "step_time_s", 1), ("memory", MEMORY_PARTS, "peak_bytes", GB)],
)
def test_bars_are_the_fastest_plans(of, parts, total, size):
    df = candidates()
    ax = plot.breakdown(df, "num_gpus", of=of)
    rows = fastest(df, ["num_gpus"])
    found = stacks_of(ax)
    assert list(found) == [part for part in parts if part not in NOT_PRICED]
    for part, heights in found.items():
        np.testing.assert_allclose(heights * size, [row[part] for row in rows], rtol=1e-6)
    np.testing.assert_allclose(sum(found.values()) * size, [row[total] for row in rows], rtol=1e-5)
    assert legend_texts(ax) == [STACKS[of].parts[part].label for part in reversed(found)]


@pytest.mark.parametrize("part", ["optimizer_bytes", "overhead_bytes"])
def test_the_highest_bar_does_not_touch_the_frame(part):
    df = candidates()
    df["peak_bytes"] -= df[part]
    ax = plot.breakdown(df.assign(**{part: np.float32(0)}), "num_gpus", of="memory")
    assert ax.get_ylim()[1] >= 1.05 * max(sum(stacks_of(ax).values()))


def spread(factor):
    """Two bars, of which one takes `factor` times as long."""
    df = candidates(1, num_gpus=(1, 2), strategy=("flat",)).assign(reject=0)
    for name in (*TIME_PARTS, "step_time_s"):
        df[name] = np.float32(0)
    return df.assign(compute_s=(2.0 * factor, 1.0), bubble_s=(0.0, 1.0), step_time_s=(2.0 * factor, 2.0))


def test_times_that_are_far_apart_are_shares():
    ax = laid_out(plot.breakdown(spread(21), "num_gpus"))
    assert ax.get_ylabel() == "share of the step [%]"
    found = stacks_of(ax)
    np.testing.assert_allclose(found["compute_s"], [100, 50])
    np.testing.assert_allclose(found["bubble_s"], [0, 50])
    assert [text.get_text() for text in totals(ax)] == ["42.0 s", "2.00 s"]
    assert texts_of(ax.get_yticklabels()) == ["0", "20", "40", "60", "80", "100"]
    near = plot.breakdown(spread(19), "num_gpus")
    assert near.get_ylabel() == "step time [s]"
    np.testing.assert_allclose(sum(stacks_of(near).values()), [38, 2])
    memory = plot.breakdown(spread(1).assign(peak_bytes=(1e12, 1e9)), "num_gpus", of="memory")
    assert memory.get_ylabel() == "peak memory [GB]"


def test_a_value_without_a_feasible_plan_shows_the_fastest_rejected_one():
    df = candidates()
    df.loc[df["num_gpus"] == 2048, "reject"] = 1
    ax = plot.breakdown(df, "num_gpus")
    np.testing.assert_allclose(
        sum(stacks_of(ax).values()), [row["step_time_s"] for row in fastest(df, ["num_gpus"])], rtol=1e-5
    )
    (hatched,) = [bars for bars in ax.containers if bars.get_label() == "rejected"]
    assert [round(bar.get_x() + bar.get_width() / 2) for bar in hatched] == [1]
    assert hatched[0].get_hatch()
    assert legend_texts(ax)[0] == "rejected"
    assert title_of(ax)[0] == "step time by number of GPUs"
    nothing = plot.breakdown(df.assign(reject=1), "num_gpus")
    assert title_of(nothing)[0] == "no feasible candidate"


@pytest.mark.slow
def test_capacities_of_bars():
    df = candidates().assign(step_time_s=1.0, reject=0)
    ax = laid_out(plot.breakdown(df, "num_gpus"))
    expected = [group.nsmallest(1, "candidate").iloc[0]["cp"] for _, group in df.groupby("num_gpus")]
    column = headings(ax)[-1].splitlines().index("CP")
    shown = [label.get_text().splitlines()[column] for label in ax.get_xticklabels(minor=True)]
    assert shown == list(map(str, expected))
    # Capacity of a what if.
    df = candidates(what_if={"device.hbm_capacity": (40e9, 80e9)})
    ax = laid_out(plot.breakdown(df, "device.hbm_capacity", of="memory"))
    (line,) = capacity_line(ax)
    np.testing.assert_allclose(line.get_xydata(), [(-0.5, 40), (0.5, 40), (0.5, 80), (1.5, 80)])
    assert texts_of(ax.get_xticklabels()) == ["40 GB", "80 GB"]
    assert capacity_line(plot.breakdown(df, "num_gpus")) == []
    # Capacity of the clusters of the sweep.
    df = candidates(cluster=("far", "near"))
    clusters = [
        {"name": name, "device": {"name": name, "hbm_capacity": f"{size}e9 B"}}
        for name, size in (("near", 90), ("far", 70))
    ]
    df.attrs["spec"] = {"resolved": {"clusters": clusters}}
    (line,) = capacity_line(plot.breakdown(df, "cluster", of="memory"))
    np.testing.assert_allclose(line.get_ydata(), [70, 70, 90, 90])
    df.attrs["spec"] = {}
    assert capacity_line(plot.breakdown(df, "cluster", of="memory")) == []
    # A large capacity does not flatten the bars.
    df = candidates(what_if={"device.hbm_capacity": (80e9, 1e13)})
    ax = plot.breakdown(df, "device.hbm_capacity", of="memory")
    assert ax.get_ylim()[1] <= 2 * max(sum(stacks_of(ax).values()))


def capacity_line(ax):
    return [line for line in ax.lines if line.get_label() == "HBM capacity"]


def test_titles_widths_greys_and_hatches_of_bars():
    df = candidates(num_gpus=(8,), what_if={"device.hbm_capacity": (60e9, 80e9), "device.hbm_bandwidth": (1e12, 2e12)})
    together = df[df["device.hbm_bandwidth"] == np.where(df["device.hbm_capacity"] == 60e9, 1e12, 2e12)]
    job = "8 GPUs of near each bar: the fastest feasible plan"
    assert title_of(plot.breakdowns(together, "device.hbm_capacity")) == (
        "step time and peak memory by HBM capacity",
        job,
    )
    own = df[df["device.hbm_capacity"] == 80e9]
    assert title_of(plot.breakdown(own, "strategy"))[1].startswith("8 GPUs of near, HBM capacity 80 GB")
    # Bars are as wide as the settings below them.
    df = candidates(what_if={"device.hbm_bandwidth": (1.555e12, 2e12, 8e12), "device.hbm_capacity": (60e9, 80e9)})
    labels = laid_out(plot.breakdown(df, ["device.hbm_bandwidth", "device.hbm_capacity"])).get_xticklabels()
    assert labels[0].get_text() == "1.56 TB/s\n60 GB" and {label.get_rotation() for label in labels} == {0}
    # Parts can be told apart in grey.
    for stack in STACKS.values():
        parts = list(stack.parts.values())
        greys = [lightness(part.colour) for part in parts]
        assert np.abs(np.diff(greys)).min() > 0.15
        for (one, grey), (other, beside) in itertools.combinations(zip(parts, greys, strict=True), 2):
            assert abs(grey - beside) > 0.14 or bool(one.hatch) != bool(other.hatch), (one, other)
        for part, grey in zip(parts, greys, strict=True):
            assert part.hatch is None or abs(lightness(part.hatch) - grey) > 0.1
    # Hatches of parts and of rejected bars cross.
    df = candidates()
    df.loc[df["num_gpus"] == 2048, "reject"] = 1
    hatches = {bars.get_label(): bars[0].get_hatch() for bars in plot.breakdown(df, "num_gpus").containers}
    assert set(hatches["TP communication"]) == {"\\"}
    assert set(hatches["rejected"]) == {"/"}
    assert not hatches["compute"]


def lightness(colour):
    return np.dot(to_rgb(colour), (0.299, 0.587, 0.114))


def test_errors():
    df = candidates()
    with pytest.raises(UnknownNameError, match="did you mean 'num_gpus'"):
        plot.breakdown(df, "num_gpu")
    with pytest.raises(UnknownNameError, match="unknown stack 'tme'; did you mean 'time'"):
        plot.breakdown(df, of="tme")
    with pytest.raises(UnknownNameError, match=r"compute_s.*were only some columns loaded"):
        plot.breakdown(df.drop(columns="compute_s"))
    with pytest.raises(InputError, match=f"candidate: 120 bars, but a picture has room for {MAX_BARS}"):
        plot.breakdown(df, "candidate")
    with pytest.raises(InputError, match="for example 'num_gpus'"):
        plot.breakdown(df, [])
