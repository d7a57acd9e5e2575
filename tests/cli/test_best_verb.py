"""``dsx best``: the launch flags behind its table."""

import json
import re
import subprocess

import pytest

from dsx.cost.context import StepCosts
from dsx.results.ranked_by import ROLES
from dsx.tables.plans import SHARES

JOB = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 32)
ONE = (*JOB, "--strategy", "1d")  # each strategy takes a search of its own
FEW = ("--fix", "zero_replicas=1", "--fix", "stored_layers=0", "--fix", "offload=none")
FEW_EVEN = (*FEW, "--partition", "even")


def test_flags_can_be_pasted(run, folder):
    data = json.loads(run("best", *ONE, *FEW, "--json", "--top", 1).out)["plans"][0]
    launch = data["launch"]["megatron_lm"]
    assert launch["flags"][:2] == ["--tensor-model-parallel-size", str(data["plan"]["tp"])]
    block = run("best", *ONE, *FEW, "--top", 1).out.partition("Megatron-LM flags of plan 1:\n")[2]
    flags, *rest = block.split("\ncannot be expressed: ")
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {flags}"], capture_output=True, text=True, check=True)
    assert words.stdout.split("\n")[:-1] == launch["flags"]
    assert [" ".join(line.split()) for line in rest] == launch["lost"]
    assert all(line.endswith(" \\") for line in flags.splitlines()[:-1])
    assert len(flags.splitlines()) > 1


# Megatron-LM takes its own cross-entropy from the command line, not that of the stack.
NATIVE = ("--set", "assumptions.cross_entropy_bytes=8")


@pytest.mark.slow
def test_flags_and_schedules_are_of_each_plan(run, folder):
    plans = json.loads(
        run("best", *JOB, "--json", "--strategy", "2d", "--framework", "any", "--top", 40, *NATIVE, *FEW_EVEN).out
    )["plans"]
    for plan in plans:
        flags = plan["launch"]["megatron_lm"]["flags"]
        assert flags[flags.index("--context-parallel-size") + 1] == str(plan["plan"]["cp"])
    assert {bool(plan["launch"]["megatron_lm"]["lost"]) for plan in plans} == {True, False}
    # Schedules whose closed form is too fast are named.
    searched = (*ONE, *FEW_EVEN, "--framework", "any")
    named = run("best", *searched, "--fix", "schedule=1f1b,zb-h2")
    assert "a step of zb-h2 takes longer than its closed form" in named.err
    assert "closed form" not in run("best", *searched).err


@pytest.mark.slow
def test_a_plan_without_flags_says_why(run, folder):
    # Eight layers and a batch of four leave two GPUs or more to the tensor parallel axes.
    job = (*JOB[:4], "--num-gpus", 64, "--global-batch-size", 4, "--strategy", "summa", "--framework", "any")
    job = (*job, *FEW_EVEN, "--assumptions", "uncalibrated")  # of whose errors nothing is known
    best = json.loads(run("best", *job, "--json").out)["plans"][0]
    assert best["plan"]["tp"] * best["plan"]["tp2"] > 1
    lines = run("best", *job, "--top", 1).out.rpartition("\n\n")[2].splitlines()
    assert lines[0] == "Megatron-LM flags of plan 1: none, since the rest would start another plan"
    lost = [f"cannot be expressed: {lost}" for lost in best["launch"]["megatron_lm"]["lost"]]
    assert " ".join(" ".join(lines[1:]).split()) == " ".join(lost)
    assert len(lines) > 1


@pytest.mark.slow
def test_a_machine_that_megatron_does_not_run_on_has_no_flags(run, folder):
    job = (*ONE[:2], "--cluster", "tpu-v4", *ONE[4:], *FEW_EVEN)
    launch = json.loads(run("best", *job, "--json", "--top", 1).out)["plans"][0]["launch"]["megatron_lm"]
    assert launch["flags"] == []
    assert launch["lost"][0].startswith("TPU v4, which is programmed with xla: ")
    said = (
        "Megatron-LM flags of plan 1: none, since Megatron-LM does not run on this device\ncannot be expressed: TPU v4"
    )
    assert said in run("best", *job, "--top", 1).out
    own = run("best", *job, "--json", "--top", 1, "--set", "cluster.device.software=rocm")
    assert json.loads(own.out)["plans"][0]["launch"]["megatron_lm"]["flags"]


