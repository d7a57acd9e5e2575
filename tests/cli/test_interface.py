"""The command line that others are written against: names, keys, exit codes, what goes where."""

import json
import re

import pytest

import dsx
from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.plans.choices import CODES, JOINED, PLAN_COLUMNS, SEARCHED_COLUMNS
from dsx.plans.rules import DEGREES

COSTS = {*StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__}
PLAN = {"candidate", *PLAN_COLUMNS}
PRICED_PLAN = {"plan", "fits", "reject", *COSTS}
OF_AN_ANSWER = {"launch", "fits_probability", "features", "tokens_per_s_per_gpu", "mfu_of_peak"}

# The paper's optimum for GPT3-1T on 16384 B200 in domains of eight, 1d.
JOB = ("--model", "gpt3-1t", "--cluster", "b200-nvs8", "--num-gpus", 16384, "--global-batch-size", 4096)
OPTIMUM = (
    *("evaluate", *JOB, "--assumptions", "paper-2410.00273", "--strategy", "1d"),
    *("tp=8", "pp=64", "dp=32", "microbatch_size=1", "nvs.tp=8"),
)
SMALL = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 32)
FEW = ("--strategy", "1d", "--fix", "zero_replicas=1", "--fix", "stored_layers=0", "--fix", "offload=none")


def test_evaluate_as_json(run):
    done = run(*OPTIMUM, "--json")
    assert (done.code, done.err) == (0, "")
    data = json.loads(done.out)
    assert set(data) == {"schema_version", "extrapolated", "lacks", "framework", "not_run"} | PRICED_PLAN
    assert (data["framework"], data["not_run"]) == ("any", {})
    assert set(data["plan"]) == PLAN
    assert data["plan"] | {"tp": 8, "pp": 64, "dp": 32, "tp_nvs": 8, "num_microbatches": 128} == data["plan"]
    assert (data["plan"]["strategy"], data["plan"]["sequence_length"]) == ("1d", 2048)
    assert data["plan"]["ep"] == data["plan"]["ep_nvs"] == 1
    assert (data["fits"], data["reject"]) == (True, [])
    assert data["step_time_s"] == pytest.approx(3.233086608653414, rel=1e-12)  # tests/data/points.json
    assert data["training_days"] is None


def test_evaluate_for_people_with_uncalibrated_assumptions_and_overflows(run, folder):
    done = run(*OPTIMUM)
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0] == "gpt3-1t on 16384 x b200-nvs8, 1d: tp=8 pp=64 dp=32 microbatch_size=1 nvs.tp=8"
    assert lines[1] == "4,096 sequences of 2,048 tokens, 8,388,608 tokens a step"
    assert "step_time_s 3.23 s 100.0 %" in lines
    assert "peak_bytes 64.0 GB 100.0 %" in lines
    assert lines[-1] == "fits, and breaks no rule"
    assert "\n\n\n" not in done.out
    # Uncalibrated assumptions are said on stderr.
    done = run("best", *SMALL, *FEW, "--top", 1, "--json", "--assumptions", "uncalibrated")
    assert "assumption set 'uncalibrated' is not calibrated yet" in done.err
    assert len(json.loads(done.out)["plans"]) == 1
    # A plan that overflows is still printed.
    done = run("evaluate", *SMALL, "dp=8", "--set", "cluster.device.matrix_flops=1e-300 FLOP/s")
    assert done.code == 0
    assert "nan" not in done.out
    assert ["step_time_s", "-", "-"] in [line.split() for line in done.out.splitlines()]


def test_sequence_length_and_operators(run, folder):
    plan = ("tp=2", "dp=4", "nvs.tp=2", "nvs.dp=4", "microbatch_size=8")
    done = run("evaluate", *SMALL, *plan, "--sequence-length", 1024, "--operators", "--json")
    data = json.loads(done.out)
    assert data["plan"]["sequence_length"] == 1024
    said = {"schema_version", "extrapolated", "lacks", "framework", "not_run", "operators", "shapes"}
    assert set(data) == said | PRICED_PLAN
    kernels = {kernel["name"]: kernel for kernel in data["operators"]}
    assert kernels["feed-forward.z"]["forward"]["matrix_flops"] == 8 * 1024 * 2048 * (2 * 1024 - 1)
    table = run("evaluate", *SMALL, *plan, "--operators").out.splitlines()
    header = next(line for line in table if "matrix FLOP" in line)
    assert header.split("  ")[-1] == "saved"
    assert sum(line.startswith("feed-forward.z ") for line in table) == 2


