"""Numbers of an assumption set fitted to measured step times, inside their bounds.

With r = log(predicted / measured) of a row, n rows of its source and t = r / SCALE, a fit minimises

    sum over rows of  1/n * SCALE^2 * 2 (sqrt(1 + t^2) - 1)

which is r^2/n for small errors and grows with |r| for large ones (the soft L1 loss). So every source has the same
weight, and single rows that are far off do not decide. scipy.optimize.least_squares searches each field between its
bounds, mapped to [0, 1], on a log scale if the bounds are positive. A pull to the start values decides where the rows
do not.

The Jacobian uses central differences. Forward mode of JAX would compile every structure of rows a second time (some
5 s for each of the 28 batches of the published runs), and then takes as long per Jacobian as the differences:
pricing all rows takes 30 ms once compiled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from dsx.spec.between import Bounds

SCALE = 0.1  # of the loss: larger log errors count less than their square
_STEP = 1e-3  # of a difference, as a share of the distance between the bounds
AT_BOUND = 1e-3  # as a share of the distance between the bounds; the method stays inside them
# Towards the start, over the distance between the bounds. Log errors of 2 % in all rows of a source add its square: a
# start value gives way to any source that clearly contradicts it, and stays where the rows do not determine it.
PULL = 0.02
_ROUNDING = 1e-9  # a change of a log time that is rounding
_MOST_EVALUATIONS = 100  # of the residuals, differences aside

Values = Mapping[str, float]
StepTimes = Callable[[Values], np.ndarray]  # values of fields -> [N] predicted seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """N measured rows and the function that predicts them."""

    step_times: StepTimes  # under values of the fitted fields
    measured_s: np.ndarray  # [N]
    source: Sequence[str]  # [N]


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted values of fields, in SI units."""

    values: dict[str, float]  # every field to fit
    standard_errors: dict[str, float]  # NaN at a bound, or if rows determine the field only together with another
    at_bound: tuple[str, ...]
    undetermined: tuple[str, ...]  # fields that no prediction depends on: they keep their value


def fit(
    sample: Sample,
    start: Values,
    between: Mapping[str, Bounds],
    near: Values | None = None,
    pull: float = PULL,
) -> Fit:
    """Return the values that bring the predictions of a sample closest to its measurements.

    Args:
        sample: the rows to fit to.
        start: values to begin with, inside `between`.
        between: the bounds of each field to fit.
        near: values at which the search begins, if better ones are known; the pull is still to `start`.
        pull: the strength of the pull: the log error that equals a move over the distance between the bounds.

    Standard errors assume independent, heteroskedastic rows (White's, times n / (n - p)). They are too small if the
    rows of a source err together.
    """
    step_times, measured_s, source = sample.step_times, sample.measured_s, sample.source
    names = determined(step_times, start, between)
    if not names:
        return Fit(dict(start), dict.fromkeys(between, np.nan), (), tuple(between))
    weights = 1 / np.array([source.count(name) for name in source])
    pulled_to = position_of(start, names, between)

    def residuals(position: np.ndarray) -> np.ndarray:
        errors = np.log(step_times({**start, **at(position, names, between)}) / measured_s)
        return np.concatenate([np.sqrt(weights) * softened(errors, SCALE), pull * (position - pulled_to)])

    position, jacobian = minimise(residuals, pulled_to if near is None else position_of(near, names, between))
    jacobian = jacobian[: len(measured_s)]
    values = {**start, **at(position, names, between)}
    # A field that mattered at the start of the search may not matter at its end.
    idle = {name for name, column in zip(names, jacobian.T, strict=True) if np.abs(column).max() <= _ROUNDING}
    restored = values | {name: start[name] for name in idle}
    if np.abs(np.log(step_times(restored) / step_times(values))).max() < _ROUNDING:
        values = restored
    bound = {name for name, u in zip(names, position, strict=True) if min(u, 1 - u) < AT_BOUND} - idle
    values |= {name: _nearest_bound(values[name], between[name]) for name in bound}
    free = np.array([name not in bound | idle for name in names])
    errors = np.full(len(names), np.nan)
    errors[free] = _standard_errors(jacobian[:, free], residuals(position)[: len(measured_s)])
    errors[free] *= slope(position, names, between)[free]
    known = dict(zip(names, errors.tolist(), strict=True))
    return Fit(
        values={name: float(values[name]) for name in between},
        standard_errors={name: known.get(name, np.nan) for name in between},
        at_bound=tuple(name for name in between if name in bound),
        undetermined=tuple(name for name in between if name not in names or name in idle),
    )