def test_plans_within_the_resolution_of_the_measurements(run, folder):
    said = "resolution: 0.6\ninterval: [{low: 0.9, high: 1.2}]\n"
    (folder / "known.yaml").write_text(f"extends: paper-2410.00273\nname: known\n{said}")
    known = ("best", *ONE, *FEW, "--assumptions", "known.yaml", "--top", 9)
    data = json.loads(run(*known, "--json").out)
    times = [plan["step_time_s"] for plan in data["plans"]]
    close = [number for number, time in enumerate(times, 1) if number > 1 and time <= 1.6 * times[0]]
    assert (data["resolution"], data["within_resolution"]) == (0.6, close)
    assert 0 < len(close) < 8
    plan = data["plans"][0]
    assert [plan["step_time_s_low"], plan["step_time_s_high"]] == [0.9 * times[0], 1.2 * times[0]]
    last = f"plans 2 to {close[-1]} are" if len(close) > 1 else "plan 2 is"
    assert f"{last} within 60 % of plan 1, the resolution of the measurements" in run(*known).out
    # Other sets tell nothing.
    unknown = ("best", *ONE, *FEW, "--assumptions", "paper-2410.00273")
    assert "the measurements" not in run(*unknown).out
    data = json.loads(run(*unknown, "--json").out)
    assert (data["resolution"], data["within_resolution"]) == (None, [])
    assert data["plans"][0]["step_time_s_low"] is None


def test_three_plans_to_choose_from(run, folder):
    data = json.loads(run("best", *ONE, *FEW, "--json").out)
    fastest, simplest, leanest = (data[name] for name in ROLES)
    assert fastest == data["plans"][0]
    assert fastest["step_time_s"] <= simplest["step_time_s"] <= (1 + data["resolution"]) * fastest["step_time_s"]
    most = (1 + data["resolution"]) * fastest["step_time_s"]
    assert leanest["step_time_s"] <= most
    assert sum(simplest["features"].values()) <= sum(fastest["features"].values())
    assert leanest["peak_bytes"] <= min(simplest["peak_bytes"], fastest["peak_bytes"])
    listed = json.loads(run("best", *ONE, *FEW, "--json", "--top", 400).out)
    assert not {*ROLES} & {*listed}
    near = [plan for plan in listed["plans"] if plan["step_time_s"] <= most]
    assert len(near) < 400 and leanest["peak_bytes"] == min(plan["peak_bytes"] for plan in near)
    said = run("best", *ONE, *FEW).out
    rows = {line.partition("  ")[0]: line for line in said.splitlines()}
    assert rows["tokens/s/GPU"].split()[1] == f"{fastest['tokens_per_s_per_gpu']:,.0f}"
    assert rows["rank order"].split()[2] == fastest["plan"]["order"]
    for plan in (simplest, leanest):
        features = ", ".join(f"{name} {cost}" for name, cost in plan["features"].items())
        assert not features or f"    features: {features}" in said.splitlines()
    assert max(map(len, said.splitlines())) <= 100


@pytest.mark.parametrize("top", [(), ("--top", 20)], ids=["three", "list"])
def test_an_answer_fits_the_terminal(run, folder, top):
    text = (folder / "small.yaml").read_text()
    (folder / "wide.yaml").write_text(text.replace("count: 8", "count: 61").replace("small", "a-model-of-a-long-name"))
    layouts = ("--model", "wide.yaml", *ONE[2:], *FEW, "--fix", "pp=8", "--fix", "microbatch_size=1")
    said = run("best", *layouts, *top).out
    assert ("layers of stages: " in said or "stage_layers=" in said) and max(map(len, said.splitlines())) <= 100


