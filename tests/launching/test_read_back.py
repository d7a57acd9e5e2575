"""Frameworks read their launch files back: their own parsers and configurations say which plan a file is.

They are packages of an environment of their own, which `make frameworks` makes. The readers run there, and share
nothing with the writers: what a plan should be is stated here once more.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from launching.random_plans import requests

import dsx
from dsx.launching.writers import FRAMEWORKS, launch_files, refused

pytestmark = pytest.mark.external

REPO = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("DSX_FRAMEWORKS", REPO / ".frameworks" / "bin" / "python"))
READERS = Path(__file__).parent / "readers"
COUNT = 250  # plans of each of two models and two seeds: 1,000
MODULES = {
    "core-attention": "core_attn", "norms": "layernorm", "latent-up-projection": "mla_up_proj",
    "expert-activation": "moe_act", "shared-experts": "shared_experts", "feed-forward": "mlp", "experts": "moe",
}  # fmt: skip
VARIABLES = ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER")
DRAWS = [(body, seed) for body in ("dense", "experts") for seed in (0, 1)]


def read(reader: str, job: object) -> list[dict]:
    if not PYTHON.exists():
        pytest.skip("no environment with the frameworks: `make frameworks` makes it, DSX_FRAMEWORKS names another")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, READERS / f"{reader}.py"], input=json.dumps(job), capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def written(body: str, seed: int, name: str) -> tuple[list, list]:
    framework = FRAMEWORKS[name]
    found = [one for one in requests(body, framework.limits, COUNT, seed) if not refused(framework, one)]
    assert len(found) > COUNT // 2
    return found, [launch_files(framework, one, ["a test"]).files for one in found]


@pytest.fixture
def started(tmp_path):
    """The arguments and the environment with which a script starts torchrun."""
    shim = tmp_path / "bin"
    shim.mkdir()
    (shim / "torchrun").write_text(
        '#!/bin/bash\nprintf "%s\\0" "$@" > "$RECORDED"\nenv -0 >> "$RECORDED.env"\n', encoding="utf-8"
    )
    (shim / "torchrun").chmod(0o755)

    def run(script: str, rank: int = 0) -> tuple[list[str], dict[str, str]]:
        record = tmp_path / "recorded"
        record.with_suffix(".env").unlink(missing_ok=True)
        env = os.environ | {
            "PATH": f"{shim}:{os.environ['PATH']}",
            "RECORDED": str(record),
            "MEGATRON_LM": ".",
            "NODE_RANK": str(rank),
        }
        subprocess.run(["bash", "-c", script], check=True, env=env)
        words = record.read_text().split("\0")[:-1]
        exported = dict(line.split("=", 1) for line in record.with_suffix(".env").read_text().split("\0")[:-1])
        return words, {name: exported[name] for name in VARIABLES if name in exported}

    return run


def layers_of(plan, body_layers=12) -> list[int]:
    """The body layers of each chunk."""
    chunks = plan["pp"] * plan["vpp"]
    if "stage_layers" in plan:
        return [size - (at == 0) - (at == chunks - 1) for at, size in enumerate(plan["stage_layers"])]
    if body_layers % chunks == 0:
        return [body_layers // chunks] * chunks
    return [(body_layers + 2) // chunks - (at in (0, chunks - 1)) for at in range(chunks)]


def modules(plan, experts: bool) -> list[str]:
    """The regions that are recomputed, of those that the layers have: attention is fused."""
    there = {"norms", "feed-forward"} | ({"experts", "expert-activation"} if experts else set())
    regions = there & {*plan["recompute"].split("+")}
    return ["core_attn"] if plan["recompute"] == "selective" else sorted(map(MODULES.get, regions))


def recomputed_core(plan, experts) -> dict:
    mode, stored = plan["recompute"], plan["stored_layers"]
    of_stage = 12 // plan["pp"]
    if mode == "full" and stored == of_stage:
        return {"recompute": None, "recompute_method": None, "recompute_layers": None}
    if mode == "full":
        count = of_stage - stored if stored else 1
        return {"recompute": "full", "recompute_method": "block" if stored else "uniform", "recompute_layers": count}
    return {
        "recompute": "selective" if modules(plan, experts) else None,
        "recompute_method": None,
        "recompute_layers": None,
    }


def core(request) -> dict:
    """What Megatron Core should have of a request."""
    run, shape = request.run, request.shape
    plan, assumed = run.plan, run.assumptions
    strategy, experts = plan["strategy"], shape.experts
    exchange = "p2p" if strategy == "2d-ring" else "all_gather" if strategy.startswith("2d") else "a2a"
    crosses = plan["ep"] > 1 or (strategy == "2d-expert-tp" and plan["tp"] > 1)
    flex = bool(experts) and crosses and assumed.dispatcher == "once_per_domain"
    shared = {
        name: plan[name] for name in ("tp", "cp", "ep", "pp", "microbatch_size", "global_batch_size", "sequence_length")
    }
    shared |= {name: plan[name] for name in ("zero_stage", "zero_replicas")} | recomputed_core(plan, bool(experts))
    experts_recomputed = plan["recompute"] not in ("none", "full") and "experts" in plan["recompute"].split("+")
    overlapped = plan["ep"] > 1 and assumed.ep_overlap > 0 and (plan["pp"] == 1 or plan["vpp"] > 1)
    return shared | {
        "vpp": plan["vpp"],
        "dp": plan["dp"],
        "order": plan["order"],
        "sequence_parallel": plan["tp"] > 1 and "no-sp" not in strategy,
        "expert_tp": plan["tp"] if strategy == "2d-expert-tp" and experts else 1,
        "modules": modules(plan, bool(experts)),
        "host_optimizer": plan["offload"] in ("optimizer", "both"),
        "host_layers": 10 if plan["offload"] in ("activations", "both") else 0,
        "weight_bytes": 2,
        "gradient_bytes": assumed.gradient_bytes,
        "narrow": "hybrid" if assumed.linear_dtype == "fp8" else None,
        "cp_comm_type": exchange if plan["cp"] > 1 else "p2p",
        "dispatcher": None if not experts else "flex" if flex else "alltoall",
        "backend": "deepep" if flex else None,
        "grouped": bool(experts),
        "tp_overlap": plan["tp"] > 1 and "no-sp" not in strategy and assumed.tp_overlap > 0,
        "ep_overlap": overlapped and plan["recompute"] != "full" and not experts_recomputed,
        # With two stages sends are always beside compute.
        "pp_overlap": plan["pp"] > 1 and plan["vpp"] > 1 and (assumed.pp_overlap > 0 or plan["pp"] == 2),
        "dp_overlap": plan["zero_stage"] > 1 or assumed.dp_overlap > 0,
        "chunks": layers_of(plan),
        "num_layers": 12,
        "hidden": 1024,
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 128,
        "width": 2048,
        "gated": True,
        "experts": 8 if experts else 0,
        "chosen": 2 if experts else 0,
        "expert_width": 512 if experts else 0,
        "with_experts": [0] * 4 + [1] * 8 if experts else [0] * 12,
        "biases": False,
        "norm": "RMSNorm",
        "qk_norm": False,
        "vocabulary": 50000,
    }


def check(found: list[dict], wanted: list[dict]) -> None:
    """Compare what both have, and say in which plan and what differs."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        differing = {name: (one[name], other[name]) for name in one if name in other and one[name] != other[name]}
        assert not differing, (differing, other)


