"""Numbers of an assumption set fitted to measured step times, with random effects of stacks and device generations.

Fields by their positions between their bounds, in [0, 1]; on a log scale if the bounds are positive.

Predicted times near some values of the fitted fields, as a quadratic: a fit asks for them thousands of times.

With p the positions of the fields between their bounds and c those of the centre, the log time of a row is

    log t(p) = log t(c) + sum over fields of  slope (p - c) + curvature (p - c)^2

from two further prices of every row for each field, on either side of it unless a bound is there. Mixed terms are left
out: a fit prices the rows again at its result and takes the quadratic there, until the result stays. One more price
gives `kernels`, the share of a row's time that is proportional to that of its kernels, by which effects of stacks and
device generations scale it.

Random effects of software stacks and device generations: what the physics leaves over, shrunk towards zero.

The log of measured / predicted time of a source has a mean y, with

    y = share of kernels * (effect of its stack + effect of its device generation) + rest

Effects of stacks, of generations, and the rests are independent and normal with mean zero; their three deviations are
the most likely ones for the sources at hand (maximum likelihood of the y). A source counts once, however many rows it
has, since the rows of a source err together. An effect is then the posterior mean: nearly nothing for a stack of one
source, nearly the whole mean for one of many sources that agree (Robinson, Statistical Science 6, 1991).

Numbers of an assumption set fitted to measured step times, with random effects of stacks and device generations.

With r = log(predicted / measured) of a row, w its weight, s the deviation of a source beyond the effects, p the
positions of the fields between their bounds, b those of the beliefs, and u the effects over their deviations, a fit
minimises

    sum over rows of  w (SCALE / s)^2 * 2 (sqrt(1 + (r / SCALE)^2) - 1)  +  sum of ((p - b) / BELIEF)^2  +  sum of u^2

The loss is (r / s)^2 for small errors and grows with |r| for large ones (soft L1). The weights of a source add up to 1,
and a configuration that the source measured several times counts as one of its rows. So a source is one observation,
single rows that are far off do not decide, and a belief gives way to sources that agree. Deviations are the most likely
ones (`dsx.runs.fit`).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import least_squares, minimize

from dsx.config.values import Bounds
from dsx.runs.observations import Observations

Values = Mapping[str, float]  # of fields, in SI units


def position_of(values: Values, names: Sequence[str], between: Mapping[str, Bounds]) -> np.ndarray:
    """Return the [P] positions of values between their bounds, in [0, 1]."""
    found = []
    for name in names:
        low, high, value = between[name].low, between[name].high, values[name]
        share = np.log(value / low) / np.log(high / low) if low > 0 else (value - low) / (high - low)
        found.append(min(max(share, 0.0), 1.0))
    return np.array(found, dtype=np.float64)


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


_LEAST, _MOST = 0.005, 0.5  # deviations, log
_FARTHEST_MEAN = 0.3  # mean of a source that counts: what is further off is no effect but another program
_START = 0.1


@dataclass(frozen=True, slots=True)
class Deviations:
    """Standard deviations of log times."""

    stack: float = _START  # of the effects of stacks
    generation: float = _START  # of those of device generations
    rest: float = _START  # of the mean of a source beyond them


@dataclass(frozen=True, slots=True)
class Memberships:
    """The stack and the device generation of each of N rows, as positions in their names."""

    stacks: tuple[str, ...]
    generations: tuple[str, ...]
    stack: np.ndarray  # [N]
    generation: np.ndarray  # [N]

    def effect(self, of_stack: np.ndarray, of_generation: np.ndarray) -> np.ndarray:
        """Return the [N] log effect of rows, from those of stacks and generations."""
        return of_stack[self.stack] + of_generation[self.generation]


def memberships(stacks: Sequence[str], generations: Sequence[str]) -> Memberships:
    """Return the memberships of N rows."""
    (of_stack, stack), (of_generation, generation) = (
        np.unique(np.array(names, dtype=object).astype(str), return_inverse=True) for names in (stacks, generations)
    )
    return Memberships(tuple(of_stack.tolist()), tuple(of_generation.tolist()), stack, generation)


def deviations(
    residuals: np.ndarray, kernels: np.ndarray, source: np.ndarray, weights: np.ndarray, members: Memberships
) -> Deviations:
    """Return the most likely deviations.

    Args:
        residuals: [N] log(measured / predicted) without effects.
        kernels: [N] share of a row's time that effects scale.
        source: [N] the source of each row, as a position.
        weights: [N] weight of each row; rows without weight do not count.
        members: stack and generation of each row.
    """
    used = weights > 0
    _, of_source = np.unique(source[used], return_inverse=True)
    count = of_source.max(initial=-1) + 1
    share = weights[used] / np.bincount(of_source, weights[used], count)[of_source]
    means = np.clip(np.bincount(of_source, share * residuals[used], count), -_FARTHEST_MEAN, _FARTHEST_MEAN)

    def design(member: np.ndarray, size: int) -> np.ndarray:
        found = np.zeros((count, size))
        np.add.at(found, (of_source, member[used]), share * kernels[used])
        return found @ found.T

    by_stack = design(members.stack, len(members.stacks))
    by_generation = design(members.generation, len(members.generations))

    def unlikeliness(logs: np.ndarray) -> float:
        stack, generation, rest = np.exp(2 * logs)
        covariance = stack * by_stack + generation * by_generation + rest * np.eye(count)
        return float(np.linalg.slogdet(covariance)[1] + means @ np.linalg.solve(covariance, means))

    bounds = [(np.log(_LEAST), np.log(_MOST))] * 3
    found = minimize(unlikeliness, np.full(3, np.log(_START)), bounds=bounds, method="L-BFGS-B")
    return Deviations(*map(float, np.exp(found.x)))


SCALE = 0.1  # of the loss: larger log errors count less than their square
BELIEF = 0.25  # deviation of a belief, as a share of the distance between its bounds: these are two deviations away
AT_BOUND = 1e-3  # as a share of the distance between the bounds; the method stays inside them
_IDLE = 1e-9  # a change of a log time that is rounding
ROUNDS = 5  # of prices around the last result
_FARTHEST_MOVE = (
    0.25  # that a round moves a field, as a share of the distance between its bounds: there prices are unknown
)
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
        move = np.clip(found.position - centre, -_FARTHEST_MOVE, _FARTHEST_MOVE)
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
