"""Bars: the parts of step time and memory of the fastest plan of each group of rows, and the stages of one plan.

In a breakdown a bar is one plan. Its parts are stacked in the order of the result columns. Their sum is the step time,
or the peak memory, and is written above the bar. Time and memory have separate axes: `breakdowns` puts one above the
other. Below the bars are the values of the grouping columns, and in small print the other choices that differ between
the plans: rows of a table with its heading to the left of the axis. Totals and values that are too wide are rotated;
small print that is too wide is left out, the placement first. Parts that are zero are left out, so any two parts may
become neighbours: in grey too they differ in lightness, or one of them is hatched.

The stages of a plan have a bar each for their time, above the GPUs of a replica and the links between the stages.
Stages in one box share a fast domain; overlapping boxes are the domains of a stage that has several. A line below the
boxes joins the stages that share a unit of an outer tier, one row for each tier. The link between two stages is named
between them if there is room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

import numpy as np

from dsx.config.topology import INNERMOST
from dsx.errors import InputError, UnknownNameError, one_text
from dsx.pictures.figure import BESIDE, Axes, FigureLayout, Style, figure_of, finite, is_wide, label_picture, text_sizes
from dsx.pictures.shown_rows import (
    NOTHING,
    Numbers,
    axis_unit,
    best_over,
    capacities,
    fastest,
    job_text,
    name_text,
    named,
    quantity_texts,
    refuse_many,
    value_texts,
    varied_settings,
    words,
)
from dsx.plans.plan import Plan
from dsx.results.frames import column_list, require
from dsx.text import DataFrame

if TYPE_CHECKING:
    from dsx.pricing.one_plan import PlanStage


@dataclass(frozen=True)
class PartStyle:
    """The style of a part of a stack: its label, its colour, and the colour of its hatch, None without one."""

    label: str
    colour: str
    hatch: str | None = None

    @property
    def bar(self) -> Style:
        """The style as keywords of matplotlib's `bar`."""
        style = {"facecolor": self.colour, "edgecolor": self.hatch, "linewidth": 0.0, "label": self.label}
        return style | {"hatch": _HATCH if self.hatch else None}


@dataclass(frozen=True)
class StackedParts:
    """The parts of a total by column, the lowest first; `share` labels an axis of shares of the total."""

    total: str
    share: str | None  # None if the parts are never drawn as shares
    parts: dict[str, PartStyle]


STACKS = {
    "time": StackedParts(
        "step_time_s",
        "share of the step [%]",
        {  # communication is hatched
            "compute_s": PartStyle("compute", "#142a5c"),
            "memory_s": PartStyle("memory access", "#4f8cc9"),
            "tp_comm_s": PartStyle("TP communication", "#a63a17", "#c8785c"),
            "cp_comm_s": PartStyle("CP communication", "#ee9c45", "#f8cc98"),
            "ep_comm_s": PartStyle("EP communication", "#551a4b", "#8a5a80"),
            "pp_comm_s": PartStyle("PP communication", "#e6c4dc", "#cf9cbd"),
            "dp_comm_s": PartStyle("DP communication", "#4f996a", "#86bd9b"),
            "bubble_s": PartStyle("pipeline bubble", "#e2e2e2"),
            "recompute_s": PartStyle("recompute", "#d4b060"),
            "optimizer_s": PartStyle("optimizer", "#555555"),
        },
    ),
    "memory": StackedParts(
        "peak_bytes",
        None,
        {
            "weight_bytes": PartStyle("weights", "#142a5c"),
            "gradient_bytes": PartStyle("gradients", "#4f8cc9"),
            "optimizer_bytes": PartStyle("optimizer state", "#555555"),
            "activation_bytes": PartStyle("activations", "#f5b15c"),
            "overhead_bytes": PartStyle("overhead", "#e6e6e6"),
        },
    ),
}

