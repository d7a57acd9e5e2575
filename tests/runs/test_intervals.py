"""Intervals from residuals: sources weigh the same, a new one may lie outside, thin plans have wider ones."""

from itertools import pairwise

import numpy as np
import pytest

from dsx.cost.interval import plan_facts
from dsx.runs.error_report import LayoutGroup, resolution
from dsx.runs.intervals import coverage, make_intervals, memory_interval, weighted_quantile


def facts(thin):
    return plan_facts(np.full(len(thin), 8), 8, False, np.asarray(thin))


def plenty(count):
    return facts(np.zeros(count, dtype=int))


def drawn(sources, rows, seed, of_source=0.08, of_row=0.02):
    random = np.random.default_rng(seed)
    residuals = np.repeat(random.normal(0, of_source, sources), rows) + random.normal(0, of_row, sources * rows)
    return residuals, [str(number) for number in np.repeat(np.arange(sources), rows)]


def test_quantiles_by_weight():
    values, weights = np.array([3.0, 1.0, 2.0, 4.0]), np.full(4, 0.25)
    assert [weighted_quantile(values, weights, share) for share in (0.0, 0.2, 0.25, 0.5, 0.9)] == [1, 1, 2, 3, 4]
    assert weighted_quantile(values, np.array([0.1, 0.7, 0.1, 0.1]), 0.5) == 1.0


def test_a_source_weighs_the_same_whatever_its_rows():
    residuals, source = drawn(12, 10, 3)
    again = np.concatenate([residuals, np.tile(residuals[:10], 30)])
    once, often = (
        make_intervals(values, names, plenty(len(values)))
        for values, names in ((residuals, source), (again, source + source[:10] * 30))
    )
    assert once == often


def test_thin_plans_have_intervals_of_their_own():
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


def test_thin_plans_of_too_few_sources_have_the_next_interval():
    residuals, source = drawn(8, 6, 4)
    thin = np.array([{"0": 2, "1": 2, "2": 1}.get(name, 0) for name in source])
    found = make_intervals(residuals, source, facts(thin))
    assert [entry.where.thin for entry in found] == [1, None]


def test_two_sources_say_nothing():
    residuals, source = drawn(2, 10, 5)
    assert make_intervals(residuals, source, plenty(20)) == []
    assert coverage(residuals, source, plenty(20)) == {}
    assert memory_interval(np.ones(2), ["a", "b"]) is None
    assert memory_interval(np.zeros(0), []) is None


def test_memory_has_its_quantiles():
    ratio = np.linspace(0.8, 1.2, 30)
    found = memory_interval(ratio, ["a", "b", "c"] * 10)
    assert (found.low, found.median, found.high) == pytest.approx((0.84, 1.0, 1.16), abs=0.02)


def test_a_new_source_is_covered():
    inside = []
    for seed in range(60):
        residuals, source = drawn(10, 20, seed)
        inside += [found.inside for found in coverage(residuals, source, plenty(200)).values()]
    assert 0.78 <= np.mean(inside) < 0.92


def test_the_width_is_that_of_the_interval():
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
