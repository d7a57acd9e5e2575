"""A search takes what its framework runs, under every strategy, each plan once, and says what the limits cost."""

import json
from dataclasses import replace

import pytest
from verbs.small import MODEL

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.config.framework_file import BoxSpec
from dsx.errors import SpecError, UnknownNameError
from dsx.plans.frameworks import broken, read_framework
from dsx.verbs.alternatives import Beyond, beyond_text
from dsx.verbs.searched import limits_broken

# ZeRO stages 1 and 3 without interleaved pipelines: a small space that no framework here runs all of.
USUAL = "vpp=1 recompute=none schedule=1f1b zero_replicas=1 stored_layers=0 offload=none"
FIX = f"zero_stage=1,3 {USUAL}"
LIMITED = ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "zero-bubble")
ZERO_STAGES = {"torchtitan": "zero_stage=3", "zero-bubble": "zero_stage=1"}  # where it does not run stages 1 and 3


@pytest.fixture(scope="module")
def job():
    model = MODEL | {"dimensions": MODEL["dimensions"] | {"g": 4}}
    return dsx.Job(model, "b200-nvs8", num_gpus=8, global_batch_size=8, assumptions="uncalibrated")


def steps(found):
    return [plan["step_time_s"] for plan in found.priced]


def identity(plan):
    return frozenset((name, value) for name, value in plan.items() if name not in ("strategy", "candidate"))


@pytest.fixture(scope="module")
def everything(job):
    return dsx.best(job, 100_000, fix=FIX, framework="any", partition="even")


@pytest.mark.slow
def test_every_strategy_is_searched_and_each_plan_once(job, everything):
    assert everything.searched.framework.unlimited and everything.beyond is None
    assert {plan["strategy"] for plan in everything.plans} == set(everything.strategies)
    assert set(everything.strategies) | set(everything.left_out) == set(dsx.names("strategies"))
    assert everything.left_out == {"2d-expert-tp": "each plan is also one of another strategy"}
    known = {}
    for plan, seconds in zip(everything.plans, steps(everything), strict=True):
        known.setdefault(identity(plan), []).append(seconds)
    for name in ("2d", "2d-ring", "2d-no-sp"):
        alone = dsx.best(job, 100_000, fix=FIX, framework="any", strategy=name, partition="even")
        for plan, seconds in zip(alone.plans, steps(alone), strict=True):
            assert pytest.approx(seconds, rel=1e-12) in known[identity(plan)]


@pytest.fixture(scope="module")
def limited(job):
    """The best plans of each framework with limits."""
    fixes = {name: FIX.replace("zero_stage=1,3", ZERO_STAGES.get(name, "zero_stage=1,3")) for name in LIMITED}
    return {name: dsx.best(job, 5, fix=fix, framework=name, partition="even") for name, fix in fixes.items()}


def unlimited(name):
    """A framework that runs every plan with the software of another one."""
    some = {"strategy": None, "without_experts": [], "fix": {}, "runs": [BoxSpec()], "cp_parts": None, "needs": []}
    return read_framework(name).model_copy(update=some)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LIMITED)
def test_a_framework_has_its_plans_of_all_and_is_compared_with_the_others(job, limited, name):
    boxes, found = read_framework(name).boxes(experts=False), limited[name]
    everything = dsx.best(job, 100_000, fix=FIX, framework=unlimited(name), partition="even")
    plans = zip(everything.plans, steps(everything), strict=True)
    inside = min(seconds for plan, seconds in plans if any(not broken(box, plan) for box in boxes))
    # Of a plan that several strategies have, the framework may run it under another one than the first.
    assert steps(everything)[0] <= steps(found)[0] <= inside * (1 + 1e-12)
    assert all(any(not broken(box, plan) for box in boxes) for plan in found.plans)
    if name not in ZERO_STAGES:  # the others were asked for more than these run
        least = min(steps(found)[0], found.beyond.step_time_s if found.beyond else float("inf"))
        assert least == pytest.approx(min(steps(one)[0] for one in limited.values()), rel=1e-12)


