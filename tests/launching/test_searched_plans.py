"""What a search answers for a framework with launch files, the framework runs: each of its three plans is launched."""

import pytest

import dsx
from dsx.errors import InputError, SpecError
from dsx.launching.writers import FRAMEWORKS

DENSE = {
    "name": "small",
    "source": "a test",
    "default_sequence_length": 2048,
    "dimensions": {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 4096, "v": 32000},
    "layers": [
        {"kind": "embedding"},
        {"kind": "transformer", "options": ["rotary", "gated"], "count": 6},
        {"kind": "head"},
    ],
}
# GPUs, sequences and tokens: long sequences on replicas of cp, a pipeline of odd depth, a length of odd factors.
JOBS = {"long": (16, 10, 65_536), "three": (12, 32, 8192), "odd": (8, 8, 12_300), "odder": (16, 4, 32_772)}


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", JOBS)
def test_each_of_the_three_plans_can_be_launched(framework, name):
    num_gpus, batch, length = JOBS[name]
    job = dsx.Job(DENSE, "h100-nvs8", num_gpus, batch, sequence_length=length)
    found = dsx.best(job, framework=framework)
    for plan in (found.plan, found.simplest, found.leanest):
        assert dsx.launch(job, plan, framework=framework).files


@pytest.mark.slow
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


def test_torchtitan_has_no_replicas_of_which_none_is_divided():
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


def of_attention(*options):
    body = {"kind": "transformer", "options": ["rotary", "gated", *options], "count": 6}
    sizes = DENSE["dimensions"] | ({"window": 128} if "window" in options else {})
    return DENSE | {"dimensions": sizes, "layers": [DENSE["layers"][0], body, DENSE["layers"][2]]}


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


def test_a_hybrid_has_no_all_to_alls_of_heads_alone():
    """DeepSpeed's own exchange is of attention; the states of other layers were gathered over cp."""
    found = dsx.evaluate(
        dsx.Job("nemotron-h-8b", "h100-nvs8", 8, 8), "cp=2 dp=4", strategy="ulysses", framework="deepspeed"
    )
    assert len(found.not_run) == 1