def test_rejected_plans_are_priced_and_exit_3(run, folder):
    done = run("evaluate", *SMALL, "tp=8", "nvs.tp=4", "--set", "cluster.device.hbm_capacity=1 MB", "--json")
    data = json.loads(done.out)
    assert done.code == 3
    assert done.err.splitlines() == [
        "dsx: device B200 states no num_sms: every wave of tiles is taken as full",
        "dsx: cluster.device.hbm_capacity is 1.00 MB: packaged clusters have 17.2 GB to 309 GB",
        "dsx: error: the plan is rejected: memory, domain_not_filled",
    ]
    assert (data["fits"], data["reject"]) == (False, ["memory", "domain_not_filled"])
    assert data["step_time_s"] > 0
    done = run("evaluate", *SMALL, "tp=8", "nvs.tp=4", "--set", "cluster.device.hbm_capacity=1 MB")
    assert done.code == 3
    assert "rejected:\n  memory: " in done.out
    # It breaks a rule, though it fits.
    assert run("evaluate", *SMALL, "tp=8", "nvs.tp=4").code == 3
    assert run("evaluate", *SMALL, "tp=8", "nvs.tp=8").code == 0


def test_help_has_every_choice_of_a_plan(run, folder):
    words = set(re.findall(r"[\w-]+", run("evaluate", "--help").out))
    assert {*SEARCHED_COLUMNS, *DEGREES, "panels", "microbatch_size"} <= words
    assert {part for names in CODES.values() for name in names for part in name.split(JOINED)} <= words
    assert {*SEARCHED_COLUMNS} - {"ep"} <= set(re.findall(r"\w+", run("best", "--help").out))


def test_best_as_json_is_what_evaluate_says(run, folder):
    done = run("best", *SMALL, "--top", 3, "--strategy", "2d", "--partition", "even", "--json")
    data = json.loads(done.out)
    assert done.code == 0
    assert set(data) == {
        "schema_version", "candidates", "priced", "feasible", "cut", "framework", "strategies", "left_out",
        "beyond_framework", "compared_frameworks", "fixed", "limit", "resolution", "within_resolution", "plans",
        "infeasible", "would_fit", "faster_placement", "extrapolated", "model", "cluster", "parameters", "num_gpus",
        "global_batch_size", "sequence_length", "tokens_per_step",
    }  # fmt: skip
    assert data["tokens_per_step"] == data["global_batch_size"] * data["sequence_length"]
    assert 0 < data["resolution"] < 1
    assert set(data["within_resolution"]) <= {2, 3}
    assert data["candidates"] >= data["priced"] > 3 == len(data["plans"])
    assert data["feasible"] is None
    assert all(set(plan) == PRICED_PLAN | OF_AN_ANSWER and set(plan["plan"]) == PLAN for plan in data["plans"])
    times = [plan["step_time_s"] for plan in data["plans"]]
    assert times == sorted(times)
    plan = data["plans"][0]["plan"]
    settings = [f"{name}={plan[name]}" for name in ("tp", "cp", "pp", "dp", "microbatch_size")]
    settings += [
        f"{name}={plan[name]}"
        for name in ("vpp", "zero_stage", "zero_replicas", "recompute", "stored_layers", "offload")
    ]
    settings += [f"nvs.{axis}={plan[f'{axis}_nvs']}" for axis in ("tp", "cp", "pp", "dp")]
    again = json.loads(run("evaluate", *SMALL, "--strategy", "2d", *settings, "--json").out)
    assert again["plan"] == plan
    assert again["step_time_s"] == pytest.approx(times[0], rel=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "candidates", "says"),
    [
        (
            (*FEW, "--set", "cluster.device.hbm_capacity=1 kB"),
            True,
            "candidates fits: the one that needs least memory needs",
        ),
        (("--sequence-length", 1, "--strategy", "2d"), False, "no candidate: the rules of 2d"),
    ],
)
def test_best_where_nothing_is_feasible(run, folder, arguments, candidates, says):
    done = run("best", *SMALL, *arguments, "--json")
    data = json.loads(done.out)
    assert done.code == 3
    assert (data["candidates"] > 0, data["feasible"], data["plans"]) == (candidates, 0, [])
    assert says in done.err
    done = run("best", *SMALL, *arguments)
    assert (done.code, done.out) == (3, "")
    assert says in done.err


