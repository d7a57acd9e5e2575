"""The timeline of a step: what each device runs and when, and for which transfers it waits.

A device has a row of bars, the operators, and a thin one below, the transfers to it. Where an idle device runs as soon
as a transfer has arrived it has waited for that, which both rows show in the colour of waiting; the longest waits have
a line from the device that sends. What is empty in the upper row is idle for another reason: nothing was ready. A step
has thousands of operators, most of them shorter than a pixel. Operators that follow each other without a visible gap
become bars of at least the least width, and a bar has the kind that takes most of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsx.errors import InputError
from dsx.pictures.figure import BESIDE, Axes, FigureLayout, Style
from dsx.pictures.shown_rows import axis_unit, name_text
from dsx.results.frames import require
from dsx.text import DataFrame
from dsx.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.artist import Artist


Times = NDArray[np.float64]  # [n] seconds
Spans = NDArray[np.float64]  # [n, 2] starts and ends in seconds, in order and disjoint
_ROUNDING = 1e-9  # of the longest time


class Bar(NamedTuple):
    """Operators of a device that are drawn as one."""

    start_s: float
    end_s: float
    kind: str


class Wait(NamedTuple):
    """A device is idle from one time to another one, and then runs since a transfer has arrived."""

    from_s: float
    until_s: float
    sent_s: float  # the start of the transfer
    source: int  # the device that sends


def merged_bars(start_s: Times, end_s: Times, kinds: Sequence[str], least_s: float) -> list[Bar]:
    """Return the bars of the operators of a device, [n] each; none of operators without time.

    Of the same kind, or as long as they are shorter than `least_s`, operators are one bar; gaps are left open if they
    are at least as long.
    """
    bars: list[Bar] = []
    start = end = 0.0
    shares: dict[str, float] = {}

    def close() -> None:
        if shares:
            bars.append(Bar(start, end, max(shares.items(), key=lambda share: (share[1], share[0]))[0]))

    order: list[int] = np.argsort(start_s, kind="stable").tolist()
    for op in order:
        begin, last, kind = float(start_s[op]), float(end_s[op]), kinds[op]
        if not last > begin:
            continue
        near = begin - end < least_s
        if not (shares and near and (end - start < least_s or set(shares) == {kind})):
            close()
            # A gap that is too short to be seen would be a white line.
            start, shares = (end if shares and near else begin), {}
        shares[kind] = shares.get(kind, 0.0) + last - begin
        end = last
    close()
    return bars


def union(start_s: Times, end_s: Times, least_s: float = 0.0) -> Spans:
    """Return the spans that any of some spans covers, [n, 2]; those that are nearer than `least_s` are joined."""
    spans: list[list[float]] = []
    for at in np.argsort(start_s, kind="stable").tolist():
        begin, end = float(start_s[at]), float(end_s[at])
        if not end > begin:
            continue
        if spans and begin - spans[-1][1] <= least_s:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([begin, end])
    return np.array(spans).reshape(-1, 2)


def waits(busy: Spans, sent_s: Times, arrived_s: Times, source: NDArray[np.int64], longest_s: float) -> list[Wait]:
    """Return the waits of a device for transfers to it, of which [n] times and sources are given.

    A device waits if it is idle until a transfer ends, and then runs. It waits from the start of the transfer, or from
    where it is idle; of several transfers that end together, for the one that starts first.
    """
    slack = _ROUNDING * longest_s
    order = np.lexsort((sent_s, arrived_s))
    ends = arrived_s[order]
    waits_of_device: list[Wait] = []
    idle = 0.0
    for begin, end in busy.tolist():
        first, last = np.searchsorted(ends, [begin - slack, begin + slack])
        if begin - idle > slack and last > first:
            at = int(min(order[first:last], key=lambda at: (sent_s[at], at)))
            waits_of_device.append(Wait(max(idle, float(sent_s[at])), begin, float(sent_s[at]), int(source[at])))
        idle = end
    return waits_of_device


MAX_DEVICES = 64
_WIDTH = 9.0  # of the axis, in inches
_DEVICE_HEIGHT = (0.3, 0.66)  # the height of a device in inches: the least, and the most
_AXIS_HEIGHT = (1.9, 8.0)  # of the axis: the least, so that it is not much lower than the legend, and the most
_SHARES = 68.0  # points: the width of the texts on the right
_LEAST = 1 / 800  # of the step: what is narrower cannot be seen
_KINDS = ("#142a5c", "#4f8cc9", "#d4b060", "#555555")  # of the kinds that take most time, the most first
_OTHER, _TRANSFER = "#d9d9d9", "#bbbbbb"
_OTHERS = "other operators"
_WAITED = "#a63a17"
_WAIT: Style = {"facecolor": "#fae6dc", "edgecolor": "#cf7a57", "hatch": "\\\\\\\\", "linewidth": 0.0}
_EMPTY: Style = {"facecolor": "#f7f7f7", "edgecolor": "#aaaaaa", "linewidth": 0.5}
_OPS, _ARRIVING = (-0.40, 0.55), (0.19, 0.16)  # top below the middle of a row, and height, in rows
_LINES = 12  # waits with a line


@dataclass(frozen=True)
class _Row:
    """What is drawn of a device."""

    bars: list[Bar]
    arriving: np.ndarray  # [n, 2] spans with transfers to it
    waits: list[Wait]
    busy_s: float


def timeline(
    ops: DataFrame,
    transfers: DataFrame,
    makespan_s: float,
    bound_s: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw what devices run, and the transfers that arrive at them.

    Short operators that follow each other are drawn as one, in the colour of the kind that takes most of its time.

    Args:
        ops: a row for each operator: `device`, numbers from 0 on; `start_s` and `end_s`; `kind`, which has a colour.
        transfers: a row for each transfer: the devices `source` and `destination`, `start_s` and `end_s`.
        makespan_s: the seconds of the step.
        bound_s: seconds that no placement can go below, if they are known.
        ax: the axis to draw on; by default one of a new figure.

    Raises UnknownNameError for a missing column, InputError for more than `MAX_DEVICES` devices.
    """
    devices = [require(ops, "device"), require(transfers, "source"), require(transfers, "destination")]
    count = 1 + int(max(column.max(initial=0) for column in devices))
    if count > MAX_DEVICES:
        raise InputError(f"{count} devices are too many for a picture, which holds {MAX_DEVICES}; --json has all")
    longest = makespan_s or 1e-6  # of an empty step
    colours = _colours(ops)
    rows = [_row(ops, transfers, device, longest, colours) for device in range(count)]
    _, size, label = axis_unit(ops, "step_time_s", np.array([longest]))
    height = max(count * float(np.clip(_AXIS_HEIGHT[1] / count, *_DEVICE_HEIGHT)), _AXIS_HEIGHT[0])
    layout = FigureLayout.of(ax, _WIDTH, height)
    axis = layout.axes[0]
    for device, row in enumerate(rows):
        _draw_row(axis, device, row, colours, longest, size)
        idle, waiting = longest - row.busy_s, sum(wait.until_s - wait.from_s for wait in row.waits)
        text = f"  idle {100 * idle / longest:.0f} %\n  waits {100 * waiting / longest:.0f} %"
        axis.text(1.0, device, text, transform=axis.get_yaxis_transform(), va="center", size=8)
    # From when and where the transfer starts to where it is waited for, of the longest waits.
    lines = [(wait.until_s - wait.from_s, device, wait) for device, row in enumerate(rows) for wait in row.waits]
    for lasts, device, wait in sorted(lines, key=lambda line: (-line[0], line[1], line[2].until_s))[:_LINES]:
        if lasts >= longest * _LEAST:
            ends = (wait.sent_s / size, wait.until_s / size), (wait.source + _OPS[0] + _OPS[1], device + _ARRIVING[0])
            axis.plot(*ends, color="black", linewidth=1.0, marker="o", markersize=3.0, markevery=[0])
    of = f"{len(ops):,} operator{'s' * (len(ops) != 1)} on {count} device{'s' * (count > 1)}"
    title = f"one step of {of}: {format_quantity(makespan_s, 's')}"
    if bound_s is not None:
        axis.axvline(bound_s / size, color="black", linestyle="--", linewidth=1.2)
        title += f", bound {format_quantity(bound_s, 's')}, gap {100 * max(makespan_s - bound_s, 0.0) / longest:.1f} %"
    axis.set(xlim=(0.0, longest / size), ylim=(count - 0.5, -0.5), xlabel=label)
    axis.set_title(title, loc="left", fontsize="medium")
    axis.set_yticks(range(count), labels=[f"device {device}" for device in range(count)])
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    _draw_legend(axis, colours, bound_s is not None, 1.0 + _SHARES / layout.room(axis)[0])
    layout.settle()
    return axis


