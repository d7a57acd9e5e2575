"""The cost of a training run against its days: one point for each number of GPUs, with the deadline and the budget."""

from typing import TYPE_CHECKING

import numpy as np

from dsx.errors import InputError
from dsx.results.frames import require
from dsx.results.plot.axes import label_axis, log_ticks, plain_numbers
from dsx.results.plot.layout import figure_of
from dsx.results.run_choice import COST, DAYS, HOURS
from dsx.search.pareto_front import front
from dsx.units import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_WIDE = 3.0  # ratio of the days from which on they are drawn on a log axis
_POINT = "fastest plan on so many GPUs"
_ALLOWED = "0.45"  # grey of the deadline and the budget


def cost_curve(
    df: "pd.DataFrame",
    ax: "Axes | None" = None,
    *,
    deadline_days: float | None = None,
    budget_usd: float | None = None,
    chosen: int | None = None,
    title: str = "",
) -> "Axes":
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
    from matplotlib.patheffects import withStroke

    if ax is not None:
        figure_of(ax)
    else:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(7.0, 4.6), layout="constrained").subplots()
    days, cost, gpus = (require(rows, name) for name in (DAYS, paid, "num_gpus"))
    size = label_axis(ax.yaxis, df, paid, cost)
    ax.set_xlabel("days of training")
    factor = np.stack([require(rows, f"step_time_s_{end}") / require(rows, "step_time_s") for end in ("low", "high")])
    for day, price, ends in zip(days, cost / size, factor.T, strict=True):
        ax.plot(day * ends, price * ends, color="0.85", linewidth=2.5, solid_capstyle="round", zorder=1)
    if np.isfinite(factor).any():
        ax.plot([], [], color="0.85", linewidth=2.5, label="80 % interval of the prediction")
    best = front(np.stack([days, cost], axis=1))
    ax.plot(days[best], cost[best] / size, "o-", color="black", markersize=5, linewidth=1, zorder=3, label=_POINT)
    if not best.all():
        others = {"markerfacecolor": "white", "markeredgecolor": "0.35", "markersize": 5, "zorder": 3}
        ax.plot(days[~best], cost[~best] / size, "o", label="slower and dearer than another", **others)
    for number, day, price in zip(gpus, days, cost / size, strict=True):
        weight = "bold" if number == chosen else "normal"
        text = ax.annotate(f"{number:,}", (day, price), (7, 5), textcoords="offset points", fontsize="small")
        text.set(weight=weight, zorder=5, path_effects=[withStroke(linewidth=3, foreground="white")])
    here = gpus == chosen
    if chosen is not None and here.any():
        marked = {"markersize": 13, "markerfacecolor": "none", "markeredgecolor": "tab:red", "markeredgewidth": 1.8}
        ax.plot(days[here], cost[here] / size, "o", zorder=4, label=f"chosen: {counted(chosen, 'GPU')}", **marked)
    if deadline_days is not None:
        ax.axvline(
            deadline_days,
            color=_ALLOWED,
            linestyle="--",
            linewidth=1,
            label=f"deadline: {counted(deadline_days, 'day')}",
        )
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
