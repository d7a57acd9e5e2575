"""Heat map: what differs between the best feasible values for each pair of values of two columns.

Regions of a table: neighbouring cells with the same text, which a heat map writes once and outlines together.

What the cells of a heat map are compared with: the machine of today, or else the best cell.

Where both axes are fields of the machine, its own values are one cell. Where one axis is, they are a row or a column,
and each cell is compared with that of today at the same value of the other axis.

Heat map: what differs between the best feasible values for each pair of values of two columns.

Cells show by how much they differ from the machine of today, if its values are on the axes, or else from the best cell;
a frame marks it. Neighbours with the same number are outlined together and have it once; what does not differ has none.
Colours cover the bulk of the cells: a row that is far off, such as one of a useless machine, has the colour of the end
of the scale. The values of an axis are equally spaced, whatever the distances between them. A cell without a feasible
row is hatched: its rows may all be rejected, not kept, or not part of the sweep.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsx.errors import one_text
from dsx.pictures.axes import (
    NOTHING,
    FigureLayout,
    Numbers,
    best_over,
    figure_of,
    finite,
    is_wide,
    job_text,
    label_picture,
    name_text,
    named,
    quantity_text,
    three_digits,
    value_texts,
)
from dsx.pictures.chosen_rows import LARGER_IS_BETTER, BestTable, best_table, place_today, refuse_many, value_today

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh


Segments = list[tuple[tuple[float, float], tuple[float, float]]]  # ends as (column, row), cells are 1 apart


class CellRegion(NamedTuple):
    """Neighbouring cells with the same text, and where it is written: in their middle if they fill a rectangle."""

    text: str
    row: float
    column: float
    cell: tuple[int, int]  # the one that is nearest to the middle


def regions(texts: Sequence[Sequence[str]], apart: NDArray[np.bool_]) -> list[CellRegion]:
    """Return the regions of a table of texts, [rows][columns]; a cell that is `apart` is one of its own.

    Cells are neighbours along a row or a column. Cells without a text are of no region.
    """
    from scipy import ndimage

    table = np.asarray(texts, dtype=object)
    found: list[CellRegion] = []
    for text in dict.fromkeys(one for row in texts for one in row if one):
        same = table == text
        labelled: Any = ndimage.label(same & ~apart)
        labels, count = labelled
        groups = [labels == number for number in range(1, count + 1)]
        groups += [_only(same.shape, cell) for cell in np.argwhere(same & apart)]
        found += [_region(text, np.argwhere(group)) for group in groups]
    return found


def _only(shape: tuple[int, ...], cell: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(shape, bool)
    mask[tuple(cell)] = True
    return mask


def _region(text: str, cells: NDArray[np.int64]) -> CellRegion:
    middle = cells.mean(axis=0)
    row, column = cells[int(((cells - middle) ** 2).sum(axis=1).argmin())].tolist()
    full = len(cells) == int(np.prod(np.ptp(cells, axis=0) + 1))
    at = middle.tolist() if full else [row, column]
    return CellRegion(text, at[0], at[1], (row, column))


def borders(texts: Sequence[Sequence[str]]) -> Segments:
    """Return the lines between neighbouring cells with different texts."""
    table = np.asarray(texts, dtype=object)
    found: Segments = []
    for row, column in np.argwhere(table[:, 1:] != table[:, :-1]):
        found.append(((column + 0.5, row - 0.5), (column + 0.5, row + 0.5)))
    for row, column in np.argwhere(table[1:] != table[:-1]):
        found.append(((column - 0.5, row + 0.5), (column + 0.5, row + 0.5)))
    return found


CellNumbers = NDArray[np.float64]  # [rows, columns]


@dataclass(frozen=True)
class HeatReference:
    """The values that cells are compared with, and which cells have them."""

    values: CellNumbers  # [rows, columns]
    cells: NDArray[np.bool_]  # [rows, columns]: the cells that are the reference
    today: bool  # whether they are the machine of today; else the best cell
    missing: tuple[str, ...]  # columns of the machine in which today's value is not on the axis


def reference(df: "pd.DataFrame", table: BestTable, x: str, y: str, larger_is_better: bool) -> HeatReference:
    """Return what the cells of a table, of which at least one has a value, are compared with."""
    rows = [row for (row,) in table.rows]
    places = {x: place_today(df, x, table.columns), y: place_today(df, y, rows)}
    machine = [name for name in (x, y) if value_today(df, name) is not None]
    missing = tuple(name for name in machine if places[name] is None)
    cells = np.zeros(table.values.shape, bool)
    if machine and not missing:
        across, down = places[x], places[y]
        cells[slice(None) if down is None else down, slice(None) if across is None else across] = True
        values = np.where(cells, table.values, np.nan)
        # A row or a column of today, spread over the others.
        axis = 1 if down is None else 0
        own = np.full(values.shape, values[cells][0]) if len(machine) == 2 else _spread(values, axis)
        if (np.isfinite(own) | ~np.isfinite(table.values)).all():
            return HeatReference(own, cells, True, ())
    best = np.nanmax(table.values) if larger_is_better else np.nanmin(table.values)
    first = np.argwhere(table.values == best)[0]
    cells = np.zeros(table.values.shape, bool)
    cells[tuple(first)] = True
    return HeatReference(np.full(table.values.shape, best), cells, False, missing)


def _spread(values: CellNumbers, axis: int) -> CellNumbers:
    """Return the one value along an axis, NaN if there is none, in all its cells."""
    there = np.isfinite(values)
    one = np.where(there, values, 0.0).sum(axis=axis, keepdims=True)
    return np.broadcast_to(np.where(there.any(axis=axis, keepdims=True), one, np.nan), values.shape)


MAX_VALUES = 200  # of one axis
# Colours resolve fewer values than positions do.
_LINEAR_COLOURS = 8.0
_FAR = 7.0  # median absolute deviations of the logarithms: as far as Tukey's outer fences of a normal distribution
_LEAST_RANGE = 0.05  # of the reference, so that colours do not exaggerate what hardly differs
_SAME = 0.005  # of the reference: what differs by less has no number
_FONT = 8.0  # points, of ticks
_WIDE = 0.6  # width of a digit, and roughly of a letter, as a share of the font size
_SMALLEST_FONT, _LARGEST_FONT = 4.5, 9.0  # points, of values in cells
_LEGEND = 15.0  # points: the height of the legend
_MINUS = "\N{MINUS SIGN}"


def heatmap(df: "pd.DataFrame", x: str, y: str, value: str = "step_time_s", ax: "Axes | None" = None) -> "Axes":
    """Draw the best feasible `value` for each pair of values of `x` and `y`, ascending to the right and upwards.

    The best is the smallest, or for mfu and rates of tokens the largest. A cell is relative to the one of today's
    machine, whose values `df.attrs` have if `dsx.load` read it, or to the best one. If other settings of the sweep vary
    in `df` (cluster, num_gpus, a field of what_if, ...), the best is also over these, as the title says.

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
    layout = FigureLayout.of(ax, *_size(len(table.columns), len(rows)))
    ax = layout.axes[0]
    ax.set_xlabel(named(df, x))
    ax.set_ylabel(named(df, y))
    there = np.isfinite(table.values)
    legend = _hatch(ax, ~there)
    ax.set(xlim=(-0.5, max(len(table.columns), 1) - 0.5), ylim=(-0.5, max(len(rows), 1) - 0.5))
    ax.tick_params(length=0, labelsize=_FONT)
    layout.fit_ticks(ax.yaxis, range(len(rows)), value_texts(df, y, rows), turn=False)
    layout.fit_ticks(ax.xaxis, range(len(table.columns)), value_texts(df, x, table.columns))
    shows, lines = NOTHING, [job_text(df, {x, y, value})]
    if there.any():
        compared = reference(df, table, x, y, value in LARGER_IS_BETTER)
        _draw_values(layout, table.values, compared, df, value)
        shows = f"{named(df, value)} by {named(df, x)} and {named(df, y)}"
        lines += [best_over(df, "cell", {x, y}), _said(df, compared, value, table.values)]
    label_picture(layout, shows, lines, above=_LEGEND * legend)
    layout.settle()
    return ax


