"""Expert parallelism from the command line: searched, fixed, evaluated, and explained."""

import json

import pytest
from laws.spaces import USUAL

import dsx

MIXTURE = """name: mixture
source: made up
default_sequence_length: 1024
dimensions: {e: 1024, h: 8, g: 8, k: 128, fx: 2048, x: 8, topk: 2, v: 8192, capacity_percent: 100}
layers:
  - {kind: embedding, count: 1}
  - {kind: transformer, options: [rotary], ffn: experts, count: 4}
  - {kind: head, count: 1}
"""
JOB = ("--model", "mixture.yaml", "--cluster", "h100-nvs8", "--num-gpus", 16, "--global-batch-size", 32)
ONE = (*JOB, "--strategy", "1d")
FEW = tuple(word for name, (value,) in USUAL.items() for word in ("--set", f"assumptions.fixed.{name}={value}"))
SWEEP = """model: mixture.yaml
cluster: h100-nvs8
num_gpus: 16
global_batch_size: 32
strategy: [1d, 2d-expert-tp]
keep: all
"""


@pytest.fixture(autouse=True)
def mixture(folder):
    (folder / "mixture.yaml").write_text(MIXTURE)
    (folder / "experts.yaml").write_text(SWEEP)


def test_best_searches_it_and_evaluate_says_the_same(run):
    data = json.loads(run("best", *ONE, *FEW, "--json", "--top", 1).out)
    plan = data["plans"][0]["plan"]
    assert plan["ep"] > 1
    flags = data["plans"][0]["launch"]["megatron_lm"]["flags"]
    assert flags[flags.index("--expert-model-parallel-size") + 1] == str(plan["ep"])
    assert flags[flags.index("--expert-tensor-parallel-size") + 1] == "1"
    settings = [f"{name}={plan[name]}" for name in ("tp", "ep", "pp", "dp", "microbatch_size")]
    settings += [f"nvs.{axis}={plan[f'{axis}_nvs']}" for axis in ("tp", "pp", "dp")]
    settings += [f"{name}={plan[name]}" for name in ("vpp", "zero_stage", "recompute")]
    cut = "optimal" if "stage_layers" in plan else "even"
    again = json.loads(run("evaluate", *ONE, *settings, "--partition", cut, "--json").out)
    assert again["plan"] == plan
    assert again["step_time_s"] == pytest.approx(data["plans"][0]["step_time_s"], rel=1e-12)
    assert again["reject"] == []


def test_why_and_layer_say_what_experts_miss_and_who_holds_the_same(run):
    data = json.loads(run("why", *ONE, *FEW, "ep=8", "pp=4", "dp=4", "nvs.dp=4", "nvs.pp=2", "--json").out)
    assert data["why"] == [
        {"reason": "experts_not_nested", "detail": "ep=8 nests in dp=4, but does not divide 4; nearest: ep=4"}
    ]
    assert data["best"]["plan"]["ep"] >= 1
    text = run("why", *ONE, *FEW, "ep=8", "dp=16", "nvs.dp=8", "nvs.ep=4").out
    assert "expert_share_not_nested: nvs.ep=4, but with nvs.dp=8 a fast domain has 8 of the 8" in text
    assert "fits, and breaks no rule" in run("why", *ONE, *FEW, "ep=8", "dp=16", "nvs.dp=8").out
    # Layer says who holds the same experts.
    lines = [
        line.strip()
        for line in run("layer", "transformer", "rotary", "ffn=experts", "--strategy", "2d").out.splitlines()
    ]
    (held,) = [line for line in lines if line.startswith("experts.wup:")]
    assert held.endswith("bytes; dp, tp, cp; one rank in ep has the same part")
    assert not any("not divided over" in line and line.startswith("experts.") for line in lines)


@pytest.mark.slow
def test_a_sweep_has_the_degrees_that_it_fixes(run):
    done = run("sweep", "experts.yaml", "-o", "out", *FEW, "--set", "sweep.fix.ep=[1, 8]")
    assert done.code == 0
    frame = dsx.load("out")
    assert set(frame["ep"]) == {1, 8}
    spanned = frame["tp"].where(frame["strategy"] == "1d", 1) * frame["cp"] * frame["dp"]
    assert (spanned % frame["ep"] == 0).all()
    assert (frame["ep_comm_s"][frame["ep"] == 1] == 0).all()
    assert (frame["ep_comm_s"][frame["ep"] == 8] > 0).all()
    row = frame[frame["ep"] == 8].sort_values("step_time_s").iloc[0]
    assert run("why", "out", int(row["candidate"])).code == 0


@pytest.mark.slow
def test_a_kept_plan_has_the_flags_of_its_experts_behind_dense_layers(run, folder):
    experts = "  - {kind: transformer, options: [rotary], ffn: experts, count: 4}"
    layers = "  - {kind: transformer, count: 1}\n" + experts.replace("4", "3")
    dense_first = MIXTURE.replace(experts, layers).replace("h: 8", "f: 2048, h: 8")
    (folder / "mixture.yaml").write_text(dense_first)
    assert run("sweep", "experts.yaml", "-o", "out", *FEW, "--set", "sweep.fix.ep=[2]").code == 0
    (plan,) = json.loads(run("show", "out", "--top", 1, "--json").out)["plans"]
    flags = plan["launch"]["megatron_lm"]["flags"]
    assert flags[flags.index("--expert-model-parallel-size") + 1] == "2"
    assert "--expert-tensor-parallel-size" in flags
