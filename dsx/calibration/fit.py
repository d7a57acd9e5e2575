"""Numbers of an assumption set fitted to measured step times, with random effects of stacks and device generations.

With r = log(predicted / measured) of a row, w its weight, s the deviation of a source beyond the effects, p the
positions of the fields between their bounds, b those of the beliefs, and u the effects over their deviations, a fit
minimises

    sum over rows of  w (SCALE / s)^2 * 2 (sqrt(1 + (r / SCALE)^2) - 1)  +  sum of ((p - b) / BELIEF)^2  +  sum of u^2

The loss is (r / s)^2 for small errors and grows with |r| for large ones (soft L1). The weights of a source add up to 1,
and a configuration that the source measured several times counts as one of its rows. So a source is one observation,
single rows that are far off do not decide, and a belief gives way to sources that agree. Deviations are the most likely
ones (`dsx.calibration.effects`).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from dsx.calibration.effects import Deviations, Memberships, deviations, memberships
from dsx.calibration.local_times import LocalTimes, local_times
from dsx.calibration.observations import Observations
from dsx.calibration.positions import Values, at, position_of, slope
from dsx.spec.between import Bounds

SCALE = 0.1  # of the loss: larger log errors count less than their square
BELIEF = 0.25  # deviation of a belief, as a share of the distance between its bounds: these are two deviations away
AT_BOUND = 1e-3  # as a share of the distance between the bounds; the method stays inside them
_IDLE = 1e-9  # a change of a log time that is rounding
ROUNDS = 5  # of prices around the last result
_FARTHEST = 0.25  # that a round moves a field, as a share of the distance between its bounds: there prices are unknown
_SETTLED = 0.01  # a move that ends the search
_ALTERNATIONS = 3  # between deviations and the rest


@dataclass(frozen=True, slots=True)
class Sample:
    """N measured rows."""

    measured_s: np.ndarray  # [N]
    source: np.ndarray  # [N] position of its source
    weights: np.ndarray  # [N]; 0 = the row is left out
    members: Memberships

    def without(self, rows: np.ndarray) -> "Sample":
        """Return the sample without the rows where [N] bools are true."""
        return Sample(self.measured_s, self.source, np.where(rows, 0.0, self.weights), self.members)


@dataclass(frozen=True, slots=True)
class Solution:
    """The most likely positions and effects."""

    position: np.ndarray  # [P]
    of_stack: np.ndarray  # [stacks] log effects
    of_generation: np.ndarray  # [generations]
    deviations: Deviations
    covariance: np.ndarray  # [P, P] of the positions

    def slowdown(self, members: Memberships) -> np.ndarray:
        """Return the [N] factors on kernel times."""
        return np.exp(members.effect(self.of_stack, self.of_generation))


@dataclass(frozen=True, slots=True)
class Effects:
    """Log effects on kernel times by name, and their deviations."""

    stack: dict[str, float] = field(default_factory=dict)
    generation: dict[str, float] = field(default_factory=dict)
    deviations: Deviations = field(default_factory=Deviations)


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted values of fields, in SI units, and effects."""

    values: dict[str, float]  # every field to fit
    standard_errors: dict[str, float]  # NaN at a bound, and of a field that no row depends on
    at_bound: tuple[str, ...]
    undetermined: tuple[str, ...]  # fields that no prediction depends on: they keep their value
    effects: Effects = field(default_factory=Effects)

    @property
    def uncertain(self) -> tuple[str, ...]:
        """The fields that are less certain than they are large."""
        return tuple(name for name, error in self.standard_errors.items() if error > abs(self.values[name]))


def sample_of(observations: Observations) -> Sample:
    """Return all rows of a table, every source with the same weight, and every configuration of a source too."""
    _, source = np.unique(np.array(observations.source), return_inverse=True)
    return Sample(
        observations.measured_s,
        source,
        row_weights(observations.source, [*zip(observations.group, observations.layout, strict=True)]),
        memberships(observations.stack, observations.generation),
    )


def row_weights(source: Sequence[str], configuration: Sequence[Hashable]) -> np.ndarray:
    """Return the [N] weights of rows: 1 for each source, shared by its configurations, shared by their repetitions."""
    repeated = Counter(zip(source, configuration, strict=True))
    configurations = Counter(name for name, _ in repeated)
    return np.array([1 / (repeated[key] * configurations[key[0]]) for key in zip(source, configuration, strict=True)])


