"""Effects of software have their conditions: in the price of a plan, of a search and of a replay."""

import numpy as np
import pytest
from laws.spaces import DIMENSIONS, SYSTEM, USUAL, cluster_spec, priced
from verbs.small import model_of

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import ModelSpec
from dsx.plans.frameworks import read_framework
from dsx.pricing.problem import make_problem
from dsx.search.spaces import Space
from dsx.search.sweep import search_of


def dense(**fields):
    return dsx.Job("llama-3-8b", "h100-nvs8", 32, 64, 4096, set=[*COUNT, *stated(fields)])


def experts(batch=64, **fields):
    return dsx.Job("mixtral-8x7b", "h100-nvs8", 16, batch, 4096, set=[*COUNT, *stated(fields)])


COUNT = ["model.layers.1.count=8"]


def stated(fields):
    return [f"assumptions.{name}={value}" for name, value in fields.items()]


def lacked(plan, experts_run):
    """The fields of the stack and of the framework that a plan lacks, and what they are then, said again in Python."""
    found = {}
    if plan["tp"] > 1 and plan["tp_nvs"] != plan["tp"]:
        found["tp_overlap"] = 0.2
    pipelined = plan["pp"] > 1 and plan["vpp"] == 1
    if pipelined:
        found["pp_overlap"] = 0
    parts = {*plan["recompute"].split("+")}
    if experts_run and (plan["num_microbatches"] < 2 or pipelined or parts & {"full", "experts"}):
        found["ep_overlap"] = 0
    graphed = {"full", "selective", "core-attention", "norms", "feed-forward", "experts"}
    if plan["zero_stage"] > 1 or plan["offload"] in ("activations", "both") or parts & graphed:
        found["dispatch_latency"] = "20 us"
    return found


EVERY = {"tp_overlap": 0.8, "ep_overlap": 0.3, "pp_overlap": 0.8, "dispatch_latency": "10 us"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("job", "plan", "lacks"),
    [
        (dense, "tp=8 dp=4", set()),
        (dense, "tp=16 dp=2", {"tp_overlap"}),
        (dense, "tp=8 dp=4 zero_stage=3", {"dispatch_latency"}),
        (dense, "tp=8 dp=4 offload=activations", {"dispatch_latency"}),
        (dense, "tp=8 dp=4 offload=optimizer zero_stage=1", set()),
        (dense, "tp=2 dp=16 recompute=full", {"dispatch_latency"}),
        (experts, "ep=8 dp=16", set()),
        (experts, "ep=8 dp=16 microbatch_size=4", {"ep_overlap"}),
        (experts, "ep=8 pp=2 dp=8", {"ep_overlap", "pp_overlap"}),
        (experts, "ep=8 pp=2 vpp=2 dp=8", set()),
        (experts, "ep=8 dp=16 zero_stage=2 recompute=experts", {"ep_overlap", "dispatch_latency"}),
    ],
)
def test_a_plan_is_priced_with_the_effects_that_it_has(job, plan, lacks):
    found = dsx.evaluate(job(), plan)
    own = lacked(found.plan, job is experts)
    assert own.keys() == lacks
    alone = dsx.evaluate(job(**(EVERY | own)), plan)
    assert dict(found.costs) == pytest.approx(dict(alone.costs), rel=1e-12, nan_ok=True)
    assert found.to_data()["lacks"].keys() == lacks
    if lacks - {"dispatch_latency"}:  # latency shows where the host is slower than the GPU alone
        assert found.step_time_s > dsx.evaluate(job(**EVERY), plan).step_time_s


@pytest.mark.parametrize(("plan", "lacks"), [("tp=4 tp2=2 dp=4", set()), ("tp=4 tp2=4 dp=2", {"tp_overlap"})])
def test_userbuffers_serve_groups_of_both_axes_inside_a_domain_alone(plan, lacks):
    found = dsx.evaluate(dense(), plan, strategy="summa")
    assert found.plan["tp_nvs"] == found.plan["tp"]
    assert found.to_data()["lacks"].keys() == lacks
    stated = dsx.evaluate(dense(tp_overlap=0.2 if lacks else 0.8), plan, strategy="summa")
    assert found.step_time_s == pytest.approx(stated.step_time_s, rel=1e-12)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (
            "tp=8 dp=4 zero_stage=3",
            "CUDA graphs are off because of zero_stage=3 (needed: zero_stage <= 1): dispatch_latency = 20 us in place",
        ),
        ("tp=2 dp=16 recompute=full", "CUDA graphs are off because of recompute=full: dispatch_latency = 20 us in"),
        ("tp=16 dp=2", "tp_overlap = 0.2 in place of 0.8 because of nvs.tp=8 tp=16 (needed: nvs.tp == tp)"),
        ("pp=2 dp=16", "pp_overlap = 0 in place of 0.8 because of vpp=1 schedule=1f1b (needed: vpp > 1 or schedule !="),
    ],
)
def test_what_a_plan_lacks_is_said_with_its_values(plan, says):
    assert says in " ".join(str(dsx.evaluate(dense(), plan)).split())