@pytest.mark.slow
def test_shares_of_a_step_add_up(run, folder):
    def shown(*settings):
        choices = [word for setting in settings for word in ("--set", f"assumptions.fixed.{setting}")]
        table = run("best", *ONE, "--partition", "even", "--top", 5, *choices).out.partition("\n\n")[0].splitlines()
        header = next(line for line in table if " compute " in line)
        titles = [word for word in header[header.index("compute") :].split() if word in SHARES]
        percent = [[int(word) for word in re.findall(r" (\d+) %", row)] for row in table if re.match(r"\d  ", row)]
        return titles, [row[-len(titles) :] for row in percent]

    titles, rows = shown()
    assert titles == ["compute", "communication", "bubble", "optimizer"]
    assert {sum(row) for row in rows} == {100}
    titles, rows = shown("recompute=full", "offload=optimizer")
    assert titles == ["compute", "recompute", "communication", "bubble", "optimizer"]
    assert {sum(row) for row in rows} == {100}
    # Every part of a step is in one share.
    parts = [name for name in StepCosts.__dataclass_fields__ if name.endswith("_s") and not name.endswith("_per_s")]
    assert sorted(name for names in SHARES.values() for name in names) == sorted({*parts} - {"step_time_s"})


@pytest.mark.sampled(0)
@pytest.mark.parametrize(("layers", "only"), [(8, None), (13, None), (17, "1 or 17"), (61, "1 or 61"), (1, None)])
def test_layers_that_no_common_pipeline_divides(run, folder, layers, only):
    said = f"small has {layers} layers between embedding and head, which 2 to 16 stages do not divide: pp is {only} in"
    text = (folder / "small.yaml").read_text().replace("count: 8", f"count: {layers}")
    (folder / "small.yaml").write_text(text)
    # What a device has is enough for any of them.
    enough = ("--set", "cluster.device.hbm_capacity=9 TB")
    even = ("best", *ONE, *FEW_EVEN, *enough, "--json")
    for done in (run(*even), run("sweep", "sweep.yaml", "-o", f"of-{layers}", *enough)):
        assert done.code == 0
        assert (said in done.err) is (only is not None)
        assert "stages" not in done.out
    assert said not in run("best", *ONE, *FEW, *enough, "--json").err  # which takes optimal cuts too


@pytest.mark.slow
def test_choices_are_searched_where_fix_lists_their_values(run, folder):
    even = (*ONE, "--framework", "any", "--partition", "even", "--fix", "zero_replicas=1", "--fix", "stored_layers=0")
    even = (*even, "--fix", "schedule=1f1b")
    plain = json.loads(run("best", *even, "--fix", "offload=none", "--json").out)
    assert plain["fixed"] == {}
    one = ("--fix", "offload=none", "--fix", "recompute=none", "--fix", "zero_stage=1")
    fewer = json.loads(run("best", *even, *one, "--json").out)
    assert plain["candidates"] == 20 * fewer["candidates"]  # five values of recompute, ZeRO stage 0 to 3
    assert plain["plans"][0]["step_time_s"] <= fewer["plans"][0]["step_time_s"]
    wider = json.loads(run("best", *even, "--fix", "offload=none,optimizer", "--json").out)
    assert wider["candidates"] == 2 * plain["candidates"]
    everything = json.loads(run("best", *ONE, "--json").out)
    assert everything["fixed"] == {} and everything["candidates"] > plain["candidates"]
    only = json.loads(run("best", *ONE, *FEW_EVEN, "--fix", "tp=2", "--json").out)
    assert {plan["plan"]["tp"] for plan in only["plans"]} == {2}
    of_set = ("--set", "assumptions.fixed.schedule=1f1b")
    said = run("best", *ONE, *of_set, "--partition", "even", "--fix", "recompute=none,full").out.splitlines()
    assert "only recompute=none,full; not searched: schedule=1f1b (--fix searches other values)" in said


