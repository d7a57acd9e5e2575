"""A stated layout is the cut that it states: an even one costs as the even cut, and launch flags give it back."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import DIMENSIONS, SYSTEM
from priced import evaluate_plan
from validation.cases import cluster_spec
from verbs.small import model_of

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import ModelSpec
from dsx.cost.context import StepCosts
from dsx.plans.rules import RULES
from dsx.pricing.problem import make_problem

EXACT = 1e-9
COSTS = tuple(StepCosts.__dataclass_fields__)
EMBEDDING, HEAD = {"kind": "embedding"}, {"kind": "head"}
DENSE = {"kind": "transformer", "options": ["rotary", "gated"]}
MIXTURE = {"kind": "transformer", "options": ["rotary"], "ffn": "experts"}
BODIES = {
    "one kind": [{"kind": "transformer", "count": 24}],
    "ends": [EMBEDDING, {"kind": "transformer", "count": 24}, HEAD],
    "ends that count as layers": [EMBEDDING, {"kind": "transformer", "count": 22}, HEAD],
    "head alone": [{"kind": "transformer", "count": 24}, HEAD],
    "two kinds": [EMBEDDING, DENSE | {"count": 5}, MIXTURE | {"count": 19}, HEAD],
}
EXPERTS = {"fx": 2048, "x": 8, "topk": 2, "capacity_percent": 100, "v": 64000}
GPUS, BATCH = 24, 48


def spec_of(body):
    return model_of(
        BODIES[body],
        {
            name: size
            for name, size in (DIMENSIONS | EXPERTS).items()
            if name in DIMENSIONS or "kinds" in body or (name == "v" and "one kind" not in body)
        },
        name=body.replace(" ", "-"),
    )


PROBLEMS = {
    body: make_problem(
        ModelSpec.model_validate(spec_of(body)), cluster_spec(SYSTEM), load_assumptions("default"), ("1d",)
    )
    for body in BODIES
}


def even_layout(problem, chunks):
    """The layers of each chunk of the even cut: of the body alone, or of the body with embedding and head."""
    first, body, last, _ = problem.limits().chain
    if body % chunks == 0:
        sizes = [body // chunks] * chunks
        return [sizes[0] + first, *sizes[1:-1], sizes[-1] + last]
    assert (body + 2) % chunks == 0
    return [(body + 2) // chunks] * chunks


CASES = [(pp, vpp) for pp in (2, 3, 4) for vpp in (1, 2, 4)]
CHOICES = [
    "recompute=none",
    "recompute=full zero_stage=3",
    "offload=both",
    "recompute=full stored_layers=2 zero_stage=0",
]


@pytest.mark.sampled(0)
@pytest.mark.parametrize("body", BODIES)
def test_an_even_layout_costs_what_the_even_cut_costs(body):
    problem = PROBLEMS[body]
    priced = 0
    for pp, vpp in CASES:
        chunks = pp * vpp
        if not problem.limits().divides(chunks):
            continue
        layout = ",".join(map(str, even_layout(problem, chunks)))
        for choices in CHOICES:
            plan = [f"pp={pp}", f"dp={GPUS // pp}", f"vpp={vpp}", *choices.split()]
            even = evaluate_plan(problem, plan, GPUS, BATCH)
            stated = evaluate_plan(problem, [*plan, f"stage_layers={layout}"], GPUS, BATCH)
            assert stated.plan == {**even.plan, "stage_layers": tuple(even_layout(problem, chunks))}
            for name in COSTS:
                assert stated.costs[name] == pytest.approx(even.costs[name], rel=EXACT, abs=1e-15, nan_ok=True), name
            assert [one.reason for one in stated.broken] == [one.reason for one in even.broken]
            priced += 1
    assert priced > 4


def test_chunk_c_of_stage_i_is_entry_c_times_pp_plus_i():
    stated = evaluate_plan(PROBLEMS["ends"], ["pp=3", "dp=8", "stage_layers=2,3,4,5,6,6"], GPUS, BATCH)
    assert (stated.plan["vpp"], stated.plan["stage_layers"]) == (2, (2, 3, 4, 5, 6, 6))
    chunks = [[(one.first_layer, one.num_layers) for one in stage.chunks] for stage in stated.stages]
    assert chunks == [[(0, 2), (9, 5)], [(2, 3), (14, 6)], [(5, 4), (20, 6)]]
    assert [stage.num_layers for stage in stated.stages] == [7, 9, 10]
    # What stages hold decides: layers that move from a chunk of a stage to its other chunk change nothing.
    moved = evaluate_plan(PROBLEMS["ends"], ["pp=3", "dp=8", "stage_layers=4,3,4,3,6,6"], GPUS, BATCH)
    assert [stage.load_s for stage in moved.stages] == pytest.approx([stage.load_s for stage in stated.stages])


@pytest.mark.parametrize(("schedule", "vpp"), [("zb-h1", 1), ("dualpipe", 1), ("zb-v", 2)])
@pytest.mark.parametrize("body", ["ends", "two kinds"])
def test_a_layout_may_have_schedules_whose_optimal_cut_is_not_known(schedule, vpp, body):
    plan = ["pp=4", "dp=6", f"schedule={schedule}", f"vpp={vpp}", "zero_stage=1"]
    even = evaluate_plan(PROBLEMS[body], plan, GPUS, BATCH)
    layout = ",".join(map(str, even_layout(PROBLEMS[body], 4 * vpp)))
    stated = evaluate_plan(PROBLEMS[body], [*plan, f"stage_layers={layout}"], GPUS, BATCH)
    for name in COSTS:
        assert stated.costs[name] == pytest.approx(even.costs[name], rel=EXACT, abs=1e-15, nan_ok=True), name
    assert "cut_not_covered" not in [one.reason.name for one in stated.broken]


OF_EVEN_CUTS = {"layers_not_divisible", "chunks_not_divisible", "cut_not_covered"}
assert {rule.name for rule in RULES} >= OF_EVEN_CUTS


def test_rules_that_a_layout_cannot_break():
    """No cut need be even; a stage of its own for embedding or head is one; vpp needs its schedule still."""
    problem = PROBLEMS["ends"]
    for layout, pp in (("1,24,1", 3), ("1,6,6,6,6,1", 6), ("7,5,6,8", 4)):
        stated = evaluate_plan(problem, [f"pp={pp}", f"dp={GPUS // pp}", f"stage_layers={layout}"], GPUS, BATCH)
        assert not {one.reason.name for one in stated.broken} & OF_EVEN_CUTS
    chunked = ["pp=4", "dp=6", "stage_layers=7,1,2,3,4,5,2,2"]
    assert not {one.reason.name for one in evaluate_plan(problem, chunked, GPUS, BATCH).broken} & OF_EVEN_CUTS
    found = evaluate_plan(problem, [*chunked, "schedule=gpipe"], GPUS, BATCH)
    assert "chunks_without_1f1b" in {one.reason.name for one in found.broken}
    found = evaluate_plan(problem, [*chunked, "microbatch_size=4"], GPUS, BATCH)
    assert "microbatches_not_in_groups" in {one.reason.name for one in found.broken}


JOBS = {
    body: dsx.Job(spec_of(body), cluster_spec(SYSTEM | {"hbm_capacity": 1e12}).model_dump(mode="json"), GPUS, BATCH)
    for body in ("ends", "ends that count as layers", "two kinds", "head alone")
}


@st.composite
def layouts(draw):
    """A job, the degrees of a plan, and the layers of each of its chunks."""
    body = draw(st.sampled_from([*JOBS]))
    tp, pp, vpp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([2, 3, 4])), draw(st.sampled_from([1, 2, 3]))
    first, layers, last, _ = PROBLEMS[body].limits().chain
    total, chunks = first + layers + last, pp * vpp
    inner = draw(st.lists(st.integers(1, total - 1), min_size=chunks - 1, max_size=chunks - 1, unique=True))
    sizes = np.diff([0, *sorted(inner), total]).tolist()
    choices = draw(st.sampled_from(["recompute=none", "recompute=full"]))
    plan = f"tp={tp} pp={pp} dp={GPUS // tp // pp} vpp={vpp} zero_stage=1 {choices}"
    return body, plan, sizes


def as_flags(arguments):
    """Launch flags by name; a flag without a value is True."""
    found, name = {}, ""
    for word in arguments:
        if word.startswith("--"):
            name = word
            found[name] = True
        else:
            found[name] = word
    return found


def plan_of_flags(arguments):
    """The settings of a plan that Megatron-LM would run with these flags, by its own way of reading a layout."""
    flags = as_flags(arguments)
    tp, pp = int(flags["--tensor-model-parallel-size"]), int(flags["--pipeline-model-parallel-size"])
    settings = {"tp": tp, "pp": pp, "dp": GPUS // tp // pp, "microbatch_size": flags["--micro-batch-size"]}
    settings["zero_stage"] = 1 if "--use-distributed-optimizer" in flags else 0
    settings["recompute"] = flags.get("--recompute-granularity", "none")
    layout = flags.get("--pipeline-model-parallel-layout")
    if layout is None:
        return settings | {"vpp": flags.get("--num-virtual-stages-per-pipeline-rank", 1)}, None
    assert "--num-virtual-stages-per-pipeline-rank" not in flags
    for repeated in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(repeated, lambda run: run[1] * int(run[2]), layout)
    pieces = layout.split("|")
    return settings | {"vpp": len(pieces) // pp}, [*map(len, pieces)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("body", JOBS)
@pytest.mark.parametrize("chunks", ["pp=3", "pp=4 vpp=2", "pp=3 vpp=4"])
def test_launch_flags_of_a_best_cut_give_it_back(body, chunks):
    plan = f"tp=2 {chunks} dp={GPUS // 2 // int(chunks[3])} zero_stage=1 recompute=none"
    found = dsx.evaluate(JOBS[body], plan, partition="optimal")
    _, letters = plan_of_flags(found.launch.arguments)
    if letters is None:
        return  # an even cut has no layout
    flag = as_flags(found.launch.arguments)["--pipeline-model-parallel-layout"]
    back = dsx.evaluate(JOBS[body], plan, stage_layers=flag)
    assert back.plan["stage_layers"] == found.plan["stage_layers"]
    assert back.costs == pytest.approx(found.costs, rel=EXACT, abs=1e-15, nan_ok=True)


@settings(max_examples=6)
@given(layouts())
@pytest.mark.slow
def test_launch_flags_give_the_plan_back(drawn):
    body, plan, sizes = drawn
    job = JOBS[body]
    stated = dsx.evaluate(job, plan, stage_layers=sizes)
    again, letters = plan_of_flags(stated.launch.arguments)
    if letters is not None:
        first, _, last, _ = PROBLEMS[body].limits().chain
        # E and L are a letter each, also of a model without the layer.
        letters[0] += first - 1
        letters[-1] += last - 1
        assert letters == sizes
    back = dsx.evaluate(job, again, **({"stage_layers": letters} if letters else {}))
    for name in COSTS:
        assert back.costs[name] == pytest.approx(stated.costs[name], rel=EXACT, abs=1e-15, nan_ok=True), name
    # The flag itself is a plan's layout too.
    flag = as_flags(stated.launch.arguments).get("--pipeline-model-parallel-layout")
    if flag is not None:
        assert dsx.evaluate(job, {**again, "stage_layers": flag}) == stated
    assert dsx.evaluate(job, stated.plan) == stated