@pytest.mark.parametrize(("schedule", "lacks"), [("dualpipe", False), ("zb-h1", True)])
def test_what_a_schedule_hides_itself_is_not_lacked(schedule, lacks):
    found = dsx.evaluate(experts(), f"ep=8 pp=2 dp=8 schedule={schedule}")
    assert found.costs["ep_comm_s"] > 0
    assert ({*found.to_data()["lacks"]} & {"ep_overlap", "pp_overlap"} != set()) is lacks
    assert ("ep_overlap = 0 in place of" in str(found)) is lacks


@pytest.mark.sampled(0)
@pytest.mark.parametrize("zero_stage", [(0, 1, 2, 3), (2, 3), (0, 1)])
def test_tiles_of_a_search_and_rows_have_the_same_effects(zero_stage):
    """On a slow host, which some plans of each key avoid; all plans of a search, ten at a time."""
    model = ModelSpec.model_validate(model_of([{"kind": "transformer", "count": 12}], DIMENSIONS))
    slow = {"value": "100 us", "needs": ["zero_stage <= 1", "dp > 1"], "otherwise": "300 us", "source": "a test"}
    spec = load_assumptions({"extends": "default", "dispatch_latency": slow, "memory_margin": 0})
    problem = make_problem(model, cluster_spec(SYSTEM), spec, ["1d"]).searching(USUAL | {"zero_stage": zero_stage})
    space = Space(problem, (16,), (48,))
    table = space.table(problem)
    found, counts = search_of(problem, space, table).best(10, ["zero_stage"])
    rows = priced(problem, space)
    fits = rows["peak_bytes"] <= SYSTEM["hbm_capacity"]
    for stage in zero_stage:
        times = np.sort(rows["step_time_s"][fits & (rows["zero_stage"] == stage)])[:10]
        np.testing.assert_allclose(found["step_time_s"][found["zero_stage"] == stage], times, rtol=1e-12)
    assert counts.feasible == fits.sum()


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["even", "optimal"])
@pytest.mark.parametrize("job", [dense, experts])
def test_no_answer_of_best_has_an_effect_without_its_condition(job, partition):
    """With small microbatches and a slow host all conditions matter; each answer is priced again, effects as stated."""
    slow = {"dispatch_latency": "{value: 100 us, needs: [zero_stage <= 1], otherwise: 400 us, source: a test}"}
    found = dsx.best(job(**slow), top=4, framework="any", partition=partition)
    for plan, costs in zip(found.plans, found.priced, strict=True):
        own = lacked(plan, job is experts) | {"dispatch_latency": "400 us" if plan["zero_stage"] > 1 else "100 us"}
        alone = dsx.evaluate(job(**(EVERY | own)), plan, partition=partition, framework="any")
        assert costs["step_time_s"] == pytest.approx(alone.step_time_s, rel=1e-9)


@pytest.mark.parametrize(
    ("framework", "plan", "lacks"),
    [
        ("zero-bubble", "pp=4 dp=8", {"pp_overlap"}),
        ("zero-bubble", "pp=4 dp=8 schedule=zb-h1", set()),
        ("torchtitan", "tp=8 dp=4 zero_stage=2", set()),
        ("torchtitan", "tp=16 dp=2 zero_stage=2", {"tp_overlap"}),
        ("deepspeed", "dp=32 zero_stage=1", set()),
        ("deepspeed", "dp=32 zero_stage=0", {"dp_overlap"}),
        ("deepspeed", "pp=4 dp=8 zero_stage=1", {"dp_overlap"}),
    ],
)
def test_plans_of_a_framework_lack_what_it_has_for_some(framework, plan, lacks):
    assert dsx.evaluate(dense(), plan, framework=framework).to_data()["lacks"].keys() == lacks


OVERLAPS = ("tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "dp_overlap", "fsdp_overlap", "dispatch_latency")


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "torchtitan", "deepspeed", "zero-bubble"])
def test_measured_runs_have_the_effects_of_plans_of_their_framework(framework):
    """A run is priced with the stack of its software, which knows nothing of files of frameworks."""
    default = load_assumptions("default")
    plans = default.run_by(read_framework(framework))
    runs = default.of_stack(str(plans.stack))
    assert plans.conditions == runs.conditions
    assert [getattr(plans, name) for name in OVERLAPS] == [getattr(runs, name) for name in OVERLAPS]


def test_sends_of_deepspeed_hide_behind_nothing():
    found = dsx.evaluate(dense(), "pp=4 dp=8 zero_stage=1", framework="deepspeed")
    stated = dsx.evaluate(dense(pp_overlap=0), "pp=4 dp=8 zero_stage=1", framework="deepspeed")
    assert found.costs["pp_comm_s"] == stated.costs["pp_comm_s"] > 0
