"""Faster hardware never makes a step slower, more memory never leaves fewer plans."""

from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from laws.spaces import LATENCIES, RATES, SETS, hardware, on, priced, problem_of, space_of

from dsx.pricing.row_costs import Rows, price_rows
from dsx.search.spaces import Space
from dsx.search.sweep import search_of

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


OFFLOADING = {"offload": ["activations", "both"], "zero_stage": [1, 3], "recompute": ["none", "full"], "vpp": [1, 2, 3]}
OF_HOSTS = {"host_bandwidth": st.floats(1e9, 1e12), "node_bandwidth": st.floats(1e10, 1e13)}
# One fact of a machine with a host becomes better.
DRAWN = given(
    facts=st.fixed_dictionaries(FACTS | OF_HOSTS),
    name=st.sampled_from(sorted(FACTS | OF_HOSTS)),
    factor=st.floats(1, 1000),
    seed=st.integers(0, 1000),
)
# A faster GPU stalls for longer: reductions that hide behind several chunks hide behind the stalls of all of them.
STALLED = {
    "matrix_flops": 1.2e16, "vector_flops": 1e12, "hbm_bandwidth": 7.613466698604e12, "fast_bandwidth": 1e10,
    "slow_bandwidth": 1e9, "fast_latency": 0.0, "slow_latency": 0.0, "host_bandwidth": 27460430653.0,
    "node_bandwidth": 219683445220.0,
}  # fmt: skip


@pytest.mark.sampled(2)
@settings(max_examples=10)
@DRAWN
@example(facts=STALLED, name="matrix_flops", factor=2.0, seed=1)
@example(facts=STALLED | {"matrix_flops": 9999999999999674.0}, name="matrix_flops", factor=2.0, seed=1)
def test_faster_hardware_never_makes_a_step_that_offloads_slower(facts, name, factor, seed):
    """Collectives run beside transfers, so a faster kernel exposes no more of them than it saves."""
    assert_never_slower(*offloading(), facts, name, factor, seed)


