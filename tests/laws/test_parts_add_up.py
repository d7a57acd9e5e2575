"""The time parts add up to the step time, the memory parts to the peak; rates follow from the step time."""

import numpy as np
import pytest
from hypothesis import given, settings
from laws.spaces import DIMENSIONS, MACHINES, MEMORY_PARTS, SETS, TIME_PARTS, on, priced, problem_of, space_of
from validation.cases import STRATEGIES


@pytest.mark.parametrize("assumptions", SETS)
@settings(max_examples=15)
@given(machine=MACHINES)
def test_parts_add_up(assumptions, machine):
    rows = priced(on(problem_of(assumptions), machine), space_of(assumptions))
    np.testing.assert_allclose(sum(rows[name] for name in TIME_PARTS), rows["step_time_s"], rtol=1e-12)
    np.testing.assert_allclose(sum(rows[name] for name in MEMORY_PARTS), rows["peak_bytes"], rtol=1e-12)
    for name in (*TIME_PARTS, *MEMORY_PARTS):
        assert (rows[name] >= 0).all(), name
        assert np.isfinite(rows[name]).all(), name


@pytest.mark.parametrize("assumptions", SETS)
def test_every_part_is_there(assumptions):
    """The spaces of these laws have candidates with every kind of cost that is priced so far."""
    rows = priced(problem_of(assumptions), space_of(assumptions))
    never = {"ep_comm_s", "recompute_s"}
    if assumptions != "default":
        never |= {"optimizer_s", "overhead_bytes"}
    assert {name for name in (*TIME_PARTS, *MEMORY_PARTS) if not rows[name].any()} == never
    feasible = rows["peak_bytes"] <= problem_of(assumptions).cluster.device.hbm_capacity
    assert 0 < feasible.sum() < len(feasible)


@pytest.mark.parametrize("assumptions", SETS)
def test_the_flops_of_a_model_do_not_depend_on_the_strategy(assumptions):
    counts = {problem_of(assumptions, (strategy,)).workload.forward_flops for strategy in STRATEGIES}
    assert counts == {problem_of(assumptions).workload.forward_flops}


@pytest.mark.parametrize("assumptions", SETS)
def test_rates_follow_from_the_step_time(assumptions):
    problem = problem_of(assumptions)
    rows = priced(problem, space_of(assumptions))
    step, batch, gpus = rows["step_time_s"], rows["global_batch_size"], rows["num_gpus"]
    np.testing.assert_allclose(rows["tokens_per_s"], batch * 2048 / step, rtol=1e-12)
    np.testing.assert_allclose(rows["training_days"], 1e12 / rows["tokens_per_s"] / 86400, rtol=1e-12)
    # Model FLOPs by hand: multiply-adds of the five products of a layer, the first addition of each not counted.
    e, h, g, k, f = (DIMENSIONS[name] for name in "ehgkf")
    s, width = 2048, (h + 2 * g) * k
    multiplies = s * (width * (2 * e - 1) + e * (2 * h * k - 1) + f * (2 * e - 1) + e * (2 * f - 1))
    attention = h * s * (s * (2 * k - 1) + k * (2 * s - 1))
    if assumptions == "default":
        attention //= 2  # causal
    forward = 12 * (multiplies + attention)
    np.testing.assert_allclose(rows["mfu"], 3 * forward * batch / (step * gpus * 9.9e14), rtol=1e-9)
    assert (rows["mfu"] < 1).all()
