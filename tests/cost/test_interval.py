"""Intervals of step times, and the memory that a search leaves."""

import numpy as np
import pytest
from cost.records import machine, make_assumptions

from dsx.config.assumption_set import IntervalSpec, MemoryIntervalSpec, TrainedOnSpec
from dsx.cost.interval import (
    Likeness,
    plan_facts,
    probability_of_fitting,
    room,
    sources_like,
    step_interval,
    thinness,
    unlike,
)

ENTRIES = [
    IntervalSpec.model_validate({"where": {"domains": "one", "experts": False}, "low": 0.9, "high": 1.1}),
    IntervalSpec.model_validate({"where": {"experts": True}, "low": 0.5, "high": 2.0}),
]


def test_the_first_entry_that_holds_is_taken():
    facts = plan_facts(np.array([8, 16, 8]), 8, np.array([False, False, True]))
    found = step_interval(ENTRIES, np.array([10.0, 10.0, 10.0]), facts)
    np.testing.assert_allclose(found.step_time_s_low, [9.0, np.nan, 5.0])
    np.testing.assert_allclose(found.step_time_s_high, [11.0, np.nan, 20.0])
    anything = IntervalSpec.model_validate({"low": 0.8, "high": 1.2})
    found = step_interval([*ENTRIES, anything], np.array([10.0, 10.0, 10.0]), facts)
    np.testing.assert_allclose(found.step_time_s_low, [9.0, 8.0, 5.0])
    found = step_interval([anything, *ENTRIES], np.array([10.0, 10.0, 10.0]), facts)
    np.testing.assert_allclose(found.step_time_s_high, [12.0, 12.0, 12.0])
    # No entry is no interval.
    found = step_interval([], np.ones(2), plan_facts(np.array([8, 16]), 8, False))
    assert np.isnan(found.step_time_s_low).all() and np.isnan(found.step_time_s_high).all()
    # It has the precision of the times.
    facts = plan_facts(np.array([8]), 8, False)
    assert step_interval(ENTRIES, np.ones(1, dtype=np.float32), facts).step_time_s_low.dtype == np.float32


KNOWN = TrainedOnSpec(stack={"s": 3}, generation={"hopper": 2}, kind={"dense": 4})


def test_what_few_sources_have_is_thin_and_what_none_has_extrapolated():
    like = Likeness("s", "hopper", "dense")
    assert sources_like(like, KNOWN) == {"stack": 3, "generation": 2, "kind": 4}
    assert thinness(sources_like(like, KNOWN)) == 1  # two sources of a generation are few
    assert thinness(sources_like(like, KNOWN), filled=True) == 2
    assert thinness(sources_like(Likeness("other", "ampere", "experts"), KNOWN)) == 3
    # What no source has is extrapolated.
    assert unlike(Likeness("s", "hopper", "dense"), KNOWN) == {}
    found = unlike(Likeness("other", "hopper", "experts"), KNOWN)
    assert found == {"stack": "other", "kind": "experts"}
    # A set that was fitted to nothing does not know.
    assert unlike(Likeness("other", "hopper", "experts"), TrainedOnSpec()) == {}


def test_thin_plans_have_the_interval_of_the_thinnest_entry_that_holds():
    entries = [
        IntervalSpec.model_validate({"where": {"thin": 2}, "low": 0.5, "high": 2.0}),
        IntervalSpec.model_validate({"where": {"thin": 1}, "low": 0.7, "high": 1.5}),
        IntervalSpec.model_validate({"low": 0.9, "high": 1.1}),
    ]
    found = step_interval(entries, np.ones(4), plan_facts(np.full(4, 8), 8, False, np.array([0, 1, 2, 3])))
    np.testing.assert_allclose(found.step_time_s_high, [1.1, 1.5, 2.0, 2.0])


INTERVAL = MemoryIntervalSpec(low=0.9, median=1.0, high=1.2)


def test_a_margin_is_a_share_of_the_predicted_peak():
    cluster = machine(hbm_capacity=80e9)
    assert room(cluster, make_assumptions(memory_margin=0.25), 8.0).gpu == pytest.approx(64e9)
    assert room(cluster, make_assumptions(), 8.0).gpu == 80e9


@pytest.mark.parametrize(("num_gpus", "share"), [(64.0, 8), (8.0, 8), (2.0, 2)])
def test_the_gpus_of_a_job_on_a_node_share_half_of_its_memory(num_gpus, share):
    assert room(machine(), make_assumptions(), num_gpus).host == 0.5 * 8e12 / share


@pytest.mark.parametrize(("peak", "probability"), [(100.0, 0.5), (100 / 1.2, 0.9), (100 / 0.9, 0.1), (1.0, 1.0)])
def test_quantiles_of_the_errors_are_probabilities(peak, probability):
    assert probability_of_fitting(INTERVAL, peak, 100.0) == pytest.approx(probability, abs=1e-9)


def test_the_probability_of_fitting_falls_with_the_peak_to_none():
    found = [probability_of_fitting(INTERVAL, peak, 100.0) for peak in range(50, 200)]
    assert found == sorted(found, reverse=True)
    # Errors may have no spread.
    exact = MemoryIntervalSpec(low=1, median=1, high=1)
    assert [probability_of_fitting(exact, peak, 100.0) for peak in (99, 101)] == [1.0, 0.0]
    # Quantiles are in order.
    with pytest.raises(ValueError, match="must be in order, but are 1, 0"):
        MemoryIntervalSpec(low=1, median=0.9, high=1.1)
