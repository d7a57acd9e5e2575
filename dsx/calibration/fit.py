"""Numbers of an assumption set fitted to measured step times, inside their bounds.

With r = log(predicted / measured) of a row, n rows of its source and t = r / SCALE, a fit minimises

    sum over rows of  1/n * SCALE^2 * 2 (sqrt(1 + t^2) - 1)

which is r^2/n for small errors and grows with |r| for large ones (the soft L1 loss), so that every source weighs the
same and single rows that are far off do not decide. Fields are searched on a log scale where their bounds are
positive, over [0, 1] between the bounds, by scipy.optimize.least_squares. A pull to the start, the belief,
decides where the rows do not.

The Jacobian is by central differences. Forward mode of JAX costs a second compilation of every structure of rows (5 s
beside 4 s, and there are 20 in the published runs), and then as much per Jacobian as the differences do: pricing all
rows takes 10 ms once it is compiled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from dsx.spec.between import Bounds

SCALE = 0.1  # of the loss: log errors beyond count less than their square
_STEP = 1e-3  # of a difference, as a share of the way between the bounds
AT_BOUND = 1e-3  # as a share of the way between the bounds; the method stays inside them
# Towards the start, over the whole way between the bounds. Its square is what log errors of 2 % in all rows of a source
# add: a belief gives way to any source that clearly says otherwise, and stays where the rows leave it open.
PULL = 0.02
_NOTHING = 1e-9  # change of a log time that is rounding
_MOST_EVALUATIONS = 100  # of the residuals, differences aside

Values = Mapping[str, float]
StepTimes = Callable[[Values], np.ndarray]  # values of fields -> [N] predicted seconds


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted values of fields, in SI units."""

    values: dict[str, float]  # every field that was to be fitted
    standard_errors: dict[str, float]  # NaN where it has none: at a bound, or not determined by itself
    at_bound: tuple[str, ...]
    undetermined: tuple[str, ...]  # fields that no prediction depends on: they keep their value


def fit(
    step_times: StepTimes,
    measured_s: np.ndarray,
    source: Sequence[str],
    start: Values,
    between: Mapping[str, Bounds],
    near: Values | None = None,
    pull: float = PULL,
) -> Fit:
    """Return the values, from `start` on, that make [N] predictions come closest to `measured_s`.

    Args:
        step_times: predicts the [N] rows under values of the fields `between`.
        measured_s: [N] seconds.
        source: [N] where a row is from.
        start: values inside the bounds `between`, which say what is fitted.
        near: where the search begins, if that is known better; what the rows leave open stays at `start` all the same.
        pull: how strongly values are held at `start`: the log error that the whole way between their bounds is worth.

    Standard errors are those of heteroskedastic rows that are independent of each other (White's, times n / (n - p)),
    so they are too small where the rows of a source err together.
    """
    names = determined(step_times, start, between)
    if not names:
        return Fit(dict(start), dict.fromkeys(between, np.nan), (), tuple(between))
    weights = 1 / np.array([source.count(name) for name in source])
    began = position_of(start, names, between)

    def residuals(position: np.ndarray) -> np.ndarray:
        errors = np.log(step_times({**start, **at(position, names, between)}) / measured_s)
        return np.concatenate([np.sqrt(weights) * softened(errors, SCALE), pull * (position - began)])

    position, jacobian = minimise(residuals, began if near is None else position_of(near, names, between))
    jacobian = jacobian[: len(measured_s)]
    values = {**start, **at(position, names, between)}
    # What mattered where the search began need not matter where it ended.
    late = {name for name, column in zip(names, jacobian.T, strict=True) if np.abs(column).max() <= _NOTHING}
    restored = values | {name: start[name] for name in late}
    if np.abs(np.log(step_times(restored) / step_times(values))).max() < _NOTHING:
        values = restored
    bound = {name for name, u in zip(names, position, strict=True) if min(u, 1 - u) < AT_BOUND} - late
    values |= {name: _end(values[name], between[name]) for name in bound}
    free = np.array([name not in bound | late for name in names])
    errors = np.full(len(names), np.nan)
    errors[free] = _standard_errors(jacobian[:, free], residuals(position)[: len(measured_s)])
    errors[free] *= slope(position, names, between)[free]
    known = dict(zip(names, errors.tolist(), strict=True))
    return Fit(
        values={name: float(values[name]) for name in between},
        standard_errors={name: known.get(name, np.nan) for name in between},
        at_bound=tuple(name for name in between if name in bound),
        undetermined=tuple(name for name in between if name not in names or name in late),
    )


