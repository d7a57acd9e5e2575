"""Adapt an assumption set to one cluster and framework, from one run on, and what errors that leaves.

Adapt an assumption set to one cluster and framework, from one run on.

The set states the few fields in which software differs, with a deviation and bounds for each: a normal prior around its
values. One of them is `kernel_slowdown`, which stands for the effects of the stack and of the devices. With p the
positions of the fields between their bounds in [0, 1] (on a log scale if they are positive), c those of the set, d
their deviations, and t the residual log(predicted / measured) of a run over the set's `noise`, the minimised sum is

    sum over runs of 2 (sqrt(1 + t^2) - 1) + sum over fields of ((p - c) / d)^2

So one run changes the fields that it depends on a little, many runs change them as far as the runs agree, and a run
that disagrees with the others counts less than its square (the loss of a fit).

What is left of the errors after a set is adapted to a few runs of a source that it has not seen.

Runs are drawn at random, several times with one seed; each time the rest of the source is predicted. The set is the one
fitted without the source (`dsx.runs.intervals`). From these predictions follow the interval and the resolution of
a set that a user adapts to so many runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.evidence import AdaptedSpec, FreeSpec
from dsx.config.values import Bounds, bounds_of
from dsx.runs.fit import AT_BOUND, Fit, LocalTimes, Values, at, local_times, position_of, slope, softened
from dsx.runs.intervals import LEAST_SOURCES, HeldOut, ends, groups_of, resolution
from dsx.runs.observations import Observations, usual_stack

_FURTHER = 2  # rounds of prices around the last result
_IDLE = 1e-9  # a change of a log time that is rounding


@dataclass(frozen=True, slots=True)
class Prior:
    """The fields that a few runs may change."""

    bounds: Mapping[str, Bounds]
    deviations: np.ndarray  # [P] as shares of the distance between the bounds
    noise: float  # deviation of a run's log error

    @classmethod
    def of(cls, free: Mapping[str, FreeSpec], noise: float) -> "Prior":
        """Return the prior that an assumption set states."""
        fields = AssumptionsSpec.model_fields
        bounds = {name: bounds_of(fields[name], one.between) for name, one in free.items()}
        return cls(bounds, np.array([one.deviation for one in free.values()]), noise)


def specialise(
    times: LocalTimes, measured_s: np.ndarray, centre: np.ndarray, prior: Prior
) -> tuple[np.ndarray, np.ndarray]:
    """Return the most likely [P] positions after [N] runs, and their [P] standard errors.

    Args:
        times: of the N runs.
        measured_s: [N] seconds.
        centre: [P] positions of the set's own values.
        prior: deviations and noise.
    """
    measured = np.log(measured_s)

    def residuals(position: np.ndarray) -> np.ndarray:
        errors = (times.at(position) - measured) / prior.noise
        return np.concatenate([softened(errors, 1.0), (position - centre) / prior.deviations])

    def jacobian(position: np.ndarray) -> np.ndarray:
        errors = (times.at(position) - measured) / prior.noise
        root = np.sqrt(1 + errors**2)
        rows = (np.sqrt((1 + root) / 2) / root / prior.noise)[:, None] * times.derivative(position)
        return np.concatenate([rows, np.diag(1 / prior.deviations)])

    options: dict[str, Any] = {"jac": jacobian, "bounds": (0, 1)}
    found = least_squares(residuals, np.clip(centre, 0.0, 1.0), **options)
    # The prior makes this matrix regular, whatever the runs.
    return found.x, np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))


def specialise_to(observations: Observations, base: Values, prior: Prior) -> Fit:
    """Return the values of the fields after all runs of `observations`; `base` has those of the set.

    A field that no run depends on keeps its value and has no standard error.
    """
    names = tuple(prior.bounds)
    own = position_of(base, names, prior.bounds)
    times = local_times(observations, own, names, prior.bounds)
    centre, errors = specialise(times, observations.measured_s, own, prior)
    for _ in range(_FURTHER):
        times = local_times(observations, centre, names, prior.bounds)
        centre, errors = specialise(times, observations.measured_s, own, prior)
    values = at(centre, names, prior.bounds)
    sizes = dict(zip(names, errors * slope(centre, names, prior.bounds), strict=True))
    idle = [n for n, column in zip(names, times.slope.T, strict=True) if np.abs(column).max(initial=0.0) < _IDLE]
    return Fit(
        values={name: base[name] if name in idle else value for name, value in values.items()},
        standard_errors={name: np.nan if name in idle else float(size) for name, size in sizes.items()},
        at_bound=tuple(
            n for n, share in zip(names, centre, strict=True) if min(share, 1 - share) < AT_BOUND and n not in idle
        ),
        undetermined=tuple(idle),
    )


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
