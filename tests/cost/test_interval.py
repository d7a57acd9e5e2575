"""Intervals of step times: the first entry that holds for a plan, by facts that every search knows."""

import numpy as np

from dsx.cost.interval import plan_facts, step_interval
from dsx.spec.assumptions import IntervalSpec

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


def test_no_entry_is_no_interval():
    found = step_interval([], np.ones(2), plan_facts(np.array([8, 16]), 8, False))
    assert np.isnan(found.step_time_s_low).all() and np.isnan(found.step_time_s_high).all()


def test_it_has_the_precision_of_the_times():
    facts = plan_facts(np.array([8]), 8, False)
    assert step_interval(ENTRIES, np.ones(1, dtype=np.float32), facts).step_time_s_low.dtype == np.float32
