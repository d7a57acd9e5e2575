"""Intervals of step times: the first entry that holds for a plan, by facts that every search knows."""

import numpy as np

from dsx.config.evidence import IntervalSpec, TrainedOnSpec
from dsx.cost.interval import Likeness, plan_facts, sources_like, step_interval, thinness, unlike

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


KNOWN = TrainedOnSpec(stack={"s": 3}, generation={"hopper": 2}, kind={"dense": 4})


def test_what_few_sources_have_is_thin():
    like = Likeness("s", "hopper", "dense")
    assert sources_like(like, KNOWN) == {"stack": 3, "generation": 2, "kind": 4}
    assert thinness(sources_like(like, KNOWN)) == 1  # two sources of a generation are few
    assert thinness(sources_like(like, KNOWN), filled=True) == 2
    assert thinness(sources_like(Likeness("other", "ampere", "experts"), KNOWN)) == 3


def test_what_no_source_has_is_extrapolated():
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
