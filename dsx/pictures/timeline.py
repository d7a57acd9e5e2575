"""The stages of a plan, and the timeline of a step: what each device runs and when.

The stages of one plan: a bar for the time of each, above the GPUs of a replica and the links between the stages.

Stages in one box share a fast domain; overlapping boxes are the domains of a stage that has several. A line below the
boxes joins the stages that share a unit of an outer tier, one row for each tier. The link between two stages is named
between them if there is room.

The bars of a timeline: neighbours merged until each is wide enough to be seen, and the waits for transfers.

A step has thousands of operators, most of them shorter than a pixel. Operators that follow each other without a visible
gap become bars of at least the least width, and a bar has the kind that takes most of it.

The timeline of a step: what each device runs and when, and for which transfers it waits.

A device has a row of bars, the operators, and a thin one below, the transfers to it. Where an idle device runs as soon
as a transfer has arrived it has waited for that, which both rows show in the colour of waiting; the longest waits have
a line from the device that sends. What is empty in the upper row is idle for another reason: nothing was ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsx.config.topology import INNERMOST
from dsx.errors import InputError
from dsx.pictures.axes import FigureLayout, name_text, scale_of
from dsx.pictures.breakdown import STACKS, PartStyle
from dsx.plans.plan import Plan
from dsx.results.frames import require
from dsx.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from dsx.pricing.one_plan import PlanStage


MAX_STAGES = 64
_BAR_HEIGHT = 2.4  # of the bars, in inches
_BAR = 0.75
_TIME = STACKS["time"].parts
# Lowest first. Communication inside a stage is hatched.
_PARTS = {
    "compute_s": PartStyle("compute and memory access", _TIME["compute_s"].colour),
    "comm_s": PartStyle("communication", _TIME["tp_comm_s"].colour, _TIME["tp_comm_s"].hatch),
    "recompute_s": _TIME["recompute_s"],
}
_ON_ANYTHING: dict[str, Any] = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.0}}
_TITLE = 10.0  # points
_LEGEND = 140.0  # points: the least width of the legend
_NUMBER, _LINK = 8.0, 7.0  # points, of fonts
_LETTER = 0.62  # the width of a letter, in heights of the font
_BOX, _LINK_ROW = 0.62, 0.17  # inches: the height of a box, and of a row below
_BEHIND = (0.05, 0.045)  # from a box to the one behind it: stages to the right, inches up
_MOST_BEHIND = 2
_LEAST_GAP = 5.0  # points between lines
_EDGE = 0.47  # from the middle of a stage, which is 1 wide, to each side of its box


@dataclass(frozen=True, slots=True)
class Unit:
    """The placement of the stages of a replica on the units of a tier."""

    tier: str
    stages: int  # that share a unit, or the same units if a stage has several
    per_stage: int  # units of one stage


@dataclass(frozen=True, slots=True)
class StagePlacement:
    """The placement of the stages of a replica on the network."""

    gpus: int  # of a stage in each of its fast domains
    domain: Unit
    outer: tuple[Unit, ...]  # of the tiers between the fast domain and the outermost one, innermost first
    outermost: str


def placement_of(plan: Plan, tiers: Sequence[str]) -> StagePlacement:
    """Return the placement of the stages of a plan; `tiers` are the names of all tiers, the fast domain first."""

    def ranks(suffix: str) -> int:
        return plan[f"tp{suffix}"] * plan[f"tp2{suffix}"] * plan[f"cp{suffix}"]

    units = [Unit(tier, plan[f"pp_{tier}"], ranks("") // ranks(f"_{tier}")) for tier in tiers[:-1]]
    return StagePlacement(ranks(f"_{tiers[0]}"), units[0], tuple(units[1:]), tiers[-1])


def stages(found: "Sequence[PlanStage]", placement: StagePlacement, title: str) -> "Axes":
    """Draw the stages of a plan; return the upper axis.

    Args:
        found: the stages.
        placement: of the stages of one replica.
        title: the title of the picture.

    Raises InputError for more than `MAX_STAGES` stages.
    """
    if len(found) > MAX_STAGES:
        raise InputError(f"{len(found)} stages are too many for a picture, which holds {MAX_STAGES}; --json has all")
    width = float(np.clip(0.62 * len(found), 3.4, 11.0))
    longest = max(len(_link(stage)) for stage in found)
    room = 72 * width / len(found)
    linked = 0 < longest * _LETTER * _LINK <= room
    low = _LINK_ROW * (linked + len(placement.outer))
    layout = FigureLayout.new(width, _BAR_HEIGHT, _BOX + low)
    above, below = layout.axes
    _draw_bars(above, found)
    # The layout makes no room for a title that is too wide; on the right it may be above the legend.
    letters = int((72 * width + _LEGEND) / (_LETTER * _TITLE))
    lines = [line for part in name_text(title).split("\n") for line in wrap(part, letters)]
    above.set_title("\n".join(lines), loc="left", fontsize=_TITLE)
    _draw_domains(below, found, placement, room)
    if linked:
        _draw_links(below, found)
    _draw_outer_tiers(below, len(found), placement, -_LINK_ROW * linked, room)
    below.set(ylim=(-low, _BOX), yticks=[])
    layout.settle()
    return above


def _draw_bars(ax: "Axes", found: "Sequence[PlanStage]") -> None:
    places = np.arange(len(found))
    top = np.zeros(len(found))
    for name, part in _PARTS.items():
        heights = 1e3 * np.array([getattr(stage, name) for stage in found])
        if heights.any():
            style: dict[str, Any] = {"facecolor": part.colour, "edgecolor": part.hatch, "linewidth": 0.0}
            ax.bar(places, heights, _BAR, bottom=top, label=part.label, hatch="\\\\\\" if part.hatch else None, **style)
            top = top + heights
    slowest = float(top.max())
    for place, stage in enumerate(found):
        # At the foot of the bar, on white, so that it can be read on any bar.
        ax.text(place, 0.03 * slowest, f"{stage.num_layers}", ha="center", size=8, **_ON_ANYTHING)
    ax.axhline(slowest, color="black", linestyle="--", linewidth=0.8, label="bottleneck")
    ax.set(xlim=(-0.6, len(found) - 0.4), ylim=(0.0, 1.08 * slowest))
    ax.set_ylabel("time of a microbatch [ms]")
    ax.tick_params(axis="x", length=0, labelbottom=False)
    ax.plot([], [], " ", label="number: layers of the stage")
    handles, labels = ax.get_legend_handles_labels()
    outside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "frameon": False}
    ax.legend(handles[::-1], labels[::-1], fontsize="small", **outside)


def _draw_domains(ax: "Axes", found: "Sequence[PlanStage]", placement: StagePlacement, room: float) -> None:
    """Draw the boxes, in inches, and number the stages; each stage has `room` points."""
    from matplotlib.patches import Rectangle

    domain = placement.domain
    behind = min(domain.per_stage - 1, _MOST_BEHIND)
    style: dict[str, Any] = {"facecolor": "#eeeeee", "edgecolor": "#555555", "linewidth": 0.8}
    height = _BOX - 0.06 - _BEHIND[1] * behind
    for first in range(0, len(found), domain.stages):
        width = min(domain.stages, len(found) - first) - 2 * (0.5 - _EDGE) - _BEHIND[0] * behind
        for back in range(behind, -1, -1):
            at = (first - _EDGE + _BEHIND[0] * back, 0.03 + _BEHIND[1] * back)
            ax.add_patch(Rectangle(at, width, height, **style))
    text = f"{domain.per_stage} x {placement.gpus}" if behind else f"{placement.gpus}"
    turned = 90 if len(text) * _LETTER * _NUMBER > 0.8 * room else 0
    for place in range(len(found)):
        ax.text(
            place - _BEHIND[0] * behind / 2,
            0.03 + height / 2,
            text,
            ha="center",
            va="center",
            size=_NUMBER,
            rotation=turned,
        )
    counted = "domains x GPUs of a stage" if behind else "GPUs of a stage"
    _say(ax, 0.7 * _BOX, f"{counted}, one replica")
    _say(ax, 0.3 * _BOX, "overlapping boxes: NVLink domains of a stage" if behind else "a box: an NVLink domain")
    step = max(1, len(found) // 16)
    ax.set_xticks(range(0, len(found), step), labels=[str(place + 1) for place in range(0, len(found), step)])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("stage")
    for side in ("top", "right", "left", "bottom"):
        ax.spines[side].set_visible(False)


def _link(stage: "PlanStage") -> str:
    """Return the name of the link from the previous stage: the tier, or NVLink for that of the fast domain."""
    return "NVLink" if stage.link == INNERMOST else stage.link or ""


def _draw_links(ax: "Axes", found: "Sequence[PlanStage]") -> None:
    for place, stage in enumerate(found):
        if stage.link:
            ax.text(place - 0.5, -_LINK_ROW / 2, _link(stage), ha="center", va="center", size=_LINK)
    _say(ax, -_LINK_ROW / 2, "the link between stages")


def _draw_outer_tiers(ax: "Axes", count: int, placement: StagePlacement, top: float, room: float) -> None:
    """Draw a row of lines for each tier between the fast domain and the outermost one, downwards from `top`."""
    end = 0.5 - max(0.5 - _EDGE, _LEAST_GAP / 2 / room)
    for row, unit in enumerate(placement.outer):
        low = top - _LINK_ROW * (row + 0.5)
        for first in range(0, count, unit.stages):
            last = min(first + unit.stages, count) - 1
            ends = (first - end, last + end)
            ax.plot(ends, (low, low), color="#555555", linewidth=1.2, solid_capstyle="butt", marker="|", markersize=5.0)
        several = f", {unit.per_stage} of a stage" if unit.per_stage > 1 else ""
        _say(ax, low, f"a line: a unit of {unit.tier}{several}")


def _say(ax: "Axes", height: float, text: str) -> None:
    """Write a text to the right of the axis, at a height in inches."""
    ax.text(1.0, height, f"  {text}", transform=ax.get_yaxis_transform(), va="center", size=_NUMBER)


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
    found: list[Bar] = []
    start = end = 0.0
    shares: dict[str, float] = {}

    def close() -> None:
        if shares:
            found.append(Bar(start, end, max(shares.items(), key=lambda share: (share[1], share[0]))[0]))

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
    return found


def union(start_s: Times, end_s: Times, least_s: float = 0.0) -> Spans:
    """Return the spans that any of some spans covers, [n, 2]; those that are nearer than `least_s` are joined."""
    found: list[list[float]] = []
    for at in np.argsort(start_s, kind="stable").tolist():
        begin, end = float(start_s[at]), float(end_s[at])
        if not end > begin:
            continue
        if found and begin - found[-1][1] <= least_s:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return np.array(found).reshape(-1, 2)


def waits(busy: Spans, sent_s: Times, arrived_s: Times, source: NDArray[Any], longest_s: float) -> list[Wait]:
    """Return the waits of a device for transfers to it, of which [n] times and sources are given.

    A device waits if it is idle until a transfer ends, and then runs. It waits from the start of the transfer, or from
    where it is idle; of several transfers that end together, for the one that starts first.
    """
    slack = _ROUNDING * longest_s
    order = np.lexsort((sent_s, arrived_s))
    ends = arrived_s[order]
    found: list[Wait] = []
    idle = 0.0
    for begin, end in busy.tolist():
        first, last = np.searchsorted(ends, [begin - slack, begin + slack])
        if begin - idle > slack and last > first:
            one = int(min(order[first:last], key=lambda at: (sent_s[at], at)))
            found.append(Wait(max(idle, float(sent_s[one])), begin, float(sent_s[one]), int(source[one])))
        idle = end
    return found


MAX_DEVICES = 64
_WIDTH = 9.0  # of the axis, in inches
_DEVICE_HEIGHT = (0.3, 0.66)  # the height of a device in inches: the least, and the most
_AXIS_HEIGHT = (1.9, 8.0)  # of the axis: the least, so that it is not much lower than the legend, and the most
_SHARES = 68.0  # points: the width of the texts on the right
_LEAST = 1 / 800  # of the step: what is narrower cannot be seen
_KINDS = ("#142a5c", "#4f8cc9", "#d4b060", "#555555")  # of the kinds that take most time, the most first
_OTHER, _TRANSFER, _IDLE = "#d9d9d9", "#bbbbbb", "#f7f7f7"
_OTHERS = "other operators"
_WAITED = "#a63a17"
_WAIT: dict[str, Any] = {"facecolor": "#fae6dc", "edgecolor": "#cf7a57", "hatch": "\\\\\\\\", "linewidth": 0.0}
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
    ops: "pd.DataFrame",
    transfers: "pd.DataFrame",
    makespan_s: float,
    bound_s: float | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
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
    size, label = scale_of(ops, "step_time_s", np.array([longest]))
    layout = FigureLayout.of(
        ax, _WIDTH, max(count * float(np.clip(_AXIS_HEIGHT[1] / count, *_DEVICE_HEIGHT)), _AXIS_HEIGHT[0])
    )
    axis = layout.axes[0]
    for device, row in enumerate(rows):
        _draw_row(axis, device, row, colours, longest, size)
        idle, waiting = longest - row.busy_s, sum(wait.until_s - wait.from_s for wait in row.waits)
        text = f"  idle {100 * idle / longest:.0f} %\n  waits {100 * waiting / longest:.0f} %"
        axis.text(1.0, device, text, transform=axis.get_yaxis_transform(), va="center", size=8)
    _draw_lines(axis, rows, longest, size)
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


def _colours(ops: "pd.DataFrame") -> dict[str, str]:
    """Return the colours of the kinds that take most time, the most first, and that of the others if there are any."""
    seconds: dict[str, float] = {}
    lasts = _seconds(ops, "end_s") - _seconds(ops, "start_s")
    for kind, own in zip(require(ops, "kind"), lasts.tolist(), strict=True):
        seconds[str(kind)] = seconds.get(str(kind), 0.0) + own
    ordered = [kind for kind in sorted(seconds, key=lambda kind: (-seconds[kind], kind)) if seconds[kind] > 0.0]
    if len(ordered) <= len(_KINDS):
        return dict(zip(ordered, _KINDS, strict=False))
    return dict(zip(ordered, _KINDS, strict=False)) | {_OTHERS: _OTHER}


def _seconds(df: "pd.DataFrame", column: str) -> Times:
    """Return a column of numbers; one of a frame without rows may have any type."""
    return require(df, column).astype(float)


def _row(ops: "pd.DataFrame", transfers: "pd.DataFrame", device: int, longest: float, colours: dict[str, str]) -> _Row:
    own, to = require(ops, "device") == device, require(transfers, "destination") == device
    start, end = _seconds(ops, "start_s")[own], _seconds(ops, "end_s")[own]
    kinds = [kind if kind in colours else _OTHERS for kind in map(str, require(ops, "kind")[own])]
    busy = union(start, end)
    sent, arrived = _seconds(transfers, "start_s")[to], _seconds(transfers, "end_s")[to]
    return _Row(
        merged_bars(start, end, kinds, longest * _LEAST),
        union(sent, arrived, longest * _LEAST),
        waits(busy, sent, arrived, require(transfers, "source")[to], longest),
        float((busy[:, 1] - busy[:, 0]).sum()),
    )


def _draw_row(ax: "Axes", device: int, row: _Row, colours: dict[str, str], longest: float, size: float) -> None:
    """Draw the bars of a device, its transfers, and its waits in both rows."""
    ops, arriving = (device + _OPS[0], _OPS[1]), (device + _ARRIVING[0], _ARRIVING[1])
    ax.broken_barh([(0.0, longest / size)], ops, facecolor=_IDLE, edgecolor="#aaaaaa", linewidth=0.5)
    for kind, colour in colours.items():
        spans = [(bar.start_s / size, (bar.end_s - bar.start_s) / size) for bar in row.bars if bar.kind == kind]
        if spans:
            ax.broken_barh(spans, ops, facecolor=colour, linewidth=0.0)
    if len(row.arriving):
        spans = [(start / size, (end - start) / size) for start, end in row.arriving.tolist()]
        ax.broken_barh(spans, arriving, facecolor=_TRANSFER, linewidth=0.0)
    seen = [wait for wait in row.waits if wait.until_s - wait.from_s >= longest * _LEAST]
    if seen:
        spans = [(wait.from_s / size, (wait.until_s - wait.from_s) / size) for wait in seen]
        ax.broken_barh(spans, ops, **_WAIT)
        spans = [(wait.sent_s / size, (wait.until_s - wait.sent_s) / size) for wait in seen]
        ax.broken_barh(spans, arriving, facecolor=_WAITED, linewidth=0.0)


def _draw_lines(ax: "Axes", rows: Sequence[_Row], longest: float, size: float) -> None:
    """Draw a line for each of the longest waits, from when and where its transfer starts to where it is waited for."""
    found = [(wait.until_s - wait.from_s, device, wait) for device, row in enumerate(rows) for wait in row.waits]
    for lasts, device, wait in sorted(found, key=lambda one: (-one[0], one[1], one[2].until_s))[:_LINES]:
        if lasts < longest * _LEAST:
            break
        ends = (wait.sent_s / size, wait.until_s / size), (wait.source + _OPS[0] + _OPS[1], device + _ARRIVING[0])
        ax.plot(*ends, color="black", linewidth=1.0, marker="o", markersize=3.0, markevery=[0])


def _draw_legend(ax: "Axes", colours: dict[str, str], bounded: bool, left: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=colour, label=name_text(kind)) for kind, colour in colours.items()]
    handles += [
        Patch(facecolor=_IDLE, edgecolor="#aaaaaa", linewidth=0.5, label="idle, nothing is ready"),
        Patch(label="idle, waits for a transfer", **_WAIT),
        Patch(facecolor=_WAITED, label="transfer that is waited for"),
        Patch(facecolor=_TRANSFER, label="other transfers to the device"),
        Line2D([], [], color="black", linewidth=1.0, marker="o", markersize=3.0, label="sender in the longest waits"),
    ]
    if bounded:
        handles.append(Line2D([], [], color="black", linestyle="--", linewidth=1.2, label="bound"))
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (left, 1.02), "frameon": False}
    ax.legend(handles=handles, fontsize="small", **place)