def _end(value: float, bounds: Bounds) -> float:
    """Return the bound that a value is at."""
    return bounds.low if value - bounds.low < bounds.high - value else bounds.high


def determined(step_times: StepTimes, start: Values, between: Mapping[str, Bounds]) -> list[str]:
    """Return the fields that some prediction depends on, of those `between`."""
    here = step_times(start)

    def moves(name: str, value: float) -> bool:
        return bool(np.abs(np.log(step_times({**start, name: value}) / here)).max(initial=0) > _NOTHING)

    return [name for name, bounds in between.items() if moves(name, bounds.low) or moves(name, bounds.high)]


def softened(errors: np.ndarray, scale: float) -> np.ndarray:
    """Return what has the soft L1 loss of `errors` as its square: e^2 far below `scale`, 2 scale |e| far above."""
    root = np.sqrt(1 + (errors / scale) ** 2)
    return np.sqrt(2 / (1 + root)) * errors


def minimise(residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the [P] position in [0, 1] of the least sum of squared [M] residuals, and the [M, P] Jacobian there."""

    def jacobian(position: np.ndarray) -> np.ndarray:
        columns: list[np.ndarray] = []
        for place in range(len(position)):
            ends = np.repeat(position[None], 2, axis=0)
            ends[:, place] = np.clip(position[place] + np.array([-_STEP, _STEP]), 0, 1)
            before, after = map(residuals, ends)
            columns.append((after - before) / (ends[1, place] - ends[0, place]))
        return np.stack(columns, axis=1)

    options: dict[str, Any] = {"jac": jacobian, "bounds": (0, 1), "max_nfev": _MOST_EVALUATIONS}
    found = least_squares(residuals, start, **options)
    return found.x, found.jac


def position_of(values: Values, names: Sequence[str], between: Mapping[str, Bounds]) -> np.ndarray:
    """Return where values lie between their bounds, [P] in [0, 1]."""
    found = []
    for name in names:
        low, high, value = between[name].low, between[name].high, values[name]
        share = np.log(value / low) / np.log(high / low) if low > 0 else (value - low) / (high - low)
        found.append(min(max(share, 0.0), 1.0))
    return np.array(found)


def at(position: np.ndarray, names: Sequence[str], between: Mapping[str, Bounds]) -> dict[str, float]:
    """Return the values at a [P] position between their bounds."""
    found: dict[str, float] = {}
    for name, share in zip(names, position, strict=True):
        low, high = between[name].low, between[name].high
        value = low * (high / low) ** share if low > 0 else low + share * (high - low)
        found[name] = float(min(max(value, low), high))
    return found


def slope(position: np.ndarray, names: Sequence[str], between: Mapping[str, Bounds]) -> np.ndarray:
    """Return the derivatives of values by their [P] positions."""
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
    """Return the [P] standard errors of positions; NaN where another field makes the same difference."""
    rows, count = jacobian.shape
    if not count or rows <= count:
        return np.full(count, np.nan)
    size = np.linalg.norm(jacobian, axis=0)
    scaled = jacobian / size
    eigenvalues, vectors = np.linalg.eigh(scaled.T @ scaled)
    lost = eigenvalues < _NOTHING
    inverse = (vectors[:, ~lost] / eigenvalues[~lost]) @ vectors[:, ~lost].T
    spread = scaled * residuals[:, None]
    covariance = inverse @ spread.T @ spread @ inverse * rows / (rows - count)
    shared = (np.abs(vectors[:, lost]) > np.sqrt(_NOTHING)).any(axis=1)
    return np.where(shared, np.nan, np.sqrt(np.diag(covariance)) / size)