MINE = {"name": "mine", "description": "mine", "source": "mine", "strategy": ["1d"], "runs": [{"fix": {"pp": 4}}]}


@pytest.mark.slow
def test_what_the_limits_cost_is_a_line(job, limited):
    found = dsx.best(job, fix=FIX, framework=MINE, partition="even")
    other = found.beyond
    assert other is not None and other.saved is not None
    assert other.step_time_s == pytest.approx(min(steps(one)[0] for one in limited.values()), rel=1e-12)
    assert other.framework in LIMITED
    said = " ".join(str(found).split())  # lines of an answer fit a terminal
    line = said[said.index(f" {other.framework} with the software {other.stack} would take ") :]
    assert f", {100 * other.saved:.1f} % less (" in line
    choices = " ".join(f"{column}={value}" for column, value in other.limits.items())
    assert f" % less ({choices}, which mine does not run there: {other.plan.text})" in line
    data = json.loads(json.dumps(found.to_data()))
    assert data["framework"] == "mine" and data["strategies"] == ["1d"]
    assert data["beyond_framework"]["step_time_s"] == other.step_time_s
    assert data["beyond_framework"]["plan"]["candidate"] == other.plan["candidate"]
    free = dsx.best(job, fix=FIX, framework=MINE | {"strategy": None, "runs": [{}]}, partition="even")
    assert "would take" not in str(free) and "no plan of" not in str(free)
    same = dsx.best(job, fix=f"pp=4 zero_stage=1 {USUAL}", strategy="1d", framework=MINE, partition="even")
    assert same.beyond is None
    said = " ".join(str(same).split())
    assert "no plan of megatron, megatron-bridge or zero-bubble saves more than 0.1 %; --framework any" in said
    assert same.to_data()["compared_frameworks"] == ["megatron", "megatron-bridge", "zero-bubble"]
    alone = dsx.best(job, fix=f"pp=4 zero_stage=1 {USUAL}".replace("1f1b", "gpipe"), strategy="1d", framework=MINE)
    assert not alone.compared and "no other framework runs such plans" in str(alone)


def test_a_framework_of_the_same_software_is_faster_for_a_reason():
    job = dsx.Job("llama-3-8b", "h100-nvs8", 1, 8, sequence_length=2048)
    found = dsx.best(job, 1, fix="microbatch_size=2 offload=optimizer recompute=none stored_layers=0 zero_stage=1")
    other, said = found.beyond, " ".join(str(found).split())
    assert other is not None and other.stack == found.problem.assumptions_spec.stack and not other.limits
    source = read_framework("megatron-bridge").assume["cross_entropy_bytes"]["source"]
    assert f"({other.plan.text}): it has cross_entropy_bytes=2, megatron 8 ({source})" in said


@pytest.mark.slow
def test_optimal_cuts_have_the_same_limits(job):
    job = job.replace(set={"assumptions.searched_strategies": ["1d", "1d-no-sp"]})
    fix = f"zero_stage=1 {USUAL}"
    others = [dsx.best(job, fix=fix, framework=name) for name in ("megatron", "deepspeed")]
    within = dsx.best(job, fix=fix, framework=MINE)
    assert within.beyond is not None
    assert within.beyond.step_time_s == pytest.approx(min(steps(other)[0] for other in others), rel=1e-12)
    assert {plan["pp"] for plan in within.plans} == {4}
    cut = dsx.partition(job, fix, framework=MINE)
    assert cut.plan["pp"] == 4 and cut.to_data()["framework"] == "mine"
    assert cut.step_time_s == pytest.approx(min(steps(dsx.best(job, fix=fix, framework=MINE, partition="optimal"))))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"strategy": "summa"},
            r"^--strategy summa: framework 'megatron' does not run it \(it runs 1d, 1d-no-sp, .*\); nearest: frame",
        ),
        (
            {"fix": "schedule=zb-h1"},
            r"schedule: framework 'megatron' does not run schedule=zb-h1 \(it runs schedule 1f1b\); nearest: "
            "framework torchtitan$",
        ),
        (
            {"fix": "zero_stage=3 pp=2"},
            r"framework 'megatron' runs no plan with zero_stage=3 pp=2 together; nearest: framework torchtitan$",
        ),
    ],
)
def test_what_the_framework_does_not_run(job, settings, said):
    for verb in (dsx.best,) if "zb-h1" in said else (dsx.best, dsx.partition):  # which has no cut of zb-h1
        with pytest.raises(SpecError, match=said):
            verb(job, framework="megatron", **settings)


