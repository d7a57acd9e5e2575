"""Timelines: bars are the operators of devices, and a wait is an idle device that runs once a transfer is there."""

from itertools import pairwise

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from results.frames import is_whole, laid_out, legend_texts, overlapping, texts_of

from dsx import pictures as plot
from dsx.errors import InputError, UnknownNameError
from dsx.pictures.timeline import MAX_DEVICES, Bar, Wait, merged_bars, union, waits

MS = 1e-3


def frames(ops, transfers=()):
    """Operators (device, start, end, kind) and transfers (source, destination, start, end), in ms."""
    columns = ["device", "start_s", "end_s", "kind"], ["source", "destination", "start_s", "end_s"]
    found = [pd.DataFrame(list(rows), columns=names) for rows, names in zip((ops, transfers), columns, strict=True)]
    for frame in found:
        frame[["start_s", "end_s"]] *= MS
    return found


# Device 1 is idle from 2 to 7: until 4 nothing is on its way, then a transfer that starts at 4.
OPS = [(0, 0, 4, "conv"), (0, 4, 10, "matmul"), (1, 0, 2, "add"), (1, 7, 9, "conv")]
TRANSFERS = [(0, 1, 4, 7), (0, 1, 1, 3)]


def spans_of(ax, colour):
    """[n, 2] starts and ends of the bars of a colour, on all devices, with the middle of their row."""
    found = []
    for bars in ax.collections:
        if np.allclose(bars.get_facecolor()[0], matplotlib.colors.to_rgba(colour)):
            for path in bars.get_paths():
                (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                found.append((round(left, 6), round(right, 6), round((top + bottom) / 2, 1)))
    return sorted(found)


def colour_of(ax, label):
    legend = ax.get_legend()
    at = [text.get_text() for text in legend.get_texts()].index(label)
    return legend.get_patches()[at].get_facecolor()


def test_bars_are_the_operators_and_transfers():
    ax = plot.timeline(*frames(OPS, TRANSFERS), 10 * MS, 8 * MS)
    assert spans_of(ax, colour_of(ax, "conv")) == [(0, 4, -0.1), (7, 9, 0.9)]
    assert spans_of(ax, colour_of(ax, "matmul")) == [(4, 10, -0.1)]
    assert spans_of(ax, colour_of(ax, "idle, waits for a transfer")) == [(4, 7, 0.9)]
    assert spans_of(ax, colour_of(ax, "transfer that is waited for")) == [(4, 7, 1.3)]
    assert (1, 3, 1.3) in spans_of(ax, colour_of(ax, "other transfers to the device"))
    assert ax.get_title(loc="left") == "one step of 4 operators on 2 devices: 10.0 ms, bound 8.00 ms, gap 20.0 %"
    assert ax.get_xlabel() == "step time [ms]" and ax.get_xlim() == (0, 10) and ax.get_ylim()[0] > ax.get_ylim()[1]
    assert texts_of(ax.get_yticklabels()) == ["device 0", "device 1"]
    assert [text.get_text().split("\n") for text in ax.texts] == [
        ["  idle 0 %", "  waits 0 %"],
        ["  idle 60 %", "  waits 30 %"],
    ]
    lines = {tuple(map(float, line.get_xdata())) for line in ax.lines}
    assert lines == {(4, 7), (8, 8)}, "from the sender to the wait, and the bound"


def test_kinds_spans_and_waits():
    ops = [(0, at, at + 20 - at, f"kind{at}") for at in range(20)]
    ax = plot.timeline(*frames(ops), 20 * MS)
    assert legend_texts(ax)[:6] == ["kind0", "kind1", "kind2", "kind3", "other operators", "idle, nothing is ready"]
    assert (
        "bound" not in legend_texts(ax) and ax.get_title(loc="left") == "one step of 20 operators on 1 device: 20.0 ms"
    )
    # Spans that overlap are one.
    start, end = np.array([5.0, 0.0, 1.0, 9.0, 3.0]), np.array([6.0, 2.0, 3.0, 9.0, 4.0])
    assert union(start, end).tolist() == [[0.0, 4.0], [5.0, 6.0]]
    assert union(start, end, 1.0).tolist() == [[0.0, 6.0]]
    assert union(start[:0], end[:0]).shape == (0, 2)
    # A wait ends with a transfer and begins with it or where the device is idle.
    busy = np.array([[2.0, 4.0], [6.0, 7.0], [9.0, 12.0]])
    sent, arrived = np.array([0.5, 3.0, 5.0, 8.0]), np.array([2.0, 6.0, 6.0, 8.5])
    found = waits(busy, sent, arrived, np.array([1, 2, 3, 4]), 12.0)
    assert found == [Wait(0.5, 2.0, 0.5, 1), Wait(4.0, 6.0, 3.0, 2)]


def test_operators_too_short_to_be_seen_are_one_bar_of_the_longest_kind():
    start = np.arange(100) * 1.0
    kinds = ["a" if op % 4 else "b" for op in range(100)]
    bars = merged_bars(start, start + 1.0, kinds, 10.0)
    assert all(bar.kind == "a" and bar.end_s - bar.start_s >= 10.0 for bar in bars) and len(bars) == 10
    assert bars[0].start_s == 0.0 and bars[-1].end_s == 100.0
    assert all(one.end_s == other.start_s for one, other in pairwise(bars))
    apart = merged_bars(np.array([0.0, 1.0, 30.0, 70.0]), np.array([1.0, 1.0, 70.0, 90.0]), ["a", "c", "b", "b"], 10.0)
    assert apart == [Bar(0.0, 1.0, "a"), Bar(30.0, 90.0, "b")]
    # A gap that cannot be seen is not left open.
    assert merged_bars(np.array([0.0, 51.0]), np.array([50.0, 90.0]), ["a", "b"], 10.0) == [
        Bar(0.0, 50.0, "a"),
        Bar(50.0, 90.0, "b"),
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("devices", [1, 12])
def test_large_steps_are_legible_and_small(devices, tmp_path):
    rng = np.random.default_rng(0)
    start = np.sort(rng.random(6_000)) * 0.3
    ops = pd.DataFrame(
        {
            "device": rng.integers(0, devices, 6_000),
            "start_s": start,
            "end_s": start + 2e-5,
            "kind": rng.choice([f"a rather long name of a kind {one}" for one in range(30)], 6_000),
        }
    )
    ends = rng.integers(0, devices, (2_000, 2))
    transfers = pd.DataFrame({"source": ends[:, 0], "destination": ends[:, 1], "start_s": start[:2_000]})
    transfers["end_s"] = transfers["start_s"] + 1e-4
    ax = laid_out(plot.timeline(ops, transfers, 0.3, 0.2))
    assert is_whole(ax) and overlapping([*ax.get_yticklabels(), *ax.texts]) == []
    assert sum(len(bars.get_paths()) for bars in ax.collections) <= devices * 3_000
    plot.save(ax, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").stat().st_size < 400_000


def test_axes_and_what_cannot_be_drawn():
    axis = Figure().subplots()
    assert plot.timeline(*frames([(0, 0, 0, "none")]), 0.0, ax=axis) is axis
    assert axis.get_title(loc="left").startswith("one step of 1 operator on 1 device: 0")
    # What cannot be drawn.
    ops, transfers = frames(OPS, TRANSFERS)
    with pytest.raises(UnknownNameError, match="unknown column 'kind'"):
        plot.timeline(ops.drop(columns="kind"), transfers, 1.0)
    with pytest.raises(UnknownNameError, match="unknown column 'destination'"):
        plot.timeline(ops, transfers.drop(columns="destination"), 1.0)
    ops.loc[0, "device"] = MAX_DEVICES
    with pytest.raises(InputError, match="65 devices are too many for a picture, which holds 64"):
        plot.timeline(ops, transfers, 1.0)
