"""The error that is left after a set is adapted to a few runs of a source that it has not seen.

Runs are drawn at random, several times with one seed; each time the rest of the source is predicted. The set is the one
fitted without the source (`dsx.calibration.held_out`).
"""

from collections.abc import Sequence

import numpy as np

from dsx.calibration.held_out import HeldOut
from dsx.calibration.local_times import LocalTimes, local_times
from dsx.calibration.observations import Observations, usual_stack
from dsx.calibration.positions import position_of
from dsx.calibration.specialise import Prior, specialise

RUNS = (1, 3, 5)  # that a set is adapted to
REPETITIONS = 20


def after_few_runs(
    observations: Observations, held_out: HeldOut, prior: Prior, seed: int = 0
) -> dict[str, dict[int, float]]:
    """Return, by source and number of runs, the median absolute relative error of the rest of the source.

    `held_out` has left out the sources. A source has the values of its usual stack before it is adapted. Sources with
    no more rows than runs are left out.
    """
    names = tuple(prior.bounds)
    found: dict[str, dict[int, float]] = {}
    for source, fit in held_out.fits.items():
        own = np.flatnonzero(observations.of_source(source))
        stack = usual_stack([observations.stack[row] for row in own])
        spec = observations.assumptions.of_stack(stack) if stack else observations.assumptions
        base = {name: float(getattr(spec, name)) for name in names} | fit.values
        centre = position_of(base, names, prior.bounds)
        alone = observations.only(own, fit.values, held_out.slowdown)
        times = local_times(alone, centre, names, prior.bounds)
        measured = observations.measured_s[own]
        found[source] = {
            count: _median_error(times, measured, centre, prior, count, seed) for count in RUNS if len(own) > count
        }
    return found


def _median_error(
    times: LocalTimes, measured_s: np.ndarray, centre: np.ndarray, prior: Prior, count: int, seed: int
) -> float:
    random = np.random.default_rng(seed)
    errors: list[np.ndarray] = []
    for _ in range(REPETITIONS):
        runs = random.choice(len(measured_s), count, replace=False)
        position, _ = specialise(_rows(times, runs), measured_s[runs], centre, prior)
        rest = np.setdiff1d(np.arange(len(measured_s)), runs)
        errors.append(np.abs(np.exp(times.at(position)[rest]) / measured_s[rest] - 1))
    return float(np.median(np.concatenate(errors)))


def _rows(times: LocalTimes, rows: Sequence[int] | np.ndarray) -> LocalTimes:
    return LocalTimes(
        times.names,
        times.centre,
        times.log_s[rows],
        times.slope[rows],
        times.curvature[rows],
        times.kernels[rows],
    )