# Long sends: the path that ends with a round trip becomes the longest one, with one chunk per stage and with two.
TRIP = STALLED | {"matrix_flops": 2.2e14, "fast_bandwidth": 1.3e11, "slow_bandwidth": 1.4e9, "host_bandwidth": 1e9}
TRIP_OF_CHUNKS = STALLED | {
    "matrix_flops": 3.5e15, "vector_flops": 2.1e13, "fast_bandwidth": 3e10, "slow_bandwidth": 3.9e9,
    "slow_latency": 8e-5, "host_bandwidth": 1.4e10,
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("facts", [TRIP, TRIP_OF_CHUNKS])
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_faster_kernels_never_slow_a_pipeline_of_long_sends(facts, factor):
    assert_never_slower(*offloading(), facts, "vector_flops", factor)


# Sends longer than a pass: of several chunks, reductions hide behind what passes wait for them.
WAITING = STALLED | {
    "matrix_flops": 2.19e15, "vector_flops": 4.14e14, "hbm_bandwidth": 1.13e12, "fast_bandwidth": 9.87e10,
    "slow_bandwidth": 2.6e9, "fast_latency": 1.8e-6, "slow_latency": 1.2e-7, "host_bandwidth": 3.19e11,
}  # fmt: skip


@pytest.mark.parametrize(("name", "factor"), [("fast_bandwidth", 1000.0), ("matrix_flops", 2.0)])
def test_faster_passes_never_slow_a_pipeline_that_reduces_while_it_waits(name, factor):
    assert_never_slower(*offloading(), WAITING, name, factor)


# All forwards come before the first backward, whose long sends they do not hide.
FORWARDS_FIRST = STALLED | {
    "matrix_flops": 2.93e16, "vector_flops": 1.81e14, "hbm_bandwidth": 1.65e12, "fast_bandwidth": 4.8e10,
    "slow_bandwidth": 1.13e9, "slow_latency": 5e-6,
}  # fmt: skip


def test_faster_forwards_never_slow_chunks_or_gpipe():
    assert_never_slower(*searching({"zero_stage": [2], "vpp": [1, 2, 3]}), FORWARDS_FIRST, "hbm_bandwidth", 2.4)
    # Faster forwards never slow gpipe.
    choices = {"zero_stage": [2], "schedule": ["gpipe"]}
    assert_never_slower(*searching(choices), SCATTERING, "hbm_bandwidth", 1.3)


SPLIT = {"zero_stage": [0, 1, 2, 3], "offload": ["none", "activations"], "recompute": ["none", "full"]}
# Kernels that HBM limits: more FLOP/s divide the backward otherwise, unless a part of it keeps its share of a kernel.
BOUND = {
    "matrix_flops": 1e16, "vector_flops": 8.881662582e12, "hbm_bandwidth": 1e11, "fast_bandwidth": 7.791515653e12,
    "slow_bandwidth": 9.70599069e11, "fast_latency": 1.7e-7, "slow_latency": 4.2e-5, "host_bandwidth": 3.4e11,
    "node_bandwidth": 4.3e12,
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedules", [("zb-h1",), ("dualpipe", "zb-v")])
@settings(max_examples=10)
@DRAWN
@example(facts=BOUND, name="matrix_flops", factor=1000.0, seed=1)
def test_faster_hardware_never_slows_a_split_backward(schedules, facts, name, factor, seed):
    """The gradients of inputs are on the longest path of a pipeline, those of weights fill its gaps."""
    assert_never_slower(*splitting(schedules), facts, name, factor, seed)


# Sends longer than a microbatch, which passes of the other direction, or gradients of weights, do not hide.
SENDING = STALLED | {
    "matrix_flops": 2.47e15, "vector_flops": 5.54e12, "hbm_bandwidth": 9.12e12, "fast_bandwidth": 4.46e12,
    "slow_bandwidth": 3.44e9, "fast_latency": 9.4e-6, "slow_latency": 2.1e-7,
}  # fmt: skip
SCATTERING = STALLED | {
    "matrix_flops": 3.96e15, "vector_flops": 3.14e14, "hbm_bandwidth": 2.16e12, "fast_bandwidth": 6.07e10,
    "slow_bandwidth": 2.26e9, "fast_latency": 1.1e-6, "slow_latency": 6.7e-5,
}  # fmt: skip


@pytest.mark.parametrize(("name", "factor"), [("vector_flops", 2.0), ("hbm_bandwidth", 1000.0)])
def test_faster_passes_never_slow_a_split_backward_of_long_sends(name, factor):
    assert_never_slower(*splitting(("zb-h1",)), SENDING, name, factor)


# Collectives of ZeRO 2 and 3, and transfers, that outlast a whole backward.
OUTLASTING = STALLED | {
    "matrix_flops": 3.15e15, "vector_flops": 1.55e14, "hbm_bandwidth": 6.37e12, "fast_bandwidth": 3.33e11,
    "slow_bandwidth": 1.62e11, "fast_latency": 1.4e-6, "slow_latency": 6.6e-5, "host_bandwidth": 1.39e11,
    "node_bandwidth": 2.85e11,
}  # fmt: skip


# Gradients of weights that the host issues no faster than the GPU runs them.
ISSUING = STALLED | {
    "matrix_flops": 6.05e16, "vector_flops": 4.29e12, "hbm_bandwidth": 4.13e13, "fast_bandwidth": 1.476e12,
    "slow_bandwidth": 4.72e11, "fast_latency": 1e-6, "slow_latency": 5e-5, "host_bandwidth": 6.54e9,
    "node_bandwidth": 1.34e12,
}  # fmt: skip


@pytest.mark.parametrize("schedules", [("zb-h1",), ("dualpipe", "zb-v")])
def test_gradients_of_inputs_and_weights_wait_for_no_faster_ones(schedules):
    assert_never_slower(*splitting(schedules), ISSUING, "vector_flops", 24.0)
    # What outlasts a backward never delays gradients of inputs.
    assert_never_slower(*splitting(schedules), OUTLASTING, "matrix_flops", 2.0)


def assert_never_slower(problem, space, rows, facts, name, factor, seed=None):
    some = rows
    if seed is not None:
        count = min(len(rows.positions), 2000)
        some = rows.take(np.random.default_rng(seed).choice(len(rows.positions), count, replace=False))
    better = facts | {name: facts[name] / factor if name in LATENCIES else facts[name] * factor}
    before, after = (price_of(on(problem, hardware(**one)), space, some) for one in (facts, better))
    assert (after.step_time_s <= before.step_time_s * (1 + 1e-12)).all()
    np.testing.assert_array_equal(after.peak_bytes, before.peak_bytes)
    np.testing.assert_array_equal(after.host_bytes, before.host_bytes)


@cache
def offloading():
    """The plans of a small model that offload activations: the problem, the space and its rows."""
    return searching(OFFLOADING)


@cache
def splitting(schedules):
    """The plans of a small model whose backwards are split."""
    return searching(SPLIT | {"schedule": list(schedules)})


def searching(choices):
    problem = problem_of("default", ("1d", "2d")).searching(choices)
    space = Space(problem, (24,), (48,))
    positions, choices = space.blocks.rows(0, space.size)
    return problem, space, Rows(np.zeros_like(positions), positions, choices)


def price_of(problem, space, rows):
    return price_rows(problem, space.table(problem), rows)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_every_fact_matters(name):
    problem, space = problem_of("default"), space_of("default")
    before = priced(problem, space)["step_time_s"]
    slow = {"hbm_bandwidth": 1e11, "vector_flops": 1e12}.get(name)
    if slow is None:
        slow = {"matrix_flops": 1e13, "fast_bandwidth": 1e10, "slow_bandwidth": 1e9}.get(name, 1e-2)
    after = priced(on(problem, hardware(**{name: slow})), space)["step_time_s"]
    assert (after > before * 1.01).any()


@pytest.mark.slow
def test_more_memory_never_leaves_fewer_plans():
    problem, space = problem_of("default"), space_of("default")
    peak = np.sort(priced(problem, space)["peak_bytes"])
    table = space.table(problem)
    # Exactly at a candidate's need it fits; capacities in between, below the least and above the most as well.
    chosen = peak[:: len(peak) // 2]
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
