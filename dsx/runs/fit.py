"""Numbers of an assumption set fitted to measured step times, with random effects of stacks and device generations.

With r = log(predicted / measured) of a row, w its weight, s the deviation of a source beyond the effects, p the
positions of the fields between their bounds, b those of the prior values, and u the effects over their deviations, a
fit minimises

    sum over rows of  w (SCALE / s)^2 * 2 (sqrt(1 + (r / SCALE)^2) - 1)
        +  sum of ((p - b) / PRIOR_DEVIATION)^2  +  sum of u^2

The loss is (r / s)^2 for small errors and grows with |r| for large ones (soft L1). The weights of a source add up to 1,
and a configuration that the source measured several times counts as one of its rows. So a source is one observation,
single rows that are far off do not decide, and the prior gives way to sources that agree.

The effects are what the physics leaves over, shrunk towards zero. The log of measured / predicted time of a source has
a mean y, with

    y = share of kernels * (effect of its stack + effect of its device generation) + rest

Effects of stacks, of generations, and the rests are independent and normal with mean zero; their three deviations are
the most likely ones for the sources at hand (maximum likelihood of the y). A source counts once, however many rows it
has, since the rows of a source err together. An effect is then the posterior mean: nearly nothing for a stack of one
source, nearly the whole mean for one of many sources that agree (Robinson, Statistical Science 6, 1991).

A fit asks for predicted times thousands of times, so near some values of the fields they are a quadratic. Fields are
given by their positions between their bounds, in [0, 1]; on a log scale if the bounds are positive. With p these
positions and c the positions of the centre, the log time of a row is

    log t(p) = log t(c) + sum over fields of  slope (p - c) + curvature (p - c)^2

from two further prices of every row for each field, on either side of it unless a bound is there. Mixed terms are left
out: a fit prices the rows again at its result and takes the quadratic there, until the result stays. One more price
gives `kernels`, the share of a row's time that is proportional to the time of its kernels, by which effects of stacks
and device generations scale it.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import least_squares, minimize

from dsx.config.schema import Bounds
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


_LEAST, _MOST = 0.005, 0.5  # deviations, log
_FARTHEST_MEAN = 0.3  # mean of a source that counts: what is further off is no effect but another program
_START = 0.1


@dataclass(frozen=True, slots=True)
class Deviations:
    """Standard deviations of log times."""

    stack: float = _START  # of the effects of stacks
    generation: float = _START  # of the effects of device generations
    rest: float = _START  # of the mean of a source beyond them


@dataclass(frozen=True, slots=True)
class Memberships:
    """The stack and the device generation of each of N rows, as positions in their names."""

    stacks: tuple[str, ...]
    generations: tuple[str, ...]
    stack: np.ndarray  # [N]
    generation: np.ndarray  # [N]

    def effect(self, of_stack: np.ndarray, of_generation: np.ndarray) -> np.ndarray:
        """Return the [N] log effects of rows, from the effects of stacks and generations."""
        return of_stack[self.stack] + of_generation[self.generation]


def memberships(stacks: Sequence[str], generations: Sequence[str]) -> Memberships:
    """Return the memberships of N rows."""
    of_stack, stack = np.unique(np.array(stacks, dtype=object).astype(str), return_inverse=True)
    of_generation, generation = np.unique(np.array(generations, dtype=object).astype(str), return_inverse=True)
    return Memberships(tuple(of_stack.tolist()), tuple(of_generation.tolist()), stack, generation)


def deviations(residuals: np.ndarray, kernels: np.ndarray, sample: "Sample") -> Deviations:
    """Return the likeliest deviations for [N] log(measured / predicted); `kernels` is the share that effects scale."""
    weights, members = sample.weights, sample.members
    used = weights > 0
    _, of_source = np.unique(sample.source[used], return_inverse=True)
    count = of_source.max(initial=-1) + 1
    share = weights[used] / np.bincount(of_source, weights[used], count)[of_source]
    means = np.clip(np.bincount(of_source, share * residuals[used], count), -_FARTHEST_MEAN, _FARTHEST_MEAN)

    def shared(member: np.ndarray, size: int) -> np.ndarray:
        design = np.zeros((count, size))
        np.add.at(design, (of_source, member[used]), share * kernels[used])
        return design @ design.T

    by_stack = shared(members.stack, len(members.stacks))
    by_generation = shared(members.generation, len(members.generations))

    def unlikeliness(logs: np.ndarray) -> float:
        stack, generation, source = np.exp(2 * logs)
        covariance = stack * by_stack + generation * by_generation + source * np.eye(count)
        return float(np.linalg.slogdet(covariance)[1] + means @ np.linalg.solve(covariance, means))

    bounds = [(np.log(_LEAST), np.log(_MOST))] * 3
    likeliest = minimize(unlikeliness, np.full(3, np.log(_START)), bounds=bounds, method="L-BFGS-B")
    return Deviations(*map(float, np.exp(likeliest.x)))


SCALE = 0.1  # of the loss: larger log errors count less than their square
PRIOR_DEVIATION = 0.25  # as a share of the distance between the bounds of a field: these are two deviations away
ROUNDS = 5  # of prices around the last result
# How far a round moves a field, as a share of the distance between its bounds: farther away prices are unknown.
_FARTHEST_MOVE = 0.25
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


@dataclass(frozen=True, slots=True)
class FullFit:
    """The fit to all rows of a sample, from which fits to fewer of them begin."""

    sample: Sample
    start: Values  # the prior values
    between: Between
    solution: Solution
    times: LocalTimes  # around the solution

    @property
    def fit(self) -> Fit:
        """Return the fit to a sample, from the prior `start` inside `between`; tells `progress` of `ROUNDS` in all."""
        return self.fit_of(self.solution)

    @property
    def slowdown(self) -> np.ndarray:
        """[N] factors on kernel times."""
        return self.solution.slowdown(self.sample.members)

    def without(self, rows: np.ndarray) -> Solution:
        """Return the solution without the rows where [N] bools are true."""
        prior = position_of(self.start, self.between)
        return solve(self.sample.without(rows), self.times, prior, self.solution)

    def fit_of(self, solution: Solution) -> Fit:
        """Return a solution as values of fields."""
        between, members, position = self.between, self.sample.members, solution.position
        idle, bound = self.times.undetermined, self.times.at_bound(position)
        values = at(np.clip(position, 0.0, 1.0), between) | {name: self.start[name] for name in idle}
        for name in bound:
            low, high = between[name].low, between[name].high
            values[name] = low if values[name] - low < high - values[name] else high
        errors = np.sqrt(np.diag(solution.covariance)) * slope(position, between)
        return Fit(
            values=values,
            standard_errors=dict(zip(between, errors.tolist(), strict=True)) | dict.fromkeys((*bound, *idle), np.nan),
            at_bound=bound,
            undetermined=idle,
            effects=Effects(
                dict(zip(members.stacks, solution.of_stack.tolist(), strict=True)),
                dict(zip(members.generations, solution.of_generation.tolist(), strict=True)),
                solution.deviations,
            ),
        )


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


Progress = Callable[[int], None]  # is told how many more rounds or sources are done


def fit(
    observations: Observations, sample: Sample, start: Values, between: Between, progress: Progress = lambda done: None
) -> FullFit:
    """Return the fit to a sample, from the prior `start` inside `between`; tells `progress` of `ROUNDS` in all."""
    prior = position_of(start, between)
    centre, solution = prior, None
    for remaining in reversed(range(ROUNDS)):
        times = local_times(observations, centre, between)
        solution = solve(sample, times, prior, solution)
        move = np.clip(solution.position - centre, -_FARTHEST_MOVE, _FARTHEST_MOVE)
        centre = centre + move
        if np.abs(move).max(initial=0.0) < _SETTLED:
            progress(1 + remaining)
            break
        progress(1)
    times = local_times(observations, centre, between)
    return FullFit(sample, start, between, solve(sample, times, prior, solution), times)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The predictions of N rows, each by the fit without its own part of the rows."""

    predicted_s: np.ndarray  # [N]
    fits: dict[str, Fit]  # by the part that is left out
    slowdown: np.ndarray  # [N] factor on kernel times by the effects of that fit