def megatron_job(started, script: str) -> dict:
    words, environment = started(script)
    at = next(place for place, word in enumerate(words) if word.endswith("pretrain_gpt.py"))
    last = int(_after("--nnodes", words)) - 1
    # The last host may have fewer processes.
    ends, _ = started(script, last) if last else (words, environment)
    each, of_last = (int(_after("--nproc-per-node", host)) for host in (words, ends))
    return {"arguments": words[at + 1 :], "environment": environment, "num_gpus": last * each + of_last}


def _after(name: str, words: list[str]) -> str:
    return words[words.index(name) + 1]


@pytest.mark.parametrize(("body", "seed"), DRAWS)
def test_megatron_lm(body, seed, started):
    found, files = written(body, seed, "megatron")
    jobs = [megatron_job(started, texts["launch.sh"]) for texts in files]
    assert [job["num_gpus"] for job in jobs] == [request.run.plan["num_gpus"] for request in found]
    check(read("megatron_lm", jobs), [core(request) for request in found])


@pytest.mark.parametrize(("body", "seed"), DRAWS)
def test_megatron_bridge(body, seed, tmp_path):
    found, files = written(body, seed, "megatron-bridge")
    paths = [tmp_path / f"{number}.py" for number in range(len(files))]
    for path, texts in zip(paths, files, strict=True):
        path.write_text(texts["recipe.py"], encoding="utf-8")
    sizes = [one.run.plan["num_gpus"] for one in found]
    jobs = [{"path": str(path), "num_gpus": num_gpus} for path, num_gpus in zip(paths, sizes, strict=True)]
    check(read("megatron_bridge", jobs), [core(request) for request in found])


