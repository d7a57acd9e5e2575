"""Fronts: all rows, and those that none beats."""

import itertools

import numpy as np
import pandas as pd
import pytest
from results.frames import candidates, is_whole, laid_out, overlapping, title_of

from dsx import pictures as plot
from dsx.errors import InputError, UnknownNameError
from dsx.pictures.front import MAX_POINTS, named_plans
from dsx.results.frames import pareto


def table(n=100, spread=2.0, **columns):
    rng = np.random.default_rng(0)
    time = 10 ** rng.uniform(0, spread, n)
    frame = pd.DataFrame(
        {
            "strategy": pd.Categorical.from_codes(rng.integers(0, 3, n), list("abc")),
            "step_time_s": time.astype(np.float32),
            "peak_bytes": (rng.uniform(1, 2, n) * 1e11).astype(np.float32),
            "mfu": (1 / time).astype(np.float32),
            "reject": (rng.random(n) < 0.3).astype(np.int64),
        }
    )
    return frame.assign(**columns)


def words(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_axes_have_units_and_scales():
    ax = plot.front(table())
    assert ax.get_xlabel() == "step time [s]"
    assert ax.get_ylabel() == "peak memory [GB]"
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "linear")
    wide = table(peak_bytes=np.geomspace(1e9, 1e12, 100), reject=0, step_time_s=np.linspace(2.0, 1.0, 100))
    assert plot.front(wide).get_yscale() == "log"


@pytest.mark.parametrize(
    ("factor", "label"), [(1e-6, "[µs]"), (1e-3, "[ms]"), (60, "[min]"), (3600, "[h]"), (86400, "[days]")]
)
def test_units_follow_the_values(factor, label):
    df = table(spread=0.3)
    ax = plot.front(df.assign(step_time_s=df["step_time_s"] * factor))
    assert ax.get_xlabel() == f"step time {label}"
    assert 1 <= np.median(np.asarray(ax.collections[0].get_offsets())[:, 0]) <= 3


def test_units_and_places_of_a_front():
    df = table(reject=0)
    slow = df.assign(step_time_s=df["step_time_s"] * 1e4, peak_bytes=df["peak_bytes"] * 10)
    ax = plot.front(pd.concat([df, slow, slow, slow], ignore_index=True))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step time [s]", "peak memory [GB]")
    # Nothing hides the front.
    df = table()
    same = pd.concat([df.assign(strategy=name) for name in "abc"], ignore_index=True)
    ax = plot.front(same.assign(strategy=pd.Categorical(same["strategy"])), by="strategy")
    sizes = [line.get_markersize() for line in ax.lines[1:]]
    assert len(sizes) == 3
    assert sizes == sorted(sizes, reverse=True)
    ax.get_figure(root=True).canvas.draw()
    assert ax.get_legend().get_window_extent().y0 >= ax.get_window_extent().y1


@pytest.mark.parametrize("spread", [0.3, 2.0, 3.5, 6.0])
def test_labels_do_not_overlap(spread):
    ax = plot.front(table(spread=spread))
    ax.get_figure(root=True).canvas.draw()
    low, high = ax.get_xlim()
    boxes = [
        label.get_window_extent()
        for place, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
        if low <= place <= high
    ]
    assert len(boxes) >= 3
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_columns_lines_and_markers_of_a_front():
    df = table(cost=np.arange(1.0, 101.0), training_days=np.ones(100), tp_comm_s=np.ones(100))
    ax = plot.front(df, "tp_comm_s", "-mfu")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("TP communication time [s]", "MFU")
    ax = plot.front(df, "training_days", "cost")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("training time [days]", "cost")
    # Line is the front.
    df = table()
    ax = plot.front(df, "step_time_s", "-mfu")
    best = pareto(df, "step_time_s", "-mfu")
    assert len(best) > 0
    np.testing.assert_allclose(ax.lines[0].get_xdata(), best["step_time_s"])
    assert ax.lines[0].get_drawstyle() == "steps-post"
    assert f"front ({len(best)})" in words(ax)
    # Every category has its marker.
    df = table()
    ax = plot.front(df, by="strategy")
    best = pareto(df[df["step_time_s"] <= 2 * df["step_time_s"][df["reject"] == 0].min()], "step_time_s", "peak_bytes")
    found = sorted(best["strategy"].unique())
    markers = ax.lines[1:]
    assert len(markers) == len(found)
    assert len({line.get_marker() for line in markers}) == len(found)
    assert sum(len(line.get_xdata()) for line in markers) == len(best)
    assert [w.split()[2] for w in words(ax) if w.startswith("front")] == found
    # Many points are thinned and it says so.
    ax = plot.front(table(50_000, spread=0.2))
    assert sum(len(c.get_offsets()) for c in ax.collections) <= MAX_POINTS
    assert sum("drawn)" in word for word in words(ax)) == 1
    # Unknown columns.
    with pytest.raises(UnknownNameError, match="did you mean 'strategy'"):
        plot.front(table(), by="stratgy")
    with pytest.raises(UnknownNameError, match="did you mean 'peak_bytes'"):
        plot.front(table(), y="peak_byte")


