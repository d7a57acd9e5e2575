"""Outliers of a run table: rows whose time no cluster explains beside the other rows.

With r = log(measured / predicted), m the median of r and s = 1.4826 times the median of |r - m| (the standard deviation
of a normal one), a row is an outlier where

    |r - m| > 5 s, but at least log 3 and at most log 10

A set that is off for a whole cluster is off in all rows alike, which m takes up, so three rows are enough to name one
that is not like the others. Rows of the published runs that the packaged set is fitted to are within 2.1 times of their
median. Not covered: a table whose rows are all wrong alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.calibration.observations import Observations, observe
from dsx.errors import RunTableError
from dsx.printable import printable
from dsx.runs.reasons import Reason
from dsx.runs.run_table import Run
from dsx.runs.setups import Setup
from dsx.spec.assumptions import AssumptionsSpec

_LEAST, _MOST = 3.0, 10.0  # times the median
_DEVIATIONS = 5.0
_NORMAL = 1.4826  # standard deviations per median absolute deviation of a normal distribution
_MOST_SHARE = 1 / 3  # of the rows: where more are outliers, the table is wrong and not the rows
_SHOWN = 5  # in an error


@dataclass(frozen=True, slots=True)
class Outlier:
    """A row that is far off the others."""

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


def outliers(ids: Sequence[str], measured_s: np.ndarray, predicted_s: np.ndarray) -> dict[int, Outlier]:
    """Return the outliers among [N] rows by position; rows without both times (NaN) are none."""
    with np.errstate(invalid="ignore"):
        ratio = np.log(measured_s / predicted_s)
    known = np.isfinite(ratio)
    if not known.any():
        return {}
    median = float(np.median(ratio[known]))
    distance = np.abs(ratio - median)
    limit = np.clip(_DEVIATIONS * _NORMAL * np.median(distance[known]), np.log(_LEAST), np.log(_MOST))
    return {
        row: Outlier(
            ids[row], float(measured_s[row]), float(predicted_s[row]), float(np.exp(ratio[row])), float(np.exp(median))
        )
        for row in np.flatnonzero(known & (distance > limit)).tolist()
    }


def without_outliers(
    observations: Observations, runs: Sequence[Run], made: Sequence[Setup | Reason], assumptions: AssumptionsSpec
) -> tuple[Observations, list[Outlier]]:
    """Return the observations of a table and its setups without their outliers under a set, and these.

    Raises RunTableError if they are more than a third of the rows.
    """
    ids = [setup.run.id for setup in observations.setups]
    found = outliers(ids, observations.measured_s, observations.step_times({}))
    if not found:
        return observations, []
    if len(found) > _MOST_SHARE * len(ids):
        more = [f"and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
        raise RunTableError(
            "\n".join(
                [
                    f"the table looks wrong: {len(found):,} of {len(ids):,} rows are far off the others, and a fit to "
                    "the rest would say nothing; are all times seconds of one step?",
                    *map(str, [*found.values()][:_SHOWN]),
                    *more,
                ]
            )
        )
    lines = {observations.setups[row].run.line for row in found}
    kept = [(run, setup) for run, setup in zip(runs, made, strict=True) if run.line not in lines]
    return observe([run for run, _ in kept], [setup for _, setup in kept], assumptions), [*found.values()]
