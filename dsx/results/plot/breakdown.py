"""Breakdown: the parts of the step time, and of the memory, of the fastest plan of each group of rows.

A bar is one plan. Its parts are stacked in the order of the result columns. Their sum is the step time, or the peak
memory, and is written above the bar. Time and memory have separate axes: `breakdowns` puts one above the other, with
the plans below.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsx.argument_types import one_text
from dsx.errors import InputError, UnknownNameError
from dsx.results.frames import column_list, require
from dsx.results.plot.axes import NOTHING, finite, is_wide, label_axis, named, quantity_texts, value_texts
from dsx.results.plot.bar_labels import Heights, label_bars, label_totals
from dsx.results.plot.capacity import capacities
from dsx.results.plot.layout import Layout
from dsx.results.plot.selection import fastest, refuse_many, settings
from dsx.results.plot.stacks import STACKS
from dsx.results.plot.titles import best_over, job_text, label_picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

MAX_BARS = 60
_BAR = 0.75  # width of a bar; bars are 1 apart
_NARROWEST, _LETTER = 0.46, 0.075  # inches of a bar with its gap, and of a letter below it
_COMFORTABLE = 6.0  # inches to which bars are widened for the settings below them
_HEIGHTS = {"time": 2.8, "memory": 1.9}  # of the axes, in inches
# If one bar is this many times as high as another, the parts of the lower one cannot be distinguished.
_COMMON_RANGE = 20.0
_HATCH = "\\\\\\"  # of a part; rejected bars are hatched the other way


def breakdown(
    df: "pd.DataFrame",
    x: str | Sequence[str] = "num_gpus",
    ax: "Axes | None" = None,
    of: Literal["time", "memory"] = "time",
) -> "Axes":
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
    layout = Layout.of(ax, _width(rows), _HEIGHTS[of])
    _draw(layout, [of], columns, rows)
    return layout.axes[0]


def breakdowns(df: "pd.DataFrame", x: str | Sequence[str] = "num_gpus") -> "Axes":
    """Draw the breakdown of the time above that of the memory, for the same rows; return the upper axis.

    Arguments and errors are those of `breakdown`.
    """
    columns, rows = _bars(df, x)
    layout = Layout.new(_width(rows), *_HEIGHTS.values())
    _draw(layout, [*_HEIGHTS], columns, rows)
    return layout.axes[0]


def _bars(df: "pd.DataFrame", x: str | Sequence[str]) -> tuple[list[str], "pd.DataFrame"]:
    columns = column_list("x", x)
    if not columns:
        raise InputError("a breakdown needs a column whose values are its bars, for example 'num_gpus'")
    rows = fastest(df, columns)
    refuse_many(len(rows), MAX_BARS, "bars", columns)
    return columns, rows


def _width(rows: "pd.DataFrame") -> float:
    """Return the width of the axes in inches, limited to that of a page.

    A bar is as wide as the longest setting that differs below it, where there is room.
    """
    below = [name for name in settings(rows.columns) if len(set(rows[name])) > 1]
    texts = [text for name in below for text in value_texts(rows, name, rows[name].tolist())]
    wide = max(_NARROWEST, _LETTER * max(map(len, texts), default=0))
    return float(np.clip(max(min(wide * len(rows), _COMFORTABLE), _NARROWEST * len(rows)), 2.0, 10.0))


def _draw(layout: Layout, names: Sequence[str], columns: Sequence[str], rows: "pd.DataFrame") -> None:
    """Draw the named stack on each axis, and label the bars."""
    drawn = [_draw_stack(ax, rows, name) for ax, name in zip(layout.axes, names, strict=True)]
    for ax in layout.axes[:-1]:
        ax.tick_params("x", labelbottom=False, length=0)
    label_bars(layout, rows, columns)
    # Last, because labels below a given axis take room from it.
    for ax, name, (top, capacity) in zip(layout.axes, names, drawn, strict=True):
        label_totals(layout, ax, top, capacity, quantity_texts(rows, STACKS[name].total))
    fits = require(rows, "reject") == 0
    feasible = bool(fits.any())
    totals = " and ".join(named(rows, STACKS[name].total) for name in names)
    by = ", ".join(named(rows, column) for column in columns)
    title = f"{totals} by {by}" if feasible else NOTHING
    over = best_over(rows, "bar", columns, "fastest") if feasible else ""
    hatched = "" if fits.all() or not feasible else "; hatched: none is feasible, the fastest rejected plan"
    label_picture(layout, title, [job_text(rows, columns), over + hatched])
    layout.settle()


def _draw_stack(ax: "Axes", rows: "pd.DataFrame", name: str) -> tuple[Heights, Heights]:
    """Draw the parts of each row; return [n] the tops of the bars, and [n] the capacities, NaN if none is drawn."""
    stack = STACKS[name]
    places, total, rejected = np.arange(len(rows)), require(rows, stack.total), require(rows, "reject") != 0
    size: Any = label_axis(ax.yaxis, rows, stack.total, total)
    if stack.share and is_wide(total, _COMMON_RANGE):
        size = total / 100.0
        ax.set_ylabel(stack.share)
        ax.set_yticks(range(0, 101, 20))
    top = np.zeros(len(rows))
    for column, part in stack.parts.items():
        heights = require(rows, column) / size
        if heights.any():
            style: dict[str, Any] = {"facecolor": part.colour, "edgecolor": part.hatch, "linewidth": 0.0}
            style["hatch"] = _HATCH if part.hatch else None
            ax.bar(places, heights, _BAR, bottom=top, label=part.label, **style)
            top = top + heights
    # matplotlib leaves no margin if the highest part is zero, so add one here.
    highest = max(finite(top), default=0.0) or 1.0
    high = 1.05 * highest
    capacity = np.full(len(rows), np.nan)
    if name == "memory":
        capacity = capacities(rows) / size
        _draw_capacity(ax, capacity)
        # A capacity far above all bars would flatten them.
        high = min(max([high, *(1.05 * finite(capacity))]), 2.0 * highest)
    ax.set(xlim=(-0.6, max(len(rows), 1) - 0.4), ylim=(0.0, high))
    if rejected.any():
        style = {"facecolor": (1, 1, 1, 0.5), "edgecolor": "black", "hatch": "////", "linewidth": 0.0}
        ax.bar(places[rejected], top[rejected], _BAR, label="rejected", **style)
    handles, labels = ax.get_legend_handles_labels()
    # In the order of the stack, and outside of the bars.
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "frameon": False}
    ax.legend(handles[::-1], labels[::-1], fontsize="small", **place)
    return top, capacity


def _draw_capacity(ax: "Axes", capacity: Heights) -> None:
    """Draw a line across the bars at the memory capacity of their GPUs, with a gap where it is not known."""
    if np.isfinite(capacity).any():
        edges = np.repeat(np.arange(len(capacity) + 1) - 0.5, 2)[1:-1]
        style: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.0, "label": "HBM capacity"}
        ax.plot(edges, np.repeat(capacity, 2), **style)