@pytest.mark.slow
def test_a_sweep_has_the_plans_of_its_framework(job):
    stated = {"model": job.model, "cluster": job.cluster, "num_gpus": 8, "global_batch_size": 8}
    usual = {"zero_replicas": 1, "stored_layers": 0, "offload": "none", "schedule": "1f1b"}
    stated |= {"assumptions": "uncalibrated", "fix": {"zero_stage": [1, 3], "vpp": 1, "recompute": "none"} | usual}
    stated |= {"keep": "feasible", "precision": "float64"}
    swept = dsx.sweep(stated)
    found = dsx.best(job, 100_000, fix=FIX, partition="even")
    assert sorted(swept.frame["step_time_s"]) == pytest.approx(steps(found), rel=1e-12)
    assert swept.left_out == {"2d-expert-tp": "each plan is also one of another strategy"}
    # Strategies that are named are compared: each has all its plans.
    both = dsx.sweep(stated | {"strategy": ["1d", "2d"]}).frame
    assert (both[both["strategy"] == "2d"]["cp"] == 1).any()
    everything = dsx.sweep(stated | {"framework": "any"})
    assert len(everything.frame) > len(swept.frame)
    with pytest.raises(SpecError, match=r"^sweep: strategy summa: framework 'megatron' does not run it"):
        dsx.sweep(stated | {"strategy": "summa"})
    with pytest.raises(SpecError, match=r"^sweep: fix: framework 'megatron' does not run schedule=gpipe"):
        dsx.sweep(stated | {"fix": {"schedule": "gpipe"}})
    with pytest.raises(UnknownNameError, match="unknown framework 'megatorn'"):
        dsx.sweep(stated | {"framework": "megatorn"})


@pytest.mark.slow
def test_frameworks_of_sets_and_gains(job):
    paper = dsx.best(job.replace(assumptions="paper-2410.00273"))
    assert paper.searched.framework.unlimited and paper.strategies == ("1d",)
    listed = job.replace(set={"assumptions.searched_strategies": ["2d", "1d"], "assumptions.framework": "torchtitan"})
    found = dsx.best(listed, fix="vpp=1 recompute=none zero_replicas=1 stored_layers=0 offload=none")
    assert found.searched.framework.name == "torchtitan" and set(found.strategies) <= {"1d", "2d"}
    with pytest.raises(SpecError, match=r"assumption set 'uncalibrated': searched_strategies: unknown strategy '3d'"):
        dsx.best(job.replace(set={"assumptions.searched_strategies": ["3d"]}))
    # Frameworks are listed.
    assert {"any", "deepspeed", "megatron", "megatron-bridge", "torchtitan", "zero-bubble"} <= {
        *dsx.names("frameworks")
    }
    # A gain below the resolution is none.
    found = dsx.best(job, 1, fix=f"pp=4 zero_stage=1 {USUAL}", strategy="1d", framework=MINE, partition="even")
    resolved = replace(found.problem, assumptions_spec=load_assumptions("default").run_by(found.searched.framework))
    searched = replace(found.searched, problem=resolved)  # measurements distinguish 18 %
    for saved, doubtful in ((0.1, True), (0.2, False)):
        other = Beyond(found.plan, 1.0, saved, {}, "another", None, "")
        said = beyond_text(searched, other, ["another"])
        assert (f"{100 * saved:.1f} % less, which measurements do not distinguish (" in said) is doubtful


