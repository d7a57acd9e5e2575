"""Settings that frameworks check when they start: written otherwise they would refuse, or run another plan."""

import json

import pytest
from launching.test_files import EXPERTS, SPEC, job, plan_of

import dsx
from dsx.errors import InputError

LATENT = SPEC | {
    "dimensions": {"e": 1024, "h": 8, "f": 4096, "v": 32000, "rq": 256, "rkv": 128, "nope": 64, "rope": 32, "kv": 64},
    "layers": [
        SPEC["layers"][0],
        {"kind": "transformer", "attention": "latent-attention", "count": 12},
        SPEC["layers"][2],
    ],
}
FP8 = {"assumptions.linear_dtype": "fp8"}


def recipe(plan: str, spec=SPEC, framework="megatron-bridge", strategy=None, **fields) -> str:
    return dsx.launch(job(spec, **fields), plan, framework=framework, strategy=strategy).files["recipe.py"]


@pytest.mark.parametrize(("plan", "sharded"), [("dp=16 zero_stage=0", False), ("dp=16 zero_stage=1", True)])
def test_a_recipe_shards_the_optimizer_in_both_of_its_settings(plan, sharded):
    text = recipe(plan)
    assert f"cfg.optimizer.use_distributed_optimizer = {sharded}" in text
    assert f"cfg.ddp.use_distributed_optimizer = {sharded}" in text


def test_recipes_say_chunks_offload_and_latent_attention():
    plan = "pp=2 vpp=2 dp=8 zero_stage=1 stage_layers=3,4,4,3"
    text = recipe(plan)
    assert "pipeline_model_parallel_layout='Ett|t*4|t*4|ttL'" in text.replace("t*2", "tt")
    assert "virtual_pipeline_model_parallel_size=2," in text
    words = plan_of(dsx.launch(job(), plan).files["launch.sh"])
    assert "--num-virtual-stages-per-pipeline-rank" not in words
    assert "" not in dsx.evaluate(job(), plan).launch.arguments
    # A recipe switches the offload of activations on.
    text = recipe("dp=16 zero_stage=1 offload=activations")
    assert "cpu_offloading_num_layers=10," in text
    assert "cpu_offloading=True," in text
    # A recipe of latent attention frees and fuses as others do.
    text = recipe("dp=16 zero_stage=1", LATENT)
    for setting in (
        "deallocate_pipeline_outputs=True",
        "gradient_accumulation_fusion=can_enable_gradient_accumulation_fusion()",
        "apply_rope_fusion=True",
    ):
        assert f"        {setting},\n" in text
    assert "rope_type" not in text


@pytest.mark.parametrize(("plan", "said"), [("dp=16 zero_stage=3", False), ("pp=2 dp=8 zero_stage=1", True)])
def test_the_order_of_one_stage_is_not_said(plan, said):
    words = plan_of(dsx.launch(job(), f"{plan} order=tp-cp-ep-pp-dp").files["launch.sh"])
    assert ("--use-tp-pp-dp-mapping" in words) == said


@pytest.mark.parametrize(
    ("framework", "fragmentation"), [("megatron", 0.1), ("megatron", 0.18), ("torchtitan", 0.1), ("deepspeed", 0.1)]
)
def test_the_allocator_is_the_one_that_was_priced(framework, fragmentation):
    fields = {"assumptions.fragmentation": fragmentation}
    found = dsx.launch(job(**fields), "dp=16 zero_stage=3", framework=framework, strategy="1d-no-sp")
    line = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nexport NCCL_GRAPH_REGISTER=0\n"
    assert (line in found.files["launch.sh"]) == (fragmentation == 0.1)


def test_torchtitan_multiplies_experts_in_8_bits_and_ties_within_a_stage():
    once = {"assumptions.dispatcher": "once_per_domain"}
    text = recipe("dp=16 ep=8 zero_stage=2", EXPERTS, "torchtitan", **FP8, **once)
    assert "model = Float8LinearConverter" in text
    assert "model = Float8GroupedExpertsConverter" in text
    assert "comm_backend='hybridep'" in text
    assert "comm_backend='deepep'" in recipe("dp=16 ep=8 zero_stage=2", EXPERTS, "torchtitan", **once)
    assert "comm_backend='standard'" in recipe("dp=16 ep=8 zero_stage=2", EXPERTS, "torchtitan")
    # Torchtitan ties within a stage alone.
    ends = [SPEC["layers"][0], SPEC["layers"][1], {"kind": "head", "options": ["tied"]}]
    with pytest.raises(InputError, match=r"pp=2: TorchTitan ties .*; nearest: pp=1"):
        recipe("pp=2 dp=8 zero_stage=2", SPEC | {"layers": ends}, "torchtitan")


@pytest.mark.parametrize(("stage", "dtype"), [(0, "bf16"), (1, "fp32")])
def test_gradients_of_deepspeed_have_a_type_of_their_own_with_zero_alone(stage, dtype):
    wide = job(**{"assumptions.gradient_bytes": 4})
    found = dsx.launch(wide, f"dp=16 zero_stage={stage}", framework="deepspeed", strategy="1d-no-sp")
    assert json.loads(found.files["ds_config.json"])["data_types"] == {"grad_accum_dtype": dtype}
    assert any("gradients of 4 bytes" in part for part in found.lost) == (stage == 0)


def test_megatron_multiplies_the_head_in_16_bits_and_broken_plans_have_no_files(tmp_path):
    """As it is priced, unless a set says that it is in 8 bits too."""
    assert not any("multiplies of the head" in part for part in dsx.launch(job(**FP8), "dp=16 zero_stage=1").lost)
    said = dsx.launch(job(**FP8, **{"assumptions.sixteen_bit_weights": []}), "dp=16 zero_stage=1").lost
    assert [part for part in said if "multiplies of the head" in part] == [
        "multiplies of the head in 8 bits: Megatron-LM has them in 16 bits"
    ]
    # A plan that breaks rules has no files.
    with pytest.raises(InputError, match=r"no framework runs the plan:\n  layers_not_divisible: pp=8 .*nearest"):
        dsx.launch(job(), "pp=8 dp=2 zero_stage=1", out=tmp_path / "here")
    assert not (tmp_path / "here").exists()
    # Placed otherwise than is best, or too large, it runs all the same.
    assert dsx.launch(job(), "dp=16 zero_stage=1 nvs.dp=4").files