def _size(columns: int, rows: int) -> tuple[float, float]:
    """Return the size of the axes in inches: room for a number in each cell, limited to the size of a page."""
    return float(np.clip(0.5 * columns, 3.4, 9.0)), float(np.clip(0.36 * rows, 1.4, 7.5))


def _hatch(ax: "Axes", empty: NDArray[np.bool_]) -> bool:
    """Hatch the background, which shows through empty cells; return whether there is a legend for it."""
    from matplotlib.patches import Patch

    style: dict[str, Any] = {"facecolor": "0.93", "edgecolor": "0.6", "hatch": "////"}
    ax.patch.set(**style)
    few = bool(empty.any() and not empty.all())
    if few:
        patch = Patch(label="no feasible plan in the set", linewidth=0.0, **style)
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "frameon": False}
        ax.legend(handles=[patch], fontsize="small", borderpad=0.2, **place)
    return few


def _said(df: "pd.DataFrame", compared: HeatReference, value: str, values: Numbers) -> str:
    """Return what the frame is, and what a cell without a number means."""
    of = values[compared.cells & np.isfinite(values)]
    amount = f", {quantity_text(df, value, of[0])}" if len(of) == 1 else ""
    resolved = df.attrs.get("spec", {}).get("resolved", {})
    machines = [one["name"] for one in resolved.get("clusters", ())]
    who = f"{name_text(machines[0])} as it is" if compared.today and machines else "the best"
    absent = f"; today's {' and '.join(named(df, name) for name in compared.missing)} is no cell" * bool(
        compared.missing
    )
    return f"framed: {who}{amount}; no number: within {100 * _SAME:g} % of {'it' if len(of) == 1 else 'that'}{absent}"


