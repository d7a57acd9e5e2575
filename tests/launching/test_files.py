"""Launch files: what each framework is told, at which head, and which plans it is not told."""

import ast
import json
import subprocess
from itertools import pairwise

import pytest
from verbs.small import model_of

import dsx
from dsx.errors import InputError, StoreError, UnknownNameError
from dsx.launching import LAUNCHED
from dsx.launching.writers import FRAMEWORKS

SPEC = model_of(
    [{"kind": "embedding"}, {"kind": "transformer", "options": ["rotary", "gated"], "count": 12}, {"kind": "head"}],
    {"e": 1024, "h": 8, "g": 4, "k": 128, "f": 4096, "v": 32000},
)
ROUTED = {"kind": "transformer", "options": ["rotary"], "ffn": "experts", "count": 12}
EXPERTS = SPEC | {
    "dimensions": SPEC["dimensions"] | {"x": 8, "topk": 2, "fx": 512, "capacity_percent": 100},
    "layers": [SPEC["layers"][0], SPEC["layers"][1] | {"count": 2}, ROUTED, SPEC["layers"][2]],
}
MEGATRON = "tp=2 pp=2 dp=4 zero_stage=1"


def job(spec=SPEC, cluster="h100-nvs8", **fields) -> dsx.Job:
    return dsx.Job(spec, cluster, num_gpus=16, global_batch_size=64, set=fields or None)


@pytest.fixture(scope="module")
def dense() -> dsx.LaunchFiles:
    return dsx.launch(job(), MEGATRON)