MAX_BARS = 60
_BAR = 0.75  # width of a bar; bars are 1 apart
_NARROWEST, _LETTER = 0.46, 0.075  # inches of a bar with its gap, and of a letter below it
_COMFORTABLE = 6.0  # inches to which bars are widened for the settings below them
_HEIGHTS = {"time": 2.8, "memory": 1.9}  # of the axes, in inches
# If one bar is this many times as high as another, the parts of the lower one cannot be distinguished.
_COMMON_RANGE = 20.0
_HATCH = "\\\\\\"  # of a part; rejected bars are hatched the other way
_FONT, _SMALL_FONT = 8.0, 6.5  # points
_PAD = 4.0  # points between axis and labels
_ABOVE = 2.0  # points between a bar and its total
_DEGREES = ("tp", "tp2", "cp", "ep", "pp", "dp")
_CHOICES = ("strategy", *_DEGREES, "vpp", "panels", "microbatch_size", "zero_stage", "zero_replicas", "recompute")
_CHOICES += ("stored_layers", "schedule", "offload", "order")


@dataclass(frozen=True)
class StackPicture:
    """What a picture of stacked parts shows of some rows, a bar for each."""

    label: str  # of the axis
    size: float | Numbers  # SI units of a unit of the axis; of each bar where parts are drawn as shares
    total: Numbers  # of each bar, in SI units
    parts: Sequence[tuple[PartStyle, Numbers]]  # those that are not zero in all bars, the lowest first, in SI units
    is_share: bool


def stack_picture(rows: DataFrame, of: str, shares: bool = False) -> StackPicture:
    """Return the stack of the "time" or the "memory" of rows; with `shares`, of unequal times the shares of each."""
    stack = STACKS[of]
    total = require(rows, stack.total)
    unit = axis_unit(rows, stack.total, total)
    columns = [(part, require(rows, column)) for column, part in stack.parts.items()]
    parts = [(part, values) for part, values in columns if values.any()]
    if shares and stack.share and is_wide(total, _COMMON_RANGE):
        return StackPicture(stack.share, total / 100.0, total, parts, True)
    return StackPicture(unit.label, unit.size, total, parts, False)


def breakdown(
    df: DataFrame,
    x: str | Sequence[str] = "num_gpus",
    ax: Axes | None = None,
    of: Literal["time", "memory"] = "time",
) -> Axes:
    """Draw the parts of the step time, or of the peak memory, of the fastest row for each value of `x`.

    The fastest row is the fastest feasible one; if there is none, the fastest rejected one, hatched. Parts that are
    zero in all bars are left out. If the slowest bar takes more than 20 times as long as the fastest, the parts of the
    time are drawn as shares. The memory is drawn with the capacity of the GPUs if that is known.

    Args:
        df: a result set, or rows of one.
        x: one or several columns; one bar for each combination of their values, in ascending order.
        ax: the axis to draw on; by default one of a new figure.
        of: the total to break down.

    Raises UnknownNameError for an unknown column, InputError for more than `MAX_BARS` bars.
    """
    if one_text("of", of, "time") not in STACKS:
        raise UnknownNameError("stack", of, STACKS)
    columns, rows = _bars(df, x)
    return _draw(FigureLayout.of(ax, _width(rows), _HEIGHTS[of]), [of], columns, rows)


def breakdowns(df: DataFrame, x: str | Sequence[str] = "num_gpus") -> Axes:
    """Draw the breakdown of the time above that of the memory, as `breakdown` does; return the upper axis."""
    columns, rows = _bars(df, x)
    return _draw(FigureLayout.new(_width(rows), *_HEIGHTS.values()), [*_HEIGHTS], columns, rows)


def _bars(df: DataFrame, x: str | Sequence[str]) -> tuple[list[str], DataFrame]:
    columns = column_list("x", x)
    if not columns:
        raise InputError("a breakdown needs a column whose values are its bars, for example 'num_gpus'")
    rows = fastest(df, columns)
    refuse_many(len(rows), MAX_BARS, "bars", columns)
    return columns, rows