def _draw_values(
    layout: FigureLayout, values: Numbers, compared: HeatReference, df: "pd.DataFrame", value: str
) -> None:
    """Draw the cells with their numbers, relative to the reference, which is framed."""
    ratios = values / compared.values
    texts = [[_ratio_text(one) if np.isfinite(one) else "" for one in row] for row in ratios.tolist()]
    # A number without a unit, which the title has; of a row or column of today each cell is its own reference.
    if compared.cells.sum() == 1:
        ((row, column),) = np.argwhere(compared.cells).tolist()
        texts[row][column] = quantity_text(df, value, float(values[row, column])).partition(" ")[0]
    mesh = _draw_cells(
        layout.axes[0], ratios, f"{named(df, value)} relative to {'today' if compared.today else 'the best'}"
    )
    _outline(layout.axes[0], ratios)
    _annotate(layout, mesh, ratios, texts, compared)
    _frame(layout.axes[0], compared)


def _draw_cells(ax: "Axes", ratios: Numbers, label: str) -> "QuadMesh":
    from matplotlib.colors import LogNorm, Normalize

    low, high = _bulk(finite(ratios))
    wide = is_wide(np.array([low, high]), _LINEAR_COLOURS)
    edges = [np.arange(count + 1) - 0.5 for count in ratios.shape[::-1]]
    norm = (LogNorm if wide else Normalize)(low, high)
    mesh = ax.pcolormesh(*edges, np.ma.masked_invalid(ratios), norm=norm, cmap="viridis")
    beyond = bool((finite(ratios) < low * (1 - 1e-6)).any()), bool((finite(ratios) > high * (1 + 1e-6)).any())
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[beyond]
    bar = figure_of(ax).colorbar(mesh, ax=ax, label=label, pad=0.02, extend=extend)
    bar.ax.tick_params(labelsize=_FONT)
    _ratio_ticks(bar.ax.yaxis, low, high, wide)
    return mesh


