"""Scaling: the best feasible value along one column, one line for each value of others.

Each point is its own best plan; neighbours on a line may be very different plans. Along the number of GPUs a dotted
line shows what each GPU would do if more of them lost nothing, and bars the 80 % interval of a point. With a baseline,
the lines show how many times faster they are than the baseline, where both have a feasible plan. `ScalingPicture` says
what is shown; a report draws it too (`dsx.pictures.html.figures`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast, get_args

import numpy as np

from dsx.errors import InputError, UnitError, UnknownNameError, one_text
from dsx.pictures import figure, shown_rows
from dsx.pictures.figure import Axes, FigureLayout, Style, finite, is_wide
from dsx.pictures.shown_rows import (
    GPUS,
    NOTHING,
    PER_GPU,
    AxisUnit,
    Numbers,
    Value,
    axis_unit,
    best_over,
    job_text,
    named,
    unit_of,
    value_texts,
)
from dsx.results.frames import check_frame, column_list, require
from dsx.results.set_columns import LARGER_IS_BETTER
from dsx.text import DataFrame
from dsx.units import Dimension, parse_quantity

# Below these ranges a linear axis shows the same, and is easier to read.
_LINEAR_X, _LINEAR_Y = 3.9, 5.0
_SIZE = (4.8, 3.6)  # of the axes, in inches
_TIMES = ("s", "days")
_IDEAL_LINES = 4  # with more of them a reader cannot find its own
_ROOM = 1.15  # above the highest point of an axis that begins at zero


@dataclass(frozen=True)
class ScalingLine:
    """A line: the best value at each x, with its 80 % interval, [n] each; NaN where there is none."""

    key: tuple[Value, ...]  # of the columns that distinguish lines
    name: str
    x: Sequence[Value]
    y: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True)
class ScalingPicture:
    """What a picture of scaling shows."""

    y: AxisUnit
    lines: Sequence[ScalingLine]
    ideal: Sequence[Numbers]  # for some of the lines what their fewest GPUs do, scaled to more of them


def scaling_picture(df: DataFrame, x: str, y: str, by: Sequence[str]) -> ScalingPicture:
    """Return the best feasible `y` by `x`, a line for each group of `by`; raises what `scaling` raises."""
    table = shown_rows.best_table(df, by, x, y)
    shown_rows.refuse_many(len(table.rows), figure.MAX_CATEGORIES, "lines", by)
    texts = [
        dict(zip(values, value_texts(df, column, values), strict=True))
        for i, column in enumerate(by)
        for values in [list(dict.fromkeys(row[i] for row in table.rows))]
    ]
    lines: list[ScalingLine] = []
    for row, values, places in zip(table.rows, table.values, table.places, strict=True):
        name = ", ".join(text[value] for text, value in zip(texts, row, strict=True))
        low, high = np.full((2, *values.shape), np.nan)
        points = np.flatnonzero(places >= 0)
        if (ends := shown_rows.interval(df.iloc[places[points]], y)) is not None:
            low[points], high[points] = ends
        lines.append(ScalingLine(row, name, table.columns, values, low, high))
    gpus = np.asarray(table.columns, np.float64) if x == GPUS else None
    scaled = [] if gpus is None else [shown_rows.ideal(y, gpus, values) for values in table.values]
    longer = [line for line in scaled if np.isfinite(line).sum() > 1]
    return ScalingPicture(axis_unit(df, y, table.values), lines, longer)


def scaling(
    df: DataFrame,
    x: str = "num_gpus",
    y: str = PER_GPU,
    by: str | Sequence[str] | None = None,
    baseline: object = None,
    ax: Axes | None = None,
) -> Axes:
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
        require(df, y)
        if not columns:
            raise InputError("a baseline is one of the lines: `by` must name the column of the lines")
        if unit_of(df, y) not in _TIMES and y not in LARGER_IS_BETTER:
            shows = "a baseline shows how many times faster the others are"
            raise InputError(f"{shows}, but {y!r} is neither time nor rate")
    picture = scaling_picture(df, x, y, columns)
    lines, size, label = picture.lines, picture.y.size, picture.y.label
    x_values = lines[0].x if lines else []
    values = np.array([line.y for line in lines]).reshape(len(lines), len(x_values)) / size
    if baseline is not None and lines:
        at = _position(df, baseline, columns, lines)
        faster = values / values[at]
        values, label = faster if y in LARGER_IS_BETTER else 1.0 / faster, f"speed-up over {lines[at].name}"
    layout = FigureLayout.of(ax, *_SIZE)
    ax = layout.axes[0]
    places, texts = _place_x(ax, df, x, x_values)
    _draw_lines(ax, places, values, [line.name for line in lines])
    has_ideal = has_bars = False
    if baseline is None:
        has_ideal = 0 < len(picture.ideal) and len(lines) <= _IDEAL_LINES
        dots: Style = {"linestyle": (0, (1, 2)), "color": "0.35", "linewidth": 1.4, "zorder": 1}
        for number, line in enumerate(picture.ideal if has_ideal else ()):
            ax.plot(places, line / size, label="ideal: as on the fewest GPUs" if number == 0 else "_", **dots)
        has_bars = _draw_bars(ax, places, picture)
        if y in LARGER_IS_BETTER and ax.get_yscale() == "linear" and len(finite(values)):
            ax.set_ylim(0.0, max(ax.get_ylim()[1], _ROOM * float(finite(values).max())))
    ax.set_ylabel(label)
    if lines and (columns or has_ideal or has_bars):
        # Outside: lines may pass through any corner.
        outside: Style = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}
        title = ", ".join(named(df, column) for column in columns) or None
        ax.legend(title=title, title_fontsize="small", fontsize="small", ncols=1 + len(lines) // 21, **outside)
    layout.fit_ticks(ax.xaxis, places, texts)
    shows = f"{label.partition(' [')[0]} by {named(df, x)}" if len(finite(values)) else NOTHING
    points = {x, *columns}
    figure.label_picture(layout, shows, [job_text(df, {*points, y}), best_over(df, "point", points)])
    layout.settle()
    return ax


def _place_x(ax: Axes, df: DataFrame, x: str, values: Sequence[Value]) -> tuple[list[float], list[str]]:
    """Label the x axis and choose its scale; return the position and the text of each of its values."""
    if names := [value for value in values if isinstance(value, str)]:
        ax.set_xlabel(named(df, x))
        return list(map(float, range(len(names)))), names
    numbers = np.asarray(values, np.float64)
    unit = axis_unit(df, x, numbers)
    ax.xaxis.set_label_text(unit.label)
    places = numbers / unit.size
    if is_wide(numbers, _LINEAR_X):
        from matplotlib.ticker import NullLocator

        ax.set_xscale("log", base=2)
        ax.xaxis.set_minor_locator(NullLocator())
    return list(places), [f"{place:.10g}" for place in places]


def _draw_lines(ax: Axes, places: Sequence[float], values: Numbers, names: Sequence[str]) -> None:
    for line, name, mark, dash in zip(
        values, names, figure.marks(len(names), 8.0), figure.dashes(len(names)), strict=True
    ):
        ax.plot(places, line, linestyle=dash, linewidth=1.3, label=name or "best plan", **mark)
    if is_wide(values, _LINEAR_Y):
        ax.set_yscale("log")
        figure.log_ticks(ax.yaxis, values)
    figure.plain_numbers(ax.yaxis)
    ax.grid(color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    points = finite(values)
    if len(points) == 0:
        ax.set_yticks([])
    if len(places):
        # The axis includes positions without a point.
        ax.update_datalim([(place, min(points, default=1.0)) for place in places])
        ax.autoscale_view()


def _draw_bars(ax: Axes, places: Sequence[float], picture: ScalingPicture) -> bool:
    """Draw the 80 % interval of each point; return whether there is any."""
    lines = [pair for pair in zip(picture.lines, list(ax.lines), strict=False) if np.isfinite(pair[0].low).any()]
    for number, (line, artist) in enumerate(lines):
        points = np.isfinite(line.y)
        lengths = np.stack([line.y - line.low, line.high - line.y])[:, points] / picture.y.size
        style: Style = {"color": artist.get_color(), "elinewidth": 1.1, "capsize": 3.0, "zorder": 1, "fmt": "none"}
        label = "80 % interval" if number == 0 else "_"
        ax.errorbar(np.asarray(places)[points], line.y[points] / picture.y.size, lengths, label=label, **style)
    return bool(lines)


def _position(df: DataFrame, baseline: object, columns: Sequence[str], lines: Sequence[ScalingLine]) -> int:
    """Return the line of the baseline; a quantity given as text may have another prefix than in the legend."""
    unit = unit_of(df, columns[0])
    names = {str(baseline), baseline}
    if unit in get_args(Dimension):
        with suppress(UnitError):
            names.add(parse_quantity(baseline, cast(Dimension, unit)))
    for i, line in enumerate(lines):
        if line.name in names or (len(line.key) == 1 and line.key[0] in names):
            return i
    of_column = f", of the column {', '.join(columns)}"
    raise UnknownNameError("baseline", str(baseline), [line.name for line in lines], of_column)