def _width(rows: DataFrame) -> float:
    """Return the width of the axes in inches: bars as wide as the settings below them, where a page has room."""
    texts = [text for name in varied_settings(rows) for text in value_texts(rows, name, rows[name].tolist())]
    wide = max(_NARROWEST, _LETTER * max(map(len, texts), default=0))
    return float(np.clip(max(min(wide * len(rows), _COMFORTABLE), _NARROWEST * len(rows)), 2.0, 10.0))


def _draw(layout: FigureLayout, names: Sequence[str], columns: Sequence[str], rows: DataFrame) -> Axes:
    """Draw the named stack on each axis, and label the bars; return the upper axis."""
    tops = [_draw_stack(ax, rows, name) for ax, name in zip(layout.axes, names, strict=True)]
    for ax in layout.axes[:-1]:
        ax.tick_params("x", labelbottom=False, length=0)
    _label_bars(layout, rows, columns)
    # Last, because labels below a given axis take room from it.
    for ax, name, (top, capacity) in zip(layout.axes, names, tops, strict=True):
        total = STACKS[name].total
        _label_totals(layout, ax, top, capacity, quantity_texts(rows, total, require(rows, total).astype(float)))
    fits = require(rows, "reject") == 0
    title, over = NOTHING, ""
    if fits.any():
        totals = " and ".join(named(rows, STACKS[name].total) for name in names)
        title = f"{totals} by {', '.join(named(rows, column) for column in columns)}"
        over = best_over(rows, "bar", columns, "fastest")
        over += "" if fits.all() else "; hatched: none is feasible, the fastest rejected plan"
    label_picture(layout, title, [job_text(rows, columns), over])
    layout.settle()
    return layout.axes[0]


def _draw_stack(ax: Axes, rows: DataFrame, name: str) -> tuple[Numbers, Numbers]:
    """Draw the parts of each row; return [n] the tops of the bars, and [n] the capacities, NaN if none is drawn."""
    picture = stack_picture(rows, name, shares=True)
    places, rejected = np.arange(len(rows)), require(rows, "reject") != 0
    ax.yaxis.set_label_text(picture.label)
    if picture.is_share:
        ax.set_yticks(range(0, 101, 20))
    top = np.zeros(len(rows))
    for part, values in picture.parts:
        heights = values / picture.size
        ax.bar(places, heights, _BAR, bottom=top, **part.bar)
        top = top + heights
    # matplotlib leaves no margin if the highest part is zero, so add one here.
    highest = max(finite(top), default=0.0) or 1.0
    high = 1.05 * highest
    capacity = np.full(len(rows), np.nan)
    if name == "memory":
        capacity = capacities(rows) / picture.size
        if np.isfinite(capacity).any():
            # Across the bars at the capacity of their GPUs, with a gap where it is not known.
            edges = np.repeat(np.arange(len(capacity) + 1) - 0.5, 2)[1:-1]
            line: Style = {"color": "black", "linestyle": "--", "linewidth": 1.0, "label": "HBM capacity"}
            ax.plot(edges, np.repeat(capacity, 2), **line)
        # A capacity far above all bars would flatten them.
        high = min(max([high, *(1.05 * finite(capacity))]), 2.0 * highest)
    ax.set(xlim=(-0.6, max(len(rows), 1) - 0.4), ylim=(0.0, high))
    if rejected.any():
        style: Style = {"facecolor": (1, 1, 1, 0.5), "edgecolor": "black", "hatch": "////", "linewidth": 0.0}
        ax.bar(places[rejected], top[rejected], _BAR, label="rejected", **style)
    handles, labels = ax.get_legend_handles_labels()
    # In the order of the stack, and outside of the bars.
    ax.legend(handles[::-1], labels[::-1], **BESIDE)
    return top, capacity


