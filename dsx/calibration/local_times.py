"""Predicted times near some values of the fitted fields, as a quadratic: a fit asks for them thousands of times.

With p the positions of the fields between their bounds and c those of the centre, the log time of a row is

    log t(p) = log t(c) + sum over fields of  slope (p - c) + curvature (p - c)^2

from two further prices of every row for each field, on either side of it unless a bound is there. Mixed terms are left
out: a fit prices the rows again at its result and takes the quadratic there, until the result stays. One more price
gives `kernels`, the share of a row's time that is proportional to that of its kernels, by which effects of stacks and
device generations scale it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.calibration.observations import Observations
from dsx.calibration.positions import at
from dsx.spec.between import Bounds

_STEP = 0.05  # of a field, as a share of the distance between its bounds
_SLOWDOWN = 0.05  # of all kernels, log


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """The log times of N rows around a centre, for P fields."""

    names: tuple[str, ...]  # [P]
    centre: np.ndarray  # [P] positions
    log_s: np.ndarray  # [N] at the centre
    slope: np.ndarray  # [N, P]
    curvature: np.ndarray  # [N, P]
    kernels: np.ndarray  # [N] d log t / d log kernel time

    def at(self, position: np.ndarray) -> np.ndarray:
        """Return the [N] log times at [P] positions."""
        away = position - self.centre
        return self.log_s + self.slope @ away + self.curvature @ away**2

    def derivative(self, position: np.ndarray) -> np.ndarray:
        """Return the [N, P] derivatives of the log times at [P] positions."""
        return self.slope + 2 * self.curvature * (position - self.centre)


def local_times(
    observations: Observations, centre: np.ndarray, names: Sequence[str], between: Mapping[str, Bounds]
) -> LocalTimes:
    """Return the times of all rows around [P] positions of the fields `names`."""

    def log_times(position: np.ndarray) -> np.ndarray:
        return np.log(observations.step_times(at(position, names, between)))

    first = log_times(centre)
    slopes, curvatures = [], []
    for place in range(len(names)):
        one, other = (
            (step, log_times(centre + step * (np.arange(len(names)) == place)) - first)
            for step in _steps(float(centre[place]))
        )
        slope, curvature = _parabola(one, other)
        slopes.append(slope)
        curvatures.append(curvature)
    nothing = np.zeros((0, len(first)))
    slower = np.log(observations.step_times(at(centre, names, between), slowdown=np.exp(_SLOWDOWN)))
    return LocalTimes(
        names=tuple(names),
        centre=centre,
        log_s=first,
        slope=np.stack([*nothing, *slopes], axis=1) if slopes else nothing.T,
        curvature=np.stack([*nothing, *curvatures], axis=1) if slopes else nothing.T,
        kernels=(slower - first) / _SLOWDOWN,
    )


def _steps(position: float) -> tuple[float, float]:
    """Return two steps from a position that stay inside the bounds."""
    if position < _STEP:
        return _STEP, 2 * _STEP
    return (-2 * _STEP, -_STEP) if position > 1 - _STEP else (-_STEP, _STEP)


def _parabola(one: tuple[float, np.ndarray], other: tuple[float, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return slope and curvature of the parabolas through the origin and two other points."""
    (x, y), (u, v) = one, other
    curvature = (y / x - v / u) / (x - u)
    return y / x - curvature * x, curvature