def _nearest_bound(value: float, bounds: Bounds) -> float:
    """Return the bound that is nearest to a value."""
    return bounds.low if value - bounds.low < bounds.high - value else bounds.high


def determined(step_times: StepTimes, start: Values, between: Mapping[str, Bounds]) -> list[str]:
    """Return the fields of `between` that at least one prediction depends on."""
    at_start = step_times(start)

    def changes(name: str, value: float) -> bool:
        return bool(np.abs(np.log(step_times({**start, name: value}) / at_start)).max(initial=0) > _ROUNDING)

    return [name for name, bounds in between.items() if changes(name, bounds.low) or changes(name, bounds.high)]


def softened(errors: np.ndarray, scale: float) -> np.ndarray:
    """Return the root of the soft L1 loss of `errors`; the loss is e^2 far below `scale`, 2 scale |e| far above."""
    root = np.sqrt(1 + (errors / scale) ** 2)
    return np.sqrt(2 / (1 + root)) * errors


def minimise(residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the [P] position in [0, 1] with the least sum of squared [M] residuals, and the [M, P] Jacobian there."""

    def jacobian(position: np.ndarray) -> np.ndarray:
        columns: list[np.ndarray] = []
        for place in range(len(position)):
            pair = np.repeat(position[None], 2, axis=0)
            pair[:, place] = np.clip(position[place] + np.array([-_STEP, _STEP]), 0, 1)
            before, after = map(residuals, pair)
            columns.append((after - before) / (pair[1, place] - pair[0, place]))
        return np.stack(columns, axis=1)

    options: dict[str, Any] = {"jac": jacobian, "bounds": (0, 1), "max_nfev": _MOST_EVALUATIONS}
    found = least_squares(residuals, start, **options)
    return found.x, found.jac


def position_of(values: Values, names: Sequence[str], between: Mapping[str, Bounds]) -> np.ndarray:
    """Return the [P] positions of values between their bounds, in [0, 1]."""
    found = []
    for name in names:
        low, high, value = between[name].low, between[name].high, values[name]
        share = np.log(value / low) / np.log(high / low) if low > 0 else (value - low) / (high - low)
        found.append(min(max(share, 0.0), 1.0))
    return np.array(found)


def at(position: np.ndarray, names: Sequence[str], between: Mapping[str, Bounds]) -> dict[str, float]:
    """Return the values at [P] positions between their bounds."""
    found: dict[str, float] = {}
    for name, share in zip(names, position, strict=True):
        low, high = between[name].low, between[name].high
        value = low * (high / low) ** share if low > 0 else low + share * (high - low)
        found[name] = float(min(max(value, low), high))
    return found


def slope(position: np.ndarray, names: Sequence[str], between: Mapping[str, Bounds]) -> np.ndarray:
    """Return the derivatives of values with respect to their [P] positions."""
    values = at(position, names, between)
    return np.array(
        [
            values[name] * np.log(between[name].high / between[name].low)
            if between[name].low > 0
            else between[name].high - between[name].low
            for name in names
        ]
    )


def _standard_errors(jacobian: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """Return the [P] standard errors of positions; NaN where another field has the same effect."""
    rows, count = jacobian.shape
    if not count or rows <= count:
        return np.full(count, np.nan)
    size = np.linalg.norm(jacobian, axis=0)
    scaled = jacobian / size
    eigenvalues, vectors = np.linalg.eigh(scaled.T @ scaled)
    lost = eigenvalues < _ROUNDING
    inverse = (vectors[:, ~lost] / eigenvalues[~lost]) @ vectors[:, ~lost].T
    spread = scaled * residuals[:, None]
    covariance = inverse @ spread.T @ spread @ inverse * rows / (rows - count)
    shared = (np.abs(vectors[:, lost]) > np.sqrt(_ROUNDING)).any(axis=1)
    return np.where(shared, np.nan, np.sqrt(np.diag(covariance)) / size)