@pytest.mark.parametrize(
    ("num_gpus", "batch"), [(1, 1), (7, 7), (13, 26)], ids=["one", "a prime that is the batch", "a prime in the batch"]
)
def test_few_and_prime_gpus(run, folder, num_gpus, batch):
    job = (*SMALL[:4], "--num-gpus", num_gpus, "--global-batch-size", batch, "--partition", "even")
    job = (*job, "--strategy", "1d", "--framework", "any")
    for usual in ("zero_replicas=1", "stored_layers=0", "offload=none"):
        job = (*job, "--fix", usual)
    data = json.loads(run("best", *job, "--top", 200, "--json").out)
    assert {plan["plan"]["dp"] * plan["plan"]["pp"] for plan in data["plans"]} == {num_gpus}
    people = run("best", *job, "--top", 200).out.partition("\n\n")[0].splitlines()
    noun = "candidate" if data["candidates"] == 1 else "candidates"
    assert people[0] == f"small on {num_gpus} x b200-nvs8: 100.7 million parameters"
    assert people[1].endswith(f" of 2,048 tokens, {batch * 2048:,} tokens a step")
    assert people[2].startswith(f"{data['candidates']} {noun} of one strategy, 1d (software ")
    assert people[2].endswith(f"; {data['feasible']} feasible")
    shown = [re.match(r" *(\d+)  ", line) for line in people] + [re.match(r"plan (\d+) costs", line) for line in people]
    assert sorted(int(found[1]) for found in shown if found) == [*range(1, data["feasible"] + 1)]


def test_why_a_plan(run, folder):
    done = run("why", *SMALL, "tp=2", "dp=4", "nvs.dp=2", "--json")
    data = json.loads(done.out)
    assert done.code == 0
    assert set(data) == {"schema_version", "why", "best", "candidates", "framework", "not_run", "lacks"} | PRICED_PLAN
    assert [violation["reason"] for violation in data["why"]] == data["reject"] == ["domain_not_filled"]
    assert set(data["best"]) == PRICED_PLAN
    people = run("why", *SMALL, "tp=2", "dp=4", "nvs.dp=2").out
    assert "is rejected, for 1 reason:\n  domain_not_filled: " in people
    assert "this plan takes" in people
    limited = run("why", *SMALL, "dp=8", "zero_stage=3", "--framework", "torchtitan")
    assert limited.code == 0 and "that torchtitan runs" in limited.out and "does not run this plan" not in limited.out
    own = run("why", *SMALL, "dp=8", "--framework", "deepspeed")
    assert own.code == 0 and own.out.startswith("small on 8 x b200-nvs8, 1d-no-sp: ")
    refused = run("why", *SMALL, "dp=8", "--framework", "deepspeed", "--strategy", "1d")
    assert refused.code == 2 and "strategy 1d: framework 'deepspeed' does not run it" in refused.err
    other = run("why", *SMALL, "pp=2", "dp=4", "schedule=gpipe")
    assert "megatron does not run this plan, for schedule=gpipe. " in other.out


def test_a_placement_that_is_left_out_is_filled_and_said(run, folder):
    named, left_out, partly, apart = (
        run("evaluate", *SMALL, "tp=2", "dp=4", *more)
        for more in (("nvs.tp=2", "nvs.dp=4"), (), ("nvs.dp=4",), ("--set", "assumptions.default_placement=apart"))
    )
    said = "nvs.tp=2 nvs.dp=4 filled in rank order, tp-cp-ep-dp-pp"
    assert said in left_out.out and "nvs.tp=2 filled in rank order" in partly.out
    assert "filled in rank order" not in named.out + apart.out
    lines = [line for line in left_out.out.splitlines() if line != said]
    assert lines == named.out.splitlines()
    assert apart.code == 3 and "domain_not_filled: nvs.*=1 uses 1 of the 8 GPUs" in apart.out
    assert said in run("why", *SMALL, "tp=2", "dp=4").out
    data = json.loads(run("evaluate", *SMALL, "tp=2", "dp=4", "--json").out)
    assert (data["plan"]["tp_nvs"], data["plan"]["dp_nvs"], data["fits"]) == (2, 4, True)


def test_why_a_row(run, swept, tmp_path, monkeypatch):
    front = json.loads(run("pareto", swept, "--json").out)["plans"]
    monkeypatch.chdir(tmp_path)  # not where the sweep was run
    done = run("why", swept, front[0]["plan"]["candidate"], "--json")
    assert done.code == 0
    assert json.loads(done.out)["plan"] == front[0]["plan"]
    assert "It is the fastest of " in run("why", swept, front[0]["plan"]["candidate"]).out


def test_why_a_row_knows_how_long_the_training_is(run, folder):
    assert run("sweep", "sweep.yaml", "-o", "out", "--set", "sweep.train_tokens=1e12").code == 0
    row = dsx.load("out").iloc[0]
    assert row["training_days"] > 0
    data = json.loads(run("why", "out", row["candidate"], "--json").out)
    assert data["training_days"] == pytest.approx(row["training_days"], rel=1e-5)
    assert "training_days" in run("why", "out", row["candidate"]).out


