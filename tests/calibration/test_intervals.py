"""Intervals from residuals: sources weigh the same, a new one may lie outside; what pairs of plans tell apart."""

import numpy as np
import pytest

from dsx.calibration.intervals import coverage, make_intervals
from dsx.calibration.regret import Group
from dsx.calibration.resolution import resolution
from dsx.calibration.weighted import weighted_quantile
from dsx.cost.interval import plan_facts


def facts(count, several=False, experts=False):
    return plan_facts(np.full(count, 16 if several else 8), 8, np.full(count, experts))


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
        make_intervals(values, names, facts(len(values)))
        for values, names in ((residuals, source), (again, source + source[:10] * 30))
    )
    assert once == often


def test_kinds_with_enough_sources_have_their_own():
    residuals, source = drawn(8, 6, 4)
    several = np.arange(len(residuals)) % 6 < 3
    residuals = residuals + np.where(several, 0.5, 0.0)
    known = plan_facts(np.where(several, 16, 8), 8, False)
    one, more, anything = make_intervals(residuals, source, known)
    assert (one.where.domains, more.where.domains, anything.where.domains) == ("one", "several", None)
    assert one.high < more.low
    assert anything.low < one.high < more.low < anything.high
    # Experts in two sources only: they have the interval of any plan.
    some = plan_facts(np.where(several, 16, 8), 8, np.array(source) <= "1")
    assert all(not entry.where.experts for entry in make_intervals(residuals, source, some))


def test_two_sources_say_nothing():
    residuals, source = drawn(2, 10, 5)
    assert make_intervals(residuals, source, facts(20)) == []
    assert coverage(residuals, source, facts(20)) == {}


def test_a_new_source_is_covered():
    inside = []
    for seed in range(60):
        residuals, source = drawn(10, 20, seed)
        inside += [found.inside for found in coverage(residuals, source, facts(200)).values()]
    assert 0.8 <= np.mean(inside) < 0.92


def test_the_width_is_that_of_the_interval():
    residuals, source = drawn(10, 20, 6)
    (entry,) = make_intervals(residuals[20:], source[20:], facts(180))[:1]
    assert coverage(residuals, source, facts(200))["0"].width == pytest.approx(entry.high / entry.low - 1, rel=1e-9)


def test_the_resolution_is_how_much_the_errors_of_two_plans_differ():
    predicted = np.array([1.0, 2.0, 3.0, 4.0])
    together = Group("a", 1.5 * predicted, predicted)  # far off, but all alike
    assert resolution([together]) == pytest.approx(0.0)
    apart = Group("b", np.array([1.1, 2.0, 3.0, 4.0]), predicted)
    # Half of its pairs differ by 10 %, so 80 % of them differ by no more than that.
    assert resolution([apart]) == pytest.approx(0.1)
    # With a source beside it that has none, and with many groups of that, a quarter of the weight is in such pairs.
    assert resolution([together, apart]) == resolution([*[together] * 9, apart]) == pytest.approx(0.1)
    assert resolution([*[together] * 3, Group("a", apart.measured_s, predicted)]) == pytest.approx(0.0)
    assert resolution([]) is None
