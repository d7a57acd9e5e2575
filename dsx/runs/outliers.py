"""Outliers of a run table: rows whose time no cluster explains together with the other rows.

With r = log(measured / predicted), m the median of r, and s = 1.4826 times the median of |r - m| (the standard
deviation if r is normal), a row is an outlier if

    |r - m| > 5 s, but at least log 3 and at most log 10

If a set is off for a whole cluster, it is off by the same factor in all rows, which is m; so three rows are enough to
find one that differs. The published runs to which the packaged set is fitted are within 2.1 times of their median. A
table whose median is off by more than a factor of 100 is refused. Not found: the outliers of a table in which all rows
are wrong by the same smaller factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.errors import RunTableError
from dsx.runs.observations import Observations, observe
from dsx.runs.setups import Setups
from dsx.runs.table import MeasuredRun
from dsx.text import printable

_LEAST, _MOST = 3.0, 10.0  # times the median
_IMPOSSIBLE = 100.0  # times what is predicted, in the median of a table
_DEVIATIONS = 5.0
_NORMAL = 1.4826  # standard deviations per median absolute deviation of a normal distribution
_MOST_SHARE = 1 / 3  # of the rows: with more outliers the table is wrong, not the rows
_SHOWN = 5  # in an error


@dataclass(frozen=True, slots=True)
class Outlier:
    """A row that is far from the others."""

    id: str
    measured_s: float
    predicted_s: float
    factor: float  # measured / predicted
    usual: float  # its median over the table

    def __str__(self) -> str:
        """Return the row in words."""
        return (
            f"{printable(self.id)}: measured {self.measured_s:.4g} s, predicted {self.predicted_s:.4g} s: "
            f"{self.factor:.3g} times, the median of the table is {self.usual:.3g} times"
        )


def _log_ratio(measured_s: np.ndarray, predicted_s: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.log(measured_s / predicted_s)


def outliers(ids: Sequence[str], measured_s: np.ndarray, predicted_s: np.ndarray) -> dict[int, Outlier]:
    """Return the outliers among [N] rows by position; a row in which a time is missing (NaN) is not an outlier."""
    ratio = _log_ratio(measured_s, predicted_s)
    timed = np.isfinite(ratio)
    if not timed.any():
        return {}
    median = float(np.median(ratio[timed]))
    distance = np.abs(ratio - median)
    limit = np.clip(_DEVIATIONS * _NORMAL * np.median(distance[timed]), np.log(_LEAST), np.log(_MOST))
    return {
        row: Outlier(
            ids[row], float(measured_s[row]), float(predicted_s[row]), float(np.exp(ratio[row])), float(np.exp(median))
        )
        for row in np.flatnonzero(timed & (distance > limit)).tolist()
    }


def wrong_table(measured_s: np.ndarray, predicted_s: np.ndarray) -> str:
    """Return what is wrong with a table whose [N] times are as far off as those of no cluster; empty for any other."""
    ratio = _log_ratio(measured_s, predicted_s)
    timed = np.isfinite(ratio)
    usual = float(np.exp(np.median(ratio[timed]))) if timed.any() else 1.0
    if 1 / _IMPOSSIBLE <= usual <= _IMPOSSIBLE:
        return ""
    return (
        f"the table looks wrong: the times are {usual:.3g} times what is predicted, in the median; are all of them "
        "seconds of one step?"
    )


def without_outliers(
    observations: Observations, runs: Sequence[MeasuredRun], setups: Setups, assumptions: AssumptionsSpec
) -> tuple[Observations, list[Outlier]]:
    """Return the observations of a table without its outliers, and the outliers.

    `runs` and `setups` are the rows of the table. Raises RunTableError if more than a third of the rows are outliers,
    or if all are as far off as no cluster is.
    """
    ids = [setup.run.id for setup in observations.setups]
    predicted_s = observations.step_times({})
    if wrong := wrong_table(observations.measured_s, predicted_s):
        raise RunTableError(wrong)
    by_row = outliers(ids, observations.measured_s, predicted_s)
    if not by_row:
        return observations, []
    if len(by_row) > _MOST_SHARE * len(ids):
        wrong = f"the table looks wrong: {len(by_row):,} of {len(ids):,} rows are far from the others, so a fit to "
        wrong += "the rest would mean nothing; are all times seconds of one step?"
        more = [f"and {len(by_row) - _SHOWN:,} more"] if len(by_row) > _SHOWN else []
        raise RunTableError("\n".join([wrong, *map(str, [*by_row.values()][:_SHOWN]), *more]))
    lines = {observations.setups[row].run.line for row in by_row}
    kept = [(run, setup) for run, setup in zip(runs, setups, strict=True) if run.line not in lines]
    return observe([run for run, _ in kept], [setup for _, setup in kept], assumptions), [*by_row.values()]
