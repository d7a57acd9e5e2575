"""Launch files as text, read as the plan and the software that they start: flags and settings alone.

Overlaps and graphs are switches. A file says whether they are on; how much an overlap hides, and how long an operator
takes to issue in a graph or without one, is stated here for each framework.
"""

import ast
import json
import re
from typing import NamedTuple

STAGES = {"optim_grads": 2, "optim_grads_params": 3}
REGIONS = {
    "core_attn": "core-attention", "layernorm": "norms", "mla_up_proj": "latent-up-projection",
    "moe_act": "expert-activation", "shared_experts": "shared-experts", "mlp": "feed-forward", "moe": "experts",
}  # fmt: skip


class Read(NamedTuple):
    """What a launch file starts."""

    num_gpus: int
    global_batch_size: int
    sequence_length: int
    strategy: str
    settings: dict[str, object]  # of a plan
    fields: dict[str, object]  # of an assumption set


def gpus_of(script: str) -> int:
    return int(re.search(r"^NUM_GPUS=(\d+)$", script, re.M)[1])


def flags_of(script: str) -> dict[str, list[str]]:
    """The flags of the arrays of a script, each with its words."""
    found: dict[str, list[str]] = {}
    for array in re.findall(r"^(?:MODEL|PLAN)=\(\n(.*?)^\)", script, re.M | re.S):
        for line in array.splitlines():
            flag, *words = line.replace("'", "").split()
            found[flag] = words
    return found


def megatron(files: dict[str, str]) -> Read:
    script = files["launch.sh"]
    flags, num_gpus = flags_of(script), gpus_of(script)

    def number(flag: str, default: int = 1) -> int:
        return int(flags[f"--{flag}"][0]) if f"--{flag}" in flags else default

    tp, cp, pp = (
        number("tensor-model-parallel-size"),
        number("context-parallel-size"),
        number("pipeline-model-parallel-size"),
    )
    micro, batch = number("micro-batch-size"), number("global-batch-size")
    layers, dp = number("num-layers"), num_gpus // (tp * cp * pp)
    layout = flags.get("--pipeline-model-parallel-layout", [""])[0]
    vpp = chunks_of(layout) // pp if layout else number("num-virtual-stages-per-pipeline-rank")
    settings: dict[str, object] = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "vpp": vpp, "ep": number("expert-model-parallel-size"),
        "microbatch_size": micro, "zero_replicas": number("num-distributed-optimizer-instances"),
    }  # fmt: skip
    if layout:
        settings["stage_layers"] = layout
    settings["zero_stage"] = int("--use-distributed-optimizer" in flags)
    if "--use-megatron-fsdp" in flags:
        settings["zero_stage"] = STAGES[flags["--data-parallel-sharding-strategy"][0]]
    if "--use-tp-pp-dp-mapping" in flags:
        settings["order"] = "tp-cp-ep-pp-dp"
    settings |= recomputed(flags, layers, pp, vpp)
    on_host = ("--optimizer-cpu-offload" in flags, "--cpu-offloading-num-layers" in flags)
    settings["offload"] = {(0, 0): "none", (1, 0): "optimizer", (0, 1): "activations", (1, 1): "both"}[on_host]
    fields = {
        "weight_bytes": 2 if "--bf16" in flags else 4,
        "gradient_bytes": 2 if "--grad-reduce-in-bf16" in flags else 4,
        "cross_entropy_bytes": 8 if "--cross-entropy-loss-fusion" in flags else 12,
        "linear_dtype": "fp8" if "--fp8-format" in flags else "bf16",
        "dispatcher": "once_per_domain" if flags.get("--moe-token-dispatcher-type") == ["flex"] else "once_per_copy",
        "tp_overlap": 0.8 if "--tp-comm-overlap" in flags else 0.0,
        "ep_overlap": 0.3 if "--overlap-moe-expert-parallel-comm" in flags else 0.0,
        # On by default with chunks, and never without.
        "pp_overlap": 0.8 if vpp > 1 and "--no-overlap-p2p-communication" not in flags else 0.0,
        "dp_overlap": 0.9 if "--overlap-grad-reduce" in flags else 0.0,
        "dispatch_latency": "10 us" if "--cuda-graph-impl" in flags else "20 us",
        "fragmentation": 0.1 if "expandable_segments:True" in script else 0.18,
    }
    return Read(num_gpus, batch, number("seq-length"), megatron_strategy(flags, tp, cp), settings, fields)


def megatron_strategy(flags: dict[str, list[str]], tp: int, cp: int) -> str:
    if cp > 1 and flags["--cp-comm-type"] == ["a2a"]:
        return "ulysses"
    if cp > 1 and flags["--cp-comm-type"] == ["p2p"]:
        return "2d-ring"
    if int(flags.get("--expert-tensor-parallel-size", ["1"])[0]) > 1:
        return "2d-expert-tp"
    plain = "2d" if cp > 1 else "1d"
    return plain if tp == 1 or "--sequence-parallel" in flags else f"{plain}-no-sp"


