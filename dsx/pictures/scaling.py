"""Scaling: the best feasible value along one column, one line for each value of others.

Each point is its own best plan; neighbours on a line may be very different plans. Along the number of GPUs a dotted
line shows what each GPU would do if more of them lost nothing, and bars the 80 % interval of a point. With a baseline,
the lines show how many times faster they are than the baseline, where both have a feasible plan.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from dsx.errors import InputError, UnitError, UnknownNameError, one_text
from dsx.pictures.axes import (
    MAX_CATEGORIES,
    NOTHING,
    FigureLayout,
    Numbers,
    best_over,
    dashes,
    finite,
    is_wide,
    job_text,
    label_axis,
    label_picture,
    log_ticks,
    marks,
    named,
    plain_numbers,
    scale_of,
    unit_of,
    value_texts,
)
from dsx.pictures.chosen_rows import (
    GPUS,
    LARGER_IS_BETTER,
    PER_GPU,
    BestTable,
    best_table,
    ideal,
    interval,
    refuse_many,
)
from dsx.results.frames import check_frame, column_list, require
from dsx.units import Dimension, parse_quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


# Below these ranges a linear axis shows the same, and is easier to read.
_LINEAR_X, _LINEAR_Y = 3.9, 5.0
_SIZE = (4.8, 3.6)  # of the axes, in inches
_TIMES = ("s", "days")
_IDEAL_LINES = 4  # with more of them a reader cannot find its own
_ROOM = 1.15  # above the highest point of an axis that begins at zero
_OUTSIDE = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}


def scaling(
    df: "pd.DataFrame",
    x: str = "num_gpus",
    y: str = PER_GPU,
    by: str | Sequence[str] | None = None,
    baseline: object = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the best feasible `y` for each `x`: the smallest, or for mfu and rates of tokens the largest.

    Args:
        df: a result set, or rows of one.
        x: a column; its values are the ticks, on a log2 axis if they span a factor of four.
        y: a column of quantities.
        by: one or several columns; one line for each combination of their values.
        baseline: a value of `by`: as in the legend ("1d", or for several columns "1d, 8"), or for one column as in the
            frame (80e9) or with another unit ("0.08 TB"). The y axis then shows how many times faster the lines are.
        ax: the axis to draw on; by default one of a new figure.

    A line has a gap where it has no feasible row. Raises UnknownNameError for an unknown column or baseline, InputError
    for a `y` without quantities, a baseline for what is neither time nor rate, or too many lines.
    """
    columns = column_list("by", by)
    for name, column in (("x", x), ("y", y)):
        one_text(name, column, "num_gpus")
    check_frame(df)
    if baseline is not None:
        _check_baseline(df, y, columns)
    table = best_table(df, columns, x, y)
    refuse_many(len(table.rows), MAX_CATEGORIES, "lines", columns)
    names = _names(df, columns, table.rows)
    size, label = scale_of(df, y, table.values)
    values = table.values / size
    if baseline is not None and names:
        line = _position(df, baseline, columns, names, table.rows)
        faster = values / values[line]
        values, label = faster if y in LARGER_IS_BETTER else 1.0 / faster, f"speed-up over {names[line]}"
    layout = FigureLayout.of(ax, *_SIZE)
    ax = layout.axes[0]
    places, texts = _place_x(ax, df, x, table.columns)
    _draw_lines(ax, places, values, names)
    drawn = baseline is None and len(table.columns) > 1 and x == GPUS
    has_ideal = drawn and len(names) <= _IDEAL_LINES and _draw_ideal(ax, places, table, y, size)
    has_bars = baseline is None and _draw_bars(ax, places, df, table, y, size)
    if baseline is None and y in LARGER_IS_BETTER and ax.get_yscale() == "linear" and len(finite(values)):
        ax.set_ylim(0.0, max(ax.get_ylim()[1], _ROOM * float(finite(values).max())))
    ax.set_ylabel(label)
    if names and (columns or has_ideal or has_bars):
        # Outside: lines may pass through any corner.
        title = ", ".join(named(df, column) for column in columns) or None
        ax.legend(title=title, title_fontsize="small", fontsize="small", ncols=1 + len(names) // 21, **_OUTSIDE)
    layout.fit_ticks(ax.xaxis, places, texts)
    shown = {x, *columns}
    shows = f"{label.partition(' [')[0]} by {named(df, x)}" if len(finite(values)) else NOTHING
    label_picture(layout, shows, [job_text(df, {*shown, y}), best_over(df, "point", shown)])
    layout.settle()
    return ax


def _place_x(ax: "Axes", df: "pd.DataFrame", x: str, values: Sequence[Any]) -> tuple[list[float], list[str]]:
    """Label the x axis and choose its scale; return the position and the text of each of its values."""
    if any(isinstance(value, str) for value in values):
        ax.set_xlabel(named(df, x))
        return list(map(float, range(len(values)))), list(values)
    numbers = np.asarray(values, np.float64)
    places = numbers / label_axis(ax.xaxis, df, x, numbers)
    if is_wide(numbers, _LINEAR_X):
        from matplotlib.ticker import NullLocator

        ax.set_xscale("log", base=2)
        ax.xaxis.set_minor_locator(NullLocator())
    return list(places), [f"{place:.10g}" for place in places]


def _draw_lines(ax: "Axes", places: Sequence[float], values: Numbers, names: Sequence[str]) -> None:
    for line, name, mark, dash in zip(values, names, marks(len(names), 8.0), dashes(len(names)), strict=True):
        ax.plot(places, line, linestyle=dash, linewidth=1.3, label=name or "best plan", **mark)
    if is_wide(values, _LINEAR_Y):
        ax.set_yscale("log")
        log_ticks(ax.yaxis, values)
    plain_numbers(ax.yaxis)
    ax.grid(color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    points = finite(values)
    if len(points) == 0:
        ax.set_yticks([])
    if len(places):
        # The axis includes positions without a point.
        ax.update_datalim([(place, min(points, default=1.0)) for place in places])
        ax.autoscale_view()


def _draw_ideal(ax: "Axes", places: Sequence[float], table: BestTable, y: str, size: float) -> bool:
    """Draw for each line what its fewest GPUs do, scaled to more of them; return whether there was anything to draw."""
    lines = [ideal(y, np.asarray(table.columns, np.float64), line) / size for line in table.values]
    lines = [line for line in lines if np.isfinite(line).sum() > 1]
    for number, line in enumerate(lines):
        label = "ideal: as on the fewest GPUs" if number == 0 else "_"
        ax.plot(places, line, linestyle=(0, (1, 2)), color="0.35", linewidth=1.4, zorder=1, label=label)
    return bool(lines)


def _draw_bars(ax: "Axes", places: Sequence[float], df: "pd.DataFrame", table: BestTable, y: str, size: float) -> bool:
    """Draw the 80 % interval of each point; return whether there was any."""
    found = False
    for line, rows in zip(list(ax.lines), table.places, strict=False):
        there = np.flatnonzero(rows >= 0)
        ends = interval(df.iloc[rows[there]], y)
        if ends is not None:
            values = require(df, y)[rows[there]]
            style: dict[str, Any] = {"color": line.get_color(), "elinewidth": 1.1, "capsize": 3.0, "zorder": 1}
            lengths = np.stack([values - ends[0], ends[1] - values]) / size
            label = "_" if found else "80 % interval"
            ax.errorbar(np.asarray(places)[there], values / size, lengths, fmt="none", label=label, **style)
            found = True
    return found


def _names(df: "pd.DataFrame", columns: Sequence[str], rows: Sequence[tuple[object, ...]]) -> list[str]:
    """Return the name of each line in the legend: the values of its columns."""
    texts = [
        dict(zip(distinct, value_texts(df, column, distinct), strict=True))
        for i, column in enumerate(columns)
        for distinct in [list(dict.fromkeys(row[i] for row in rows))]
    ]
    return [", ".join(text[value] for text, value in zip(texts, row, strict=True)) for row in rows]


def _check_baseline(df: "pd.DataFrame", y: str, columns: Sequence[str]) -> None:
    require(df, y)
    if not columns:
        raise InputError("a baseline is one of the lines: `by` must name the column of the lines")
    if unit_of(df, y) not in _TIMES and y not in LARGER_IS_BETTER:
        raise InputError(f"a baseline shows how many times faster the others are, but {y!r} is neither time nor rate")


def _position(
    df: "pd.DataFrame",
    baseline: object,
    columns: Sequence[str],
    names: Sequence[str],
    rows: Sequence[tuple[object, ...]],
) -> int:
    """Return the line of the baseline; a quantity given as text may have another prefix than in the legend."""
    unit = unit_of(df, columns[0])
    wanted = {str(baseline), baseline}
    if unit in get_args(Dimension):
        with suppress(UnitError):
            wanted.add(parse_quantity(baseline, cast(Dimension, unit)))
    for i, (name, row) in enumerate(zip(names, rows, strict=True)):
        if name in wanted or (len(row) == 1 and row[0] in wanted):
            return i
    raise UnknownNameError("baseline", str(baseline), names, f", of the column {', '.join(columns)}")