def _colours(ops: DataFrame) -> dict[str, str]:
    """Return the colours of the kinds that take most time, the most first, and that of the others if there are any."""
    seconds: dict[str, float] = {}
    lasts = _seconds(ops, "end_s") - _seconds(ops, "start_s")
    for kind, time in zip(map(str, require(ops, "kind")), lasts.tolist(), strict=True):
        seconds[kind] = seconds.get(kind, 0.0) + time
    ordered = [kind for kind in sorted(seconds, key=lambda kind: (-seconds[kind], kind)) if seconds[kind] > 0.0]
    remaining = {_OTHERS: _OTHER} if len(ordered) > len(_KINDS) else {}
    return dict(zip(ordered, _KINDS, strict=False)) | remaining


def _seconds(df: DataFrame, column: str) -> Times:
    """Return a column of numbers; one of a frame without rows may have any type."""
    return require(df, column).astype(float)


def _row(ops: DataFrame, transfers: DataFrame, device: int, longest: float, colours: dict[str, str]) -> _Row:
    runs, to = require(ops, "device") == device, require(transfers, "destination") == device
    start, end = _seconds(ops, "start_s")[runs], _seconds(ops, "end_s")[runs]
    kinds = [kind if kind in colours else _OTHERS for kind in map(str, require(ops, "kind")[runs])]
    busy = union(start, end)
    sent, arrived = _seconds(transfers, "start_s")[to], _seconds(transfers, "end_s")[to]
    bars, arriving = merged_bars(start, end, kinds, longest * _LEAST), union(sent, arrived, longest * _LEAST)
    waited = waits(busy, sent, arrived, require(transfers, "source")[to], longest)
    return _Row(bars, arriving, waited, float((busy[:, 1] - busy[:, 0]).sum()))


