"""A recipe of TorchTitan: a Python function that returns its Trainer.Config.

TorchTitan reads no TOML any more, and each of its models is a tree of configurations. The recipe builds a tree of the
sizes that were priced from the parts that all its models share: layers of grouped-query attention with gated
feed-forward networks or experts are those of its Qwen 3, multi-head latent attention is that of its DeepSeek-V3.

Sources: torchtitan 0.3.0 (config/configs.py, trainer.py, models/common, distributed/pipeline_parallel.py and
activation_checkpoint.py). With a pipeline local_batch_size is that of a step on one replica, else that of a microbatch.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from dsx.config.cluster_file import GENERATIONS
from dsx.config.model_file import ModelSpec
from dsx.launching.hosts import other_placement, script
from dsx.launching.megatron_settings import ungraphed
from dsx.launching.request import (
    GATED,
    HYBRID_EP,
    SCRIPT,
    Architecture,
    LaunchRun,
    LaunchSettings,
    Refused,
    Request,
    WrittenLaunch,
    allocator_variables,
    architecture_of,
    commented,
    exported,
    lost_lines,
    template,
    uneven_sequence,
    uneven_weights,
)
from dsx.notation.sharded_layer import ALL_GATHER
from dsx.plans.placement import ORDERS
from dsx.text import Data

NAME = "TorchTitan"
NEEDS = ("TORCHTITAN=/path/of/torchtitan",)
_RECIPE = "recipe.py"
# Schedule -> its name with one chunk per stage, and with several.
_SCHEDULES = {
    "1f1b": ("1F1B", "Interleaved1F1B"),
    "gpipe": ("GPipe", None),
    "zb-h1": ("InterleavedZeroBubble", None),
    "zb-v": (None, "ZBVZeroBubble"),
}
_ELSEWHERE = "the framework megatron"


def refused(request: Request) -> list[Refused]:
    """Return what TorchTitan cannot run of a plan, beyond the columns that its file in data/frameworks limits."""
    run, shape = request.run, request.shape
    kinds = {kind for kind, _ in run.exchanges}
    tp, cp, pp = run.number("tp") if run.sequence_parallel else 1, run.number("cp"), run.number("pp")
    parts = [Refused(part.format(NAME), "tensor parallelism over one axis") for part in run.foreign]
    if cp > 1 and kinds - {ALL_GATHER}:
        gathers = f"context parallelism by {' and '.join(sorted(kinds))}: {NAME} gathers keys and values"
        parts.append(Refused(gathers, "a strategy that gathers them over cp"))
    parts += uneven_sequence(run, tp * (2 * cp if cp > 1 else 1), f"tp={tp} and of 2 * cp={cp}")
    if pp > 1 and _schedule(run) is None:
        parts.append(Refused(f"schedule={run['schedule']} with vpp={run['vpp']}", "schedule=1f1b"))
    if shape.tied and pp > 1:
        parts.append(Refused(f"pp={pp}: {NAME} ties embedding and head of one stage alone", "pp=1"))
    if run.experts is not None and run.experts.tp > 1:
        parts.append(Refused(f"experts divided by tp={run.experts.tp}", "experts divided by ep alone"))
    return parts


def no_model(shape: Architecture) -> list[Refused]:
    """Return what no model of the parts has."""
    experts = shape.experts
    parts = {
        "layer norms": shape.layernorm,
        "learned positions": shape.positions is not None,
        "no rotary positions": not shape.rotary and shape.positions is None,
        f"the activation {shape.activation}": shape.activation != GATED,
        "biases of multiplies": shape.qkv_bias or shape.bias or bool(experts and experts.biased),
        "dropout": shape.dropout or shape.residual_dropout,
        f"attention to the last {shape.window} positions": shape.window is not None,
        "attention to all positions": not shape.causal,
        "multi-token prediction": shape.predictions > 0,
        "no embedding": shape.vocabulary is None,
    }
    lacking = [*shape.unusual, *(part for part, present in parts.items() if present)]
    by_program = [Refused(f"{shape.frozen}: {NAME} trains all", "the framework deepspeed")] if shape.frozen else []
    return [*(Refused(f"{part}: no model of {NAME} has that", _ELSEWHERE) for part in lacking), *by_program]


def _schedule(run: LaunchRun) -> str | None:
    single, several = _SCHEDULES.get(str(run["schedule"]), (None, None))
    return several if run.number("vpp") > 1 else single


def settings(run: LaunchRun, spec: ModelSpec) -> LaunchSettings:
    """Return the settings of a run as fields of TorchTitan's Trainer.Config."""
    shape = architecture_of(spec, run.assumptions)
    words = LaunchSettings((), (), framework="torchtitan", title=f"{NAME} settings")
    if refusals := [*refused(Request(run, shape, "", run.number("num_gpus"))), *no_model(shape)]:
        return replace(words, lost=tuple(part for part, _ in refusals), none_since=f"{NAME} cannot run it")
    return replace(words, lost=tuple(_lost(run, shape)), configuration=_configuration(run))


