"""The Pareto front of two objectives, drawn with all rows of the result set."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dsx.argument_types import one_text
from dsx.results.frames import require
from dsx.results.pareto_rows import column_of, pareto
from dsx.results.plot.axes import (
    NOTHING,
    Numbers,
    is_wide,
    label_axis,
    log_ticks,
    plain_numbers,
    value_texts,
    words,
)
from dsx.results.plot.layout import figure_of
from dsx.results.plot.marks import MAX_CATEGORIES, marks
from dsx.results.plot.selection import refuse_many

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# More points would only cost time and file size.
MAX_POINTS = 20_000


def front(
    df: "pd.DataFrame",
    x: str = "step_time_s",
    y: str = "peak_bytes",
    ax: "Axes | None" = None,
    by: str | None = None,
) -> "Axes":
    """Draw all rows as points, and the front of the feasible ones as a stepped line with markers.

    Args:
        df: a result set, or rows of one.
        x, y: objectives, as for `pareto`: "mfu" is minimised, "-mfu" maximised.
        ax: the axis to draw on; by default one of a new figure.
        by: a column; each of its values has its own marker on the front.

    Raises what `pareto` raises.
    """
    for name, column in (("x", x), ("y", y)):
        one_text(name, column, "step_time_s")
    best = pareto(df, x, y)
    if by is not None:
        require(df, one_text("by", by, "strategy"))
    if ax is not None:
        figure_of(ax)
    else:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(7.0, 4.6), layout="constrained").subplots()
    x, y = column_of(x), column_of(y)
    all_x, all_y = require(df, x), require(df, y)
    shown = best if len(best) else df
    x_size = label_axis(ax.xaxis, df, x, require(shown, x))
    y_size = label_axis(ax.yaxis, df, y, require(shown, y))
    _draw_all(ax, all_x / x_size, all_y / y_size, require(df, "reject") == 0)
    _draw_front(ax, best, require(best, x) / x_size, require(best, y) / y_size, by)
    for axis, values, set_scale in ((ax.xaxis, all_x, ax.set_xscale), (ax.yaxis, all_y, ax.set_yscale)):
        if is_wide(values):
            set_scale("log")
            log_ticks(axis, values)
        plain_numbers(axis)
    if len(best):
        # Above the axes: the front may pass through any corner.
        ax.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    elif len(df):
        ax.legend(fontsize="small")
    return ax


def _draw_all(ax: "Axes", x: Numbers, y: Numbers, feasible: NDArray[np.bool_]) -> None:
    """Draw rejected rows as pale crosses and feasible ones as grey points, thinned to MAX_POINTS."""
    for rows, word, style in (
        (~feasible, "rejected", {"marker": "x", "color": "0.85", "s": 10, "linewidths": 0.6}),
        (feasible, "feasible", {"marker": ".", "color": "0.6", "s": 12, "linewidths": 0}),
    ):
        here = np.flatnonzero(rows)
        if len(here) == 0:
            continue
        label = f"{len(here):,} {word}"
        if len(x) > MAX_POINTS:
            # Chosen at random: an even stride would interfere with the order of the enumeration.
            share = MAX_POINTS * len(here) // len(x)
            here = np.random.default_rng(0).choice(here, share, replace=False)
            label += f" ({share:,} drawn)"
        ax.scatter(x[here], y[here], label=label, rasterized=True, **style)


def _draw_front(ax: "Axes", best: "pd.DataFrame", x: Numbers, y: Numbers, by: str | None) -> None:
    if len(x) == 0:
        ax.set_title(NOTHING, fontsize="medium")
        return
    # A row on the front bounds the objectives until the next row, whether they are minimised or maximised.
    ax.step(x, y, where="post", color="black", linewidth=1.2, zorder=3)
    if by is None:
        ax.plot(x, y, "o", color="black", markersize=5, linestyle="none", zorder=4, label=f"front ({len(x)})")
        return
    groups = require(best, by)
    found = sorted(set(groups))
    refuse_many(len(found), MAX_CATEGORIES, "values", [by])
    for value, text, mark in zip(found, value_texts(best, by, found), marks(len(found)), strict=True):
        here = groups == value
        label = f"front, {words(by)} {text} ({here.sum()})"
        ax.plot(x[here], y[here], linestyle="none", zorder=4, label=label, **mark)
