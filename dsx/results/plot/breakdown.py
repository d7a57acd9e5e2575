"""Breakdown: where the time of a step goes, and the memory, of the fastest plan of each group of rows.

A bar is one plan. Its parts are stacked in the order of the result columns, so that their sum is the step time,
or the peak memory. Time and memory are drawn apart, each on an axis of its own: `breakdowns` puts one above the
other, with the plans below.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dsx.errors import InputError, UnknownNameError
from dsx.results.pareto import require
from dsx.results.plot.axes import NOTHING, label_axis
from dsx.results.plot.bar_labels import label_bars
from dsx.results.plot.capacity import capacities
from dsx.results.plot.layout import Layout
from dsx.results.plot.selection import column_list, fastest, refuse_many

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

MAX_BARS = 60
_BAR = 0.75  # width of a bar, in places
_HEIGHTS = {"time": 2.8, "memory": 1.9}  # of the axes, in inches


@dataclass(frozen=True)
class Part:
    """How a part of a stack is drawn; neighbours differ in lightness."""

    label: str
    colour: str


@dataclass(frozen=True)
class Stack:
    """The parts of a total, each by its column, lowest first."""

    total: str
    parts: dict[str, Part]


STACKS = {
    "time": Stack(
        "step_time_s",
        {
            "compute_s": Part("compute", "#1f3b73"),
            "memory_s": Part("memory access", "#74a7d9"),
            "tp_comm_s": Part("TP communication", "#b5441f"),
            "cp_comm_s": Part("CP communication", "#f0a04b"),
            "ep_comm_s": Part("EP communication", "#7a2e6b"),
            "pp_comm_s": Part("PP communication", "#e9c9e0"),
            "dp_comm_s": Part("DP communication", "#57a271"),
            "bubble_s": Part("pipeline bubble", "#dcdcdc"),
            "recompute_s": Part("recompute", "#b98d3e"),
            "optimizer_s": Part("optimizer", "#4d4d4d"),
        },
    ),
    "memory": Stack(
        "peak_bytes",
        {
            "weight_bytes": Part("weights", "#1f3b73"),
            "gradient_bytes": Part("gradients", "#74a7d9"),
            "optimizer_bytes": Part("optimizer state", "#4d4d4d"),
            "activation_bytes": Part("activations", "#f0a04b"),
            "overhead_bytes": Part("overhead", "#dcdcdc"),
        },
    ),
}


def breakdown(
    df: "pd.DataFrame",
    x: str | Sequence[str] = "num_gpus",
    ax: "Axes | None" = None,
    of: Literal["time", "memory"] = "time",
) -> "Axes":
    """Draw the parts of the step time, or of the peak memory, of the fastest row for each value of `x`.

    The fastest row is the fastest feasible one; where there is none, it is the fastest rejected one, hatched.
    Parts that are zero in all bars are left out. With memory goes the capacity of the GPUs, where it is known.

    Args:
        df: a result set, or rows of one.
        x: one or several columns; one bar for each combination of their values, in ascending order.
        ax: where to draw; by default on a new figure.
        of: which total is broken down.

    Raises UnknownNameError for a column that is not there, InputError for more than `MAX_BARS` bars.
    """
    if of not in STACKS:
        raise UnknownNameError("stack", of, STACKS)
    columns, rows = _bars(df, x)
    layout = Layout.of(ax, _width(len(rows)), _HEIGHTS[of])
    _draw(layout.axes[0], rows, of)
    label_bars(layout, rows, columns)
    layout.settle()
    return layout.axes[0]


def breakdowns(df: "pd.DataFrame", x: str | Sequence[str] = "num_gpus") -> "Axes":
    """Draw the breakdown of the time above that of the memory of the same rows; return the upper axis.

    Arguments and errors are those of `breakdown`.
    """
    columns, rows = _bars(df, x)
    layout = Layout.new(_width(len(rows)), _HEIGHTS["time"], _HEIGHTS["memory"])
    upper, lower = layout.axes
    _draw(upper, rows, "time")
    _draw(lower, rows, "memory")
    lower.set_title("")
    upper.tick_params("x", labelbottom=False, length=0)
    label_bars(layout, rows, columns)
    layout.settle()
    return upper


def _bars(df: "pd.DataFrame", x: str | Sequence[str]) -> tuple[list[str], "pd.DataFrame"]:
    columns = column_list(x)
    if not columns:
        raise InputError("a breakdown needs a column that tells its bars apart, for example 'num_gpus'")
    rows = fastest(df, columns)
    refuse_many(len(rows), MAX_BARS, "bars", columns)
    return columns, rows


def _width(bars: int) -> float:
    """Return how wide the axes are, in inches, within what a page holds."""
    return float(np.clip(0.46 * bars, 2.0, 10.0))


def _draw(ax: "Axes", rows: "pd.DataFrame", of: str) -> None:
    stack = STACKS[of]
    places, total, rejected = np.arange(len(rows)), require(rows, stack.total), require(rows, "reject") != 0
    size = label_axis(ax.yaxis, rows, stack.total, total)
    top = np.zeros(len(rows))
    for column, part in stack.parts.items():
        heights = require(rows, column) / size
        if heights.any():
            style: dict[str, Any] = {"color": part.colour, "edgecolor": "white", "linewidth": 0.25}
            ax.bar(places, heights, _BAR, bottom=top, label=part.label, **style)
            top = top + heights
    if of == "memory":
        _draw_capacity(ax, capacities(rows) / size)
        # A capacity far above all bars would flatten them.
        ax.set_ylim(0.0, min(ax.get_ylim()[1], 2.0 * max(top, default=1.0)))
    if rejected.any():
        style = {"facecolor": (1, 1, 1, 0.5), "edgecolor": "black", "hatch": "////", "linewidth": 0.0}
        ax.bar(places[rejected], top[rejected], _BAR, label="rejected", **style)
    if rejected.all():
        ax.set_title(NOTHING, fontsize="medium")
    ax.set_xlim(-0.6, max(len(rows), 1) - 0.4)
    handles, labels = ax.get_legend_handles_labels()
    # In the order of the stack, outside, where no bar is.
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "frameon": False}
    ax.legend(handles[::-1], labels[::-1], fontsize="small", **place)


def _draw_capacity(ax: "Axes", capacity: NDArray[np.float64]) -> None:
    """Draw a line across the bars at the memory that their GPUs have, with a gap where it is not known."""
    if np.isfinite(capacity).any():
        edges = np.repeat(np.arange(len(capacity) + 1) - 0.5, 2)[1:-1]
        style: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.0, "label": "HBM capacity"}
        ax.plot(edges, np.repeat(capacity, 2), **style)
