"""Cases in which strategies, degrees and parts of a step are known or the same."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import (
    DIMENSIONS,
    MACHINES,
    MEMORY_PARTS,
    SETS,
    TIME_PARTS,
    candidates_of,
    hardware,
    on,
    priced,
    problem_of,
    space_of,
)
from validation.cases import STRATEGIES

import dsx
from dsx.plans.features import features_of
from dsx.pricing.cuts import candidate_columns
from dsx.search.spaces import Space

MODELS = {
    "llama-3-8b": ["model.layers.1.count=2", "model.dimensions.v=32000"],
    "mixtral-8x7b": ["model.layers.1.count=2"],
    "mamba2-2.7b": ["model.layers.1.count=2"],
}
# Degrees, and the strategies that they make one.
ALIKE = [
    ("dp=8", ["1d", "2d", "2d-ring", "ulysses", "1d-no-sp", "2d-no-sp", "2d-expert-tp"]),
    ("tp=2 dp=4", ["1d", "2d", "2d-ring", "ulysses"]),
    ("tp=2 dp=4", ["1d-no-sp", "2d-no-sp"]),
    ("cp=2 dp=4", ["2d", "2d-no-sp"]),
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("degrees", "strategies"), ALIKE)
def test_an_axis_of_one_rank_tells_no_strategies_apart(degrees, strategies, model, recompute):
    job = dsx.Job(model, "h100-nvs8", 8, 8, 2048, set=MODELS[model])
    first, *others = (
        dsx.evaluate(job, f"{degrees} recompute={recompute}", strategy=strategy).costs for strategy in strategies
    )
    for other in others:
        assert other == pytest.approx(first, rel=1e-12, nan_ok=True)


AXES = ("tp", "tp2", "cp", "ep", "pp", "dp")


@settings(max_examples=25)
@given(
    num_gpus=st.lists(st.integers(1, 96), min_size=1, max_size=3, unique=True),
    batches=st.lists(st.integers(1, 96), min_size=1, max_size=2, unique=True),
    domain=st.integers(1, 72),
)
def test_degrees(num_gpus, batches, domain):
    problem = on(problem_of("default"), hardware(fast_size=domain))
    space = Space(problem, num_gpus, batches)
    positions, choices = candidates_of(space)
    rows = candidate_columns(problem, space.keys, positions, choices)
    degrees = [rows[axis] for axis in AXES]
    shares = [rows[f"{axis}_nvs"] for axis in AXES]
    np.testing.assert_array_equal(np.prod(degrees, axis=0), rows["num_gpus"])
    for degree, share in zip(degrees, shares, strict=True):
        assert (share <= degree).all()
    placed = np.prod([rows[f"{axis}_nvs"] for axis in AXES if axis != "ep"], axis=0)
    assert (placed <= domain).all()
    even = np.all([degree % share == 0 for degree, share in zip(degrees, shares, strict=True)], axis=0)
    for number in num_gpus:
        filled = max(one for one in range(1, domain + 1) if number % one == 0)
        here = rows["num_gpus"] == number
        assert filled in placed[even & here] or not here.any()
    made = rows["dp"] * rows["microbatch_size"] * rows["num_microbatches"]
    np.testing.assert_array_equal(made, rows["global_batch_size"])
    assert (12 % rows["pp"] == 0).all()
    assert set(rows["num_gpus"].tolist()) <= set(num_gpus)
    assert set(rows["global_batch_size"].tolist()) <= set(batches)
    # One GPU, one sequence is always a plan where there is one GPU; and no candidate comes twice.
    everything = list(zip(*(column.tolist() for name, column in rows.items() if name != "candidate"), strict=True))
    assert len(set(everything)) == len(everything) == space.size


NO_OVERLAP = dict.fromkeys(("tp_overlap", "cp_overlap", "pp_overlap", "dp_overlap"), np.zeros(1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("assumptions", SETS)
@settings(max_examples=10)
@given(machine=MACHINES)
def test_one_gpu_communicates_nothing(assumptions, machine):
    rows = priced(on(problem_of(assumptions), machine), space_of(assumptions, num_gpus=(1,), batches=(6,)))
    assert len(rows["tp"]) >= 12  # microbatches of 1, 2, 3, 6 under each strategy
    for name in ("tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s", "bubble_s"):
        assert (rows[name] == 0).all(), name
    assert (rows["step_time_s"] > 0).all()


@pytest.mark.parametrize("assumptions", SETS)
def test_an_axis_of_one_communicates_nothing(assumptions):
    problem = problem_of(assumptions)
    # What runs beside compute altogether may leave nothing to wait for.
    problem = dataclasses.replace(problem, assumptions=dataclasses.replace(problem.assumptions, **NO_OVERLAP))
    rows = priced(problem, space_of(assumptions))
    assert (rows["tp_comm_s"][(rows["tp"] == 1) & (rows["tp2"] == 1)] == 0).all()
    assert (rows["cp_comm_s"][rows["cp"] == 1] == 0).all()
    assert (rows["pp_comm_s"][rows["pp"] == 1] == 0).all()
    assert (rows["bubble_s"][rows["pp"] == 1] == 0).all()
    for name in ("tp", "cp", "pp"):
        assert (rows[f"{name}_comm_s"][rows[name] > 1] > 0).all(), name
    assert (rows["dp_comm_s"][rows["dp"] > 1] > 0).all()


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
def test_every_part_is_there_and_flops_do_not_depend_on_the_strategy(assumptions):
    """The spaces of these laws have candidates with every kind of cost that is priced so far."""
    rows = priced(problem_of(assumptions), space_of(assumptions))
    never = {"ep_comm_s", "recompute_s"}
    if assumptions != "default":
        never |= {"optimizer_s", "overhead_bytes"}
    assert {name for name in (*TIME_PARTS, *MEMORY_PARTS) if not rows[name].any()} == never
    feasible = rows["peak_bytes"] <= problem_of(assumptions).cluster.device.hbm_capacity
    assert 0 < feasible.sum() < len(feasible)
    # The flops of a model do not depend on the strategy.
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


JOBS = (
    ("llama-3-8b", "h100-nvs8", 64, 256),
    ("llama-3-70b", "h100-nvs8", 1024, 1024),
    ("llama-3-405b", "gb200-nvl72", 2304, 1152),
    ("mixtral-8x7b", "mi300x-xgmi8", 128, 256),
)


@pytest.mark.sampled(0, 2)
@pytest.mark.parametrize(("model", "cluster", "num_gpus", "batch"), JOBS)
def test_the_leanest_needs_least_memory_and_the_simplest_costs_least(model, cluster, num_gpus, batch):
    found = dsx.best(dsx.Job(model, cluster, num_gpus, batch, 4096))
    fastest, simplest, leanest = (found.answer[name] for name in ("fastest", "simplest", "leanest"))
    assert leanest["peak_bytes"] <= min(simplest["peak_bytes"], fastest["peak_bytes"])
    assert simplest["step_time_s"] <= (1 + found.job.assumptions.resolution) * fastest["step_time_s"] * (1 + 1e-9)
    cost = [sum(features_of(plan["plan"]).values()) for plan in (fastest, simplest, leanest)]
    assert cost[1] == min(cost)
    assert not {"tp across domains", "uneven stages", "offload"} & {*features_of(simplest["plan"])}