def test_words_of_no_launch_files_are_an_error_before_a_search(job):
    with pytest.raises(SpecError, match="flags: no launch files have the words 'megatorn'; did you mean 'megatron'"):
        dsx.best(job, framework=MINE | {"flags": "megatorn"})
    with pytest.raises(SpecError, match="no launch files have the words"):
        str(dsx.evaluate(job, "pp=4 dp=2", framework=MINE | {"flags": "megatorn"}).launch)


COUNTED = "pp divides 8 layers, embedding and head counted as a layer each, and not the 6 alone"


def of_six_layers(framework, *, ends):
    layers, dimensions = [{"kind": "transformer", "count": 6}], MODEL["dimensions"]
    if ends:
        layers, dimensions = [{"kind": "embedding"}, *layers, {"kind": "head"}], dimensions | {"v": 32_000}
    model = MODEL | {"dimensions": dimensions, "layers": layers}
    return dsx.evaluate(dsx.Job(model, "b200-nvs8", num_gpus=4, global_batch_size=8), "pp=4", framework=framework)


@pytest.mark.parametrize("framework", ("megatron", "torchtitan"))
def test_only_plans_of_megatron_need_its_flags_to_count_embedding_and_head(framework):
    text = " ".join(str(of_six_layers(framework, ends=True)).split())
    assert COUNTED in text
    assert ("Megatron-LM needs --account-for-embedding-in-pipeline-split" in text) is (framework == "megatron")


def test_a_model_without_embedding_and_head_counts_neither():
    found = of_six_layers("megatron", ends=False)
    assert found.reject == ("layers_not_divisible",) and "embedding and head" not in str(found)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("name", LIMITED)
def test_each_plan_that_a_search_finds_is_one_that_the_framework_runs(job, name):
    # A plan that several strategies have is named by the first of them, which has to run it too.
    found = dsx.best(job, 10_000, framework=name, partition="even")
    not_run = [plan for plan in found.plans if limits_broken(found.searched.framework, False, plan)]
    assert found.plans and not not_run, not_run[:3]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "stages"), [([], {1, 2}), (["tied"], {1})], ids=["own head", "tied head"])
def test_torchtitan_ties_embedding_and_head_on_one_stage_alone(options, stages):
    layers = [{"kind": "embedding"}, {"kind": "transformer", "options": ["rotary", "gated"], "count": 4}]
    dimensions = {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 4096, "v": 32000}
    head = {"kind": "head", "options": options}
    model = {"name": "ends", "source": "a test", "default_sequence_length": 2048, "dimensions": dimensions}
    stated = dsx.Job(model | {"layers": [*layers, head]}, "h100-nvs8", 2, 8)
    found = dsx.best(stated, 1000, framework="torchtitan", fix="recompute=none vpp=1", limit="pp<=2", partition="even")
    assert {plan["pp"] for plan in found.plans} == stages
    dsx.launch(stated, found.plan, framework="torchtitan")


@pytest.mark.parametrize(
    ("framework", "plan", "settings", "choice"),
    [
        ("torchtitan", "tp=2 dp=4 zero_stage=1", {}, {"zero_stage": 1}),
        ("megatron", "pp=2 dp=4 schedule=zb-h1", {}, {"schedule": "zb-h1"}),
        ("torchtitan", "dp=8 zero_stage=3", {"assumptions.optimizer": "muon"}, {"assumptions.optimizer": "muon"}),
        ("megatron", "dp=8 zero_stage=1", {}, {}),
    ],
)
def test_a_priced_plan_says_that_its_framework_does_not_run_it(job, framework, plan, settings, choice):
    found = dsx.evaluate(job.replace(set=settings), plan, framework=framework)
    said = " ".join(f"{name}={value}" for name, value in choice.items())
    assert found.not_run == found.to_data()["not_run"] == choice
    assert (f"{framework} does not run this plan, for {said}." in str(found)) is bool(choice)


