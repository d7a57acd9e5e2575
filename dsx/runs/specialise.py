"""Adapt an assumption set to one cluster and framework, from one run on, and what errors that leaves.

The set states the few fields in which software differs, with a deviation and bounds for each: a normal prior around its
values. One of them is `kernel_slowdown`, which stands for the effects of the stack and of the devices. With p the
positions of the fields between their bounds in [0, 1] (on a log scale if they are positive), c the set's own, d
their deviations, and t the residual log(predicted / measured) of a run over the set's `noise`, the minimised sum is

    sum over runs of 2 (sqrt(1 + t^2) - 1) + sum over fields of ((p - c) / d)^2

So one run changes the fields that it depends on a little, many runs change them as far as the runs agree, and a run
that disagrees with the others counts less than its square (the loss of a fit).

To estimate the errors of a set that a user adapts to so many runs, it is adapted to runs of a source that it has not
seen (`dsx.runs.fit.leave_out`): runs are drawn at random, several times with one seed, and each time the rest of the
source is predicted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.evidence import AdaptedSpec
from dsx.config.values import bounds_of
from dsx.errors import SpecError
from dsx.runs.error_report import groups_of, resolution
from dsx.runs.fit import Fit, HeldOut, Progress, softened
from dsx.runs.intervals import LEAST_SOURCES, ends, rounded
from dsx.runs.local_times import Between, LocalTimes, Values, at, local_times, position_of, slope
from dsx.runs.observations import Observations, usual_stack

_FURTHER = 2  # rounds of prices around the last result


@dataclass(frozen=True, slots=True)
class Prior:
    """The fields that a few runs may change."""

    bounds: Between
    deviations: np.ndarray  # [P] as shares of the distance between the bounds
    noise: float  # deviation of a run's log error


def prior_of(assumptions: AssumptionsSpec) -> Prior:
    """Return the prior that an assumption set states; SpecError without the fields that may change, or the noise."""
    free, noise = assumptions.specialise, assumptions.noise
    if not free or noise is None:
        missing = "noise" if free else "specialise"
        name = assumptions.name
        raise SpecError(f"assumption set {name!r} cannot be adapted to a few runs: it states no {missing!r}")
    fields = AssumptionsSpec.model_fields
    bounds = {name: bounds_of(fields[name], entry.between) for name, entry in free.items()}
    return Prior(bounds, np.array([entry.deviation for entry in free.values()]), noise)


def specialise(
    times: LocalTimes, measured_s: np.ndarray, centre: np.ndarray, prior: Prior
) -> tuple[np.ndarray, np.ndarray]:
    """Return the most likely [P] positions after [N] runs, and their errors; `centre` are the set's own positions."""
    measured = np.log(measured_s)

    def residuals(position: np.ndarray) -> np.ndarray:
        errors = (times.at(position) - measured) / prior.noise
        return np.concatenate([softened(errors, 1.0), (position - centre) / prior.deviations])

    def jacobian(position: np.ndarray) -> np.ndarray:
        errors = (times.at(position) - measured) / prior.noise
        root = np.sqrt(1 + errors**2)
        rows = (np.sqrt((1 + root) / 2) / root / prior.noise)[:, None] * times.derivative(position)
        return np.concatenate([rows, np.diag(1 / prior.deviations)])

    start = np.clip(centre, 0.0, 1.0)
    optimum = least_squares(residuals, start, jac=jacobian, bounds=(0, 1))  # pyright: ignore[reportArgumentType]
    # The prior makes this matrix regular, whatever the runs.
    return optimum.x, np.sqrt(np.diag(np.linalg.inv(optimum.jac.T @ optimum.jac)))


def specialise_to(observations: Observations, base: Values, prior: Prior) -> Fit:
    """Return the fields after all runs; `base` has the values of the set, which a field without runs keeps."""
    centre = first = position_of(base, prior.bounds)
    times = local_times(observations, centre, prior.bounds)
    for _ in range(_FURTHER):
        centre, _ = specialise(times, observations.measured_s, first, prior)
        times = local_times(observations, centre, prior.bounds)
    centre, errors = specialise(times, observations.measured_s, first, prior)
    idle = times.undetermined
    values, sizes = at(centre, prior.bounds), errors * slope(centre, prior.bounds)
    return Fit(
        values={name: base[name] if name in idle else value for name, value in values.items()},
        standard_errors=dict(zip(values, sizes.tolist(), strict=True)) | dict.fromkeys(idle, np.nan),
        at_bound=times.at_bound(centre),
        undetermined=idle,
    )


RUNS = (1, 3, 5)  # that a set is adapted to
REPETITIONS = 20

# By number of runs, [REPETITIONS, N] seconds: NaN for the runs that were drawn, and for sources with no more rows.
Adapted = Mapping[int, np.ndarray]


def after_few_runs(
    observations: Observations, held_out: HeldOut, prior: Prior, progress: Progress = lambda done: None
) -> Adapted:
    """Return the predicted step times of the N rows after the set is adapted to some of their source.

    `held_out` has left out the sources. A source has the values of its usual stack before it is adapted. Calls
    `progress` after each source.
    """
    adapted = {count: np.full((REPETITIONS, len(observations.source)), np.nan) for count in RUNS}
    for source, fit in held_out.fits.items():
        rows = np.flatnonzero(observations.of_source(source))
        stack = usual_stack([observations.stack[row] for row in rows])
        spec = observations.assumptions.of_stack(stack) if stack else observations.assumptions
        base = {name: float(getattr(spec, name)) for name in prior.bounds} | fit.values
        centre = position_of(base, prior.bounds)
        times = local_times(observations.only(rows, fit.values, held_out.slowdown), centre, prior.bounds)
        measured_s = observations.measured_s[rows]
        for count in (count for count in RUNS if len(rows) > count):
            random = np.random.default_rng(0)
            for draw in adapted[count]:
                runs = random.choice(len(rows), count, replace=False)
                position, _ = specialise(times.of(runs), measured_s[runs], times.centre, prior)
                draw[rows] = np.exp(times.at(position))
                draw[rows[runs]] = np.nan
        progress(1)
    return adapted


def median_errors(observations: Observations, adapted: Adapted) -> dict[str, dict[int, float]]:
    """Return the median |relative error| of the other rows of a source, by source and fewer runs than it has."""
    medians: dict[str, dict[int, float]] = {}
    for source in observations.sources:
        rows = observations.of_source(source)
        medians[source] = {
            count: float(np.nanmedian(np.abs(times[:, rows] / observations.measured_s[rows] - 1)))
            for count, times in adapted.items()
            if rows.sum() > count
        }
    return medians


def adapted_errors(observations: Observations, adapted: Adapted) -> list[AdaptedSpec]:
    """Return the 80 % interval and the resolution after each number of runs, the fewest first.

    The resolution is the mean over the draws, None where no group of layouts is left. Numbers of runs that too few
    sources have are left out.
    """
    source = np.array(observations.source)
    entries: list[AdaptedSpec] = []
    for count, times in adapted.items():
        predicted = np.isfinite(times)
        names = np.broadcast_to(source, times.shape)[predicted]
        if len(set(names.tolist())) < LEAST_SOURCES:
            break
        low, high = np.exp(ends(np.log(observations.measured_s / times)[predicted], names))
        resolutions = [resolution(groups_of(observations, draw)) for draw in times]
        of_groups = [share for share in resolutions if share is not None]
        mean = rounded(float(np.mean(of_groups))) if of_groups else None
        entries.append(AdaptedSpec(runs=count, low=rounded(low), high=rounded(high), resolution=mean))
    return entries
