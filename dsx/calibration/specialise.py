"""Adapt an assumption set to one cluster and framework, from one run on.

The set states the few fields in which software differs, with a deviation and bounds for each: a normal prior around its
values. One of them is `kernel_slowdown`, which stands for the effects of the stack and of the devices. With p the
positions of the fields between their bounds in [0, 1] (on a log scale if they are positive), c those of the set, d
their deviations, and t the residual log(predicted / measured) of a run over the set's `noise`, the minimised sum is

    sum over runs of 2 (sqrt(1 + t^2) - 1) + sum over fields of ((p - c) / d)^2

So one run changes the fields that it depends on a little, many runs change them as far as the runs agree, and a run
that disagrees with the others counts less than its square (the loss of a fit).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from dsx.calibration.fit import AT_BOUND, Fit, softened
from dsx.calibration.local_times import LocalTimes, local_times
from dsx.calibration.observations import Observations
from dsx.calibration.positions import Values, at, position_of, slope
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.between import Bounds, bounds_of
from dsx.spec.known_errors import FreeSpec

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