def test_a_priced_plan_names_the_framework_of_the_set_as_a_search_does(job):
    found = dsx.evaluate(job, "pp=2 dp=4 schedule=zb-h1")
    assert found.framework.name == found.to_data()["framework"] == "megatron"
    assert "megatron does not run this plan, for schedule=zb-h1." in str(found)
    assert "does not run" not in str(dsx.evaluate(job, "pp=2 dp=4"))
    everything = job.replace(set={"assumptions.framework": "any"})
    summa = dsx.evaluate(everything, "tp=2 tp2=2 dp=2", strategy="summa")
    assert summa.not_run == {} and "no framework runs summa (" in str(summa)


@pytest.mark.parametrize(
    ("framework", "stated", "filled"),
    [
        ("torchtitan", "tp=2 dp=4", {"zero_stage": 3}),
        ("torchtitan", "tp=2 dp=4 zero_stage=2", {"zero_stage": 2}),
        ("torchtitan", "tp=2 dp=4 zero_stage=1", {"zero_stage": 1}),  # stated, so it is an error to launch it
        ("megatron", "tp=2 dp=4", {"zero_stage": 1}),
        (None, "tp=2 dp=4", {"zero_stage": 1}),
    ],
)
def test_a_choice_that_a_plan_does_not_name_has_a_value_that_its_framework_runs(job, framework, stated, filled):
    found = dsx.evaluate(job, stated, framework=framework)
    assert {name: found.plan[name] for name in filled} == filled
    assert (found.not_run == {}) is ("zero_stage=1" not in stated)


@pytest.mark.slow
def test_what_a_framework_lacks_is_named(job):
    said = r"'torchtitan' runs no plan with assumptions.optimizer=muon \(it runs adam\); nearest: framework megatron$"
    with pytest.raises(SpecError, match=said):
        dsx.why(job.replace(set={"assumptions.optimizer": "muon"}), "dp=8 zero_stage=3", framework="torchtitan")
    # A search of a model whose head no axis divides.
    layers = [{"kind": "embedding"}, *MODEL["layers"], {"kind": "label-head"}]
    model = MODEL | {"dimensions": MODEL["dimensions"] | {"v": 4096, "classes": 3}, "layers": layers}
    found = dsx.best(dsx.Job(model, "b200-nvs8", num_gpus=8, global_batch_size=8), fix="pp=1 zero_stage=1")
    assert found.step_time_s == pytest.approx(dsx.evaluate(found.job, found.plan).step_time_s, rel=1e-9)
    lost = found.launch().lost
    assert "layers of the kind label-head: Megatron-LM's GPT model has none" in lost
    # Values that a framework runs are the nearest ones.
    job = dsx.Job(MODEL, "h100-nvs8", num_gpus=16, global_batch_size=32, sequence_length=1000)
    with pytest.raises(SpecError, match=r"does not run cp=16 \(it runs cp 5, 10, 20, 25, and 8 more\)"):
        dsx.best(job, fix="cp=16", framework="torchtitan")


@pytest.mark.slow
def test_what_leaves_no_plan_of_a_framework_that_lacks_the_defaults_is_named():
    """No setting was named under TorchTitan, which has no ZeRO stage 1, whatever was fixed."""
    job = dsx.Job(MODEL, "h100-nvs8", num_gpus=16, global_batch_size=32)
    for fix, said in (
        ("microbatch_size=64", "microbatch_size = 64: microbatch_size divides the sequences of a replica"),
        ("dp=16 cp=1 zero_replicas=16", "zero_replicas = 16: zero_replicas divides dp"),
    ):
        assert said in dsx.best(job, fix=fix, framework="torchtitan").infeasible
    tied = MODEL | {"dimensions": MODEL["dimensions"] | {"v": 1024}}
    tied |= {"layers": [{"kind": "embedding"}, *MODEL["layers"], {"kind": "head", "options": ["tied"]}]}
    ten = job.replace(model=tied, num_gpus=10, global_batch_size=16)
    found = dsx.best(ten, framework="torchtitan", partition="even")
    assert "and 2d-no-sp, as torchtitan runs them, leave no combination of degrees" in found.infeasible