def leave_out(
    observations: Observations, part: Sequence[str], full: FullFit, progress: Progress = lambda done: None
) -> HeldOut:
    """Return the predictions of each part of the rows by a fit to the other parts.

    `part` has the source of each row, say, or its stack: errors on machines, software and sizes that a set has not
    seen. A part's own effects are unknown to its fit, so they are zero unless other parts share its stack or
    generation. Calls `progress` after each part.
    """
    names = np.array(part)
    predicted, slowdown = np.full(len(names), np.nan), np.ones(len(names))
    fits: dict[str, Fit] = {}
    for name in dict.fromkeys(part):
        rows = names == name
        solution = full.without(rows)
        fits[name] = full.fit_of(solution)
        slowdown[rows] = solution.slowdown(full.sample.members)[rows]
        predicted[rows] = observations.step_times(fits[name].values, rows, slowdown)[rows]
        progress(1)
    return HeldOut(predicted, fits, slowdown)


def solve(sample: Sample, times: LocalTimes, prior: np.ndarray, near: Solution | None = None) -> Solution:
    """Return the most likely solution for a sample, by the times around a centre; the search begins at `near`."""
    measured = np.log(sample.measured_s)
    position = times.centre if near is None else near.position
    spread = Deviations() if near is None else near.deviations
    for _ in range(_ALTERNATIONS):
        position = _solve(sample, times, prior, position, spread).position
        spread = deviations(measured - times.at(position), times.kernels, sample)
    return _solve(sample, times, prior, position, spread)