def write(request: Request, head: list[str]) -> WrittenLaunch:
    """Return the recipe, and the script that starts it."""
    run, shape = request.run, request.shape
    lost, configuration = tuple(_lost(run, shape)), _configuration(run)
    package = "torchtitan.models.deepseek_v3" if shape.latent else "torchtitan.models.qwen3"
    model = "DeepSeekV3" if shape.latent else "Qwen3"
    text = template("torchtitan_recipe.txt").format(
        head=commented([*head, *lost_lines(NAME, lost)]),
        package=package,
        family=package.rpartition(".")[2],
        model=model,
        parallelize=f"parallelize_{model.lower()}",
        attention_import=", make_mla_attention_config" if shape.latent else "",
        attention=_attention(shape),
        feed_forward=_feed_forward(run, shape),
        num_layers=shape.num_layers,
        dim=shape.hidden,
        vocabulary=shape.vocabulary,
        tied=shape.tied,
        with_experts=_runs_of([int(has) for has in shape.with_experts]),
        rope_dim=shape.latent.rope if shape.latent else shape.head_dim,
        sequence_length=run["sequence_length"],
        rope="ComplexRoPE" if shape.latent else "CosSinRoPE",
        converters=_converters(run),
        training=_arguments(configuration["training"]),
        parallelism=_arguments(configuration["parallelism"]),
        checkpointing=configuration["activation_checkpoint"],
        components=json.dumps(configuration["compile"]["components"]),
        asynchronous=configuration["compile"]["enable_async_tensor_parallel"],
        stages=_stages(run),
    )
    assets = template("torchtitan_assets.txt")  # paths are resolved before the script changes into its folder
    start = (
        f"{exported(allocator_variables(run))}\n"
        f'{assets}cd "$(dirname "$0")"\nPYTHONPATH=. torchrun "${{HOSTS[@]}}" -m torchtitan.train --module recipe '
        '--config recipe "$@"\n'
    )
    return WrittenLaunch({SCRIPT: script([head[0], request.title], request, start), _RECIPE: text}, lost)


