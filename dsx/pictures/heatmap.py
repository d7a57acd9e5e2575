"""Heat map: by how much the best feasible value of each pair of values of two columns differs from today's machine.

Cells show by how much they differ from the machine of today, if its values are on the axes, or else from the best cell;
a frame marks it. Where one axis is a field of the machine, today is a row or a column, and each cell is compared with
the cell of today at the same value of the other axis. Neighbours with the same number are outlined together and have it
once; what does not differ has none. Colours cover the bulk of the cells: a row that is far off, such as one of a
useless machine, has the colour of the end of the scale. `HeatPicture` says what is shown; a report draws it too
(`dsx.pictures.html.figures`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsx.errors import one_text
from dsx.pictures import shown_rows
from dsx.pictures.figure import ABOVE, LEGEND_LINE, Axes, FigureLayout, Style, figure_of, finite, is_wide, label_picture
from dsx.pictures.shown_rows import (
    BestTable,
    Numbers,
    best_table,
    named,
    place_today,
    refuse_many,
    value_today,
)
from dsx.results.set_columns import LARGER_IS_BETTER
from dsx.text import DataFrame

if TYPE_CHECKING:
    from matplotlib.collections import QuadMesh


MAX_VALUES = 200  # of one axis
# Colours resolve fewer values than positions do.
_LINEAR_COLOURS = 8.0
_FAR = 7.0  # median absolute deviations of the logarithms: as far as Tukey's outer fences of a normal distribution
_LEAST_RANGE = 0.05  # of the reference, so that colours do not exaggerate what hardly differs
_SAME = 0.005  # of the reference: what differs by less has no number
_FONT = 8.0  # points, of ticks
_WIDE = 0.6  # width of a digit, and roughly of a letter, as a share of the font size
_SMALLEST_FONT, _LARGEST_FONT = 4.5, 9.0  # points, of values in cells
_MINUS = "\N{MINUS SIGN}"

Mask = NDArray[np.bool_]  # [rows, columns]


@dataclass(frozen=True)
class HeatReference:
    """The values that cells are compared with, and which cells have them."""

    values: Numbers  # [rows, columns]
    cells: Mask  # the cells that are the reference
    today: bool  # whether they are the machine of today; else the best cell
    missing: tuple[str, ...]  # columns of the machine in which today's value is not on the axis


@dataclass(frozen=True)
class HeatPicture:
    """What a heat map shows: cells of the best feasible values, ascending to the right and upwards."""

    x: str  # the name of the column along x
    y: str
    x_texts: Sequence[str]
    y_texts: Sequence[str]
    values: Numbers  # [rows, columns]; NaN if no row is feasible
    compared: HeatReference | None  # None if no cell has a value


def heat_picture(df: DataFrame, x: str, y: str, value: str) -> HeatPicture:
    """Return the heat map of the best feasible `value` for each pair; raises what `heatmap` raises."""
    table = best_table(df, [y], x, value)
    refuse_many(len(table.columns), MAX_VALUES, "values", [x])
    refuse_many(len(table.rows), MAX_VALUES, "values", [y])
    rows = [row for (row,) in table.rows]
    compared = _reference(df, table, x, y, value in LARGER_IS_BETTER) if np.isfinite(table.values).any() else None
    texts = shown_rows.value_texts(df, x, table.columns), shown_rows.value_texts(df, y, rows)
    return HeatPicture(named(df, x), named(df, y), *texts, table.values, compared)


def _reference(df: DataFrame, table: BestTable, x: str, y: str, larger_is_better: bool) -> HeatReference:
    """Return what the cells of a table, of which at least one has a value, are compared with."""
    places = {x: place_today(df, x, table.columns), y: place_today(df, y, [row for (row,) in table.rows])}
    machine = [name for name in (x, y) if value_today(df, name) is not None]
    missing = tuple(name for name in machine if places[name] is None)
    cells = np.zeros(table.values.shape, bool)
    if machine and not missing:
        across, down = places[x], places[y]
        cells[slice(None) if down is None else down, slice(None) if across is None else across] = True
        values = np.where(cells, table.values, np.nan)
        if len(machine) == 2:
            today = np.full(values.shape, values[cells][0])
        else:
            # A row or a column of today, spread over the others; NaN where it has no value.
            axis = 1 if down is None else 0
            has_value = np.isfinite(values)
            sums = np.where(has_value, values, 0.0).sum(axis=axis, keepdims=True)
            today = np.broadcast_to(np.where(has_value.any(axis=axis, keepdims=True), sums, np.nan), values.shape)
        if (np.isfinite(today) | ~np.isfinite(table.values)).all():
            return HeatReference(today, cells, True, ())
    best = np.nanmax(table.values) if larger_is_better else np.nanmin(table.values)
    cells = np.zeros(table.values.shape, bool)
    cells[tuple(np.argwhere(table.values == best)[0])] = True
    return HeatReference(np.full(table.values.shape, best), cells, False, missing)


def heatmap(df: DataFrame, x: str, y: str, value: str = "step_time_s", ax: Axes | None = None) -> Axes:
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
    from matplotlib.patches import Patch

    picture = heat_picture(df, x, y, value)
    rows, columns = picture.values.shape
    # Room for a number in each cell, limited to the size of a page.
    layout = FigureLayout.of(ax, float(np.clip(0.5 * columns, 3.4, 9.0)), float(np.clip(0.36 * rows, 1.4, 7.5)))
    ax = layout.axes[0]
    ax.set_xlabel(picture.x)
    ax.set_ylabel(picture.y)
    # The background shows through empty cells.
    empty = ~np.isfinite(picture.values)
    hatch: Style = {"facecolor": "0.93", "edgecolor": "0.6", "hatch": "////"}
    ax.patch.set(**hatch)
    legend = bool(empty.any() and not empty.all())
    if legend:
        ax.legend(handles=[Patch(label="no feasible plan in the set", linewidth=0.0, **hatch)], **ABOVE)
    ax.set(xlim=(-0.5, max(columns, 1) - 0.5), ylim=(-0.5, max(rows, 1) - 0.5))
    ax.tick_params(length=0, labelsize=_FONT)
    layout.fit_ticks(ax.yaxis, range(rows), picture.y_texts, turn=False)
    layout.fit_ticks(ax.xaxis, range(columns), picture.x_texts)
    shows, lines = shown_rows.NOTHING, [shown_rows.job_text(df, {x, y, value})]
    if picture.compared is not None:
        _draw_values(layout, picture, picture.compared, df, value)
        shows = f"{named(df, value)} by {picture.x} and {picture.y}"
        lines += [
            shown_rows.best_over(df, "cell", {x, y}),
            _reference_text(df, picture.compared, value, picture.values),
        ]
    label_picture(layout, shows, lines, above=LEGEND_LINE * legend)
    layout.settle()
    return ax


def _reference_text(df: DataFrame, compared: HeatReference, value: str, values: Numbers) -> str:
    """Return what the frame is, and what a cell without a number means."""
    amounts = values[compared.cells & np.isfinite(values)]
    single = len(amounts) == 1
    amount = f", {shown_rows.quantity_texts(df, value, amounts)[0]}" if single else ""
    machines = [cluster["name"] for cluster in df.attrs.get("spec", {}).get("resolved", {}).get("clusters", ())]
    framed = f"{shown_rows.name_text(machines[0])} as it is" if compared.today and machines else "the best"
    names = " and ".join(named(df, name) for name in compared.missing)
    absent = f"; today's {names} is no cell" if names else ""
    return f"framed: {framed}{amount}; no number: within {100 * _SAME:g} % of {'it' if single else 'that'}{absent}"


def _draw_values(
    layout: FigureLayout, picture: HeatPicture, compared: HeatReference, df: DataFrame, value: str
) -> None:
    """Draw the cells with their numbers, relative to the reference, which is framed."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    ax = layout.axes[0]
    ratios = picture.values / compared.values
    texts = np.array([[_ratio_text(ratio) if np.isfinite(ratio) else "" for ratio in row] for row in ratios.tolist()])
    texts = texts.astype(object)
    outlined = np.where((texts == "") & np.isfinite(ratios), "same", texts)
    # A number without a unit, which the title has; of a row or column of today each cell is its own reference.
    if compared.cells.sum() == 1:
        (amount,) = shown_rows.quantity_texts(df, value, picture.values[compared.cells])
        texts[compared.cells] = amount.partition(" ")[0]
    mesh = _draw_cells(ax, ratios, f"{named(df, value)} relative to {'today' if compared.today else 'the best'}")
    # White lines between cells with different numbers, and around cells without a value; cells are 1 apart.
    upright = np.argwhere(outlined[:, 1:] != outlined[:, :-1]).tolist()
    level = np.argwhere(outlined[1:] != outlined[:-1]).tolist()
    borders = [
        *([(column + 0.5, row - 0.5), (column + 0.5, row + 0.5)] for row, column in upright),
        *([(column - 0.5, row + 0.5), (column + 0.5, row + 0.5)] for row, column in level),
    ]
    ax.add_collection(LineCollection(borders, colors="white", linewidths=0.7))
    # The number of each region in a font that fits; none at all if that font would be too small to read.
    width, height = np.array(layout.room(ax)) / ratios.shape[::-1]
    longest = max(map(len, texts.flat)) or 1
    size = min(_LARGEST_FONT, 0.9 * width / (_WIDE * longest), 0.7 * height)
    for region in _regions(texts, compared.cells) if size >= _SMALLEST_FONT else ():
        red, green, blue, _ = mesh.to_rgba(ratios[region.cell])
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        weight = "bold" if compared.cells[region.cell] else "normal"
        style: Style = {"ha": "center", "va": "center", "weight": weight, "color": "white" if dark else "black"}
        ax.text(region.column, region.row, region.text, size=size, **style)
    # White around black is seen on any colour.
    down, across = (np.flatnonzero(compared.cells.any(axis=axis)) for axis in (1, 0))
    corner, sides = (across[0] - 0.5, down[0] - 0.5), (len(across), len(down))
    for colour, line in (("white", 4.0), ("black", 1.8)):
        ax.add_patch(Rectangle(corner, *sides, fill=False, edgecolor=colour, linewidth=line, zorder=3, clip_on=False))


