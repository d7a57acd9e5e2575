"""Intervals, effects and outliers of measured runs."""

from itertools import pairwise

import numpy as np
import pytest

from dsx.cost.interval import plan_facts
from dsx.runs.error_report import LayoutGroup, coverage, make_intervals, memory_interval, resolution, weighted_quantile
from dsx.runs.fit import LocalTimes, Sample, deviations, memberships, row_weights, solve
from dsx.runs.observations import outliers


def facts(thin):
    return plan_facts(np.full(len(thin), 8), 8, False, np.asarray(thin))


def plenty(count):
    return facts(np.zeros(count, dtype=int))


def drawn(sources, rows, seed, of_source=0.08, of_row=0.02):
    random = np.random.default_rng(seed)
    residuals = np.repeat(random.normal(0, of_source, sources), rows) + random.normal(0, of_row, sources * rows)
    return residuals, [str(number) for number in np.repeat(np.arange(sources), rows)]


def test_quantiles_weigh_sources_and_thin_plans_apart():
    values, weights = np.array([3.0, 1.0, 2.0, 4.0]), np.full(4, 0.25)
    assert [weighted_quantile(values, weights, share) for share in (0.0, 0.2, 0.25, 0.5, 0.9)] == [1, 1, 2, 3, 4]
    assert weighted_quantile(values, np.array([0.1, 0.7, 0.1, 0.1]), 0.5) == 1.0
    # A source weighs the same whatever its rows.
    residuals, source = drawn(12, 10, 3)
    again = np.concatenate([residuals, np.tile(residuals[:10], 30)])
    once, often = (
        make_intervals(values, names, plenty(len(values)))
        for values, names in ((residuals, source), (again, source + source[:10] * 30))
    )
    assert once == often
    # Thin plans have intervals of their own.
    residuals, source = drawn(12, 6, 4)
    thin = np.array([int(name) % 3 for name in source])
    wide = np.where(thin == 2, 4.0, 1.0) * residuals
    two, one, anything = make_intervals(wide, source, facts(thin))
    assert [entry.where.thin for entry in (two, one, anything)] == [2, 1, None]
    assert two.high / two.low > one.high / one.low > anything.high / anything.low


@pytest.mark.parametrize("seed", range(5))
def test_a_thinner_plan_never_has_a_narrower_interval(seed):
    residuals, source = drawn(15, 4, seed)
    thin = np.random.default_rng(seed).integers(0, 4, 15)[[int(name) for name in source]]
    near = np.where(thin >= 2, 0.1 * residuals, residuals)  # thin sources that happen to be predicted well
    found = make_intervals(near, source, facts(thin))
    assert found[-1].where.thin is None
    assert all(a.low <= b.low <= b.high <= a.high for a, b in pairwise(found))


def test_intervals_of_few_sources_of_memory_and_their_width():
    residuals, source = drawn(8, 6, 4)
    thin = np.array([{"0": 2, "1": 2, "2": 1}.get(name, 0) for name in source])
    found = make_intervals(residuals, source, facts(thin))
    assert [entry.where.thin for entry in found] == [1, None]
    # Two sources say nothing.
    residuals, source = drawn(2, 10, 5)
    assert make_intervals(residuals, source, plenty(20)) == []
    assert coverage(residuals, source, plenty(20)) == {}
    assert memory_interval(np.ones(2), ["a", "b"]) is None
    assert memory_interval(np.zeros(0), []) is None
    # Memory has its quantiles.
    ratio = np.linspace(0.8, 1.2, 30)
    found = memory_interval(ratio, ["a", "b", "c"] * 10)
    assert (found.low, found.median, found.high) == pytest.approx((0.84, 1.0, 1.16), abs=0.02)
    # A new source is covered.
    inside = []
    for seed in range(60):
        residuals, source = drawn(10, 20, seed)
        inside += [found.inside for found in coverage(residuals, source, plenty(200)).values()]
    assert 0.78 <= np.mean(inside) < 0.92
    # The width is that of the interval.
    residuals, source = drawn(10, 20, 6)
    (entry,) = make_intervals(residuals[20:], source[20:], plenty(180))
    assert coverage(residuals, source, plenty(200))["0"].width == pytest.approx(entry.high / entry.low - 1, rel=1e-9)


