"""Plans that searches find can be launched, and files are priced as the plans."""

from dataclasses import replace

import pytest
from launching import flag_readers
from launching.random_plans import ASSUMED, DEVICE, problem_of, requests
from laws.spaces import SYSTEM
from priced import evaluate_plan
from validation.cases import cluster_spec
from verbs.small import model_of

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.errors import InputError, SpecError
from dsx.launching.request import run_of
from dsx.launching.writers import FRAMEWORKS, launch_files, refused
from dsx.plans.frameworks import read_framework
from dsx.plans.violations import for_plan
from dsx.pricing.one_plan import price_plan
from dsx.pricing.problem import make_problem

DENSE = model_of(
    [{"kind": "embedding"}, {"kind": "transformer", "options": ["rotary", "gated"], "count": 6}, {"kind": "head"}],
    {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 4096, "v": 32000},
)
# GPUs, sequences and tokens: long sequences on replicas of cp, a pipeline of odd depth, a length of odd factors.
JOBS = {"long": (16, 10, 65_536), "three": (12, 32, 8192), "odd": (8, 8, 12_300), "odder": (16, 4, 32_772)}


@pytest.mark.sampled(0, 5)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", JOBS)
def test_each_of_the_three_plans_can_be_launched(framework, name):
    num_gpus, batch, length = JOBS[name]
    job = dsx.Job(DENSE, "h100-nvs8", num_gpus, batch, sequence_length=length)
    found = dsx.best(job, framework=framework)
    for plan in (found.plan, found.simplest, found.leanest):
        assert dsx.launch(job, plan, framework=framework).files


@pytest.mark.sampled(0, 5)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("model", "cluster", "num_gpus", "batch", "length"),
    [
        ("llama-3-8b", "mi300x-xgmi8", 96, 1024, 8192),
        ("llama-3-8b", "mi300x-xgmi8", 64, 1000, 16384),
        ("qwen3-30b-a3b", "h100-nvs8", 16, 64, 4096),
        ("llama-3-8b", "h100-nvs8", 8, 16, 131072),
        ("llama-2-7b", "h100-nvs8", 12, 24, 4096),
    ],
)
def test_plans_of_published_models_can_be_launched(framework, model, cluster, num_gpus, batch, length):
    job = dsx.Job(model, cluster, num_gpus, batch, sequence_length=length)
    found = dsx.best(job, framework=framework)
    for plan in (found.plan, found.simplest, found.leanest):
        assert dsx.launch(job, plan, framework=framework).files


@pytest.mark.slow
def test_torchtitan_divides_sequences_into_equal_parts():
    job = dsx.Job(DENSE, "h100-nvs8", 16, 16, sequence_length=32_772)  # 4 * 8193
    for strategy, plan, not_run in [
        ("1d", "tp=4 dp=4", {}),
        ("1d", "tp=8 dp=2 microbatch_size=2", {"tp": 8}),
        ("1d-no-sp", "tp=8 dp=2 microbatch_size=2", {}),
        ("2d", "cp=2 dp=8", {}),
        ("2d", "tp=2 cp=2 dp=4", {"cp": 2}),
        ("2d-no-sp", "tp=2 cp=2 dp=4", {}),
    ]:
        found = dsx.evaluate(job, plan, strategy=strategy, framework="torchtitan")
        assert found.not_run == not_run, plan
        if not_run:
            with pytest.raises(InputError, match="sequence_length=32772, which must be a multiple of"):
                dsx.launch(job, found.plan, framework="torchtitan")
        else:
            dsx.launch(job, found.plan, framework="torchtitan")
    found = dsx.best(job, 1000, fix="zero_stage=3 recompute=none zero_replicas=1 vpp=1", framework="torchtitan")
    of_sp = [plan for plan in found.plans if plan["strategy"] in ("1d", "2d") and plan["tp"] > 1]
    assert of_sp and all(plan["tp"] * plan["cp"] in (2, 4) for plan in of_sp)


@pytest.mark.slow
def test_plans_that_a_framework_cannot_have():
    job = dsx.Job(DENSE, "h100-nvs8", 16, 32)
    whole, within_cp = "tp=2 dp=8 zero_stage=2 zero_replicas=8", "cp=2 dp=8 zero_stage=2 zero_replicas=8"
    assert dsx.evaluate(job, whole, framework="torchtitan").not_run == {"zero_replicas": 8}
    with pytest.raises(InputError, match="zero_replicas=8; nearest: zero_replicas<dp"):
        dsx.launch(job, whole, framework="torchtitan")
    assert dsx.evaluate(job, within_cp, strategy="2d", framework="torchtitan").not_run == {}
    files = dsx.launch(job, within_cp, strategy="2d", framework="torchtitan").files
    assert "data_parallel_replicate_degree=8,\n            data_parallel_shard_degree=1," in files["recipe.py"]
    fix = "zero_replicas=8 dp=8 recompute=none zero_stage=2 vpp=1"
    assert dsx.best(job, fix=fix, framework="torchtitan").plan["cp"] > 1
    # DeepSpeed's own exchange is of attention; the states of other layers were gathered over cp.
    found = dsx.evaluate(
        dsx.Job("nemotron-h-8b", "h100-nvs8", 8, 8), "cp=2 dp=4", strategy="ulysses", framework="deepspeed"
    )
    assert len(found.not_run) == 1


