"""What is left of the errors after a set is adapted to a few runs of a source that it has not seen.

Runs are drawn at random, several times with one seed; each time the rest of the source is predicted. The set is the one
fitted without the source (`dsx.calibration.held_out`). From these predictions follow the interval and the resolution of
a set that a user adapts to so many runs.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dsx.calibration.held_out import LEAST_SOURCES, HeldOut
from dsx.calibration.intervals import ends
from dsx.calibration.local_times import LocalTimes, local_times
from dsx.calibration.observations import Observations, usual_stack
from dsx.calibration.positions import position_of
from dsx.calibration.regret import groups_of
from dsx.calibration.resolution import resolution
from dsx.calibration.specialise import Prior, specialise
from dsx.spec.known_errors import AdaptedSpec

RUNS = (1, 3, 5)  # that a set is adapted to
REPETITIONS = 20
_DIGITS = 4

# By number of runs, [REPETITIONS, N] seconds: NaN for the runs that were drawn, and for sources with no more rows.
Adapted = Mapping[int, np.ndarray]


def after_few_runs(
    observations: Observations,
    held_out: HeldOut,
    prior: Prior,
    progress: Callable[[int], None] = lambda done: None,
    seed: int = 0,
) -> Adapted:
    """Return the predicted step times of the N rows after the set is adapted to some of their source.

    `held_out` has left out the sources. A source has the values of its usual stack before it is adapted. Calls
    `progress` after each source.
    """
    names = tuple(prior.bounds)
    found = {count: np.full((REPETITIONS, len(observations.source)), np.nan) for count in RUNS}
    for source, fit in held_out.fits.items():
        own = np.flatnonzero(observations.of_source(source))
        stack = usual_stack([observations.stack[row] for row in own])
        spec = observations.assumptions.of_stack(stack) if stack else observations.assumptions
        base = {name: float(getattr(spec, name)) for name in names} | fit.values
        centre = position_of(base, names, prior.bounds)
        alone = observations.only(own, fit.values, held_out.slowdown)
        times = local_times(alone, centre, names, prior.bounds)
        for count in RUNS:
            if len(own) > count:
                found[count][:, own] = _rest(times, observations.measured_s[own], centre, prior, count, seed)
        progress(1)
    return found


def median_errors(observations: Observations, adapted: Adapted) -> dict[str, dict[int, float]]:
    """Return, by source and number of runs, the median absolute relative error of the rest of the source.

    Sources with no more rows than runs are left out.
    """
    found: dict[str, dict[int, float]] = {}
    for source in observations.sources:
        own = observations.of_source(source)
        known = {
            count: np.abs(times[:, own] / observations.measured_s[own] - 1)
            for count, times in adapted.items()
            if own.sum() > count
        }
        found[source] = {count: float(np.nanmedian(errors)) for count, errors in known.items()}
    return found


def adapted_errors(observations: Observations, adapted: Adapted) -> list[AdaptedSpec]:
    """Return the 80 % interval and the resolution after each number of runs, the fewest first.

    The resolution is the mean over the draws, None where no group of layouts is left. Numbers of runs that too few
    sources have are left out.
    """
    source = np.array(observations.source)
    found: list[AdaptedSpec] = []
    for count, times in adapted.items():
        left = np.isfinite(times)
        names = np.broadcast_to(source, times.shape)[left]
        if len(set(names.tolist())) < LEAST_SOURCES:
            break
        low, high = np.exp(ends(np.log(observations.measured_s / times)[left], names))
        known = [one for draw in times if (one := resolution(groups_of(observations, draw))) is not None]
        found.append(
            AdaptedSpec(
                runs=count,
                low=_rounded(low),
                high=_rounded(high),
                resolution=_rounded(np.mean(known)) if known else None,
            )
        )
    return found


def _rest(
    times: LocalTimes, measured_s: np.ndarray, centre: np.ndarray, prior: Prior, count: int, seed: int
) -> np.ndarray:
    """Return the [REPETITIONS, R] predictions of the rows of a source, NaN for those that were drawn."""
    random = np.random.default_rng(seed)
    found = np.empty((REPETITIONS, len(measured_s)))
    for draw in found:
        runs = random.choice(len(measured_s), count, replace=False)
        position, _ = specialise(_rows(times, runs), measured_s[runs], centre, prior)
        draw[:] = np.exp(times.at(position))
        draw[runs] = np.nan
    return found


def _rows(times: LocalTimes, rows: Sequence[int] | np.ndarray) -> LocalTimes:
    return LocalTimes(
        times.names,
        times.centre,
        times.log_s[rows],
        times.slope[rows],
        times.curvature[rows],
        times.kernels[rows],
    )


def _rounded(value: float | np.floating) -> float:
    return float(f"{value:.{_DIGITS}g}")