def test_the_resolution_is_how_much_the_errors_of_two_plans_differ():
    predicted = np.array([1.0, 2.0, 3.0, 4.0])
    together = LayoutGroup("a", 1.5 * predicted, predicted)  # far off, but all alike
    assert resolution([together]) == pytest.approx(0.0)
    apart = LayoutGroup("b", np.array([1.1, 2.0, 3.0, 4.0]), predicted)
    # Half of its pairs differ by 10 %, so 80 % of them differ by no more than that.
    assert resolution([apart]) == pytest.approx(0.1)
    # With a source beside it that has none, and with many groups of that, a quarter of the weight is in such pairs.
    assert resolution([together, apart]) == resolution([*[together] * 9, apart]) == pytest.approx(0.1)
    assert resolution([*[together] * 3, LayoutGroup("a", apart.measured_s, predicted)]) == pytest.approx(0.0)
    assert resolution([]) is None


ROWS = 4  # of a source
NO_FIELD = np.zeros(0)


def sources(stacks, generations, seed, of_stack, rest, of_generation=0.0):
    """Return a sample of sources whose mean log errors are sums of normal effects, and the effects of the stacks."""
    random = np.random.default_rng(seed)
    effect = dict(zip(sorted({*stacks}), random.normal(0, of_stack, len({*stacks})), strict=True))
    device = dict(zip(sorted({*generations}), random.normal(0, of_generation, len({*generations})), strict=True))
    means = [
        effect[stack] + device[generation] + random.normal(0, rest)
        for stack, generation in zip(stacks, generations, strict=True)
    ]
    source = np.repeat(np.arange(len(stacks)), ROWS)
    members = memberships(np.repeat(stacks, ROWS).tolist(), np.repeat(generations, ROWS).tolist())
    measured = np.exp(np.repeat(means, ROWS) + random.normal(0, 0.005, len(source)))
    weights = row_weights(source.tolist(), list(range(len(source))))
    return Sample(measured, source, weights, members), effect


def all_kernels(rows):
    """Return a prediction of one second for every row, all of it kernels, that depends on no field."""
    nothing = np.zeros((rows, 0))
    return LocalTimes((), NO_FIELD, np.zeros(rows), nothing, nothing, np.ones(rows))


def found_in(sample):
    return solve(sample, all_kernels(len(sample.measured_s)), NO_FIELD)


def test_deviations_of_effects_and_outliers():
    many = [
        sources([f"s{n % 8}" for n in range(96)], ["g"] * 96, seed, of_stack=0.12, rest=0.04)[0] for seed in range(12)
    ]
    found = [deviations(np.log(one.measured_s), np.ones(len(one.measured_s)), one) for one in many]
    assert np.median([one.stack for one in found]) == pytest.approx(0.12, rel=0.25)
    assert np.median([one.rest for one in found]) == pytest.approx(0.04, rel=0.1)
    assert np.median([one.generation for one in found]) < 0.04  # there is one generation, without effect
    # An outlier says what it is.
    (found,) = outliers(["a", "b", "c"], np.array([9.1, 9.2, 9100.0]), np.array([9.0, 9.0, 9.0])).values()
    assert (found.id, found.measured_s, found.predicted_s) == ("c", 9100, 9)
    assert (found.factor, found.usual) == (pytest.approx(9100 / 9), pytest.approx(9.2 / 9))
    assert str(found) == "c: measured 9100 s, predicted 9 s: 1.01e+03 times, the median of the table is 1.02 times"


def test_stacks_of_many_sources_keep_their_effects_and_those_of_one_are_shrunk():
    sample, truth = sources(["fast"] * 15 + ["slow"] * 15, ["g"] * 30, 3, of_stack=0.15, rest=0.03)
    solution = found_in(sample)
    by_name = dict(zip(sample.members.stacks, solution.of_stack, strict=True))
    apart = by_name["slow"] - by_name["fast"]
    assert apart == pytest.approx(truth["slow"] - truth["fast"], rel=0.1)
    assert np.sign(by_name["slow"]) == -np.sign(by_name["fast"])  # what both share may be the generation's
    # Posterior means of k sources of mean y are y k s^2 / (k s^2 + r^2), of effects s and rests r.
    stacks = ["one"] + [f"s{n // 5}" for n in range(40)]
    sample, _ = sources(stacks, ["g"] * 41, 5, of_stack=0.06, rest=0.06)
    far = np.where(sample.source == 0, np.exp(0.2), sample.measured_s)
    solution = found_in(Sample(far, sample.source, sample.weights, sample.members))
    known = solution.deviations
    one = solution.of_stack[sample.members.stacks.index("one")]
    device = solution.of_generation[0]
    expected = (0.2 - device) * known.stack**2 / (known.stack**2 + known.rest**2)
    # The loss of a fit counts an error of 0.2 less than its square.
    assert 0 < one < 1.02 * expected < 0.8 * 0.2