SCHEDULES = {"gpipe": "GPipe", "zb-h1": "InterleavedZeroBubble", "zb-v": "ZBVZeroBubble"}


def titan(request) -> dict:
    """What TorchTitan should have of a request."""
    plan = request.run.plan
    names = ("num_gpus", "tp", "cp", "ep", "pp", "dp", "microbatch_size", "num_microbatches", "global_batch_size")
    one = "Interleaved1F1B" if plan["vpp"] > 1 else "1F1B"
    pipelined = plan["pp"] > 1
    replicas = plan["dp"] if plan["zero_stage"] == 0 else plan["zero_replicas"]
    return {name: plan[name] for name in (*names, "sequence_length")} | {
        # Where every replica has all, there is nothing to gather.
        "zero_stage": 0 if replicas == plan["dp"] > 1 == plan["cp"] else 3 if plan["zero_stage"] == 3 else 2,
        "zero_replicas": replicas,
        "in_pipeline": plan["num_microbatches"] if pipelined else 1,
        "schedule": SCHEDULES.get(plan["schedule"], one) if pipelined else None,
        "sequence_parallel": plan["tp"] == 1 or "no-sp" not in plan["strategy"],
        "recompute": plan["recompute"],
        "vpp": plan["vpp"] if pipelined else 1,
        "chunks": layers_of(plan) if pipelined else [],
        "ends": ["tok_embeddings", ["norm", "lm_head"]] if pipelined else [],
        "layers": 12,
    }


@pytest.mark.parametrize(("body", "seed"), DRAWS)
def test_torchtitan(body, seed, tmp_path):
    found, files = written(body, seed, "torchtitan")
    # Converters to 8 bits ask for a GPU.
    kept = [(one, texts) for one, texts in zip(found, files, strict=True) if "Float8" not in texts["recipe.py"]]
    paths = [tmp_path / f"{number}.py" for number in range(len(kept))]
    for path, (_, texts) in zip(paths, kept, strict=True):
        path.write_text(texts["recipe.py"], encoding="utf-8")
    job = {"paths": [*map(str, paths)], "counted": False}
    check(read("torchtitan_recipe", job), [titan(request) for request, _ in kept])


@pytest.mark.parametrize(("body", "seed"), DRAWS)
def test_deepspeed(body, seed):
    found, files = written(body, seed, "deepspeed")
    configs = [json.loads(texts["ds_config.json"]) for texts in files]
    jobs = [{"config": config, "replicas": one.run.plan["dp"]} for config, one in zip(configs, found, strict=True)]
    names = ("dp", "microbatch_size", "num_microbatches", "global_batch_size", "zero_stage", "offload", "pp")
    wanted = [
        {name: one.run.plan[name] for name in names}
        | {
            "tp": one.run.plan["tp"] if one.run.plan["pp"] == 1 else 1,
            "weight_bytes": 2,
            # Without ZeRO they have the type of the weights.
            "gradients": "fp32" if one.run.plan["zero_stage"] and one.run.assumptions.gradient_bytes == 4 else "bf16",
            "overlap": one.run.plan["zero_stage"] == 3
            or (one.run.plan["zero_stage"] > 0 and bool(one.run.assumptions.dp_overlap)),
        }
        for one in found
    ]
    check(read("deepspeed_config", jobs), wanted)