def _configuration(run: LaunchRun) -> Data:
    """Return the fields of Trainer.Config that a plan sets, by section."""
    dp, tp, pp, microbatch = (run.number(name) for name in ("dp", "tp", "pp", "microbatch_size"))
    assumptions, replicas = run.assumptions, dp if run.number("zero_stage") == 0 else run.number("zero_replicas")
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": dp // replicas,
        "fsdp_reshard_after_forward": "always" if run.number("zero_stage") == 3 else "never",
        "tensor_parallel_degree": tp,
        "enable_sequence_parallel": tp == 1 or run.sequence_parallel,
        "context_parallel_degree": run.number("cp"),
        "expert_parallel_degree": run.number("ep"),
        "pipeline_parallel_degree": pp,
    }
    if pp > 1:
        parallelism["pipeline_parallel_schedule"] = _schedule(run)
        parallelism["pipeline_parallel_microbatch_size"] = microbatch
    training = {
        "local_batch_size": microbatch * (run.number("num_microbatches") if pp > 1 else 1),
        "global_batch_size": run.number("global_batch_size"),
        "seq_len": run.number("sequence_length"),
        "dtype": "float32",  # of the optimizer's weights
        "mixed_precision_param": "bfloat16" if assumptions.weight_bytes == 2 else "float32",
        "mixed_precision_reduce": "float32",
    }
    components = ["model", "loss"] if assumptions.cross_entropy_bytes <= 2 else ["model"]
    asynchronous = tp > 1 and assumptions.tp_overlap > 0
    return {
        "training": training | {"disable_cuda_graphs": True, "steps": 50},
        "parallelism": parallelism,
        "compile": {"components": components, "enable_async_tensor_parallel": asynchronous},
        "activation_checkpoint": "FullAC.Config()" if run["recompute"] == "full" else "None",
    }


def _stages(run: LaunchRun) -> str:
    """Return the layers of each stage, which TorchTitan would divide by a rule of its own."""
    if run.number("pp") == 1:
        return ""
    return (
        f"\n    first = 0\n    stages = []\n    for count in {_runs_of(run.chunk_layers)}:\n"
        '        stages.append([f"layers.{layer}" for layer in range(first, first + count)])\n'
        "        first += count\n"
        '    stages[0].insert(0, "tok_embeddings")\n    stages[-1] += ["norm", "lm_head"]\n'
        "    config.parallelism.module_fqns_per_model_part = stages"
    )


def _runs_of(counts: list[int]) -> str:
    """Return a list as Python, runs of equal numbers as products."""
    return " + ".join(f"[{value}] * {len([*equal])}" for value, equal in groupby(counts))


