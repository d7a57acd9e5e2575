"""The framework file of Megatron-LM and its launch flags agree: what one runs, the other expresses."""

from functools import cache

import numpy as np
import pytest
from laws.spaces import SYSTEM
from validation.cases import cluster_spec

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import ModelSpec
from dsx.launching.hosts import shares_of
from dsx.launching.megatron import flags_of
from dsx.launching.request import run_of
from dsx.plans.choices import BY_NAME, CODES, PLAN_COLUMNS
from dsx.plans.frameworks import broken, read_framework
from dsx.plans.plan import Plan
from dsx.pricing.cuts import candidate_columns, column_names
from dsx.pricing.problem import ProblemOptions, make_problem
from dsx.search.spaces import Space

FRAMEWORK = read_framework("megatron")
# What the set itself prices and Megatron-LM has not is no choice of a plan.
ASSUMED = load_assumptions("uncalibrated").model_copy(
    update={f"{axis}_overlap": 0.0 for axis in ("tp", "cp", "ep", "pp")}
    | {"cross_entropy_bytes": 8, "dispatch_latency": 20e-6}
)
DEVICE = load_cluster("h100-nvs8").device
DIMENSIONS = {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 2048, "v": 50000}
EXPERTS = {"x": 8, "topk": 2, "fx": 512, "capacity_percent": 100}
BODIES = {
    "dense": [{"kind": "transformer", "options": ["rotary", "gated"], "count": 12}],
    "experts": [{"kind": "transformer", "count": 4}, {"kind": "transformer", "ffn": "experts", "count": 8}],
}
EVERYTHING = {name: choice.values for name, choice in BY_NAME.items() if choice.searched and choice.values}


@cache
def space_of(body, runs):
    experts = body == "experts"
    spec = {"name": body, "source": "a test", "default_sequence_length": 2048, "layers": BODIES[body]}
    spec["dimensions"] = DIMENSIONS | (EXPERTS if experts else {})
    names = FRAMEWORK.strategies(experts)
    files = (ModelSpec.model_validate(spec), cluster_spec(SYSTEM), ASSUMED)
    problem = make_problem(*files, names, ProblemOptions(framework=FRAMEWORK if runs else None))
    free = {"zero_replicas": [1, 2], "stored_layers": [0, 1, 2], "vpp": [1, 2, 3]}
    problem = problem.searching({**EVERYTHING, **free})
    # The space of all plans is 40 times as large.
    return problem, Space(problem, [12, 16] if runs else [12], [48])


def plans_of(body, runs, count, seed):
    """Random plans that the framework runs, or of all, placed as the rank order places them."""
    problem, space = space_of(body, runs)
    some = np.sort(np.random.default_rng(seed).choice(space.size, count))
    positions, choices = space.blocks.rows_at(some)
    columns = candidate_columns(problem, space.keys, positions, choices)
    names = column_names(problem)
    for row in range(count):
        plan = {name: int(columns[name][row]) for name in PLAN_COLUMNS}
        plan |= {name: names[name][plan[name]] for name in ("strategy", *CODES)}
        order = [axis for axis in plan["order"].split("-") if axis != "ep"]
        shares = shares_of(plan, order)
        if shares is not None:
            plan |= {f"{axis}_nvs": share for axis, share in shares.items()}
            yield problem.models[problem.strategies.index(plan["strategy"])], Plan(plan)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("body", BODIES)
def test_every_plan_in_a_box_has_flags_that_lose_nothing(body, seed):
    found = 0
    for model, plan in plans_of(body, True, 300, seed):
        launch = flags_of(run_of(plan, model, ASSUMED, DEVICE))
        # What the set assumes of sends is no choice of a plan either, and Megatron-LM overlaps those of two stages.
        lost = [one for one in launch.lost if not one.startswith("sends after compute (pp_overlap=0)")]
        assert (launch.none_since, lost) == ("", []), plan
        assert launch.flags
        found += 1
    assert found > 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("body", BODIES)
def test_flags_lose_something_of_every_plan_in_no_box(body, seed):
    boxes = FRAMEWORK.boxes(body == "experts")
    found = set()
    for model, plan in plans_of(body, False, 400, seed):
        columns = set(min((broken(box, plan) for box in boxes), key=len))
        if not columns:
            continue
        launch = flags_of(run_of(plan, model, ASSUMED, DEVICE))
        if columns <= {"stored_layers", "vpp"}:
            # Flags also express stored layers that are all layers of a stage, or that its chunks share evenly. No box
            # says so: the first plan is one without recomputation.
            continue
        found |= columns
        assert launch.none_since or launch.lost, (plan, columns)
    assert found >= {"schedule", "zero_stage", "offload"}


def test_a_sequence_of_equal_parts_leaves_degrees_of_context_parallelism():
    assert FRAMEWORK.of_sequence(24).fix["cp"] == [1, 2, 3, 4, 6, 12]
    assert FRAMEWORK.of_sequence(8193).fix["cp"] == [1]
    assert "cp" not in read_framework("any").of_sequence(8193).fix
