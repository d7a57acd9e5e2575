"""Predicted times near some values of the fitted fields, as a quadratic: a fit asks for them thousands of times.

Fields are given by their positions between their bounds, in [0, 1]; on a log scale if the bounds are positive. With p
these positions and c the positions of the centre, the log time of a row is

    log t(p) = log t(c) + sum over fields of  slope (p - c) + curvature (p - c)^2

from two further prices of every row for each field, on either side of it unless a bound is there. Mixed terms are left
out: a fit prices the rows again at its result and takes the quadratic there, until the result stays. One more price
gives `kernels`, the share of a row's time that is proportional to the time of its kernels, by which effects of stacks
and device generations scale it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.config.values import Bounds
from dsx.runs.observations import Observations

Values = Mapping[str, float]  # of fields, in SI units
Between = Mapping[str, Bounds]  # of the fields to fit


def position_of(values: Values, between: Between) -> np.ndarray:
    """Return the [P] positions of values between their bounds."""
    shares = []
    for name, bounds in between.items():
        low, high, value = bounds.low, bounds.high, values[name]
        share = np.log(value / low) / np.log(high / low) if low > 0 else (value - low) / (high - low)
        shares.append(min(max(share, 0.0), 1.0))
    return np.array(shares, dtype=np.float64)


def at(position: np.ndarray, between: Between) -> dict[str, float]:
    """Return the values at [P] positions between their bounds."""
    values: dict[str, float] = {}
    for (name, bounds), share in zip(between.items(), position, strict=True):
        low, high = bounds.low, bounds.high
        value = low * (high / low) ** share if low > 0 else low + share * (high - low)
        values[name] = float(min(max(value, low), high))
    return values


def slope(position: np.ndarray, between: Between) -> np.ndarray:
    """Return the derivatives of values with respect to their [P] positions."""
    pairs = [(value, between[name]) for name, value in at(position, between).items()]
    return np.array([value * np.log(b.high / b.low) if b.low > 0 else b.high - b.low for value, b in pairs])


_STEP = 0.05  # of a field, as a share of the distance between its bounds
_SLOWDOWN = 0.05  # of all kernels, log
_IDLE = 1e-9  # a change of a log time that is rounding
AT_BOUND = 1e-3  # as a share of the distance between the bounds; the method stays inside them


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

    def of(self, rows: Sequence[int] | np.ndarray) -> "LocalTimes":
        """Return the times of some rows."""
        columns = (self.log_s, self.slope, self.curvature, self.kernels)
        return LocalTimes(self.names, self.centre, *(column[rows] for column in columns))

    @property
    def undetermined(self) -> tuple[str, ...]:
        """The fields that no row depends on."""
        columns = zip(self.names, self.slope.T, strict=True)
        return tuple(name for name, column in columns if np.abs(column).max(initial=0.0) < _IDLE)

    def at_bound(self, position: np.ndarray) -> tuple[str, ...]:
        """Return the other fields whose positions, [P], are at a bound."""
        idle = self.undetermined
        shares = zip(self.names, position, strict=True)
        return tuple(name for name, share in shares if min(share, 1 - share) < AT_BOUND and name not in idle)


def local_times(observations: Observations, centre: np.ndarray, between: Between) -> LocalTimes:
    """Return the times of all rows around [P] positions of the fields `between`."""

    def log_times(position: np.ndarray) -> np.ndarray:
        return np.log(observations.step_times(at(position, between)))

    first = log_times(centre)
    # Slope and curvature of the parabola through the centre and two further points inside the bounds.
    slopes, curvatures = np.zeros((2, len(first), len(between)))
    for place, position in enumerate(centre.tolist()):
        if position < _STEP:
            steps = _STEP, 2 * _STEP
        else:
            steps = (-2 * _STEP, -_STEP) if position > 1 - _STEP else (-_STEP, _STEP)
        of_field = np.arange(len(between)) == place
        (x, y), (u, v) = ((step, log_times(centre + step * of_field) - first) for step in steps)
        curvature = (y / x - v / u) / (x - u)
        slopes[:, place], curvatures[:, place] = y / x - curvature * x, curvature
    slower = np.log(observations.step_times(at(centre, between), slowdown=np.exp(_SLOWDOWN)))
    return LocalTimes(tuple(between), centre, first, slopes, curvatures, (slower - first) / _SLOWDOWN)
