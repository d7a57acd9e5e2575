"""The Pareto front of two objectives: the plans of one job near the best, those that none beats, and a key of plans.

A front compares plans of one job that could replace each other. On it three plans have names: the fastest (the best by
the first objective), the leanest (the best by the second) and the knee between them. A baseline, what one would run
without a search, shows how much is won. Below the axes are these plans in full. `FrontPicture` says what is shown; a
report draws it too (`dsx.pictures.html.figures`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import NamedTuple

import numpy as np

from dsx.errors import one_text
from dsx.pictures import figure
from dsx.pictures.figure import ABOVE, LEGEND_LINE, Axes, FigureLayout, Style, finite, label_picture
from dsx.pictures.shown_rows import (
    NOTHING,
    AxisUnit,
    axis_unit,
    capacities,
    job_of_best,
    job_text,
    limiting,
    named,
    near_best,
    of_job,
    quantity_texts,
    refuse_many,
    value_texts,
    varied_settings,
)
from dsx.plans.choices import PLAN_COLUMNS
from dsx.plans.plan import Plan
from dsx.results import frames
from dsx.results.frames import WORDS, Conditions, Frame, column_of, minimised, require, taken
from dsx.text import DataFrame

MAX_POINTS = 20_000  # more would only cost time and file size
_SIZE = (6.4, 3.9)  # of the axes, in inches
_MARGIN = 0.09  # of an axis, for the names of plans at its ends
_FONT = 7.5  # points, of the key
_LETTER = 0.603  # the width of a letter of the key, which is monospaced, in its heights
_BELOW = 40.0  # points from the axis to the first line of the key, with ticks and label between
# The names of the best plans by an objective.
_FIRST = {"step_time_s": "fastest", "training_days": "fastest", "tokens_per_s": "fastest", "peak_bytes": "leanest"}
_FIRST |= {"num_gpus": "fewest GPUs", "cost_usd": "cheapest"}


class NamedPlan(NamedTuple):
    """A plan with a name: a frame of one row."""

    name: str
    row: DataFrame


@dataclass(frozen=True)
class FrontPicture:
    """What the picture of a front shows."""

    x: AxisUnit
    y: AxisUnit
    plans: DataFrame  # drawn as a cloud
    number: int  # of the plans of the job within the range, of which the cloud may be a sample
    best: DataFrame  # the front, the best by the first objective first
    marked: Sequence[NamedPlan]  # on the front
    capacity: float | None  # bytes of the GPU's memory, if that is the second objective and all plans have the same


def front_picture(
    plans: DataFrame, best: DataFrame, objectives: tuple[str, str], marked: Sequence[NamedPlan], number: int
) -> FrontPicture:
    """Return the picture of plans of a job near its best, with their front and the plans that have names."""
    x, y = (
        axis_unit(plans, column, np.concatenate([require(plans, column), require(best, column)]))
        for column in map(column_of, objectives)
    )
    sizes = np.unique([*capacities(plans), *capacities(best)]) if y.column == "peak_bytes" else []
    capacity = float(sizes[0]) if len(sizes) == 1 and np.isfinite(sizes[0]) else None
    return FrontPicture(x, y, plans, number, best, marked, capacity)


def front(
    df: DataFrame,
    x: str = "step_time_s",
    y: str = "peak_bytes",
    ax: Axes | None = None,
    by: str | None = None,
    baseline: "Conditions | str | None" = None,
) -> Axes:
    """Draw the feasible rows within twice the best `x` as points, and their front as a stepped line with markers.

    Of a frame with several jobs (numbers of GPUs, batches, clusters, what-ifs) it is that of the best row, as the title
    says. A setting that is an objective or `by` may vary.

    Args:
        df: a result set, or rows of one.
        x, y: objectives, as for `pareto`: "step_time_s" is minimised, "-mfu" maximised.
        ax: the axis to draw on; by default one of a new figure.
        by: a column; each of its values has its own marker on the front.
        baseline: the columns of a plan, {"tp": 8} or "tp=8 pp=16", of which the fastest row is marked; by default the
            plain plan, with which TP fills the NVLink domain and as few stages as fit.

    Raises what `pareto` raises; InputError for a baseline that no feasible row of the job is.
    """
    for name, column in (("x", x), ("y", y)):
        one_text(name, column, "step_time_s")
    for objective in (x, y):
        minimised(df, objective)
    free = {column_of(x), column_of(y), *([one_text("by", by, "strategy")] if by is not None else [])}
    if by is not None:
        require(df, by)
    job = taken(df, of_job(df, job_of_best(df, x, free)))
    limit = limiting(x, y)
    near = near_best(job, limit)
    plans = taken(job, near) if near.any() else job
    best = frames.pareto(plans, x, y)
    marked = [NamedPlan(name, taken(best, np.array([place]))) for name, place in named_plans(best, x, y).items()]
    picture = front_picture(plans, best, (x, y), marked, len(plans))
    layout = FigureLayout.of(ax, *_SIZE)
    ax = layout.axes[0]
    ax.xaxis.set_label_text(picture.x.label)
    ax.yaxis.set_label_text(picture.y.label)
    _draw_points(ax, picture, named(df, column_of(limit)))
    legends = int(len(plans) > 0) + (_draw_front(ax, picture, by) if len(best) else 0)
    compared = _baseline(job, x, baseline) if len(best) else None
    if compared is not None:
        legends += 1
        label = f"baseline, {WORDS}" if baseline is None else "baseline"
        style: Style = {"marker": "X", "color": "white", "markeredgecolor": "black", "markeredgewidth": 1.2}
        place = picture.x.place(compared), picture.y.place(compared)
        ax.plot(*place, linestyle="none", markersize=10, zorder=5, label=label, **style)
    for axis, set_scale, unit in ((ax.xaxis, ax.set_xscale, picture.x), (ax.yaxis, ax.set_yscale, picture.y)):
        values = require(plans, unit.column)
        if figure.is_wide(values):
            set_scale("log")
            figure.log_ticks(axis, values)
        figure.plain_numbers(axis)
    if len(finite(picture.x.place(plans))):
        ax.margins(_MARGIN)
        ax.autoscale_view()
    for plan in marked:
        _name_plan(layout, plan, picture, maximised=(x.startswith("-"), y.startswith("-")))
    if len(best) and picture.capacity is not None:
        line, top = picture.capacity / picture.y.size, float(finite(picture.y.place(plans)).max())
        if line < 1.2 * top:
            ax.axhline(line, color="black", linestyle="--", linewidth=1.0, zorder=1)
            at: Style = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "ha": "right"}
            ax.annotate("HBM capacity", (1.0, line), xytext=(-4.0, 2.0), fontsize="small", va="bottom", **at)
    if legends:
        ax.legend(ncols=2, columnspacing=1.5, **ABOVE)
    compared_plan = [NamedPlan("baseline", compared)] if compared is not None else []
    if marked or compared_plan:
        _draw_key(layout, [*marked, *compared_plan], picture)
    by_both = f"{named(df, column_of(x))} against {named(df, column_of(y))}"
    shows = f"{by_both}: no plan beats those on the line in both" if len(best) else NOTHING
    label_picture(layout, shows, [job_text(plans, [*free, x, y])], above=LEGEND_LINE * -(-legends // 2))
    layout.settle()
    return ax


def named_plans(best: DataFrame, x: str, y: str) -> dict[str, int]:
    """Return the places of the plans of a front with a name, or several: "fastest, leanest"."""
    if not len(best):
        return {}
    first, last = (_FIRST.get(column_of(name), f"best {named(best, column_of(name))}") for name in (x, y))
    names = {0: [first]}
    if (middle := frames.knee(minimised(best, x), minimised(best, y))) is not None:
        names.setdefault(middle, []).append("knee")
    names.setdefault(len(best) - 1, []).append(last)
    return {", ".join(of_place): place for place, of_place in names.items()}


def _baseline(job: DataFrame, x: str, baseline: "Conditions | str | None") -> DataFrame | None:
    """Return the row of the baseline; None if there is none by default. It may be outside of the axes."""
    feasible = taken(job, require(job, "reject") == 0)
    if baseline is None:
        # Several jobs have several plain plans.
        place = None if varied_settings(job) else frames.plain_plan(feasible)
    else:
        rows = np.flatnonzero(frames.matching(feasible, frames.parsed("baseline", baseline)))
        place = int(rows[minimised(feasible, x)[rows].argmin()])
    return None if place is None else taken(feasible, np.array([place]))


def _draw_points(ax: Axes, picture: FrontPicture, limit: str) -> None:
    """Draw feasible rows as grey points, or rejected ones as pale crosses, at most MAX_POINTS."""
    x, y = picture.x.place(picture.plans), picture.y.place(picture.plans)
    feasible = require(picture.plans, "reject") == 0
    cross: Style = {"marker": "x", "color": "0.85", "s": 10, "linewidths": 0.6}
    point: Style = {"marker": ".", "color": "0.55", "s": 16, "linewidths": 0}
    for rows, what, style in (
        (np.flatnonzero(~feasible), "rejected plans", cross),
        (np.flatnonzero(feasible), f"feasible plans within twice the best {limit}", point),
    ):
        label = f"{len(rows):,} {what}"
        if len(rows) > MAX_POINTS:
            # Chosen at random: an even stride would interfere with the order of the enumeration.
            rows = np.random.default_rng(0).choice(rows, MAX_POINTS, replace=False)
            label += f" ({MAX_POINTS:,} drawn)"
        if len(rows):
            ax.scatter(x[rows], y[rows], label=label, rasterized=True, **style)


def _draw_front(ax: Axes, picture: FrontPicture, by: str | None) -> int:
    """Draw a front with plans; return the number of its legends."""
    best = picture.best
    x, y = picture.x.place(best), picture.y.place(best)
    # A row on the front bounds the objectives until the next row, whether they are minimised or maximised.
    ax.step(x, y, where="post", color="black", linewidth=1.2, zorder=3)
    if by is None:
        ax.plot(x, y, "o", color="black", markersize=5, linestyle="none", zorder=4, label=f"front ({len(x)})")
        return 1
    groups = require(best, by)
    values = sorted(set(groups))
    refuse_many(len(values), figure.MAX_CATEGORIES, "values", [by])
    for value, text, mark in zip(values, value_texts(best, by, values), figure.marks(len(values), 9.0), strict=True):
        same = groups == value
        label = f"front, {named(best, by)} {text} ({same.sum()})"
        ax.plot(x[same], y[same], linestyle="none", zorder=4, label=label, **mark)
    return len(values)


def _name_plan(layout: FigureLayout, plan: NamedPlan, picture: FrontPicture, maximised: tuple[bool, bool]) -> None:
    """Write the name of a plan beside its marker, on the side on which the front leaves room; the axis makes some."""
    from matplotlib.transforms import offset_copy

    ax = layout.axes[0]
    (x,), (y,) = picture.x.place(plan.row), picture.y.place(plan.row)
    at_left, below = not maximised[0], not maximised[1]
    style: Style = {"ha": "right" if at_left else "left", "va": "top" if below else "bottom", "zorder": 6}
    offset = {"x": -5.0 if at_left else 5.0, "y": -4.0 if below else 4.0}
    beside = offset_copy(ax.transData, figure.figure_of(ax), **offset, units="points")
    text = ax.text(x, y, plan.name, transform=beside, fontsize="small", weight="bold", **style)
    ((width, _),) = figure.text_sizes([text])
    share = (width + 8.0) / layout.room(ax)[0]
    place = ax.transAxes.inverted().transform(ax.transData.transform((x, y)))[0]
    room = place if at_left else 1.0 - place
    if room < share < 0.5:
        # So much wider that the marker is this share of the axis from its end.
        wider = (share - room) / (1.0 - share)
        ends = ax.transAxes.transform([(-wider, 0.0), (1.0 + wider, 0.0)])
        low, high = ax.transData.inverted().transform(ends)[:, 0]
        ends = ax.get_xlim()
        ax.set_xlim((float(low), ends[1]) if at_left else (ends[0], float(high)))


def _draw_key(layout: FigureLayout, plans: Sequence[NamedPlan], picture: FrontPicture) -> None:
    """Write below the lowest axis a line for each plan: its name, its objectives, its choices if the rows have them."""
    ax, columns = layout.axes[-1], (picture.x.column, picture.y.column)
    cells = [
        [plan.name, *(quantity_texts(plan.row, name, require(plan.row, name).astype(float))[0] for name in columns)]
        for plan in plans
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    indent = sum(widths) + 2 * len(widths)
    letters = max(max(int(layout.room(ax)[0] / (_LETTER * _FONT)), 40) - indent, 24)
    lines: list[str] = []
    for plan, (name, *quantities) in zip(plans, cells, strict=True):
        head = "  ".join([name.ljust(widths[0]), *(q.rjust(w) for q, w in zip(quantities, widths[1:], strict=True))])
        choices = ""
        if {*PLAN_COLUMNS} <= {*plan.row.columns}:
            columns_of_plan: Frame = plan.row[list(PLAN_COLUMNS)]
            (values,) = columns_of_plan.to_dict(orient="records")
            choices = f"{values['strategy']} {Plan(values).text}"
        text = wrap(choices, letters) or [""]
        lines += [f"{head}  {text[0]}".rstrip(), *(" " * indent + part for part in text[1:])]
    place: Style = {"xy": (0.0, 0.0), "xycoords": "axes fraction", "textcoords": "offset points"}
    style: Style = {"family": "DejaVu Sans Mono", "fontsize": _FONT, "linespacing": 1.3, "color": "0.15"}
    ax.annotate("\n".join(lines), gid="plans", **place, xytext=(0.0, -_BELOW), va="top", annotation_clip=False, **style)