def _attention(shape: Architecture) -> str:
    latent = shape.latent
    if latent is not None:
        ranks = {"q_lora_rank": latent.query_rank or 0, "kv_lora_rank": latent.kv_rank}  # 0: none
        heads = {"qk_nope_head_dim": latent.nope, "qk_rope_head_dim": latent.rope, "v_head_dim": latent.value}
        sizes = {"n_heads": shape.heads, **ranks, **heads}
        return (
            'make_mla_attention_config(layer_id=layer, dim=DIM, attn_backend="flex", rope=rope, linear_init=_LINEAR, '
            f"norm_init=_NORM, depth_init=lambda _: _LINEAR, {_inline(sizes)})"
        )
    sizes = {"n_heads": shape.heads, "n_kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "fuse_qkv": True}
    norm = f", qk_norm=RMSNorm.Config(normalized_shape={shape.head_dim}, param_init=_NORM)" if shape.qk_norm else ""
    return (
        'make_gqa_config(dim=DIM, inner_attention=get_attention_config("flex"), rope=rope, wqkv_param_init=_LINEAR, '
        f"wo_param_init=_LINEAR, {_inline(sizes)}{norm})"
    )


def _feed_forward(run: LaunchRun, shape: Architecture) -> str:
    dense = "None" if shape.width is None else f"None if WITH_EXPERTS[layer] else {_gated(shape.width)}"
    experts = shape.experts
    if experts is None:
        return f"feed_forward={dense},"
    router = {"num_experts": experts.num, "top_k": experts.chosen}
    router |= {"score_func": "sigmoid" if experts.balanced else "softmax", "route_norm": True}
    if experts.groups is not None:
        router |= {"num_expert_groups": experts.groups, "num_limited_groups": experts.chosen_groups}
    backend = "standard"
    if run.assumptions.dispatcher == "once_per_domain" and run.number("ep") > 1:
        # DeepEP pads no groups to the 16 rows of multiplies in 8 bits (quantization.utils.swap_token_dispatcher).
        backend = "hybridep" if run.device.family == HYBRID_EP or _narrow(run) else "deepep"
    routed = {"hidden_dim": experts.width, "num_experts": experts.num, "top_k": experts.chosen, "comm_backend": backend}
    shared = f", shared_experts={_gated(experts.shared)}" if experts.shared else ""
    return (
        f"feed_forward={dense},\n            "
        f"moe=make_moe_config(num_experts={experts.num}, router=make_router_config(dim=DIM, gate_param_init=_LINEAR, "
        f"{_inline(router)}), routed_experts=make_routed_experts_config(dim=DIM, param_init=_EXPERTS, "
        f"{_inline(routed)}){shared}) if WITH_EXPERTS[layer] else None,"
    )


def _gated(width: int) -> str:
    return f"make_ffn_config(dim=DIM, hidden_dim={width}, w1_param_init=_LINEAR, w2w3_param_init=_LINEAR)"


def _narrow(run: LaunchRun) -> bool:
    """Return whether multiplies in 8 bits were priced as such."""
    return run.assumptions.linear_dtype == "fp8" and run.device.fp8_flops is not None


def _converters(run: LaunchRun) -> str:
    if not _narrow(run):
        return ""
    names = ["Float8LinearConverter", *(["Float8GroupedExpertsConverter"] if run.experts else [])]
    return f"    from torchtitan.components.quantization import {', '.join(names)}\n\n" + "".join(
        f"    model = {name}.Config(model_compile_enabled=True).build().convert(model)\n" for name in names
    )


def _lost(run: LaunchRun, shape: Architecture) -> list[str]:
    assumptions, of_device = run.assumptions, run.device.name
    kept, room = assumptions.optimizer_bytes_per_parameter, run.experts.capacity_percent if run.experts else 100
    parts = {
        **uneven_weights(run),
        f"gradients of {assumptions.gradient_bytes} bytes per element: FSDP reduces them in FP32 "
        "(mixed_precision_reduce has no other value)": assumptions.gradient_bytes != 4,
        f"optimizer state of {kept:g} bytes per parameter: FP32 weights and moments are 12": kept != 12,
        f"multiplies in {assumptions.linear_dtype} on {of_device}: they are in BF16 here": (
            assumptions.linear_dtype != "bf16" and not _narrow(run)
        ),
        "multiplies in 8 bits with a scale for each tensor: here each row has one (rowwise)": _narrow(run),
        "attention kernels of flash-3 and later (attention_kernels): the recipe has FlexAttention in Triton, which "
        "runs on every GPU (attn_backend flex_flash is for Hopper and Blackwell alone)": (
            assumptions.attention_kernels > GENERATIONS.index("flash-2") + 1
        ),
        **dict.fromkeys(ungraphed(run, "the recipe has disable_cuda_graphs, and compiles the model"), True),
        f"room for experts of {room} % of their share: no token is dropped here": room != 100,
        f"expert parallel communication during compute (ep_overlap={assumptions.ep_overlap:g})": (
            run.number("ep") > 1 and assumptions.ep_overlap
        ),
        f"keys and values gathered during compute (cp_overlap={assumptions.cp_overlap:g})": (
            run.number("cp") > 1 and assumptions.cp_overlap
        ),
        "a reduction after the backward (dp_overlap=0): DDP overlaps it": (
            run.number("zero_stage") == 0 and run.number("dp") > 1 and not assumptions.dp_overlap
        ),
    }
    order = f"the rank order {run['order']}: meshes are numbered with tp innermost, then cp, dp and pp"
    placed = other_placement(run.plan) if run["order"] == ORDERS[0] else [order]
    return [*(part for part, is_lost in parts.items() if is_lost), *placed]


def _inline(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _arguments(values: dict[str, object]) -> str:
    return "\n".join(f"            {name}={value!r}," for name, value in values.items())