@pytest.mark.slow
def test_a_search_leaves_room_for_errors_of_memory(run, folder):
    even = (*ONE, *FEW_EVEN)
    plain, none = (json.loads(run("best", *even, *margin, "--json").out) for margin in ((), ("--memory-margin", "0")))
    needed = plain["plans"][0]["peak_bytes"]
    assert none["plans"][0]["step_time_s"] <= plain["plans"][0]["step_time_s"]
    assert plain["plans"][0]["fits_probability"] > 0.9
    capacity = f"cluster.device.hbm_capacity={1.05 * needed} B"
    assert json.loads(run("best", *even, "--set", capacity, "--json").out)["plans"][0]["peak_bytes"] < needed
    tight = run("best", *even, "--set", capacity, "--memory-margin", "0", "--top", 1).out
    assert "plan 1 needs 95.2 % of the memory of a GPU and fits with a probability of" in tight
    assert re.search(r"^1 .* GB  \d\d %  ", tight, re.MULTILINE)
    wrong = run("best", *even, "--memory-margin", "-0.1")
    assert wrong.code == 2
    assert "'--memory-margin': -0.1 is not a share from 0 to 1, as 0.1 for 10 %" in wrong.err
    nothing = run("best", *even, "--set", "cluster.device.hbm_capacity=1 kB")
    least = re.search(r"needs least memory needs ([0-9.]+) ([GM]B)", nothing.err)
    assert least is not None
    for capacity, helps in (("1 MB", False), (f"{1.02 * float(least[1])} {least[2]}", True)):
        nothing = run("best", *even, "--memory-margin", "1", "--set", f"cluster.device.hbm_capacity={capacity}")
        assert nothing.code == 3
        assert "with the memory margin of 1, and a GPU has" in nothing.err
        assert ("no margin (--memory-margin 0)" in nothing.err) == helps
        assert nothing.err.count("states no num_sms") == 1


@pytest.mark.slow
def test_several_jobs_are_ranked(run, folder):
    several = (*ONE[:4], *ONE[-2:], *FEW_EVEN, "--num-gpus", "8,16", "--global-batch-size", "32,64")
    data = json.loads(run("best", *several, "--json").out)
    assert len(data["plans"]) == 4 and data["objective"] == "tokens_per_s_per_gpu"
    done = run("best", *several, "--objective", "step_time_s")
    assert done.code == 0 and "ranked by step_time_s" in done.out
    for wrong, says in (
        (("--objective", "speed"), "unknown objective 'speed'"),
        (("--top", 3), "--top is about one job: give one of --num-gpus"),
        (("--train-tokens", "1T"), "one batch is wanted with --train-tokens"),
    ):
        done = run("best", *several, *wrong)
        assert (done.code, done.out) == (2, "") and says in done.err
    done = run("best", *ONE, "--objective", "mfu")
    assert done.code == 2 and "--objective is about several jobs" in done.err
    nothing = run("best", *several, "--set", "cluster.device.hbm_capacity=1 kB")
    assert nothing.code == 3 and "candidates fits" in nothing.err


# One strategy, and one value of what no limit here is about.
SINGLE = (
    "--strategy",
    "1d",
    *("--fix", "schedule=1f1b"),
    *("--fix", "zero_stage=1"),
    *("--fix", "recompute=none"),
    *FEW,
)


@pytest.mark.slow
def test_limits_are_repeated(run, folder):
    done = run("best", *JOB, *SINGLE, "--limit", "tp<=4", "--limit", "tp>=2", "--limit", "microbatch_size<8", "--json")
    data = json.loads(done.out)
    assert data["limit"] == {"tp": ["<=4", ">=2"], "microbatch_size": ["<8"]}
    assert {plan["plan"]["tp"] for plan in data["plans"]} <= {2, 4}
    said = run("best", *JOB, *SINGLE, "--limit", "tp<=4", "--fix", "pp=2").out.splitlines()
    fixed = "zero_replicas=1 stored_layers=0 offload=none"
    assert f"only schedule=1f1b zero_stage=1 recompute=none {fixed} pp=2; limit tp<=4" in " ".join(said)
    # Limits of a partition.
    job = (*JOB, "--strategy", "1d", "pp=2,4", "zero_stage=1", "--limit", "pp>2", *fixed.split())
    done = run("partition", *job, "--json")
    data = json.loads(done.out)
    assert (data["plan"]["pp"], data["limit"]) == (4, {"pp": [">2"]})
    assert f"\nonly pp=2,4 zero_stage=1 {fixed}; limit pp>2\n" in run("partition", *job).out