def _label_totals(layout: FigureLayout, ax: Axes, tops: Numbers, lines: Numbers, texts: Sequence[str]) -> None:
    """Write a text above each bar, whose top is at `tops` [n], and above the line at `lines` [n] that would cross it.

    The y axis grows to make room. Texts that are too wide are rotated; all are left out if they would still touch.
    """
    from matplotlib.transforms import offset_copy

    above = offset_copy(ax.transData, figure_of(ax), y=_ABOVE, units="points")
    style = {"transform": above, "ha": "center", "va": "bottom", "fontsize": _SMALL_FONT, "color": "0.25"}
    labels = [ax.text(place, top, text, **style) for place, (top, text) in enumerate(zip(tops, texts, strict=True))]
    places = range(len(labels))
    if len(layout.without_overlap(ax.xaxis, places, labels)) < len(labels):
        for label in labels:
            label.set_rotation(90)
    if not labels or len(layout.without_overlap(ax.xaxis, places, labels)) < len(labels):
        # With only a few of them, each would extend over neighbouring bars.
        for label in labels:
            label.remove()
        return
    # On a very low axis the bars keep half of the height.
    heights = np.array([height for _, height in text_sizes(labels)]) + 2 * _ABOVE
    shares = np.minimum(heights / layout.room(ax)[1], 0.5)
    ax.set_ylim(top=max(ax.get_ylim()[1], *(tops / (1.0 - shares))))
    crossed = (tops <= lines) & (lines <= tops + shares * ax.get_ylim()[1])
    feet = np.where(crossed, lines, tops)
    ax.set_ylim(top=max(ax.get_ylim()[1], *(feet / (1.0 - shares))))
    for label, foot in zip(labels, feet, strict=True):
        label.set_y(foot)


def _label_bars(layout: FigureLayout, rows: DataFrame, columns: Sequence[str]) -> None:
    """Write below the bars the values of `columns`, and in small print the other choices that differ between plans."""
    ax, places = layout.axes[-1], range(len(rows))
    values = [value_texts(rows, column, rows[column].tolist()) for column in columns]
    ax.tick_params("x", labelsize=_FONT, pad=_PAD, length=0)
    between = "\n"
    if layout.fit_ticks(ax.xaxis, places, ["\n".join(texts) for texts in zip(*values, strict=True)]):
        # Rotated lines would be side by side, so join them.
        between = ", "
        layout.fit_ticks(ax.xaxis, places, [", ".join(texts) for texts in zip(*values, strict=True)])
    _heading(ax, between.join(named(rows, column) for column in columns), _PAD, _FONT)
    # The title has the settings that all bars share.
    shown = [*varied_settings(rows), *(name for name in _CHOICES if _differs(rows, name))]
    plan = {named(rows, name): value_texts(rows, name, rows[name].tolist()) for name in shown if name not in columns}
    # The members of each axis in a fast domain, as in "4 TP, 2 DP", if any bar differs in them.
    shares = {f"{axis}_nvs": words(axis) for axis in _DEGREES}
    shares = {name: axis for name, axis in shares.items() if name in rows.columns and name not in columns}
    placement: dict[str, list[str]] = {}
    if any(_differs(rows, name) for name in shares):
        members = [zip(shares.values(), bar, strict=True) for bar in rows[[*shares]].to_numpy().tolist()]
        lines = [[f"{share} {axis}" for axis, share in bar if share > 1] for bar in members]
        placement = {words("nvs"): ["\n".join(texts) or "-" for texts in lines]}
    if not _small_print(layout, plan | placement) and placement:
        _small_print(layout, plan)


def _differs(rows: DataFrame, column: str) -> bool:
    """Return whether a column differs between the bars; if there is only one bar, whether its value is above 1."""
    values = set(rows[column]) if column in rows.columns else set()
    return len(values) > 1 or (len(rows) == 1 and not values <= {0, 1})