def recomputed(flags: dict[str, list[str]], layers: int, pp: int, vpp: int) -> dict[str, object]:
    granularity = flags.get("--recompute-granularity", ["none"])[0]
    if granularity == "selective":
        modules = flags.get("--recompute-modules", ["core_attn"])
        return {"recompute": "+".join(name for module, name in REGIONS.items() if module in modules)}
    if flags.get("--recompute-method") == ["block"]:
        count = int(flags["--recompute-num-layers"][0])
        return {"recompute": "full", "stored_layers": layers // pp - count * vpp}
    return {"recompute": granularity}


def chunks_of(layout: str) -> int:
    """Chunks of a layout of Megatron-LM, as in Et|(t|)*2L."""
    written = re.sub(r"\(([^)]*)\)\*(\d+)", lambda found: found[1] * int(found[2]), layout)
    return written.count("|") + 1


def torchtitan(files: dict[str, str]) -> Read:
    text = files["recipe.py"]
    said = {name: ast.literal_eval(value) for name, value in re.findall(r"^            (\w+)=([^\n]*),$", text, re.M)
            if re.fullmatch(r"-?[\d.]+|True|False|'[^']*'", value)}  # fmt: skip
    tp, cp, pp = (said[f"{axis}_parallel_degree"] for axis in ("tensor", "context", "pipeline"))
    shards, replicas = said["data_parallel_shard_degree"], said["data_parallel_replicate_degree"]
    schedule = said.get("pipeline_parallel_schedule", "1F1B")
    counts = re.search(r"for count in (.*):$", text, re.M)
    chunks = eval(counts[1]) if counts else []  # a product and sum of lists of numbers
    stage = 3 if said["fsdp_reshard_after_forward"] == "always" else 2
    divided = shards * cp > 1
    settings: dict[str, object] = {
        "tp": tp, "cp": cp, "pp": pp, "ep": said["expert_parallel_degree"], "dp": shards * replicas,
        "vpp": len(chunks) // pp if chunks else 1,
        "microbatch_size": said["pipeline_parallel_microbatch_size"] if pp > 1 else said["local_batch_size"],
        "zero_stage": stage if divided or replicas == 1 else 0,
        "zero_replicas": replicas if divided else 1,
        "schedule": {"GPipe": "gpipe", "InterleavedZeroBubble": "zb-h1", "ZBVZeroBubble": "zb-v"}.get(schedule, "1f1b"),
        "recompute": "full" if "activation_checkpoint=FullAC.Config()" in text else "none",
    }  # fmt: skip
    if len(set(chunks)) > 1:
        settings["stage_layers"] = ",".join(
            str(count + (at == 0) + (at == len(chunks) - 1)) for at, count in enumerate(chunks)
        )
    fields = {
        "weight_bytes": 2 if said["mixed_precision_param"] == "bfloat16" else 4,
        "gradient_bytes": 4 if said["mixed_precision_reduce"] == "float32" else 2,
        "cross_entropy_bytes": 2 if '"loss"' in text else 12,
        "dispatcher": "once_per_domain" if re.search("comm_backend='(deepep|hybridep)'", text) else "once_per_copy",
        "attention_kernels": "flash-2",
        "dispatch_latency": "15 us",
        "tp_overlap": 0.4 if "enable_async_tensor_parallel=True" in text else 0.0,
        "cp_overlap": 0.0,
        "ep_overlap": 0.0,
        "fragmentation": 0.1 if "expandable_segments:True" in files["launch.sh"] else 0.18,
    }  # fmt: skip
    plain = "2d" if cp > 1 else "1d"
    strategy = plain if tp == 1 or said["enable_sequence_parallel"] else f"{plain}-no-sp"
    return Read(gpus_of(files["launch.sh"]), said["global_batch_size"], said["seq_len"], strategy, settings, fields)


def deepspeed(files: dict[str, str], sequence_length: int) -> Read:
    found = json.loads(files["ds_config.json"])
    num_gpus = gpus_of(files["launch.sh"])
    # Degrees of the program are among the comments for who writes it.
    program = " ".join(line for line in found["_head"] if line.startswith("  - "))
    left = {name: int(value) for name, value in re.findall(r"- (tp|pp|ep)=(\d+)", program)}
    zero = found["zero_optimization"]
    tp, pp, cp = left.get("tp", 1), found.get("pipeline", {}).get("stages", 1), found.get("sequence_parallel_size", 1)
    layers = re.search(r"- pp=\d+ with ([\d,]+) layers", program)
    interval = found.get("pipeline", {}).get("activation_checkpoint_interval", 0)
    settings: dict[str, object] = {
        "tp": tp, "cp": cp, "pp": pp, "ep": left.get("ep", 1), "dp": num_gpus // (tp * pp * cp), "vpp": 1,
        "microbatch_size": found["train_micro_batch_size_per_gpu"],
        "zero_stage": zero["stage"],
        "offload": "optimizer" if "offload_optimizer" in zero else "none",
        "recompute": "full" if interval or "recompute=full" in program else "none",
    }  # fmt: skip
    if layers and len(set(layers[1].split(","))) > 1:
        counts = [*map(int, layers[1].split(","))]
        settings["stage_layers"] = ",".join(
            str(count + (at == 0) + (at == len(counts) - 1)) for at, count in enumerate(counts)
        )
    fields = {
        "weight_bytes": 2 if found["bf16"]["enabled"] else 4,
        "gradient_bytes": {"bf16": 2, "fp32": 4}[found["data_types"]["grad_accum_dtype"]],
        "cross_entropy_bytes": int(re.search(r"keeps (\d+) bytes per logit", program)[1]),
        "dispatcher": "once_per_copy",
        "dispatch_latency": "55 us",
        "tp_overlap": 0.0,
        "cp_overlap": 0.0,
        "ep_overlap": 0.0,
        # Of ZeRO 1 to 3; without ZeRO gradients are reduced after the backward.
        "dp_overlap": 0.7 if zero["overlap_comm"] and zero["stage"] else 0.0,
        "fragmentation": 0.1 if "expandable_segments:True" in files["launch.sh"] else 0.18,
    }
    strategy = "ulysses" if cp > 1 else "1d-no-sp"
    return Read(num_gpus, found["train_batch_size"], sequence_length, strategy, settings, fields)