def _draw_cells(ax: Axes, ratios: Numbers, label: str) -> "QuadMesh":
    """Draw the cells and their colour bar, whose range is that of the values but for those far from the bulk."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    numbers = finite(ratios)
    logs = np.log(numbers[numbers > 0])
    median = np.median(logs) if len(logs) else 0.0
    reach = _FAR * max(float(np.median(np.abs(logs - median))) if len(logs) else 0.0, _LEAST_RANGE / 2)
    low, high = max(float(numbers.min()), np.exp(median - reach)), min(float(numbers.max()), np.exp(median + reach))
    middle, half = (low + high) / 2, max((high - low) / 2, _LEAST_RANGE / 2)
    low, high = middle - half, middle + half
    wide = is_wide(np.array([low, high]), _LINEAR_COLOURS)
    edges = [np.arange(count + 1) - 0.5 for count in ratios.shape[::-1]]
    norm = (LogNorm if wide else Normalize)(low, high)
    mesh = ax.pcolormesh(*edges, np.ma.masked_invalid(ratios), norm=norm, cmap="viridis")
    outside = bool((numbers < low * (1 - 1e-6)).any()), bool((numbers > high * (1 + 1e-6)).any())
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[outside]
    bar = figure_of(ax).colorbar(mesh, ax=ax, label=label, pad=0.02, extend=extend)
    bar.ax.tick_params(labelsize=_FONT)
    if wide:
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        # Round numbers of percent.
        percent = MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]).tick_values(100 * (low - 1), 100 * (high - 1))
        ticks = [1 + tick / 100 for tick in percent if low <= 1 + tick / 100 <= high]
        bar.ax.yaxis.set_major_locator(FixedLocator(ticks))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: _ratio_text(ratio, digits=True) or "0 %"))
    return mesh


def _ratio_text(ratio: float, digits: bool = False) -> str:
    """Return "+12 %", minus likewise, or "2.4 x" from twice on; "" for what is the same."""
    if ratio >= 2.0:
        return f"{shown_rows.three_digits(ratio) if not digits else f'{ratio:.3g}'} x"
    if abs(ratio - 1.0) < (1e-9 if digits else _SAME):
        return ""
    percent = 100.0 * (ratio - 1.0)
    text = f"{percent:+.3g}" if digits else f"{percent:+.0f}"
    return f"{text} %".replace("-", _MINUS)


class _Region(NamedTuple):
    """Neighbouring cells with the same text, and where it is written: in their middle if they fill a rectangle."""

    text: str
    row: float
    column: float
    cell: tuple[int, int]  # the one that is nearest to the middle


def _regions(texts: NDArray[np.object_], apart: Mask) -> list[_Region]:
    """Return the regions of equal texts along rows and columns, [rows, columns]; an `apart` cell is one of its own."""
    from scipy import ndimage

    regions: list[_Region] = []
    for text in filter(None, dict.fromkeys(map(str, texts.flat))):
        same = texts == text
        numbers = np.zeros(same.shape, np.int32)
        ndimage.label(same & ~apart, output=numbers)
        groups = [np.argwhere(numbers == number) for number in range(1, int(numbers.max()) + 1)]
        for cells in (*groups, *(cell[None] for cell in np.argwhere(same & apart))):
            middle = cells.mean(axis=0)
            row, column = cells[int(((cells - middle) ** 2).sum(axis=1).argmin())].tolist()
            full = len(cells) == int(np.prod(np.ptp(cells, axis=0) + 1))
            at = middle.tolist() if full else [row, column]
            regions.append(_Region(text, at[0], at[1], (row, column)))
    return regions