def _small_print(layout: FigureLayout, table: dict[str, list[str]]) -> bool:
    """Write a table (heading -> cells) below the labels of the bars; return whether there was room for it."""
    if not table:
        return True
    ax = layout.axes[-1]
    pad = _PAD + max(height for _, height in text_sizes(ax.get_xticklabels())) + 3.0
    texts = ["\n".join(cells) for cells in zip(*table.values(), strict=True)]
    # Minor ticks at the positions of the major ones give a second row of labels.
    ax.xaxis.remove_overlapping_locs = False
    ax.set_xticks(range(len(texts)), labels=texts, minor=True)
    ax.tick_params("x", which="minor", labelsize=_SMALL_FONT, labelcolor="0.25", pad=pad, length=0)
    fits = len(layout.without_overlap(ax.xaxis, range(len(texts)), ax.get_xticklabels(minor=True))) == len(texts)
    if fits:
        _heading(ax, "\n".join(table), pad, _SMALL_FONT)
    else:
        ax.set_xticks([], minor=True)
    return fits


def _heading(ax: Axes, text: str, pad: float, size: float) -> None:
    """Write text to the left of the labels that are `pad` points below the axis."""
    place = {"xy": (0.0, 0.0), "xycoords": "axes fraction", "xytext": (-6.0, -pad), "textcoords": "offset points"}
    ax.annotate(text, **place, ha="right", va="top", fontsize=size, color="0.25", annotation_clip=False)


MAX_STAGES = 64
_BAR_HEIGHT = 2.4  # of the bars, in inches
_TIME = STACKS["time"].parts
# Lowest first. Communication inside a stage is hatched.
_PARTS = {
    "compute_s": PartStyle("compute and memory access", _TIME["compute_s"].colour),
    "comm_s": PartStyle("communication", _TIME["tp_comm_s"].colour, _TIME["tp_comm_s"].hatch),
    "recompute_s": _TIME["recompute_s"],
}
_ON_ANYTHING: Style = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.0}}
_TITLE = 10.0  # points
_LEGEND = 140.0  # points: the least width of the legend
_NUMBER, _LINK = 8.0, 7.0  # points, of fonts
_LETTER_WIDTH = 0.62  # the width of a letter, in heights of the font
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


def placement_of(plan: Plan, tiers: Sequence[str]) -> StagePlacement:
    """Return the placement of the stages of a plan; `tiers` are the names of all tiers, the fast domain first."""

    def ranks(suffix: str) -> int:
        return plan[f"tp{suffix}"] * plan[f"tp2{suffix}"] * plan[f"cp{suffix}"]

    units = [Unit(tier, plan[f"pp_{tier}"], ranks("") // ranks(f"_{tier}")) for tier in tiers[:-1]]
    return StagePlacement(ranks(f"_{tiers[0]}"), units[0], tuple(units[1:]))


def stages(plan_stages: "Sequence[PlanStage]", placement: StagePlacement, title: str) -> Axes:
    """Draw the stages of a plan; return the upper axis, or raise InputError for more than `MAX_STAGES`."""
    count = len(plan_stages)
    if count > MAX_STAGES:
        raise InputError(f"{count} stages are too many for a picture, which holds {MAX_STAGES}; --json has all")
    width = float(np.clip(0.62 * count, 3.4, 11.0))
    # The links from the previous stage: the tier, or NVLink for the fast domain.
    links = ["NVLink" if stage.link == INNERMOST else stage.link or "" for stage in plan_stages]
    longest = max(map(len, links))
    room = 72 * width / count
    linked = 0 < longest * _LETTER_WIDTH * _LINK <= room
    low = _LINK_ROW * (linked + len(placement.outer))
    layout = FigureLayout.new(width, _BAR_HEIGHT, _BOX + low)
    above, below = layout.axes
    _draw_bars(above, plan_stages)
    # The layout makes no room for a title that is too wide; on the right it may be above the legend.
    letters = int((72 * width + _LEGEND) / (_LETTER_WIDTH * _TITLE))
    lines = [line for part in name_text(title).split("\n") for line in wrap(part, letters)]
    above.set_title("\n".join(lines), loc="left", fontsize=_TITLE)
    _draw_domains(below, count, placement, room)
    if linked:
        for place, link in enumerate(links):
            if link:
                below.text(place - 0.5, -_LINK_ROW / 2, link, ha="center", va="center", size=_LINK)
        _say(below, -_LINK_ROW / 2, "the link between stages")
    # A row of lines for each tier between the fast domain and the outermost one.
    end = 0.5 - max(0.5 - _EDGE, _LEAST_GAP / 2 / room)
    for row, unit in enumerate(placement.outer):
        height = -_LINK_ROW * (linked + row + 0.5)
        for first in range(0, count, unit.stages):
            ends = (first - end, min(first + unit.stages, count) - 1 + end)
            line: Style = {"color": "#555555", "linewidth": 1.2, "solid_capstyle": "butt"}
            below.plot(ends, (height, height), marker="|", markersize=5.0, **line)
        several = f", {unit.per_stage} of a stage" if unit.per_stage > 1 else ""
        _say(below, height, f"a line: a unit of {unit.tier}{several}")
    below.set(ylim=(-low, _BOX), yticks=[])
    layout.settle()
    return above


def _draw_bars(ax: Axes, plan_stages: "Sequence[PlanStage]") -> None:
    places = np.arange(len(plan_stages))
    top = np.zeros(len(plan_stages))
    for name, part in _PARTS.items():
        heights = 1e3 * np.array([getattr(stage, name) for stage in plan_stages])
        if heights.any():
            ax.bar(places, heights, _BAR, bottom=top, **part.bar)
            top = top + heights
    slowest = float(top.max())
    for place, stage in enumerate(plan_stages):
        # At the foot of the bar, on white, so that it can be read on any bar.
        ax.text(place, 0.03 * slowest, f"{stage.num_layers}", ha="center", size=8, **_ON_ANYTHING)
    ax.axhline(slowest, color="black", linestyle="--", linewidth=0.8, label="bottleneck")
    ax.set(xlim=(-0.6, len(plan_stages) - 0.4), ylim=(0.0, 1.08 * slowest))
    ax.set_ylabel("time of a microbatch [ms]")
    ax.tick_params(axis="x", length=0, labelbottom=False)
    ax.plot([], [], " ", label="number: layers of the stage")
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], **BESIDE)