def _solve(sample: Sample, times: LocalTimes, prior: np.ndarray, start: np.ndarray, spread: Deviations) -> Solution:
    """Return the most likely positions and effects under these deviations."""
    used = sample.weights > 0
    members, measured = sample.members, np.log(sample.measured_s)
    fields, stacks, effects = len(prior), len(members.stacks), len(members.stacks) + len(members.generations)
    scale = np.sqrt(sample.weights[used]) / spread.rest

    def parts(point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        position, of_stack, of_generation = np.split(point, [fields, fields + stacks])
        return position, spread.stack * of_stack, spread.generation * of_generation

    def errors(point: np.ndarray) -> np.ndarray:
        position, *of_members = parts(point)
        return (times.at(position) + times.kernels * members.effect(*of_members) - measured)[used]

    def residuals(point: np.ndarray) -> np.ndarray:
        prior_and_effects = (point[:fields] - prior) / PRIOR_DEVIATION, point[fields:]
        return np.concatenate([scale * softened(errors(point), SCALE), *prior_and_effects])

    def jacobian(point: np.ndarray) -> np.ndarray:
        of_rows = errors(point)
        root = np.sqrt(1 + (of_rows / SCALE) ** 2)
        factor = scale * np.sqrt((1 + root) / 2) / root
        rows = np.zeros((len(factor), fields + effects))
        rows[:, :fields] = times.derivative(point[:fields])[used]
        every, kernels = np.arange(len(factor)), times.kernels[used]
        rows[every, fields + members.stack[used]] = spread.stack * kernels
        rows[every, fields + stacks + members.generation[used]] = spread.generation * kernels
        prior_and_effects = np.eye(fields + effects)
        prior_and_effects[:fields] /= PRIOR_DEVIATION
        return np.concatenate([factor[:, None] * rows, prior_and_effects])

    first = np.concatenate([np.clip(start, 0.0, 1.0), np.zeros(effects)])
    low = np.concatenate([np.zeros(fields), np.full(effects, -np.inf)])
    high = np.concatenate([np.ones(fields), np.full(effects, np.inf)])
    optimum = least_squares(residuals, first, jac=jacobian, bounds=(low, high))  # pyright: ignore[reportArgumentType]
    covariance = np.linalg.inv(optimum.jac.T @ optimum.jac)[:fields, :fields]
    return Solution(*parts(optimum.x), spread, covariance)


def softened(errors: np.ndarray, scale: float) -> np.ndarray:
    """Return the root of the soft L1 loss of `errors`; the loss is e^2 far below `scale`, 2 scale |e| far above."""
    root = np.sqrt(1 + (errors / scale) ** 2)
    return np.sqrt(2 / (1 + root)) * errors