def fit(
    observations: Observations,
    sample: Sample,
    start: Values,
    between: Mapping[str, Bounds],
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[Fit, Solution, LocalTimes]:
    """Return the fit to the rows of a sample, from beliefs `start` inside the bounds `between`.

    The solution and the times around it serve fits to fewer rows (`solve`). Calls `progress` with `ROUNDS` in
    all.
    """
    names = tuple(between)
    beliefs = position_of(start, names, between)
    centre, found = beliefs, None
    for left in reversed(range(ROUNDS)):
        times = local_times(observations, centre, names, between)
        found = solve(sample, times, beliefs, found)
        move = np.clip(found.position - centre, -_FARTHEST, _FARTHEST)
        centre = centre + move
        if np.abs(move).max(initial=0.0) < _SETTLED:
            progress(1 + left)
            break
        progress(1)
    times = local_times(observations, centre, names, between)
    found = solve(sample, times, beliefs, found)
    return fit_of(found, times, sample.members, start, between), found, times


def fit_of(
    found: Solution, times: LocalTimes, members: Memberships, start: Values, between: Mapping[str, Bounds]
) -> Fit:
    """Return a solution as values of fields."""
    names, position = times.names, found.position
    idle = {name for name, column in zip(names, times.slope.T, strict=True) if np.abs(column).max(initial=0.0) < _IDLE}
    bound = {name for name, share in zip(names, position, strict=True) if min(share, 1 - share) < AT_BOUND} - idle
    values = at(np.clip(position, 0.0, 1.0), names, between) | {name: start[name] for name in idle}
    values |= {name: _nearest_bound(values[name], between[name]) for name in bound}
    errors = np.sqrt(np.diag(found.covariance)) * slope(position, names, between)
    known = {name: float(error) for name, error in zip(names, errors, strict=True) if name not in bound | idle}
    return Fit(
        values=values,
        standard_errors={name: known.get(name, np.nan) for name in names},
        at_bound=tuple(name for name in names if name in bound),
        undetermined=tuple(name for name in names if name in idle),
        effects=Effects(
            dict(zip(members.stacks, found.of_stack.tolist(), strict=True)),
            dict(zip(members.generations, found.of_generation.tolist(), strict=True)),
            found.deviations,
        ),
    )


def _nearest_bound(value: float, bounds: Bounds) -> float:
    return bounds.low if value - bounds.low < bounds.high - value else bounds.high


def solve(sample: Sample, times: LocalTimes, beliefs: np.ndarray, near: Solution | None = None) -> Solution:
    """Return the most likely solution for a sample, by the times around a centre; the search begins at `near`."""
    measured = np.log(sample.measured_s)
    position = times.centre if near is None else near.position
    found = Deviations() if near is None else near.deviations
    for _ in range(_ALTERNATIONS):
        solution = _solve(sample, times, beliefs, position, found)
        position = solution.position
        residuals = measured - times.at(position)
        found = deviations(residuals, times.kernels, sample.source, sample.weights, sample.members)
    return _solve(sample, times, beliefs, position, found)


def _solve(sample: Sample, times: LocalTimes, beliefs: np.ndarray, start: np.ndarray, known: Deviations) -> Solution:
    """Return the most likely positions and effects under these deviations."""
    used = sample.weights > 0
    members, measured = sample.members, np.log(sample.measured_s)
    fields, stacks, generations = len(beliefs), len(members.stacks), len(members.generations)
    scale = np.sqrt(sample.weights[used]) / known.rest

    def parts(point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        position, of_stack, of_generation = np.split(point, [fields, fields + stacks])
        return position, known.stack * of_stack, known.generation * of_generation

    def residuals(point: np.ndarray) -> np.ndarray:
        position, *effects = parts(point)
        errors = times.at(position) + times.kernels * members.effect(*effects) - measured
        return np.concatenate([scale * softened(errors[used], SCALE), (position - beliefs) / BELIEF, point[fields:]])

    def jacobian(point: np.ndarray) -> np.ndarray:
        position, *effects = parts(point)
        errors = (times.at(position) + times.kernels * members.effect(*effects) - measured)[used]
        root = np.sqrt(1 + (errors / SCALE) ** 2)
        factor = scale * np.sqrt((1 + root) / 2) / root
        rows = np.zeros((len(factor), fields + stacks + generations))
        rows[:, :fields] = times.derivative(position)[used]
        every, kernels = np.arange(len(factor)), times.kernels[used]
        rows[every, fields + members.stack[used]] = known.stack * kernels
        rows[every, fields + stacks + members.generation[used]] = known.generation * kernels
        beliefs_and_effects = np.eye(fields + stacks + generations)
        beliefs_and_effects[:fields] /= BELIEF
        return np.concatenate([factor[:, None] * rows, beliefs_and_effects])

    first = np.concatenate([np.clip(start, 0.0, 1.0), np.zeros(stacks + generations)])
    low = np.concatenate([np.zeros(fields), np.full(stacks + generations, -np.inf)])
    high = np.concatenate([np.ones(fields), np.full(stacks + generations, np.inf)])
    options: dict[str, Any] = {"jac": jacobian, "bounds": (low, high)}
    found = least_squares(residuals, first, **options)
    position, of_stack, of_generation = parts(found.x)
    covariance = np.linalg.inv(found.jac.T @ found.jac)[:fields, :fields]
    return Solution(position, of_stack, of_generation, known, covariance)


def softened(errors: np.ndarray, scale: float) -> np.ndarray:
    """Return the root of the soft L1 loss of `errors`; the loss is e^2 far below `scale`, 2 scale |e| far above."""
    root = np.sqrt(1 + (errors / scale) ** 2)
    return np.sqrt(2 / (1 + root)) * errors
