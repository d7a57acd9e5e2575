"""The rows that a front compares: the feasible ones of one job, within twice the best value of its first objective.

A result set may have several jobs: numbers of GPUs, batches, clusters, values of a what-if. Their plans cannot replace
each other, so a front of all of them answers no question; the job of the best row stands for them.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.results.frames import require
from dsx.results.pareto_rows import minimised
from dsx.results.plot.selection import settings

if TYPE_CHECKING:
    import pandas as pd

FACTOR = 2.0  # of the best value: a plan that takes longer is no alternative


def job_of_best(df: "pd.DataFrame", objective: str, free: Collection[str] = ()) -> dict[str, Any]:
    """Return the values that the best feasible row has in the settings that vary, but for those that are `free`."""
    values = np.where(require(df, "reject") == 0, minimised(df, objective), np.nan)
    if not np.isfinite(values).any():
        return {}
    best = df.iloc[int(np.nanargmin(np.where(np.isfinite(values), values, np.nan)))]
    names = [name for name in settings(df.columns) if name not in free]
    return {name: best[name] for name in names if (df[name].array != best[name]).any()}


def of_job(df: "pd.DataFrame", job: dict[str, Any]) -> NDArray[np.bool_]:
    """Return which rows have the values of `job`, [rows]."""
    here = np.ones(len(df), bool)
    for name, value in job.items():
        here &= np.asarray(df[name].array == value)
    return here


def near_best(df: "pd.DataFrame", objective: str) -> NDArray[np.bool_]:
    """Return which rows are feasible and have at most twice the least value of an objective, [rows].

    Of an objective that is maximised it is at least half of the largest value. Values that are not positive have no
    such limit.
    """
    values = minimised(df, objective)
    feasible = (require(df, "reject") == 0) & np.isfinite(values)
    best = float(values[feasible].min()) if feasible.any() else 0.0
    if best == 0.0:
        return feasible
    return feasible & (values <= (best * FACTOR if best > 0.0 else best / FACTOR))
