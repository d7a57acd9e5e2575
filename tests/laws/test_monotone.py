"""Faster hardware never makes a step slower, more memory never leaves fewer plans."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import LATENCIES, RATES, SETS, hardware, on, priced, problem_of, space_of

from dsx.pricing.layers import price_keys
from dsx.search.dispatch import search_of

FACTS = RATES | LATENCIES


@pytest.mark.sampled(2)
@pytest.mark.parametrize("assumptions", SETS)
@settings(max_examples=20)
@given(facts=st.fixed_dictionaries(FACTS), name=st.sampled_from(sorted(FACTS)), factor=st.floats(1, 1000))
def test_faster_hardware_never_makes_a_step_slower(assumptions, facts, name, factor):
    problem, space = problem_of(assumptions), space_of(assumptions)
    better = facts | {name: facts[name] * factor if name in RATES else facts[name] / factor}
    before = priced(on(problem, hardware(**facts)), space)
    after = priced(on(problem, hardware(**better)), space)
    assert (after["step_time_s"] <= before["step_time_s"] * (1 + 1e-12)).all()
    np.testing.assert_array_equal(after["peak_bytes"], before["peak_bytes"])


@pytest.mark.parametrize("name", sorted(FACTS))
def test_every_fact_matters(name):
    problem, space = problem_of("default"), space_of("default")
    before = priced(problem, space)["step_time_s"]
    slow = {"hbm_bandwidth": 1e11, "vector_flops": 1e12}.get(name)
    if slow is None:
        slow = {"matrix_flops": 1e13, "fast_bandwidth": 1e10, "slow_bandwidth": 1e9}.get(name, 1e-2)
    after = priced(on(problem, hardware(**{name: slow})), space)["step_time_s"]
    assert (after > before * 1.01).any()


def test_more_memory_never_leaves_fewer_plans():
    problem, space = problem_of("default"), space_of("default")
    peak = np.sort(priced(problem, space)["peak_bytes"])
    table = price_keys(problem, space.keys)
    # Exactly at a candidate's need it fits; capacities in between, below the least and above the most as well.
    chosen = peak[:: len(peak) // 12]
    capacities = np.unique([peak[0] * 0.999, *chosen, *(chosen * 1.001), peak[-1], peak[-1] * 2])
    times, feasible = [], []
    for capacity in capacities.tolist():
        rows, counts = search_of(on(problem, hardware(hbm_capacity=capacity)), space, table).best(1)
        assert counts.feasible == (peak <= capacity).sum()
        feasible.append(counts.feasible)
        times.append(rows["step_time_s"][0] if counts.feasible else np.inf)
    assert feasible == sorted(feasible)
    assert (feasible[0], feasible[-1]) == (0, len(peak))
    assert times == sorted(times, reverse=True)