def _draw_row(ax: Axes, device: int, row: _Row, colours: dict[str, str], longest: float, size: float) -> None:
    """Draw the bars of a device, its transfers, and its waits in both rows."""
    ops, arriving = (device + _OPS[0], _OPS[1]), (device + _ARRIVING[0], _ARRIVING[1])

    def draw(spans: Sequence[tuple[float, float]], where: tuple[float, float], style: Style) -> None:
        if spans:
            ax.broken_barh([(start / size, (end - start) / size) for start, end in spans], where, **style)

    draw([(0.0, longest)], ops, _EMPTY)
    for kind, colour in colours.items():
        spans = [(bar.start_s, bar.end_s) for bar in row.bars if bar.kind == kind]
        draw(spans, ops, {"facecolor": colour, "linewidth": 0.0})
    draw(row.arriving.tolist(), arriving, {"facecolor": _TRANSFER, "linewidth": 0.0})
    seen = [wait for wait in row.waits if wait.until_s - wait.from_s >= longest * _LEAST]
    draw([(wait.from_s, wait.until_s) for wait in seen], ops, _WAIT)
    draw([(wait.sent_s, wait.until_s) for wait in seen], arriving, {"facecolor": _WAITED, "linewidth": 0.0})


def _draw_legend(ax: Axes, colours: dict[str, str], bounded: bool, at: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [Patch(facecolor=colour, label=name_text(kind)) for kind, colour in colours.items()]
    handles += [
        Patch(label="idle, nothing is ready", **_EMPTY),
        Patch(label="idle, waits for a transfer", **_WAIT),
        Patch(facecolor=_WAITED, label="transfer that is waited for"),
        Patch(facecolor=_TRANSFER, label="other transfers to the device"),
        Line2D([], [], color="black", linewidth=1.0, marker="o", markersize=3.0, label="sender in the longest waits"),
    ]
    if bounded:
        handles.append(Line2D([], [], color="black", linestyle="--", linewidth=1.2, label="bound"))
    ax.legend(handles=handles, **(BESIDE | {"bbox_to_anchor": (at, 1.02)}))