def of_attention(*options):
    body = {"kind": "transformer", "options": ["rotary", "gated", *options], "count": 6}
    sizes = DENSE["dimensions"] | ({"window": 128} if "window" in options else {})
    return DENSE | {"dimensions": sizes, "layers": [DENSE["layers"][0], body, DENSE["layers"][2]]}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "run"),
    [((), {"2d", "2d-ring", "ulysses"}), (("window",), {"2d", "ulysses"}), (("sinks",), {"ulysses"})],
)
def test_context_parallelism_is_by_what_attention_has_beside_its_options(options, run):
    """A ring won a search, and Transformer Engine refuses it."""
    job = dsx.Job(of_attention(*options), "h100-nvs8", 8, 8)
    for strategy in ("2d", "2d-ring", "ulysses"):
        evaluated = dsx.evaluate(job, "cp=2 dp=4", strategy=strategy, framework="megatron")
        assert (evaluated.not_run == {}) == (strategy in run)
        lost = dsx.launch(job, "cp=2 dp=4", strategy=strategy).lost
        assert any("Transformer Engine has them" in part for part in lost) == (strategy not in run)
    fix = "tp=1 cp=2 pp=1 recompute=none offload=none zero_stage=1"
    found = dsx.best(job, 100, fix=fix, framework="megatron")
    assert {plan["strategy"] for plan in found.plans} == run
    if options == ("sinks",):
        with pytest.raises(SpecError, match=r"does not run cp=2 \(it runs cp 1\)"):
            dsx.best(job, fix=fix, strategy="2d-ring", framework="megatron")


COUNT = 100  # plans of each framework and model
READERS = {
    "megatron": flag_readers.megatron,
    "torchtitan": flag_readers.torchtitan,
    "deepspeed": lambda files: flag_readers.deepspeed(files, 2048),
}
COSTS = ("step_time_s", "peak_bytes", "weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")


def priced_and_read(name, body, seed=3):
    """Plans with their price under the framework's software, and with the files that start them."""
    framework = FRAMEWORKS[name]
    own = ASSUMED.run_by(read_framework(framework.limits))
    spec, _ = problem_of(body, framework.limits)
    for request in requests(body, framework.limits, COUNT, seed):
        plan = request.run.plan
        if plan["num_gpus"] % 8:  # whole nodes
            continue
        problem = make_problem(spec.model, cluster_spec(SYSTEM), own, [plan["strategy"]])
        run = run_of(plan, problem.models[0], for_plan(problem.assumptions_spec, plan.codes), DEVICE)
        own_request = replace(request, run=run)
        if refused(framework, own_request):
            continue
        files = launch_files(framework, own_request, ["a test"])
        if any(part.startswith("the placement") for part in files.lost):
            continue  # domains cut its groups unevenly
        yield plan, price_plan(problem, plan), files, spec.model


@pytest.mark.sampled(0, 2)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("body", ["dense", "experts"])
def test_launch_files_are_priced_as_they_run(name, body):
    compared = 0
    for plan, priced, files, model in priced_and_read(name, body):
        assert not files.lost, plan
        read = READERS[name](files.files)
        if read.strategy != plan["strategy"] and (1 in (plan["tp"], plan["cp"]) or body == "dense"):
            continue  # groups of one and experts that are not there leave no trace: searches have the other strategy
        assert read.strategy == plan["strategy"]
        stack = read_framework(name).stack
        stated = [
            ("stack", stack),
            ("framework", "any"),
            *((field, str(value)) for field, value in read.fields.items()),
        ]
        assumed = load_assumptions("uncalibrated", stated)
        assumed = assumed.model_copy(update={"conditions": type(assumed.conditions)()})
        problem = make_problem(model, cluster_spec(SYSTEM), assumed, [read.strategy])
        settings = [f"{column}={value}" for column, value in read.settings.items()]
        again = evaluate_plan(problem, settings, read.num_gpus, read.global_batch_size)
        if again.plan["ep_nvs"] != plan["ep_nvs"]:
            continue  # drawn, and not that of the order of ranks
        for cost in COSTS:
            assert again.costs[cost] == pytest.approx(priced.costs[cost], rel=1e-9), (cost, plan, settings)
        compared += 1
    assert compared > COUNT // 8
