"""Breakdowns: bars are the fastest plans, and their parts add up."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from results.frames import (
    MEMORY_PARTS,
    NOT_PRICED,
    TIME_PARTS,
    candidates,
    feasible,
    is_whole,
    laid_out,
    legend_texts,
    overlapping,
    texts_of,
)

from dsx.errors import InputError, UnknownNameError
from dsx.results import plot
from dsx.results.plot.breakdown import MAX_BARS, STACKS

LABELS = {part.label: column for stack in STACKS.values() for column, part in stack.parts.items()}
GB = 1e9


def fastest(df, columns):
    """The fastest row of each group, looked for in another way than plot does."""
    rows = [
        (feasible(group) if len(feasible(group)) else group).nsmallest(1, "step_time_s").iloc[0]
        for _, group in df.groupby(columns, observed=True)
    ]
    return rows


def stacks_of(ax):
    """Return {column: [bars] heights} of the parts, and check that each stands on the one below."""
    found, top = {}, 0.0
    for bars in ax.containers:
        if bars.get_label() in LABELS:
            np.testing.assert_allclose([bar.get_y() for bar in bars], top, rtol=1e-6)
            found[LABELS[bars.get_label()]] = np.array([bar.get_height() for bar in bars])
            top = top + found[LABELS[bars.get_label()]]
    return found


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


def test_axes_have_units_and_the_values_of_x():
    ax = laid_out(plot.breakdowns(candidates(), ["num_gpus", "strategy"]))
    upper, lower = ax.get_figure(root=True).axes
    assert ax is upper
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("step time [s]", "peak memory [GB]")
    labels = [f"{gpus}\n{strategy}" for gpus in (1024, 2048, 4096) for strategy in ("flat", "grid")]
    assert texts_of(lower.get_xticklabels()) == labels
    assert lower.texts[0].get_text() == "number of GPUs\nstrategy"
    assert not any(label.get_visible() for label in upper.get_xticklabels())


def test_names_come_in_the_order_of_the_sweep():
    df = candidates(strategy=("summa", "flat", "grid"))
    ax = laid_out(plot.breakdown(df, "strategy"))
    assert texts_of(ax.get_xticklabels()) == ["summa", "flat", "grid"]


def test_plans_are_in_small_print():
    df = candidates()
    ax = laid_out(plot.breakdown(df, "num_gpus"))
    names = ["strategy", "tp", "cp", "pp", "dp", "microbatch_size"]  # the others are 1 everywhere
    expected = ["\n".join(str(row[name]) for name in names) for row in fastest(df, ["num_gpus"])]
    assert texts_of(ax.get_xticklabels(minor=True)) == expected
    assert ax.texts[-1].get_text() == "strategy\nTP\nCP\nPP\nDP\nmicrobatch size"
    # Each row of the table stands beside its heading.
    label, heading = ax.get_xticklabels(minor=True)[0].get_window_extent(), ax.texts[-1].get_window_extent()
    assert label.y1 == pytest.approx(heading.y1, abs=1)
    assert label.y0 == pytest.approx(heading.y0, abs=1)
    beside = laid_out(plot.breakdown(df, ["strategy", "tp"]))
    assert beside.texts[-1].get_text() == "CP\nPP\nDP\nmicrobatch size"


@pytest.mark.parametrize("bars", [1, 8, 20, 40])
def test_labels_do_not_overlap(bars):
    names = [f"cluster-with-a-long-name-{i}" for i in range(bars)]
    ax = laid_out(plot.breakdowns(candidates(2, num_gpus=(262144,), cluster=names), ["cluster", "num_gpus"]))
    lower = ax.get_figure(root=True).axes[1]
    assert len(texts_of(lower.get_xticklabels())) == bars
    assert overlapping(lower.get_xticklabels()) == []
    assert overlapping(lower.get_xticklabels(minor=True)) == []
    assert overlapping([*lower.get_xticklabels(), *lower.get_xticklabels(minor=True), *lower.texts]) == []
    assert is_whole(ax)


def test_labels_that_do_not_fit_a_given_axis():
    ax = Figure(figsize=(4, 3), layout="constrained").subplots()
    df = candidates(2, num_gpus=range(1000, 1040))
    assert plot.breakdown(df, "num_gpus", ax=ax) is ax
    assert ax.get_figure(root=True).get_size_inches() == pytest.approx((4, 3))
    laid_out(ax)
    assert 5 < len(texts_of(ax.get_xticklabels())) < 40
    assert texts_of(ax.get_xticklabels(minor=True)) == []
    assert overlapping(ax.get_xticklabels()) == []


def test_long_names_do_not_shrink_the_bars():
    def height(name):
        ax = laid_out(plot.breakdown(candidates(cluster=(name, name + "2", name + "3")), "cluster"))
        return ax.get_window_extent().height

    assert height("a" * 60) == pytest.approx(height("a"), rel=0.01)


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
    assert ax.get_title() == ""
    nothing = plot.breakdown(df.assign(reject=1), "num_gpus")
    assert nothing.get_title() == "no feasible candidate"


def test_of_equal_rows_the_smallest_candidate():
    df = candidates().assign(step_time_s=1.0, reject=0)
    ax = laid_out(plot.breakdown(df, "num_gpus"))
    expected = [group.nsmallest(1, "candidate").iloc[0]["tp"] for _, group in df.groupby("num_gpus")]
    shown = [label.get_text().splitlines()[1] for label in ax.get_xticklabels(minor=True)]
    assert shown == list(map(str, expected))


def capacity_line(ax):
    return [line for line in ax.lines if line.get_label() == "HBM capacity"]


def test_capacity_of_a_what_if():
    df = candidates(what_if={"device.hbm_capacity": (40e9, 80e9)})
    ax = laid_out(plot.breakdown(df, "device.hbm_capacity", of="memory"))
    (line,) = capacity_line(ax)
    np.testing.assert_allclose(line.get_xydata(), [(-0.5, 40), (0.5, 40), (0.5, 80), (1.5, 80)])
    assert texts_of(ax.get_xticklabels()) == ["40 GB", "80 GB"]
    assert capacity_line(plot.breakdown(df, "num_gpus")) == []


def test_capacity_of_the_clusters_of_the_sweep():
    df = candidates(cluster=("far", "near"))
    clusters = [{"name": name, "device": {"hbm_capacity": f"{size}e9 B"}} for name, size in (("near", 90), ("far", 70))]
    df.attrs["spec"] = {"resolved": {"clusters": clusters}}
    (line,) = capacity_line(plot.breakdown(df, "cluster", of="memory"))
    np.testing.assert_allclose(line.get_ydata(), [70, 70, 90, 90])
    df.attrs["spec"] = {}
    assert capacity_line(plot.breakdown(df, "cluster", of="memory")) == []


def test_a_large_capacity_does_not_flatten_the_bars():
    df = candidates(what_if={"device.hbm_capacity": (80e9, 1e13)})
    ax = plot.breakdown(df, "device.hbm_capacity", of="memory")
    assert ax.get_ylim()[1] <= 2 * max(sum(stacks_of(ax).values()))


def test_no_rows(tmp_path):
    ax = plot.breakdowns(candidates().head(0))
    assert ax.get_title() == "no feasible candidate"
    plot.save(ax, tmp_path / "a.png")
    assert is_whole(laid_out(ax))


def test_neighbours_differ_in_grey():
    from matplotlib.colors import to_rgb

    def lightness(colour):
        return np.dot(to_rgb(colour), (0.299, 0.587, 0.114))

    for stack in STACKS.values():
        greys = [lightness(part.colour) for part in stack.parts.values()]
        assert np.abs(np.diff(greys)).min() > 0.1


def test_errors():
    df = candidates()
    with pytest.raises(UnknownNameError, match="did you mean 'num_gpus'"):
        plot.breakdown(df, "num_gpu")
    with pytest.raises(UnknownNameError, match="unknown stack 'tme'; did you mean 'time'"):
        plot.breakdown(df, of="tme")
    with pytest.raises(UnknownNameError, match=r"compute_s.*were only some columns loaded"):
        plot.breakdown(df.drop(columns="compute_s"))
    with pytest.raises(InputError, match=f"candidate: 120 bars, and a picture has room for {MAX_BARS}"):
        plot.breakdown(df, "candidate")
    with pytest.raises(InputError, match="for example 'num_gpus'"):
        plot.breakdown(df, [])
