"""What stands above and under the bars of a breakdown."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from results.bars import fastest, headings, stacks_of, totals
from results.frames import candidates, is_whole, laid_out, overlapping, texts_of

from dsx import pictures as plot

GB = 1e9


@pytest.mark.slow
def test_axes_and_names_of_bars():
    ax = laid_out(plot.breakdowns(candidates(), ["num_gpus", "strategy"]))
    upper, lower = ax.get_figure(root=True).axes
    assert ax is upper
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("step time [s]", "peak memory [GB]")
    labels = [f"{gpus}\n{strategy}" for gpus in (1024, 2048, 4096) for strategy in ("flat", "grid")]
    assert texts_of(lower.get_xticklabels()) == labels
    assert lower.texts[0].get_text() == "number of GPUs\nstrategy"
    assert not any(label.get_visible() for label in upper.get_xticklabels())
    # Names come in the order of the sweep.
    df = candidates(strategy=("summa", "flat", "grid"))
    ax = laid_out(plot.breakdown(df, "strategy"))
    assert texts_of(ax.get_xticklabels()) == ["summa", "flat", "grid"]
    # A single bar shows its plan.
    ax = laid_out(plot.breakdown(placed(candidates())[:1], "num_gpus"))
    assert texts_of(ax.get_xticklabels(minor=True)) == ["flat\n8\n4\n2\n8 TP"]
    assert headings(ax) == ["number of GPUs", "strategy\nTP\nPP\nDP\nNVLink domain"]


def placed(df):
    """Give the four plans that are fastest on 1, 2, 3 and 4 GPUs a placement."""
    df = df[:4].assign(num_gpus=range(1, 5), strategy="flat", cluster="near", reject=0)
    shares = {"tp_nvs": (8, 4, 2, 1), "pp_nvs": (1, 2, 2, 1), "dp_nvs": (1, 1, 2, 1)}
    return df.assign(tp=8, cp=1, pp=4, dp=(2, 4, 8, 16), microbatch_size=1, cp_nvs=1, **shares)


def test_what_differs_between_the_plans_is_in_small_print():
    df = candidates()
    ax = laid_out(plot.breakdown(df, "num_gpus"))
    rows = fastest(df, ["num_gpus"])
    assert len({row["strategy"] for row in rows}) == 1
    assert len({row["ep"] for row in rows}) == 1
    names = ["tp", "cp", "pp", "dp", "microbatch_size"]
    assert texts_of(ax.get_xticklabels(minor=True)) == ["\n".join(str(row[name]) for name in names) for row in rows]
    (small,) = [text for text in ax.texts if text.get_text() == "TP\nCP\nPP\nDP\nmicrobatch size"]
    # Each row of the table stands beside its heading.
    label, heading = ax.get_xticklabels(minor=True)[0].get_window_extent(), small.get_window_extent()
    assert label.y1 == pytest.approx(heading.y1, abs=1)
    assert label.y0 == pytest.approx(heading.y0, abs=1)
    beside = laid_out(plot.breakdown(df.assign(recompute=np.where(df["tp"] > 4, "full", "none")), ["strategy", "tp"]))
    assert headings(beside)[-1] == "CP\nPP\nDP\nmicrobatch size\nrecompute"
    same = plot.breakdown(df.assign(**dict.fromkeys(names, 2)), "num_gpus")
    assert headings(same) == ["number of GPUs"]


@pytest.mark.slow
def test_placement_is_in_small_print_and_left_out_first():
    df = placed(candidates())
    ax = laid_out(plot.breakdowns(df, "num_gpus"))
    lower = ax.get_figure(root=True).axes[1]
    expected = ["2\n8 TP", "4\n4 TP\n2 PP", "8\n2 TP\n2 PP\n2 DP", "16\n-"]
    assert texts_of(lower.get_xticklabels(minor=True)) == expected
    assert headings(lower)[-1] == "DP\nNVLink domain"
    # Beside its own share an axis says nothing new, and what is the same everywhere tells nothing apart.
    beside = plot.breakdown(df, ["num_gpus", "tp_nvs", "pp_nvs"])
    assert texts_of(beside.get_xticklabels(minor=True)) == ["2\n-", "4\n-", "8\n2 DP", "16\n-"]
    same = plot.breakdown(df.assign(tp_nvs=4, pp_nvs=1, dp_nvs=2), "num_gpus")
    assert texts_of(same.get_xticklabels(minor=True)) == ["2", "4", "8", "16"]
    # Placement is left out first.
    df = placed(candidates()).assign(dp=(2, 3, 4, 5), tp_nvs=(65536, 32768, 32768, 32768))
    ax = Figure(figsize=(4, 3), layout="constrained").subplots()
    plot.breakdown(df, "num_gpus", ax=ax)
    assert texts_of(ax.get_xticklabels(minor=True)) == ["2", "3", "4", "5"]
    assert headings(ax)[-1] == "DP"


def test_totals_stand_above_the_bars():
    df = candidates()
    ax = laid_out(plot.breakdowns(df, "num_gpus"))
    upper, lower = ax.get_figure(root=True).axes
    rows = fastest(df, ["num_gpus"])
    assert [text.get_text() for text in totals(upper)] == [f"{row['step_time_s']:#.3g} s" for row in rows]
    assert [text.get_text() for text in totals(lower)] == [f"{row['peak_bytes'] / GB:#.3g} GB" for row in rows]
    for ax in (upper, lower):
        tops = sum(stacks_of(ax).values())
        frame = ax.get_window_extent()
        for place, (text, top) in enumerate(zip(totals(ax), tops, strict=True)):
            x, y = ax.transData.transform((place, top))
            box = text.get_window_extent()
            assert (box.x0 + box.x1) / 2 == pytest.approx(x, abs=1)
            assert y < box.y0 < y + 5
            assert box.y1 < frame.y1


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("bars", "turned"), [(8, 0), (40, 90), (60, 90)])
def test_totals_have_room(bars, turned):
    df = candidates(2, num_gpus=range(1000, 1000 + bars)).assign(bubble_s=np.float32(0), reject=0)
    for ax in laid_out(plot.breakdowns(df)).get_figure(root=True).axes:
        assert len(totals(ax)) == bars
        assert {text.get_rotation() for text in totals(ax)} == {turned}
        assert overlapping(totals(ax)) == []
        assert max(text.get_window_extent().y1 for text in totals(ax)) < ax.get_window_extent().y1


def test_a_total_stands_above_the_capacity_that_would_cross_it():
    df = candidates()
    df["device.hbm_capacity"] = 1.02 * min(row["peak_bytes"] for row in fastest(df, ["num_gpus"]))
    ax = laid_out(plot.breakdown(df, "num_gpus", of="memory"))
    line = ax.transData.transform((0, df["device.hbm_capacity"][0] / GB))[1]
    boxes = [text.get_window_extent() for text in totals(ax)]
    assert len(boxes) == 3
    assert not any(box.y0 <= line <= box.y1 for box in boxes)
    assert min(box.y0 for box in boxes) == pytest.approx(line, abs=5)


@pytest.mark.sampled(6)
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


@pytest.mark.slow
def test_labels_that_do_not_fit_shrink_no_bars():
    ax = Figure(figsize=(4, 3), layout="constrained").subplots()
    df = candidates(2, num_gpus=range(1000, 1040))
    assert plot.breakdown(df, "num_gpus", ax=ax) is ax
    assert ax.get_figure(root=True).get_size_inches() == pytest.approx((4, 3))
    laid_out(ax)
    assert 5 < len(texts_of(ax.get_xticklabels())) < 40
    assert texts_of(ax.get_xticklabels(minor=True)) == []
    assert overlapping(ax.get_xticklabels()) == []
    assert totals(ax) == []

    # Long names do not shrink the bars.
    def height(name):
        ax = laid_out(plot.breakdown(candidates(cluster=(name, name + "2", name + "3")), "cluster"))
        return ax.get_window_extent().height

    assert height("a" * 60) == pytest.approx(height("a"), rel=0.01)