@pytest.mark.slow
def test_effects_of_generations_and_of_single_sources():
    stacks = [f"s{n}" for n in range(30)]
    sample, _ = sources(stacks, ["g"] * 30, 7, of_stack=0.0, rest=0.08)
    alone = found_in(sample)
    spread = np.std(np.log([sample.measured_s[sample.source == n].mean() for n in range(30)]))
    # Nothing tells the deviation of a stack from the rest; together they are the spread.
    assert np.hypot(alone.deviations.stack, alone.deviations.rest) == pytest.approx(spread, rel=0.1)
    assert np.std(alone.of_stack) < 0.8 * spread
    # Generations have effects too.
    generations = [f"g{n % 4}" for n in range(80)]
    sample, _ = sources(["s"] * 80, generations, 11, of_stack=0.0, rest=0.03, of_generation=0.1)
    solution = found_in(sample)
    means = [
        np.log(sample.measured_s)[sample.members.generation == n].mean() for n in range(len(sample.members.generations))
    ]
    assert solution.of_generation + solution.of_stack[0] == pytest.approx(np.array(means), abs=0.015)
    # Rows left out say nothing.
    sample, _ = sources(["a"] * 6 + ["b"] * 6, ["g"] * 12, 13, of_stack=0.1, rest=0.02)
    of_b = np.array([sample.members.stacks[n] for n in sample.members.stack]) == "b"
    without = found_in(sample.without(of_b))
    assert without.of_stack[sample.members.stacks.index("b")] == pytest.approx(0, abs=1e-9)
    changed = Sample(np.where(of_b, 50.0, sample.measured_s), sample.source, sample.weights, sample.members)
    assert found_in(changed.without(of_b)).of_stack == pytest.approx(without.of_stack, abs=1e-9)
    # One source and none are no error.
    sample, _ = sources(["a"], ["g"], 17, of_stack=0.1, rest=0.02)
    assert np.isfinite(found_in(sample).of_stack).all()
    assert found_in(sample.without(np.ones(ROWS, dtype=bool))).of_stack == pytest.approx([0.0])


def test_effects_scale_kernels_and_rows_have_weights():
    sample, _ = sources(["a"] * 10 + ["b"] * 10, ["g"] * 20, 19, of_stack=0.1, rest=0.02)
    half = all_kernels(len(sample.measured_s))
    half = LocalTimes((), NO_FIELD, half.log_s, half.slope, half.curvature, 0.5 * half.kernels)
    whole, part = found_in(sample), solve(sample, half, NO_FIELD)
    # A stack must be twice as slow in kernels if these are half of the time.
    assert np.ptp(part.of_stack) == pytest.approx(2 * np.ptp(whole.of_stack), rel=0.15)
    # Weights of rows.
    source = ["a", "a", "a", "b", "b"]
    configuration = ["x", "x", "y", "x", "x"]
    assert row_weights(source, configuration).tolist() == [0.25, 0.25, 0.5, 0.5, 0.5]
    assert row_weights([], []).tolist() == []


def rows_of(*ratios):
    """The positions of the outliers of rows that are so many times as slow as predicted."""
    ratios = np.array(ratios, dtype=float)
    return sorted(outliers([f"r{row}" for row in range(len(ratios))], 2 * ratios, np.full(len(ratios), 2.0)))


@pytest.mark.parametrize(
    ("ratios", "wanted"),
    [
        ((), []),
        ((1000,), []),  # one row is not unlike others
        ((1, 1.02, 1000), [2]),
        ((1, 1.02, 0.001), [2]),
        ((1000, 1010, 990), []),  # all alike
        ((1, 1.02, 0.99, 2.5), []),  # less than three times
        ((1, 1.02, 0.99, 3.5), [3]),
        ((0.5, 1, 2, 3.5), []),  # rows that are spread wide
        ((0.5, 1, 2, 4, 40), [4]),
        ((1, 1000), [0, 1]),  # either may be the wrong one
        ((1, np.nan, 1.02, 1000), [3]),
    ],
)
def test_what_is_an_outlier(ratios, wanted):
    assert rows_of(*ratios) == wanted