def plan_of(text: str) -> list[str]:
    """The words of the array PLAN of a script."""
    run = subprocess.run(
        ["bash", "-c", text.partition("torchrun ")[0].replace("set -euo pipefail", "") + 'printf "%s\\n" "${PLAN[@]}"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return run.stdout.splitlines()


def test_the_command_line_names_the_frameworks_that_have_writers():
    assert tuple(FRAMEWORKS) == LAUNCHED


def test_a_script_sets_what_was_priced_and_the_model(dense):
    words = plan_of(dense.files["launch.sh"])
    assert words == [
        *("--tensor-model-parallel-size", "2", "--sequence-parallel", "--context-parallel-size", "1"),
        *("--pipeline-model-parallel-size", "2", "--micro-batch-size", "1", "--global-batch-size", "64"),
        *("--seq-length", "2048", "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"),
        *("--bf16", "--grad-reduce-in-bf16", "--tp-comm-overlap", "--no-create-attention-mask-in-dataloader"),
        *("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", "native"),
        *("--cuda-graph-impl", "transformer_engine", "--cuda-graph-modules", "attn", "mlp", "--te-rng-tracker"),
    ]
    # The model is set too.
    text = dense.files["launch.sh"]
    for words in (
        "--num-layers 12",
        "--hidden-size 1024",
        "--num-query-groups 4",
        "--ffn-hidden-size 4096",
        "--swiglu",
    ):
        assert f"    {words}\n" in text
    assert "--vocab-size 32000" in text
    # The head says the plan the software and what is lost.
    head = dense.files["launch.sh"].partition("set -euo")[0]
    assert "small on 16 x h100-nvs8" in head
    assert "Assumed of the software (stack megatron-bridge-2026" in head
    assert "dispatch_latency 10 us" in head
    assert all(part[:40] in head for part in dense.lost)
    assert max(map(len, dense.files["launch.sh"].splitlines())) <= 120


def test_experts_and_latent_attention_are_launched_as_priced():
    found = plan_of(dsx.launch(job(EXPERTS), "dp=16 ep=8 zero_stage=1").files["launch.sh"])
    pairs = dict(pairwise(found))
    assert pairs["--moe-token-dispatcher-type"] == "flex"
    assert pairs["--moe-flex-dispatcher-backend"] == "deepep"
    assert pairs["--moe-router-dtype"] == "fp32"
    assert pairs["--moe-layer-freq"] == "[0]*2+[1]*12"
    assert {"--moe-grouped-gemm", "--moe-permute-fusion", "--overlap-moe-expert-parallel-comm"} <= {*found}
    blackwell = plan_of(dsx.launch(job(EXPERTS, "gb200-nvl72"), "dp=16 ep=8 zero_stage=1").files["launch.sh"].replace(
        "GPUS_PER_NODE:?", "GPUS_PER_NODE:-"))  # fmt: skip
    assert "hybridep" in blackwell
    # Latent attention with plain queries has no rank of queries.
    words = dsx.launch(job(LATENT), MEGATRON).files["launch.sh"]
    assert "--kv-lora-rank 256" in words
    assert "--q-lora-rank" not in words
    (script,) = (
        text
        for text in dsx.launch(job(LATENT), MEGATRON, framework="megatron-bridge").files.values()
        if "q_lora" in text
    )
    assert "q_lora_rank=None" in script


LATENT = SPEC | {
    "dimensions": {"e": 1024, "h": 8, "f": 4096, "v": 32000, "rkv": 256, "nope": 64, "rope": 32, "kv": 64},
    "layers": [
        SPEC["layers"][0],
        {"kind": "transformer", "options": ["gated", "plain_queries"], "attention": "latent-attention", "count": 12},
        SPEC["layers"][2],
    ],
}


def test_a_device_without_bf16_is_launched_in_fp16():
    recipe = dsx.launch(job(cluster="v100-32-nvs8"), "dp=16 zero_stage=1", framework="megatron-bridge").files[
        "recipe.py"
    ]
    assert "fp16=True" in recipe and "params_dtype=torch.float16" in recipe and "bf" not in recipe
    config = dsx.launch(job(cluster="v100-32-nvs8"), "dp=16 zero_stage=1", framework="deepspeed").files[
        "ds_config.json"
    ]
    assert '"fp16": {' in config and '"grad_accum_dtype": "fp16"' in config
    with pytest.raises(
        InputError, match="V100, whose numbers of 16 bits are FP16: TorchTitan has BF16; nearest: a device"
    ):
        dsx.launch(job(cluster="v100-32-nvs8"), "dp=16 zero_stage=2", framework="torchtitan")


@pytest.mark.parametrize(
    ("strategy", "option", "said"),
    [
        ("2d-ring", "sinks", "attention sinks with cp=2 by ring: Transformer Engine has them with all-to-alls"),
        ("2d", "sinks", "attention sinks with cp=2 by all-gather: "),
        ("2d-ring", "window", "attention to the last 128 positions with cp=2 by ring: "),
        ("2d", "window", None),
        ("ulysses", "sinks", None),
    ],
)
def test_attention_that_transformer_engine_refuses_beside_an_exchange_is_said(strategy, option, said):
    layer = SPEC["layers"][1] | {"options": [*SPEC["layers"][1]["options"], option]}
    spec = SPEC | {"dimensions": SPEC["dimensions"] | {"window": 128}}
    spec |= {"layers": [SPEC["layers"][0], layer, SPEC["layers"][2]]}
    plan = "cp=2 dp=8 zero_stage=1"
    lost = dsx.launch(job(spec), plan, strategy=strategy).lost
    assert [part for part in lost if said and part.startswith(said)] == [part for part in lost if "Engine has" in part]
    assert any("Engine has" in part for part in lost) == (said is not None)


@pytest.mark.slow
def test_sinks_gates_and_types_are_launched_as_priced():
    """A learned score of each head beside those of the keys (gpt-oss), in all layers or in none."""
    sinks = [layer | {"options": [*layer.get("options", []), "sinks"]} for layer in SPEC["layers"][1:2]]
    spec = SPEC | {"layers": [SPEC["layers"][0], *sinks, SPEC["layers"][2]]}
    assert "--softmax-type learnable" in dsx.launch(job(spec), "dp=16 zero_stage=1").files["launch.sh"]
    recipe = dsx.launch(job(spec), "dp=16 zero_stage=1", framework="megatron-bridge").files["recipe.py"]
    assert "softmax_type='learnable'" in recipe
    assert "--softmax-type" not in dsx.launch(job(), "dp=16 zero_stage=1").files["launch.sh"]
    some = [SPEC["layers"][0], *SPEC["layers"][1:2], *sinks, SPEC["layers"][2]]
    with pytest.raises(InputError, match="the option sinks of some of its layers"):
        dsx.launch(job(SPEC | {"layers": some}), "dp=16 zero_stage=1")
    # Experts without a gate are launched without one.
    layers = [EXPERTS["layers"][0], ROUTED | {"options": ["rotary", "squared_relu"]}, EXPERTS["layers"][3]]
    found = dsx.launch(job(EXPERTS | {"layers": layers}), "ep=4 dp=16 zero_stage=1").files["launch.sh"]
    assert "--squared-relu" in found
    assert "--swiglu" not in found
    mixed = [EXPERTS["layers"][1], *layers[1:]]
    with pytest.raises(InputError, match="another activation in some of its layers than in others"):
        dsx.launch(job(EXPERTS | {"layers": [EXPERTS["layers"][0], *mixed]}), "ep=4 dp=16 zero_stage=1")
    # Types of sharded gradients are set.
    found = plan_of(dsx.launch(job(), "dp=16 zero_stage=3").files["launch.sh"])
    pairs = dict(pairwise(found))
    assert pairs["--megatron-fsdp-main-grads-dtype"] == "bf16"
    assert pairs["--data-parallel-sharding-strategy"] == "optim_grads_params"
    # A recipe of 8 bits is set.
    found = plan_of(dsx.launch(job(**{"assumptions.linear_dtype": "fp8"}), MEGATRON).files["launch.sh"])
    assert found[found.index("--fp8-format") : found.index("--fp8-format") + 4] == [
        "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise",
    ]  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("spec", [SPEC, EXPERTS], ids=["dense", "experts"])
def test_every_framework_has_files_of_a_plan_that_all_run(framework, spec):
    # Without tensor parallelism both are the same plan.
    strategy = "1d-no-sp" if framework == "deepspeed" else "1d"
    plan = "dp=16 zero_stage=2 microbatch_size=2"
    found = dsx.launch(job(spec), plan, framework=framework, strategy=strategy)
    assert next(iter(found.files)) == "launch.sh"
    for name, text in found.files.items():
        if name.endswith(".py"):
            ast.parse(text)
        if name.endswith(".json"):
            assert json.loads(text)["zero_optimization"]["stage"] == 2
        if name.endswith(".sh"):
            subprocess.run(["bash", "-n", "-c", text], check=True)
        assert "small on 16 x h100-nvs8" in text


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_placement_that_ranks_in_order_do_not_have_is_said(framework):
    other = "tp=4 dp=4 zero_stage=2 nvs.tp=2 nvs.dp=4"
    strategy = "1d-no-sp" if framework == "deepspeed" else "1d"
    lost = dsx.launch(job(), other, framework=framework, strategy=strategy).lost
    assert [line for line in lost if line.startswith("the placement nvs.tp=2 nvs.dp=4 on fast domains of 8 GPUs")]


def test_recipes_say_stages_and_fusions():
    found = dsx.launch(job(), "pp=2 dp=8 zero_stage=2 schedule=1f1b", framework="torchtitan")
    text = found.files["recipe.py"]
    assert "for count in [6] * 2:" in text
    assert "pipeline_parallel_schedule='1F1B'" in text
    assert "local_batch_size=8," in text
    assert "gradients" not in " ".join(found.lost)  # it has them in FP32, and is priced so
    stated = dsx.launch(job(**{"assumptions.gradient_bytes": 2}), found.plan, framework="torchtitan")
    assert any("gradients of 2 bytes" in part for part in stated.lost)
    # Fusions of the arguments are set in the recipe.
    text = dsx.launch(job(), MEGATRON, framework="megatron-bridge").files["recipe.py"]
    for name in ("apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion"):
        assert f"        {name}=True,\n" in text
    layer = SPEC["layers"][1] | {"options": ["rotary"]}  # GELU, whose fusion needs a bias
    plain = SPEC | {"layers": [SPEC["layers"][0], layer, SPEC["layers"][2]]}
    assert (
        "bias_activation_fusion=False"
        in dsx.launch(job(plain), MEGATRON, framework="megatron-bridge").files["recipe.py"]
    )


@pytest.mark.parametrize(
    ("framework", "plan", "words"),
    [
        ("torchtitan", MEGATRON, ["zero_stage=1", "nearest: zero_stage=2"]),
        ("torchtitan", "dp=16 zero_stage=3 recompute=norms", ["recompute=norms", "nearest: recompute=none"]),
        ("megatron", "pp=2 dp=8 schedule=zb-h1 zero_stage=1", ["schedule=zb-h1", "nearest: schedule=1f1b"]),
        ("megatron-bridge", "pp=2 dp=8 zero_stage=3", ["zero_stage=3", "nearest: zero_stage=1"]),
        ("deepspeed", "pp=2 vpp=3 dp=8 zero_stage=1", ["vpp=3; nearest: vpp=1"]),
        ("deepspeed", "dp=16 zero_stage=3 zero_replicas=2", ["zero_replicas=2; nearest: zero_replicas=1"]),
    ],
)
def test_what_a_framework_cannot_run_is_said_with_the_nearest(framework, plan, words):
    with pytest.raises(InputError) as caught:
        dsx.launch(job(), plan, framework=framework)
    assert str(caught.value).startswith(f"{FRAMEWORKS[framework].title} cannot run the plan:")
    assert all(word in str(caught.value) for word in words)


@pytest.mark.slow
def test_what_a_framework_refuses_is_said():
    with pytest.raises(InputError, match="strategy=1d; nearest: strategy 1d-no-sp"):
        dsx.launch(job(), MEGATRON, framework="deepspeed", strategy="1d")
    # The head has the sources of a framework that states a field itself.
    head = dsx.launch(job(), MEGATRON, framework="megatron").files["launch.sh"].replace("\n# ", " ")
    assert "cross_entropy_bytes 8 (of the stack: 2): --cross-entropy-fusion-impl native" in " ".join(head.split())
    assert "set_in_runs" not in head
    # What megatron core refuses is said in the name of the framework.
    experts = dsx.Job("mixtral-8x7b", "h100-nvs8", num_gpus=16, global_batch_size=32)
    with pytest.raises(InputError) as caught:
        dsx.launch(experts, "tp=2 ep=2 pp=2 dp=4", framework="megatron-bridge", strategy="1d-no-sp")
    assert "sequence parallelism: Megatron-Bridge refuses them" in str(caught.value)
    # A sequence that ranks cannot share out.
    odd = job().replace(sequence_length=2052)
    with pytest.raises(InputError, match=r"multiple of 2 \* cp=4; nearest: sequence_length=2048"):
        dsx.launch(odd, "cp=4 dp=4 zero_stage=1", strategy="2d")
    # No gpus no launch.
    with pytest.raises(InputError, match="is programmed with xla; nearest: a device of cuda or rocm"):
        dsx.launch(job(cluster="tpu-v5p"), "dp=16 zero_stage=1")


@pytest.mark.parametrize(("framework", "part"), [("megatron", "sandwich"), ("torchtitan", "layer norms")])
def test_a_model_that_a_framework_has_not(framework, part):
    options = ["rotary", "gated", "sandwich", "layernorm"]
    spec = SPEC | {"layers": [SPEC["layers"][0], SPEC["layers"][1] | {"options": options}, SPEC["layers"][2]]}
    with pytest.raises(InputError, match=part):
        dsx.launch(job(spec), "dp=16 zero_stage=2", framework=framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("trained", "part"), [(["head.*", "wo"], "all but head.*, wo"), ([], "all of them")])
def test_a_framework_that_freezes_no_weights_starts_no_run_with_frozen_ones(framework, trained, part):
    frozen = job(SPEC | {"trained": trained})
    if framework == "deepspeed":
        found = dsx.launch(frozen, "dp=16 zero_stage=2", framework=framework)
        assert f"frozen weights, {part}: requires_grad=False" in found.left
    else:
        with pytest.raises(InputError) as caught:
            dsx.launch(frozen, "dp=16 zero_stage=2", framework=framework)
        assert f"frozen weights, {part}: " in str(caught.value)


def test_files_are_written_or_refused(tmp_path, dense):
    found = dsx.launch(job(), MEGATRON, out=tmp_path / "a" / "b")
    script = tmp_path / "a" / "b" / "launch.sh"
    assert script.read_text() == dense.files["launch.sh"]
    assert script.stat().st_mode & 0o100
    variables = "MEGATRON_LM=/path/of/Megatron-LM NODE_RANK=0 MASTER_ADDR=first-node"
    assert str(found).endswith(f"start it on each node with: {variables} bash {script}")
    assert found.to_data()["files"] == dense.files
    assert found.to_data()["lost"] == list(found.lost)
    # Wrong arguments.
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is no folder"):
        dsx.launch(job(), MEGATRON, out=tmp_path / "file" / "b")
    with pytest.raises(UnknownNameError, match="torchtitan"):
        dsx.launch(job(), MEGATRON, framework="torchtitam")
    with pytest.raises(InputError, match="a Job or the folder"):
        dsx.launch(7)


def test_names_keys_and_losses_of_files():
    spec = SPEC | {"name": "small\ntouch owned"}
    assert "\ntouch owned" not in dsx.launch(job(spec), MEGATRON).files["launch.sh"]
    # Torchtitan passes no keys around.
    with pytest.raises(InputError, match="strategy=2d-ring; nearest: strategy 1d, 1d-no-sp, 2d, 2d-no-sp"):
        dsx.launch(job(), "cp=4 dp=4 zero_stage=2", framework="torchtitan", strategy="2d-ring")
    # A loss of two bytes is priced as it runs unless it is stated.
    flags = dsx.evaluate(job(), MEGATRON).launch
    assert "cross_entropy_bytes" not in " ".join(flags.lost)
    stated = dsx.evaluate(job(**{"assumptions.cross_entropy_bytes": 2}), MEGATRON)
    flags, plan = stated.launch, stated.plan
    # Six bytes for each of 32,000 logits of a token, of which a GPU has a share.
    tokens = plan["microbatch_size"] * 2048 / plan["cp"] / plan["tp"]
    assert f"{6e-9 * 32000 * tokens:.1f} GB more on the GPUs that have the head" in " ".join(flags.lost)


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        ("dp=16 zero_stage=1", ""),
        ("dp=16 zero_stage=1 recompute=full", "recompute=full"),
        ("dp=16 zero_stage=3", "zero_stage=3"),
        ("dp=16 zero_stage=1 offload=activations", "offload=activations"),
    ],
)
def test_graphs_are_set_where_they_can_be_and_are_priced_there_alone(plan, what):
    found = dsx.launch(job(), plan)
    assert not [part for part in found.lost if "dispatch_latency" in part]
    assert ("--cuda-graph-impl" in plan_of(found.files["launch.sh"])) == (not what)
    # A latency that somebody states is priced for every plan.
    stated = dsx.launch(job(**{"assumptions.dispatch_latency": "10 us"}), plan)
    said = [part for part in stated.lost if "dispatch_latency" in part]
    assert [what in part for part in said] == [True] * bool(what)
    slow = dsx.launch(job(**{"assumptions.dispatch_latency": "30 us"}), plan)
    assert "cuda-graph" not in slow.files["launch.sh"]
    assert not [part for part in slow.lost if "dispatch_latency" in part]


