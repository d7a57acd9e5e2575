"""Every pipeline layout that is printed, read back as the launcher reads it, is the cut that was priced."""

import importlib.util
import itertools
import json
import re

import pytest

from dsx.plans.plan import Plan
from dsx.plans.rules import OPTIMAL
from dsx.pricing.one_plan import price_plan
from dsx.verbs.job import load_inputs, split_overrides

FLAG = "--pipeline-model-parallel-layout"
BODIES = {
    "heavy-head": "[{kind: embedding, count: 1}, {kind: transformer, count: 6}, {kind: head, count: 1}]",
    "head-alone": "[{kind: transformer, count: 7}, {kind: head, count: 1}]",
    "no-ends": "[{kind: transformer, count: 5}, {kind: transformer, options: [rotary, gated], count: 6}]",
}
MODEL = """source: made up
default_sequence_length: 2048
dimensions: {e: 1024, h: 8, g: 8, k: 128, f: 4096, v: 100000}
"""
# Where every strategy is searched, other cuts than those of pipelines with layouts are faster.
JOB = ("--strategy", "1d", "--cluster", "b200-nvs8", "--num-gpus", 12, "--global-batch-size", 24)
SOME = [next(iter(BODIES)), *(pytest.param(model, marks=pytest.mark.slow) for model in [*BODIES][1:])]
SWEEP = """cluster: b200-nvs8
strategy: 1d
num_gpus: 12
global_batch_size: 24
partition: optimal
precision: float64
fix: {pp: [2, 3, 4, 6], zero_stage: 1, recompute: none}
keep: feasible
"""


def body_of(layout: str) -> list[int]:
    """The layers of each chunk between embedding and loss, by the launcher's grammar."""
    stages = re.sub(r"(\([^)]*\)|.)\*(\d+)", lambda run: run[1].strip("()") * int(run[2]), layout).split("|")
    assert stages[0][0] == "E"
    assert stages[-1][-1] == "L"
    inner = "|".join(stages)[1:-1].split("|")
    assert {*"".join(inner)} <= {"t"}
    return [len(stage) for stage in inner]


def check(model: str, plan: dict, step_time_s: float, layout: str) -> None:
    """Price the layout, and let the launcher's own class read it where it is installed."""
    problem = load_inputs(f"{model}.yaml", "b200-nvs8", "default", split_overrides(None)).problem(
        [], None, partition=OPTIMAL
    )
    built = problem.models[0]
    body = body_of(layout)
    assert (len(body), sum(body)) == (plan["pp"] * plan["vpp"], built.num_body_layers)
    body[0] += len(built.first)
    body[-1] += len(built.last)
    priced = price_plan(problem, Plan(plan | {"stage_layers": ",".join(map(str, body))}))
    assert priced.costs["step_time_s"] == pytest.approx(step_time_s, rel=1e-12)
    if importlib.util.find_spec("megatron"):
        module = importlib.import_module("megatron.core.transformer.pipeline_parallel_layer_layout")
        read = module.PipelineParallelLayerLayout(layout, plan["pp"])
        read.validate_layer_layout(built.num_body_layers, None)
        places = itertools.product(range(plan["vpp"]), range(plan["pp"]))
        assert [read.get_num_layers_to_build(vp_stage=chunk, pp_rank=rank) for chunk, rank in places] == body_of(layout)


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name, body in BODIES.items():
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\n{MODEL}layers: {body}\n")
        (tmp_path / f"sweep-{name}.yaml").write_text(f"model: {name}.yaml\n{SWEEP}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def layouts(plans: list[dict]) -> list[tuple[dict, float, str]]:
    found = [(plan["plan"], plan["step_time_s"], plan["launch"]["megatron_lm"]["flags"]) for plan in plans]
    return [(plan, time, flags[flags.index(FLAG) + 1]) for plan, time, flags in found if FLAG in flags]


@pytest.mark.slow
@pytest.mark.parametrize("model", BODIES)
def test_layouts_of_a_result_set(run, place, model):
    assert run("sweep", f"sweep-{model}.yaml", "-o", "set").code == 0
    found = layouts(json.loads(run("show", "set", "--json", "--top", 8).out)["plans"])
    assert found
    for plan, step_time_s, layout in found:
        check(model, plan, step_time_s, layout)


@pytest.mark.slow
@pytest.mark.parametrize("model", SOME)
def test_layouts_of_a_search(run, place, model):
    job = (*JOB, "--model", f"{model}.yaml")
    best = json.loads(
        run(
            "best", *job, "--partition", OPTIMAL, "--fix", "pp=4", "--fix", "vpp=1", "--fix", "zero_stage=1", "--json"
        ).out
    )
    found = layouts(best["plans"])
    assert found
    held = json.loads(run("partition", *job, "pp=4", "vpp=1", "zero_stage=1", "--json").out)
    for plan, step_time_s, layout in (*found[:6], *layouts([held])):
        check(model, plan, step_time_s, layout)


def test_a_layout_that_is_printed_is_that_of_the_data(run, place):
    assert run("sweep", "sweep-heavy-head.yaml", "-o", "set").code == 0
    data = json.loads(run("show", "set", "--json", "--top", 1, "--per", "pp").out)["plans"]
    for plan, _, layout in layouts(data):
        printed = run("show", "set", "--candidate", plan["candidate"]).out
        assert f"{FLAG} '{layout}'" in printed


SPLIT = ("--model", "heavy-head.yaml", *JOB, "tp=2", "pp=3", "dp=2", "nvs.tp=2", "nvs.pp=3", "nvs.dp=1")


def test_layouts_on_the_command_line_and_stages_of_several_chunks(run, place):
    listed = run("evaluate", *SPLIT, "stage_layers=4,3,1", "--json")
    launched = run("evaluate", *SPLIT, "stage_layers=Et*3|(t)*3|L", "--json")
    assert listed.code == 0 and listed.out == launched.out
    stages = json.loads(listed.out)["stages"]
    assert [(stage["first_layer"], stage["num_layers"]) for stage in stages] == [(0, 4), (4, 3), (7, 1)]
    fixed = ("zero_stage=1", "recompute=none", "zero_replicas=1", "stored_layers=0", "offload=none")
    few = [word for value in fixed for word in ("--set", f"assumptions.fixed.{value}")]
    assert run("why", *SPLIT, *few, "stage_layers=4,3,1").out.count("<- bottleneck") == 1
    # Stages of several chunks.
    plan = (*SPLIT, "stage_layers=2,1,1,1,1,2")
    data = json.loads(run("evaluate", *plan, "--json").out)
    assert (data["plan"]["vpp"], data["plan"]["stage_layers"]) == (2, "2,1,1,1,1,2")
    assert data["stages"][0]["chunks"] == [{"first_layer": 0, "num_layers": 2}, {"first_layer": 4, "num_layers": 1}]
    shown = [" ".join(line.split()) for line in run("evaluate", *plan).out.splitlines()]
    (head,) = [number for number, line in enumerate(shown) if line.startswith("stage layers layers chunks GPUs")]
    assert shown[head - 1].startswith("first layers of time of a")
    rows = ["1 0, 4 3 2+1 4 ", "2 2, 5 2 1+1 4 ", "3 3, 6 3 1+2 4 "]
    assert all(line.startswith(row) for line, row in zip(shown[head + 1 : head + 4], rows, strict=True))