def points(ax):
    """What is drawn of the plans, as [n, 2]."""
    return np.concatenate([np.asarray(drawn.get_offsets()) for drawn in ax.collections])


def key(ax):
    (text,) = [text.get_text() for text in ax.texts if text.get_gid() == "plans"]
    return text.splitlines()


def names(ax):
    return [text.get_text() for text in ax.texts if text.get_weight() == "bold"]


def test_a_front_is_of_one_job_and_near_the_best():
    df = table(2_000, reject=0)
    least = df["step_time_s"].min()
    drawn = points(plot.front(df))
    assert len(drawn) == (df["step_time_s"] <= 2 * least).sum()
    assert drawn[:, 0].max() <= 2 * least
    faster = points(plot.front(df, "-mfu"))
    assert faster[:, 0].min() >= df["mfu"].max() / 2
    # A front is of one job and says which.
    df = candidates()
    ax = plot.front(df)
    own = df[(df["num_gpus"] == 4096) & (df["reject"] == 0)]
    assert len(points(ax)) == (own["step_time_s"] <= 2 * own["step_time_s"].min()).sum()
    assert title_of(ax) == (
        "step time against peak memory: no plan beats those on the line in both", "4,096 GPUs of near"
    )  # fmt: skip
    assert title_of(plot.front(df[df["num_gpus"] == 1024]))[1] == "1,024 GPUs of near"
    # A setting that is an objective may vary.
    df = candidates()
    ax = plot.front(df, "num_gpus", "training_days")
    assert set(points(ax)[:, 0]) == {1024, 2048, 4096}
    for gpus, own in df[df["reject"] == 0].groupby("num_gpus"):
        assert (points(ax)[:, 0] == gpus).sum() == (own["training_days"] <= 2 * own["training_days"].min()).sum()
    assert title_of(ax)[1] == "near"


def test_the_ends_and_the_knee_have_names():
    time, memory = np.array([1.0, 1.1, 1.2, 1.9]), np.array([10.0, 8.0, 3.0, 2.5]) * 1e10
    df = table(4, reject=0, step_time_s=time, peak_bytes=memory)
    ax = laid_out(plot.front(df))
    assert names(ax) == ["fastest", "knee", "leanest"]
    assert [line.split() for line in key(ax)] == [
        ["fastest", "1.00", "s", "100", "GB"],
        ["knee", "1.20", "s", "30.0", "GB"],
        ["leanest", "1.90", "s", "25.0", "GB"],
    ]
    assert names(plot.front(df[:1])) == ["fastest, leanest"]
    assert names(plot.front(df[:2])) == ["fastest", "leanest"]
    assert list(named_plans(df.assign(mfu=1 / time), "-mfu", "peak_bytes")) == ["best MFU", "knee", "leanest"]
    assert is_whole(ax)
    labels = [text for text in ax.texts if text.get_weight() == "bold"]
    assert overlapping([*labels, *ax.get_yticklabels(), ax.yaxis.label]) == []


def test_a_baseline_is_the_fastest_row_with_its_columns():
    df = candidates(200, num_gpus=(64,))
    rows = df[(df["reject"] == 0) & (df["tp"] == 8) & (df["cp"] == 2)]
    for given in ("tp=8 cp=2", {"tp": 8, "cp": 2}):
        (line,) = [line for line in plot.front(df, baseline=given).lines if line.get_label() == "baseline"]
        assert line.get_xdata() == pytest.approx([rows["step_time_s"].min() / 60])  # minutes
    with pytest.raises(InputError, match=r"no row has tp=7 \(known: 1, 2, 4, 8, 16, 32\)"):
        plot.front(df, baseline="tp=7")
    with pytest.raises(UnknownNameError, match="unknown column 'tq'"):
        plot.front(df, baseline="tq=7")
    # Without the columns of a plan nobody can say which is the plain one.
    assert not any("baseline" in word for word in words(plot.front(df)))
