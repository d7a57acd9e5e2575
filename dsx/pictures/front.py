"""The Pareto front of two objectives, drawn with the feasible plans near the best and a key of plans.

The key of a picture: the plans that have a name in it, in full, as lines below the axes.

The Pareto front of two objectives, drawn with the feasible plans near the best.

A front compares plans of one job that could replace each other. On it three plans have names: the fastest (the best by
the first objective), the leanest (the best by the second) and the knee between them. A baseline, what one would run
without a search, shows how much is won. Below the axes are these plans in full.
"""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsx.errors import one_text
from dsx.pictures.axes import (
    MAX_CATEGORIES,
    NOTHING,
    FigureLayout,
    Numbers,
    figure_of,
    finite,
    is_wide,
    job_text,
    label_axis,
    label_picture,
    log_ticks,
    marks,
    named,
    plain_numbers,
    quantity_texts,
    text_sizes,
    value_texts,
)
from dsx.pictures.chosen_rows import capacities, job_of_best, limiting, near_best, of_job, refuse_many, varied_settings
from dsx.plans.choices import PLAN_COLUMNS
from dsx.plans.plan import Plan
from dsx.results.frames import (
    WORDS,
    Conditions,
    column_of,
    knee,
    matching,
    minimised,
    pareto,
    parsed,
    plain_plan,
    require,
    taken,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


_FONT = 7.5  # points
_LETTER = 0.603  # the width of a letter of the font, which is monospaced, in its heights
_BELOW = 40.0  # points from the axis to the first line, with ticks and label between


class Keyed(NamedTuple):
    """A plan with a name: a frame of one row."""

    name: str
    row: "pd.DataFrame"


def draw_key(layout: FigureLayout, plans: Sequence[Keyed], *objectives: str) -> None:
    """Write below the lowest axis a line for each plan: its name, its objectives, its choices.

    Rows without all columns of a plan have no choices there.
    """
    if not plans:
        return
    ax = layout.axes[-1]
    letters = max(int(layout.room(ax)[0] / (_LETTER * _FONT)), 40)
    cells = [
        [one.name, *(quantity_texts(one.row, column_of(objective))[0] for objective in objectives)] for one in plans
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    indent = sum(widths) + 2 * len(widths)
    lines: list[str] = []
    for one, row in zip(plans, cells, strict=True):
        name, *quantities = row
        head = "  ".join([name.ljust(widths[0]), *(q.rjust(w) for q, w in zip(quantities, widths[1:], strict=True))])
        text = wrap(plan_text(one.row), max(letters - indent, 24)) or [""]
        lines += [f"{head}  {text[0]}".rstrip(), *(" " * indent + part for part in text[1:])]
    place: dict[str, Any] = {"xy": (0.0, 0.0), "xycoords": "axes fraction", "textcoords": "offset points"}
    style: dict[str, Any] = {"family": "DejaVu Sans Mono", "fontsize": _FONT, "linespacing": 1.3, "color": "0.15"}
    ax.annotate("\n".join(lines), gid="plans", **place, xytext=(0.0, -_BELOW), va="top", annotation_clip=False, **style)


def plan_text(row: "pd.DataFrame") -> str:
    """Return the strategy and the choices of the plan of a frame of one row, "" if a column is missing."""
    if not {*PLAN_COLUMNS} <= {*row.columns}:
        return ""
    plan: Any = row[list(PLAN_COLUMNS)]
    (values,) = plan.to_dict(orient="records")
    return f"{values['strategy']} {Plan(values).text}"


# More points would only cost time and file size.
MAX_POINTS = 20_000
_SIZE = (6.4, 3.9)  # of the axes, in inches
_LEGEND = 15.0  # points: the height of one of its lines
_MARGIN = 0.09  # of an axis, for the names of plans at its ends
# The names of the best plans by an objective.
_FIRST = {"step_time_s": "fastest", "training_days": "fastest", "tokens_per_s": "fastest", "peak_bytes": "leanest"}
_FIRST |= {"num_gpus": "fewest GPUs", "cost_usd": "cheapest"}


class _Scale(NamedTuple):
    """The objectives, and the sizes in SI units of the units of the axes."""

    x: str
    y: str
    x_size: float
    y_size: float


def front(
    df: "pd.DataFrame",
    x: str = "step_time_s",
    y: str = "peak_bytes",
    ax: "Axes | None" = None,
    by: str | None = None,
    baseline: "Conditions | str | None" = None,
) -> "Axes":
    """Draw the feasible rows within twice the best `x` as points, and their front as a stepped line with markers.

    Of a frame with several jobs (numbers of GPUs, batches, clusters, what-ifs) it is that of the best row, as the title
    says. A setting that is an objective or `by` may vary.

    Args:
        df: a result set, or rows of one.
        x, y: objectives, as for `pareto`: "mfu" is minimised, "-mfu" maximised.
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
    own = taken(df, of_job(df, job_of_best(df, x, free)))
    limited = limiting(x, y)
    near = near_best(own, limited)
    shown = taken(own, near) if near.any() else own
    best = pareto(shown, x, y)
    layout = FigureLayout.of(ax, *_SIZE)
    ax = layout.axes[0]
    scale = _scale(ax, shown, x, y)
    lines = _draw_points(ax, shown, scale, named(df, column_of(limited)))
    lines += _draw_front(ax, best, scale, by)
    keyed = [Keyed(name, taken(best, np.array([place]))) for name, place in named_plans(best, x, y).items()]
    marked, lines_of_baseline = _draw_baseline(ax, own, scale, baseline) if len(best) else ([], 0)
    _set_scales(ax, shown, scale)
    for one in keyed:
        _name(layout, one, scale)
    if len(best):
        _draw_capacity(ax, shown, scale)
    rows = -(-(lines + lines_of_baseline) // 2)
    if lines + lines_of_baseline:
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "ncols": 2, "frameon": False}
        ax.legend(fontsize="small", borderpad=0.2, columnspacing=1.5, **place)
    draw_key(layout, [*keyed, *marked], scale.x, scale.y)
    title = _sentence(df, x, y) if len(best) else NOTHING
    label_picture(layout, title, [job_text(shown, [*free, x, y])], above=_LEGEND * rows)
    layout.settle()
    return ax


def named_plans(best: "pd.DataFrame", x: str, y: str) -> dict[str, int]:
    """Return the positions of the plans of a front that have names, in the order of the front.

    A plan with several names has all of them: "fastest, leanest".
    """
    if not len(best):
        return {}
    found = [(_FIRST.get(column_of(x), f"best {named(best, column_of(x))}"), 0)]
    middle = knee(minimised(best, x), minimised(best, y))
    found += [("knee", middle)] if middle is not None else []
    found += [(_FIRST.get(column_of(y), f"best {named(best, column_of(y))}"), len(best) - 1)]
    return {", ".join(name for name, place in found if place == one): one for one in dict.fromkeys(p for _, p in found)}


def _sentence(df: "pd.DataFrame", x: str, y: str) -> str:
    return f"{named(df, column_of(x))} against {named(df, column_of(y))}: no plan beats those on the line in both"


def _scale(ax: "Axes", shown: "pd.DataFrame", x: str, y: str) -> _Scale:
    sizes = [label_axis(axis, shown, name, require(shown, name)) for axis, name in _axes(ax, x, y)]
    return _Scale(x, y, *sizes)


def _axes(ax: "Axes", x: str, y: str) -> list[tuple[Any, str]]:
    return [(ax.xaxis, column_of(x)), (ax.yaxis, column_of(y))]


def _at(rows: "pd.DataFrame", scale: _Scale) -> tuple[Numbers, Numbers]:
    """Return where rows are on the axes, [n] each."""
    return require(rows, column_of(scale.x)) / scale.x_size, require(rows, column_of(scale.y)) / scale.y_size


def _draw_points(ax: "Axes", shown: "pd.DataFrame", scale: _Scale, limited: str) -> int:
    """Draw feasible rows as grey points, or rejected ones as pale crosses, at most MAX_POINTS; return the legends."""
    x, y = _at(shown, scale)
    feasible = require(shown, "reject") == 0
    for rows, label, style in (
        (~feasible, "{:,} rejected plans", {"marker": "x", "color": "0.85", "s": 10, "linewidths": 0.6}),
        (
            feasible,
            f"{{:,}} feasible plans within twice the best {limited}",
            {"marker": ".", "color": "0.55", "s": 16, "linewidths": 0},
        ),
    ):
        here: NDArray[np.int64] = np.flatnonzero(rows)
        if len(here) == 0:
            continue
        text = label.format(len(here))
        if len(here) > MAX_POINTS:
            # Chosen at random: an even stride would interfere with the order of the enumeration.
            here = np.random.default_rng(0).choice(here, MAX_POINTS, replace=False)
            text += f" ({MAX_POINTS:,} drawn)"
        ax.scatter(x[here], y[here], label=text, rasterized=True, **style)
    return int(len(shown) > 0)


def _draw_front(ax: "Axes", best: "pd.DataFrame", scale: _Scale, by: str | None) -> int:
    """Draw the front; return the number of its legends."""
    if not len(best):
        return 0
    x, y = _at(best, scale)
    # A row on the front bounds the objectives until the next row, whether they are minimised or maximised.
    ax.step(x, y, where="post", color="black", linewidth=1.2, zorder=3)
    if by is None:
        ax.plot(x, y, "o", color="black", markersize=5, linestyle="none", zorder=4, label=f"front ({len(x)})")
        return 1
    groups = require(best, by)
    found = sorted(set(groups))
    refuse_many(len(found), MAX_CATEGORIES, "values", [by])
    for value, text, mark in zip(found, value_texts(best, by, found), marks(len(found), 9.0), strict=True):
        here = groups == value
        label = f"front, {named(best, by)} {text} ({here.sum()})"
        ax.plot(x[here], y[here], linestyle="none", zorder=4, label=label, **mark)
    return len(found)


def _draw_baseline(
    ax: "Axes", own: "pd.DataFrame", scale: _Scale, baseline: "Conditions | str | None"
) -> tuple[list[Keyed], int]:
    """Mark the baseline; return it for the key, and the number of its legends. It may be outside of the axes."""
    feasible = taken(own, require(own, "reject") == 0)
    if baseline is None:
        # Several jobs have several plain plans.
        place = None if varied_settings(own) else plain_plan(feasible)
        text = f"baseline, {WORDS}"
    else:
        conditions = parsed("baseline", baseline)
        rows = np.flatnonzero(matching(feasible, conditions))
        place = int(rows[minimised(feasible, scale.x)[rows].argmin()])
        text = "baseline"
    if place is None:
        return [], 0
    row = taken(feasible, np.array([place]))
    x, y = _at(row, scale)
    style: dict[str, Any] = {"marker": "X", "color": "white", "markeredgecolor": "black", "markeredgewidth": 1.2}
    ax.plot(x, y, linestyle="none", markersize=10, zorder=5, label=text, **style)
    return [Keyed("baseline", row)], 1


def _set_scales(ax: "Axes", shown: "pd.DataFrame", scale: _Scale) -> None:
    for (axis, name), set_scale in zip(_axes(ax, scale.x, scale.y), (ax.set_xscale, ax.set_yscale), strict=True):
        values = require(shown, name)
        if is_wide(values):
            set_scale("log")
            log_ticks(axis, values)
        plain_numbers(axis)
    if len(finite(_at(shown, scale)[0])):
        ax.margins(_MARGIN)
        ax.autoscale_view()


def _name(layout: FigureLayout, one: Keyed, scale: _Scale) -> None:
    """Write the name of a plan beside its marker, on the side on which the front leaves room; the axis makes some."""
    from matplotlib.transforms import offset_copy

    ax = layout.axes[0]
    (x,), (y,) = _at(one.row, scale)
    left, below = not scale.x.startswith("-"), not scale.y.startswith("-")
    style: dict[str, Any] = {"ha": "right" if left else "left", "va": "top" if below else "bottom", "zorder": 6}
    offset = {"x": -5.0 if left else 5.0, "y": -4.0 if below else 4.0}
    beside = offset_copy(ax.transData, figure_of(ax), **offset, units="points")
    text = ax.text(x, y, one.name, transform=beside, fontsize="small", weight="bold", **style)
    ((width, _),) = text_sizes([text])
    share = (width + 8.0) / layout.room(ax)[0]
    place = ax.transAxes.inverted().transform(ax.transData.transform((x, y)))[0]
    there = place if left else 1.0 - place
    if there < share < 0.5:
        # So much wider that the marker is this share of the axis from its end.
        ends = ax.transAxes.transform(
            [(-(share - there) / (1.0 - share), 0.0), (1.0 + (share - there) / (1.0 - share), 0.0)]
        )
        low, high = ax.transData.inverted().transform(ends)[:, 0]
        ends = ax.get_xlim()
        ax.set_xlim((float(low), ends[1]) if left else (ends[0], float(high)))


def _draw_capacity(ax: "Axes", shown: "pd.DataFrame", scale: _Scale) -> None:
    """Draw the memory of the GPU, if that is an axis and one value, and near the plans."""
    known = np.unique(capacities(shown)) if column_of(scale.y) == "peak_bytes" else np.array([])
    if len(known) != 1 or not np.isfinite(known[0]):
        return
    line, top = float(known[0]) / scale.y_size, float(finite(_at(shown, scale)[1]).max())
    if line < 1.2 * top:
        ax.axhline(line, color="black", linestyle="--", linewidth=1.0, zorder=1)
        place: dict[str, Any] = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "ha": "right"}
        ax.annotate("HBM capacity", (1.0, line), xytext=(-4.0, 2.0), fontsize="small", va="bottom", **place)
