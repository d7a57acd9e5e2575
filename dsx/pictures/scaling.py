"""Lines: the best feasible value along a column, collectives over tensor size, the cost of a run against its days.

Scaling has the best feasible value along one column, and one line for each value of others. Each point is its own best
plan; neighbours on a line may be very different plans. Along the number of GPUs a dotted line shows what each GPU would
do if more of them lost nothing, and bars the 80 % interval of a point. With a baseline, the lines show how many times
faster they are than the baseline, where both have a feasible plan. `ScalingPicture` says what is shown; a report draws
it too (`dsx.pictures.html.figures`).

Collectives have one line for each group size, and one axis for each kind. The cost has one point for each number of
GPUs, with the deadline and the budget.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast, get_args

import numpy as np

from dsx.errors import InputError, UnitError, UnknownNameError, one_text
from dsx.pictures import figure, shown_rows
from dsx.pictures.figure import (
    Axes,
    FigureLayout,
    Style,
    dashes,
    figure_of,
    finite,
    is_wide,
    log_ticks,
    marks,
    plain_numbers,
)
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
    name_text,
    named,
    unit_of,
    value_texts,
)
from dsx.results.frames import check_frame, column_list, require
from dsx.results.ranked_by import COST, DAYS, HOURS
from dsx.results.set_columns import LARGER_IS_BETTER
from dsx.search.ranking import front
from dsx.text import DataFrame
from dsx.units import Dimension, counted, format_quantity, parse_quantity

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


_WIDTH, _HEIGHT = 4.8, 3.0  # of an axis, in inches


def collectives(
    title: str, times: Mapping[str, Sequence[Sequence[float]]], groups: Sequence[int], volumes: Sequence[float]
) -> Axes:
    """Draw times by kind, [V][G] seconds, for G groups of GPUs and V bytes on each; return the upper axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    layout = FigureLayout.new(_WIDTH, *([_HEIGHT] * len(times)))
    for ax, (kind, table) in zip(layout.axes, times.items(), strict=True):
        lines = zip(zip(*table, strict=True), groups, marks(len(groups), 6.0), dashes(len(groups)), strict=True)
        for line, group, mark, dash in lines:
            ax.plot(volumes, line, linestyle=dash, linewidth=1.3, label=str(group), **mark)
        ax.set(xscale="log", yscale="log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_locator(LogLocator(subs=(1,)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: _short(seconds, "s")))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_ylabel(f"time of an {kind}")
        ax.grid(color="0.9", linewidth=0.6)
        ax.set_axisbelow(True)
    first, last = layout.axes[0], layout.axes[-1]
    first.set_title(name_text(title), fontsize="medium")
    outside: Style = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False, "fontsize": "small"}
    first.legend(title="GPUs", title_fontsize="small", **outside)
    last.set_xlabel("size of the tensor on each GPU")
    layout.fit_ticks(last.xaxis, list(volumes), [_short(volume, "bytes") for volume in volumes])
    layout.settle()
    return first


def _short(value: float, unit: str) -> str:
    number, _, name = format_quantity(value, unit).partition(" ")
    return f"{float(number):g} {'µs' if name == 'us' else name}"


_WIDE = 3.0  # ratio of the days from which on they are drawn on a log axis
_POINT = "fastest plan on so many GPUs"
_ALLOWED = "0.45"  # grey of the deadline and the budget


def cost_curve(
    df: DataFrame,
    ax: Axes | None = None,
    *,
    deadline_days: float | None = None,
    budget_usd: float | None = None,
    chosen: int | None = None,
    title: str = "",
) -> Axes:
    """Draw the fastest feasible row of each number of GPUs: its cost against its days.

    Args:
        df: the frame of `dsx.training_run`, or rows of a sweep that states `train_tokens`. Without a price the cost is
            in GPU hours.
        ax: the axis to draw on; by default one of a new figure.
        deadline_days: a line at the latest end.
        budget_usd: a line at the largest cost.
        chosen: the number of GPUs to mark.
        title: what the picture is about.

    A pale line through each point is the 80 % interval of its days, along which the cost changes too. Raises
    UnknownNameError for a frame without the columns, InputError if no row is feasible and has days.
    """
    days = require(df, DAYS)
    usable = np.flatnonzero((require(df, "reject") == 0) & np.isfinite(days))
    if not len(usable):
        raise InputError("no feasible row has training_days: state train_tokens, as in train_tokens='15T'")
    order = usable[np.lexsort((days[usable], require(df, "num_gpus")[usable]))]
    rows = df.iloc[order].drop_duplicates("num_gpus")  # the fastest is the first of its number
    paid = COST if np.isfinite(require(rows, COST)).all() else HOURS
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke

    if ax is None:
        ax = Figure(figsize=(7.0, 4.6), layout="constrained").subplots()
    figure_of(ax)
    days, cost, gpus = (require(rows, name) for name in (DAYS, paid, "num_gpus"))
    _, size, label = axis_unit(df, paid, cost)
    ax.yaxis.set_label_text(label)
    ax.set_xlabel("days of training")
    factor = np.stack([require(rows, f"step_time_s_{end}") / require(rows, "step_time_s") for end in ("low", "high")])
    pale: Style = {"color": "0.85", "linewidth": 2.5}
    for day, price, ends in zip(days, cost / size, factor.T, strict=True):
        ax.plot(day * ends, price * ends, solid_capstyle="round", zorder=1, **pale)
    if np.isfinite(factor).any():
        ax.plot([], [], label="80 % interval of the prediction", **pale)
    best = front(np.stack([days, cost], axis=1))
    ax.plot(days[best], cost[best] / size, "o-", color="black", markersize=5, linewidth=1, zorder=3, label=_POINT)
    if not best.all():
        worse: Style = {"markerfacecolor": "white", "markeredgecolor": "0.35", "markersize": 5, "zorder": 3}
        ax.plot(days[~best], cost[~best] / size, "o", label="slower and dearer than another", **worse)
    for number, day, price in zip(gpus, days, cost / size, strict=True):
        text = ax.annotate(f"{number:,}", (day, price), (7, 5), textcoords="offset points", fontsize="small")
        stroke = [withStroke(linewidth=3, foreground="white")]
        text.set(weight="bold" if number == chosen else "normal", zorder=5, path_effects=stroke)
    if chosen is not None and (gpus == chosen).any():
        edge: Style = {"markeredgecolor": "tab:red", "markeredgewidth": 1.8}
        ring: Style = {"markersize": 13, "markerfacecolor": "none", **edge}
        place = days[gpus == chosen], cost[gpus == chosen] / size
        ax.plot(*place, "o", zorder=4, label=f"chosen: {counted(chosen, 'GPU')}", **ring)
    if deadline_days is not None:
        until = f"deadline: {counted(deadline_days, 'day')}"
        ax.axvline(deadline_days, color=_ALLOWED, linestyle="--", linewidth=1, label=until)
    if budget_usd is not None and paid == COST:
        ax.axhline(budget_usd / size, color=_ALLOWED, linestyle=":", linewidth=1.4, label="budget")
    if days.max() > _WIDE * days.min():
        ax.set_xscale("log")
        log_ticks(ax.xaxis, days)
    for axis in (ax.xaxis, ax.yaxis):
        plain_numbers(axis)
    ax.set_title(title, fontsize="medium")
    ax.legend(fontsize="small", frameon=False)
    return ax