def _bulk(ratios: Numbers) -> tuple[float, float]:
    """Return the range of the colours: that of the values, but for those that are far from the bulk."""
    logs = np.log(ratios[ratios > 0])
    median = np.median(logs) if len(logs) else 0.0
    reach = _FAR * max(float(np.median(np.abs(logs - median))) if len(logs) else 0.0, _LEAST_RANGE / 2)
    low, high = max(float(ratios.min()), np.exp(median - reach)), min(float(ratios.max()), np.exp(median + reach))
    middle, half = (low + high) / 2, max((high - low) / 2, _LEAST_RANGE / 2)
    return middle - half, middle + half


def _ratio_ticks(axis: Any, low: float, high: float, wide: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if wide:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        # Round numbers of percent.
        percent = MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]).tick_values(100 * (low - 1), 100 * (high - 1))
        axis.set_major_locator(FixedLocator([1 + tick / 100 for tick in percent if low <= 1 + tick / 100 <= high]))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda ratio, _: _ratio_text(ratio, digits=True) or "0 %"))


def _ratio_text(ratio: float, digits: bool = False) -> str:
    """Return "+12 %", minus likewise, or "2.4 x" from twice on; "" for what is the same."""
    if ratio >= 2.0:
        return f"{three_digits(ratio) if not digits else f'{ratio:.3g}'} x"
    if abs(ratio - 1.0) < (1e-9 if digits else _SAME):
        return ""
    percent = 100.0 * (ratio - 1.0)
    text = f"{percent:+.3g}" if digits else f"{percent:+.0f}"
    return f"{text} %".replace("-", _MINUS)


def _outline(ax: "Axes", ratios: Numbers) -> None:
    """Draw lines between cells with different numbers, and around cells without a value."""
    from matplotlib.collections import LineCollection

    texts = [[(_ratio_text(one) or "same") if np.isfinite(one) else "" for one in row] for row in ratios.tolist()]
    ax.add_collection(LineCollection(borders(texts), colors="white", linewidths=0.7))


def _annotate(
    layout: FigureLayout, mesh: "QuadMesh", ratios: Numbers, texts: Sequence[Sequence[str]], compared: HeatReference
) -> None:
    """Write the number of each outline in a font that fits; none at all if that font would be too small to read."""
    ax = layout.axes[0]
    room = layout.room(ax)
    width, height = room[0] / ratios.shape[1], room[1] / ratios.shape[0]
    longest = max(len(text) for row in texts for text in row) or 1
    size = min(_LARGEST_FONT, 0.9 * width / (_WIDE * longest), 0.7 * height)
    for region in regions(texts, compared.cells) if size >= _SMALLEST_FONT else ():
        red, green, blue, _ = mesh.to_rgba(ratios[region.cell])
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        weight = "bold" if compared.cells[region.cell] else "normal"
        style: dict[str, Any] = {"ha": "center", "va": "center", "weight": weight}
        ax.text(region.column, region.row, region.text, size=size, color="white" if dark else "black", **style)


def _frame(ax: "Axes", compared: HeatReference) -> None:
    """Frame the reference: one cell, or the row or column of today; white around black is seen on any colour."""
    from matplotlib.patches import Rectangle

    down, across = (np.flatnonzero(compared.cells.any(axis=axis)) for axis in (1, 0))
    corner, sides = (across[0] - 0.5, down[0] - 0.5), (len(across), len(down))
    for colour, line in (("white", 4.0), ("black", 1.8)):
        ax.add_patch(Rectangle(corner, *sides, fill=False, edgecolor=colour, linewidth=line, zorder=3, clip_on=False))