# Plans of published models: latent attention, many stages and experts, which the random plans of small models lack.
PUBLISHED = (
    ("llama-3-70b", 512, 1024, "1d", "tp=8 pp=4 vpp=5 dp=16 zero_stage=1", {}),
    ("llama-3-405b", 1024, 512, "2d", "tp=8 cp=2 pp=16 vpp=4 dp=4 zero_stage=1 recompute=selective", {}),
    ("deepseek-v3", 1024, 8192, "1d", "pp=8 vpp=2 dp=128 ep=64 zero_stage=1 recompute=norms+latent-up-projection",
     {"assumptions.linear_dtype": "fp8"}),
    ("mixtral-8x7b", 256, 512, "1d", "tp=2 ep=8 dp=128 zero_stage=3 recompute=full stored_layers=8", {}),
    ("mixtral-8x7b", 256, 512, "2d-expert-tp", "tp=4 cp=2 ep=2 pp=2 dp=16 zero_stage=1 offload=optimizer", {}),
    ("llama-3-70b", 64, 128, "ulysses", "cp=8 dp=8 zero_stage=2 offload=activations", {}),
    ("llama-3-405b", 512, 512, "2d-ring", "tp=8 cp=2 pp=4 dp=8 zero_stage=1 recompute=core-attention+feed-forward",
     {"assumptions.gradient_bytes": 4}),
    ("llama-3-70b", 16, 128, "1d", "tp=8 dp=2 zero_stage=0", {"assumptions.dp_overlap": 0.0}),
    ("qwen3-235b-a22b", 256, 1024, "1d", "tp=2 ep=16 pp=2 dp=64 zero_stage=1 zero_replicas=2 recompute=experts",
     {"assumptions.dispatcher": "once_per_copy", "assumptions.linear_dtype": "fp8"}),
    ("llama-3-70b", 64, 128, "1d", "tp=8 dp=8 zero_stage=3 order=tp-cp-ep-pp-dp", {}),
)  # fmt: skip
# Fields that decide neither memory nor time, and with what a framework has them.
FREE = {
    *("optimizer.lr", "optimizer.min_lr", "optimizer.weight_decay", "optimizer.adam_beta2", "optimizer.muon_momentum"),
    *("model.init_method", "model.embedding_init_method", "model.output_layer_init_method"),
    *("model.inference_sampling_seed", "model.use_cpu_initialization", "optimizer.barrier_with_L1_time"),
    "model.use_te_rng_tracker",  # an argument of Megatron-LM
    "model.persist_layer_norm",  # of norms that are not Transformer Engine's
    *("ddp.use_custom_fsdp", "ddp.megatron_fsdp_use_decoupled_grad", "optimizer.store_param_remainders"),
    *("model.tensor_parallel_num_weight_shards", "model.expert_tensor_parallel_num_weight_shards"),
    *("model.num_layers_at_start_in_bf16", "model.num_layers_at_end_in_bf16", "model.wgrad_deferral_limit"),
    *("optimizer.optimizer_offload_fraction", "ddp.delay_wgrad_compute"),
    *("model.rope_type", "model.rotary_scaling_factor"),  # of the same width
    "ddp.bucket_size",  # how finely reductions are cut
    "model.cross_entropy_fusion_impl",  # the arguments of Megatron-LM refuse "te", as its file says
}
# Field -> what it is of, without which it has no use.
USED = {
    "model.fp8_recipe": ("model.fp8", "None"),
    "optimizer.fp8_recipe": ("model.fp8", "None"),
    "model.cp_comm_type": ("model.context_parallel_size", "1"),
    "model.batch_p2p_comm": ("model.pipeline_model_parallel_size", "1"),
    "ddp.data_parallel_sharding_strategy": ("ddp.use_megatron_fsdp", "False"),
}


def deciding(found: dict) -> dict:
    unused = {name for name, (owner, without) in USED.items() if found[owner] == without}
    return {name: value for name, value in found.items() if name not in FREE | unused}


def test_both_frameworks_on_megatron_core_are_told_the_same(started, tmp_path):
    scripts, recipes = [], []
    for number, (model, num_gpus, batch, strategy, plan, fields) in enumerate(PUBLISHED):
        job = dsx.Job(model, "h100-nvs8", num_gpus=num_gpus, global_batch_size=batch, set=fields or None)
        # An optimal cut where the layers do not divide.
        cut = "optimal" if "vpp" in plan and "pp=4" not in plan else None
        given = {"strategy": strategy, "partition": cut}
        script = dsx.launch(job, plan, **given).files["launch.sh"]
        scripts.append(megatron_job(started, script) | {"whole": True})
        path = tmp_path / f"{number}.py"
        path.write_text(
            dsx.launch(job, plan, framework="megatron-bridge", **given).files["recipe.py"], encoding="utf-8"
        )
        recipes.append({"path": str(path), "num_gpus": num_gpus, "whole": True})
    ours = [deciding(found) for found in read("megatron_lm", scripts)]
    check(ours, [deciding(found) for found in read("megatron_bridge", recipes)])
