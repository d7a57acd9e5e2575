"""The rows that a front compares: the feasible ones of one job, within twice the best value of an objective.

A result set may have several jobs: numbers of GPUs, batches, clusters, values of a what-if. Their plans cannot replace
each other, so a front of all of them answers no question; the job of the best row stands for them.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.results.conditions import Conditions, matching
from dsx.results.frames import require, taken
from dsx.results.pareto_rows import column_of, minimised
from dsx.results.plain_plan import plain_plan
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
    """Return which rows are feasible and have at most twice the least value of an objective in their job, [rows].

    Of an objective that is maximised it is at least half of the largest value. Values that are not positive have no
    such limit.
    """
    import pandas as pd

    values = minimised(df, objective)
    feasible = (require(df, "reject") == 0) & np.isfinite(values)
    keys = [pd.Series(df[name].array) for name in varied_settings(df)] or [np.zeros(len(df), np.int8)]
    best: Any = pd.Series(np.where(feasible, values, np.nan)).groupby(keys, observed=True).transform("min")
    least = best.to_numpy(np.float64)
    return feasible & (values <= np.where(least > 0.0, least * FACTOR, np.where(least < 0.0, least / FACTOR, np.inf)))


def varied_settings(df: "pd.DataFrame") -> list[str]:
    """Return the settings in which rows differ."""
    return [name for name in settings(df.columns) if len(df[name].drop_duplicates()) > 1]


def limiting(x: str, y: str) -> str:
    """Return the one of two objectives that limits which rows are near the best: the first that is no setting."""
    return x if not settings([column_of(x)]) else y


def drawn_rows(
    df: "pd.DataFrame", objectives: tuple[str, str], job: dict[str, Any], baseline: Conditions
) -> "pd.DataFrame":
    """Return the feasible rows of a job that a front may draw: those near the best, and what may be the baseline."""
    own = taken(df, of_job(df, job) & (require(df, "reject") == 0))
    if not len(own):
        return own
    keep = near_best(own, limiting(*objectives))
    if baseline:
        keep |= matching(own, baseline, few=True)
    elif not varied_settings(own) and (place := plain_plan(own)) is not None:
        keep[place] = True
    return taken(own, keep)