@pytest.mark.parametrize(("overlap", "beside"), [(0.0, ["mlp"]), (0.3, [])])
def test_graphs_leave_the_experts_out_and_what_runs_beside_them(overlap, beside):
    found = dsx.launch(job(EXPERTS, **{"assumptions.ep_overlap": overlap}), "dp=16 ep=8 zero_stage=1")
    words = plan_of(found.files["launch.sh"])
    at = words.index("--cuda-graph-modules")
    assert words[at + 1 : words.index("--te-rng-tracker")] == ["attn", *beside, "moe_router", "moe_preprocess"]
    assert not found.lost


def test_what_is_priced_and_not_said_is_lost():
    fast = job(**{"assumptions.dispatch_latency": "10 us", "assumptions.attention_kernels": "flash-3"})
    titan = " ".join(dsx.launch(fast, "dp=16 zero_stage=2", framework="torchtitan").lost)
    deepspeed = dsx.launch(fast, "dp=16 zero_stage=0", framework="deepspeed", strategy="1d-no-sp")
    assert "flash-3" in titan
    assert "dispatch_latency" in titan
    assert "cross_entropy_bytes" in " ".join(deepspeed.left)
    assert "dispatch_latency" in " ".join(deepspeed.lost)
    assert "dp_overlap" not in " ".join(deepspeed.lost)  # priced without: overlap_comm is of ZeRO
    assert json.loads(deepspeed.files["ds_config.json"])["zero_optimization"]["overlap_comm"] is False
    # The overlap of experts has several connections.
    text = dsx.launch(job(EXPERTS), "tp=2 dp=8 ep=4 zero_stage=1").files["launch.sh"]
    assert "--overlap-moe-expert-parallel-comm" in text
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=32" in text