def _draw_domains(ax: Axes, count: int, placement: StagePlacement, room: float) -> None:
    """Draw the boxes, in inches, and number the stages; each stage has `room` points."""
    from matplotlib.patches import Rectangle

    domain = placement.domain
    behind = min(domain.per_stage - 1, _MOST_BEHIND)
    style: Style = {"facecolor": "#eeeeee", "edgecolor": "#555555", "linewidth": 0.8}
    height = _BOX - 0.06 - _BEHIND[1] * behind
    for first in range(0, count, domain.stages):
        width = min(domain.stages, count - first) - 2 * (0.5 - _EDGE) - _BEHIND[0] * behind
        for back in range(behind, -1, -1):
            at = (first - _EDGE + _BEHIND[0] * back, 0.03 + _BEHIND[1] * back)
            ax.add_patch(Rectangle(at, width, height, **style))
    text = f"{domain.per_stage} x {placement.gpus}" if behind else f"{placement.gpus}"
    turned = 90 if len(text) * _LETTER_WIDTH * _NUMBER > 0.8 * room else 0
    for place in range(count):
        middle = place - _BEHIND[0] * behind / 2, 0.03 + height / 2
        ax.text(*middle, text, ha="center", va="center", size=_NUMBER, rotation=turned)
    _say(ax, 0.7 * _BOX, f"{'domains x GPUs' if behind else 'GPUs'} of a stage, one replica")
    _say(ax, 0.3 * _BOX, "overlapping boxes: NVLink domains of a stage" if behind else "a box: an NVLink domain")
    places = range(0, count, max(1, count // 16))
    ax.set_xticks(places, labels=[str(place + 1) for place in places])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("stage")
    ax.spines[:].set_visible(False)


def _say(ax: Axes, height: float, text: str) -> None:
    """Write a text to the right of the axis, at a height in inches."""
    ax.text(1.0, height, f"  {text}", transform=ax.get_yaxis_transform(), va="center", size=_NUMBER)