def test_pareto(run, swept, tmp_path):
    done = run("pareto", swept, "--json")
    data = json.loads(done.out)
    assert set(data) == {"schema_version", "objectives", "plans"}
    assert data["objectives"] == ["step_time_s", "peak_bytes"]
    assert all(set(plan) == PRICED_PLAN | {"hardware"} for plan in data["plans"])
    peaks = [plan["peak_bytes"] for plan in data["plans"]]
    assert peaks == sorted(peaks, reverse=True)
    one = json.loads(run("pareto", swept, "--objective", "-mfu", "--json").out)["plans"]
    assert one[0]["plan"] in [plan["plan"] for plan in data["plans"]]
    people = run("pareto", swept, "--objective", "num_gpus", "--objective", "-mfu", "--plot", tmp_path / "a.svg")
    assert people.err == f"dsx: wrote {tmp_path / 'a.svg'}\n"
    assert people.out.splitlines()[0].split() == ["num_gpus", "mfu", "global_batch_size", "strategy", "plan"]
    three = run("pareto", swept, *("--objective", "-mfu", "--objective", "pp", "--objective", "dp"))
    assert three.code == 0


def test_pareto_of_nothing_feasible(run, nothing_fits, tmp_path):
    done = run("pareto", nothing_fits, "--json", "--plot", tmp_path / "a.png")
    assert done.code == 3
    assert json.loads(done.out)["plans"] == []
    assert "no front: none of the" in done.err
    assert (tmp_path / "a.png").stat().st_size > 0
    assert run("pareto", nothing_fits).out == ""


@pytest.mark.parametrize(
    ("kind", "some"),
    [
        ("models", "gpt3-1t"),
        ("clusters", "b200-nvs8"),
        ("strategies", "summa"),
        ("layers", "self-attention"),
        ("assumptions", "default"),
    ],
)
def test_list(run, folder, kind, some):
    lines = run("list", kind).out.splitlines()
    assert some in lines
    assert json.loads(run("list", kind, "--json").out) == {"schema_version": 1, kind: lines}


def test_layer_with_settings(run):
    settings = ("rotary", "shared", "ffn=experts")
    data = json.loads(run("layer", "transformer", *settings, "--json").out)
    assert data["layer"] == "transformer[rotary shared ffn=experts]"
    assert {name for name, is_set in data["options"].items() if is_set} == {"rotary", "shared"}
    assert {"layernorm", "corrected", "qk_norm"} < data["options"].keys()
    assert "gated" not in data["options"]  # of the block that is not used then
    assert data["blocks"] == {"attention": "self-attention", "ffn": "experts", "core": "attention-core"}
    people = run("layer", "transformer", *settings).out.splitlines()
    assert people[0].startswith("transformer[rotary shared ffn=experts] under 1d; axes: ")
    assert sorted(people[1].removeprefix("options set: ").split(", ")) == ["rotary", "shared"]
    assert people[3] == "block parameters: attention = self-attention, ffn = experts, core = attention-core"
    # Layer with and without numbers.
    formulas = json.loads(run("layer", "feed-forward", "--json").out)
    numbers = json.loads(run("layer", "feed-forward", "--model", "gpt3-1t", "--set", "tp=8", "--json").out)
    assert set(formulas) == set(numbers)
    assert formulas["saved_bytes"]["value"] is None
    assert numbers["saved_bytes"]["value"] > 0
    people = run("layer", "feed-forward", "--set", "tp=8").out
    assert "z[b, s, f/tp] = einsum" in people
    assert "heads_not_divisible: h % tp == 0" in people


def test_layer_as_a_model_or_a_set_has_it(run, folder):
    def made(*arguments):
        data = json.loads(run("layer", "transformer", *arguments, "--json").out)
        return data["layer"], {name for name, is_set in data["options"].items() if is_set}, data["blocks"]["core"]

    core = "attention-core"
    assert made() == ("transformer", set(), core)
    assert made("--model", "llama-3-8b") == ("transformer[gated rotary]", {"gated", "rotary"}, core)
    assert made("full", "--model", "llama-3-8b") == ("transformer[full]", {"full"}, core)
    assert made("--strategy", "2d-ring") == ("transformer", {"ring"}, core)
    (folder / "mine.yaml").write_text(
        "extends: default\nname: mine\nset: {core: unfused-attention-core, rotary: true, shared: true}\n"
    )
    assert made("gated", "--assumptions", "mine.yaml") == (
        "transformer[gated]",
        {"gated", "rotary"},
        "unfused-attention-core",
    )
