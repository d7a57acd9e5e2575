"""Curves: the collectives of a cluster over tensor size, and the cost of a training run against its days.

Collectives have one line for each group size, and one axis for each kind. The cost has one point for each number of
GPUs, with the deadline and the budget.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from dsx.errors import InputError
from dsx.pictures.figure import Axes, FigureLayout, Style, dashes, figure_of, log_ticks, marks, plain_numbers
from dsx.pictures.shown_rows import axis_unit, name_text
from dsx.results.frames import require
from dsx.results.ranked_by import COST, DAYS, HOURS
from dsx.search.ranking import front
from dsx.text import DataFrame
from dsx.units import counted, format_quantity

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
