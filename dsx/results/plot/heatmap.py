"""Heat map: the best feasible value for each pair of values of two columns.

The values of an axis are equally spaced, whatever the distances between them. A cell without a feasible row is hatched:
its rows may all be rejected, not kept, or not part of the sweep. If hardware or job sizes vary beyond the two columns,
the title says over which columns a cell is the best.
"""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.argument_types import one_text
from dsx.results.plot.axes import (
    NOTHING,
    Numbers,
    finite,
    is_wide,
    log_ticks,
    plain_numbers,
    scale_of,
    three_digits,
    unit_of,
    value_texts,
    words,
)
from dsx.results.plot.layout import Layout, figure_of
from dsx.results.plot.selection import best_table, refuse_many, settings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

MAX_VALUES = 200  # of one axis
# Colours resolve fewer values than positions do.
_LINEAR_COLOURS = 8.0
_FONT = 8.0  # points, of ticks and title
_WIDE = 0.6  # width of a digit, and roughly of a letter, as a share of the font size
_SMALLEST_FONT, _LARGEST_FONT = 4.5, 9.0  # points, of values in cells


def heatmap(df: "pd.DataFrame", x: str, y: str, value: str = "step_time_s", ax: "Axes | None" = None) -> "Axes":
    """Draw the best feasible `value` for each pair of values of `x` and `y`, ascending to the right and upwards.

    The best is the smallest, or for mfu and tokens_per_s the largest. Cells show the number if there is room. If other
    settings of the sweep vary in `df` (cluster, num_gpus, a field of what_if, ...), the best is also over these, as the
    title says.

    Args:
        df: a result set, or rows of one.
        x, y: columns; their values are the ticks.
        value: a column of quantities.
        ax: the axis to draw on; by default one of a new figure.

    Raises UnknownNameError for an unknown column, InputError for a `value` without quantities or more than `MAX_VALUES`
    values of `x` or `y`.
    """
    for name, column in (("x", x), ("y", y), ("value", value)):
        one_text(name, column, "num_gpus")
    table = best_table(df, [y], x, value)
    refuse_many(len(table.columns), MAX_VALUES, "values", [x])
    refuse_many(len(table.rows), MAX_VALUES, "values", [y])
    rows = [row for (row,) in table.rows]
    layout = Layout.of(ax, *_size(len(table.columns), len(rows)))
    ax = layout.axes[0]
    ax.set_xlabel(words(x, unit_of(df, x)))
    ax.set_ylabel(words(y, unit_of(df, y)))
    size, label = scale_of(df, value, table.values)
    values = table.values / size
    _hatch(ax, ~np.isfinite(values))
    if np.isfinite(values).any():
        _name_others(layout, df, [name for name in settings(df.columns) if name not in (x, y, value)])
    mesh = _draw_cells(layout, values, label) if np.isfinite(values).any() else None
    ax.set(xlim=(-0.5, max(len(table.columns), 1) - 0.5), ylim=(-0.5, max(len(rows), 1) - 0.5))
    ax.tick_params(length=0, labelsize=_FONT)
    layout.fit_ticks(ax.yaxis, range(len(rows)), value_texts(df, y, rows), turn=False)
    layout.fit_ticks(ax.xaxis, range(len(table.columns)), value_texts(df, x, table.columns))
    if mesh is not None:
        _annotate(layout, mesh, values)
    layout.settle()
    return ax


def _size(columns: int, rows: int) -> tuple[float, float]:
    """Return the size of the axes in inches: room for a number in each cell, limited to the size of a page."""
    return float(np.clip(0.5 * columns, 2.0, 9.0)), float(np.clip(0.36 * rows, 1.4, 7.5))


def _hatch(ax: "Axes", empty: NDArray[np.bool_]) -> None:
    """Hatch the background, which shows through empty cells, and add a legend for it."""
    from matplotlib.patches import Patch

    style: dict[str, Any] = {"facecolor": "0.93", "edgecolor": "0.6", "hatch": "////"}
    ax.patch.set(**style)
    if empty.all():
        ax.set_title(NOTHING, fontsize="medium")
    elif empty.any():
        patch = Patch(label="no feasible plan", linewidth=0.0, **style)
        ax.legend(handles=[patch], fontsize="small", loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _name_others(layout: Layout, df: "pd.DataFrame", columns: Sequence[str]) -> None:
    """Name above the cells the other columns that vary: each cell shows the best over their values."""
    ax = layout.axes[0]
    varied = [words(name, unit_of(df, name)) for name in columns if len(df[name].drop_duplicates()) > 1]
    if varied:
        # The layout makes no room for a title that is too wide.
        lines = wrap(f"best over {', '.join(varied)}", max(int(layout.room(ax)[0] / (_WIDE * _FONT)), 1))
        # Above the legend, which is on the other side.
        pad = 24.0 if ax.get_legend() else 6.0
        ax.set_title("\n".join(lines), loc="left", fontsize=_FONT, color="0.25", pad=pad)


def _draw_cells(layout: Layout, values: Numbers, label: str) -> "QuadMesh":
    from matplotlib.colors import LogNorm, Normalize

    ax, numbers, wide = layout.axes[0], finite(values), is_wide(values, _LINEAR_COLOURS)
    edges = [np.arange(count + 1) - 0.5 for count in values.shape[::-1]]
    style: dict[str, Any] = {"cmap": "viridis", "edgecolors": "white", "linewidth": 0.3}
    norm = (LogNorm if wide else Normalize)(numbers.min(), numbers.max())
    mesh = ax.pcolormesh(*edges, np.ma.masked_invalid(values), norm=norm, **style)
    bar = figure_of(ax).colorbar(mesh, ax=ax, label=label, pad=0.02)
    bar.ax.tick_params(labelsize=_FONT)
    if wide:
        log_ticks(bar.ax.yaxis, values)
    plain_numbers(bar.ax.yaxis)
    return mesh


def _annotate(layout: Layout, mesh: "QuadMesh", values: Numbers) -> None:
    """Write each value into its cell in a font that fits; no values at all if that font would be too small to read."""
    texts = {tuple(cell): three_digits(float(values[tuple(cell)])) for cell in np.argwhere(np.isfinite(values))}
    ax = layout.axes[0]
    room = layout.room(ax)
    width, height = room[0] / values.shape[1], room[1] / values.shape[0]
    size = min(_LARGEST_FONT, 0.9 * width / (_WIDE * max(map(len, texts.values()))), 0.7 * height)
    if size < _SMALLEST_FONT:
        return
    for (row, column), text in texts.items():
        red, green, blue, _ = mesh.to_rgba(values[row, column])
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        ax.text(column, row, text, ha="center", va="center", fontsize=size, color="white" if dark else "black")
