"""Settings of Megatron Core for a model, number formats, experts, overlap and CUDA graphs.

Each function returns options, and in words what was priced but has none. An overlap is a share of the communication
that could be hidden; an option can only switch it on, so any share above 0 does. CUDA graphs are priced as a low
dispatch latency: launched as a graph, an operator takes a few microseconds of the host, and 10 to 60 without one
(data/stacks). Experts are left out of the graphs, since their sizes follow from the routing, and so are feed-forward
networks beside overlapped communication of experts; the latency is one number for all operators.

Sources: megatron-core 0.19.2 (megatron.training.arguments; ModelParallelConfig.bf16, tp_comm_overlap, overlap_p2p_comm,
overlap_moe_expert_parallel_comm; TransformerConfig.fp8, fp8_recipe, cp_comm_type, moe_token_dispatcher_type,
moe_grouped_gemm, moe_layer_freq, moe_expert_capacity_factor, moe_router_dtype; MLATransformerConfig; softmax_type in
0.16.1; DistributedDataParallelConfig.grad_reduce_in_fp32 and megatron_fsdp_main_grads_dtype; OptimizerConfig; the
warning of fused_a2a.py that DeepEP takes probabilities in FP32). Of graphs: cuda_graph_impl and cuda_graph_modules with
their checks, which refuse graphs of feed-forward networks beside overlapped communication of experts; the check of
mcore_fsdp_adapter. Recomputation of attention and feed-forward networks is refused there for layers with dropout, and
graphs of the router switch off that of the norm before it; here both are left without graphs for all. Of contexts: the
checks of Transformer Engine's attn_forward_func_with_cp (from memory of 2.8).
"""

from dsx.config.cluster_file import GPU_SOFTWARE
from dsx.launching.request import (
    GATED,
    GELU,
    HYBRID_EP,
    SQUARED_RELU,
    Architecture,
    ExpertRun,
    LaunchRun,
    Option,
    Settings,
    option,
    options,
)
from dsx.notation.sharded_layer import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, RING
from dsx.plans.choices import FULL, SELECTIVE, names_in

_HALF, _FP32 = 2, 4  # bytes
# Adam's two moments in FP32, and an FP32 weight if the model's weight is in 16 bits.
_OPTIMIZER_BYTES = {_HALF: 12, _FP32: 8}
_GRADIENTS = {
    ("bf16", _HALF): Option("--grad-reduce-in-bf16", "", "mixed_precision.grad_reduce_in_fp32", False),
    ("fp16", _HALF): Option("", "", "mixed_precision.grad_reduce_in_fp32", False),
    ("fp16", _FP32): Option("--accumulate-allreduce-grads-in-fp32", "", "mixed_precision.grad_reduce_in_fp32"),
}
_CP_COMM_TYPE = {ALL_GATHER: "all_gather", ALL_TO_ALL: "a2a", RING: "p2p"}
_GATHERED = {ALL_GATHER, REDUCE_SCATTER}
_OWN_LOGIT_BYTES = 8  # kept per logit by the fused cross-entropy of Megatron Core
_LOGIT_BYTES = {2: "te", _OWN_LOGIT_BYTES: "native"}
_EXPERTS = "experts"  # the region of all of them

# linear_dtype -> in words, and the settings. dsx prices the largest value of each operand being read before its cast
# (cast_traffic), which is scaling of whole tensors as they are.
_NARROW: dict[str, tuple[str, dict[str, object]]] = {
    "fp8": ("8 bits", {"mixed_precision.fp8": "hybrid", "mixed_precision.fp8_recipe": "tensorwise"}),
    "fp4": ("4 bits", {"mixed_precision.fp4": "e2m1", "mixed_precision.fp4_recipe": "nvfp4"}),
    "int8": ("integers of 8 bits", {}),
}


def number_formats(run: LaunchRun) -> Settings:
    """Return the settings of the priced element sizes, and of multiplies in fewer bits.

    Without one, gradients of BF16 weights are accumulated and reduced in FP32, and those of FP16 weights in FP16;
    gradients of Megatron-FSDP have the type of the weights.
    """
    formats: list[Option] = []
    lost: list[str] = []
    assumptions, device = run.assumptions, run.device
    half = device.half_format
    weights, activations, gradients = (
        getattr(assumptions, f"{name}_bytes") for name in ("weight", "activation", "gradient")
    )
    uniform = weights == activations and weights in _OPTIMIZER_BYTES
    if not uniform:
        lost.append(
            f"weights of {weights} and activations of {activations} bytes per element: Megatron-LM has {_FP32} for "
            f"both, or {_HALF} (--{half})"
        )
    if uniform and weights == _HALF:
        formats.append(option(f"mixed_precision.{half}"))
        formats += [_GRADIENTS[half, gradients]] if (half, gradients) in _GRADIENTS else []
    if gradients != _FP32 and not (uniform and weights == gradients == _HALF):
        how = " (--grad-reduce-in-bf16)" if half == "bf16" else ""
        lost.append(
            f"gradients of {gradients} bytes per element: Megatron-LM has {_FP32}, or {_HALF} with --{half}{how}"
        )
    if run.number("zero_stage") > 1 and gradients in (_HALF, _FP32):
        name = half if gradients == _HALF else "fp32"
        formats += [option(f"ddp.megatron_fsdp_{what}_dtype", name) for what in ("main_grads", "grad_comm")]
    kept = assumptions.optimizer_bytes_per_parameter
    if uniform and kept != _OPTIMIZER_BYTES[weights]:
        lost.append(
            f"optimizer state of {kept:g} bytes per parameter: Adam in Megatron-LM keeps {_OPTIMIZER_BYTES[weights]}"
        )
    if assumptions.linear_dtype in _NARROW:
        bits, narrow = _NARROW[assumptions.linear_dtype]
        if getattr(device, f"{assumptions.linear_dtype}_flops") is None:
            lost.append(f"multiplies in {bits}: {device.name} has none, so they were priced at its matrix_flops")
        elif not narrow:
            lost.append(f"multiplies in {bits}: Megatron-LM has none")
        else:
            formats += options(narrow)
            if run.narrow_head:
                lost.append(f"multiplies of the head in {bits}: Megatron-LM has them in 16 bits")
    return formats, lost


def expert_options(run: LaunchRun) -> Settings:
    """Return the settings of layers with experts; none for a model without experts.

    Transfers of a copy of a token to each of its experts are the dispatcher `alltoall`, of one to each fast domain
    `flex`; `allgather` sends every token to all ranks. The experts of a rank are one grouped multiply.
    """
    experts = run.experts
    if experts is None:
        return [], []
    chosen = options({
        "model.num_moe_experts": experts.num,
        "model.moe_router_topk": experts.chosen,
        "model.moe_router_num_groups": experts.groups,
        "model.moe_router_group_topk": experts.chosen_groups,
    })  # fmt: skip
    if len(experts.layers) > 1:
        pattern = "+".join(f"[{int(has)}]*{count}" for has, count in experts.layers)
        flags = [int(has) for has, count in experts.layers for _ in range(count)]
        chosen.append(Option("--moe-layer-freq", pattern, "model.moe_layer_freq", flags))
    if experts.capacity_percent != 100:  # dsx also prices capacity beyond the even share as if it were filled
        room = experts.capacity_percent / 100
        chosen.append(Option("--moe-expert-capacity-factor", f"{room:g}", "model.moe_expert_capacity_factor", room))
        chosen.append(option("model.moe_pad_expert_input_to_capacity"))
    dispatched, lost = _dispatched(run, experts)
    ep = run.number("ep")
    divided = {
        "model.moe_grouped_gemm": True,
        "model.expert_model_parallel_size": ep if ep > 1 else None,
        "model.expert_tensor_parallel_size": experts.tp,  # without this flag Megatron-LM divides experts by tp
    }
    return [*chosen, *dispatched, *options(divided)], lost


def _dispatched(run: LaunchRun, experts: ExpertRun) -> Settings:
    """Return the settings of the dispatcher."""
    kinds = experts.exchanges
    # Experts that are all on their own rank need no network.
    crosses = run.number("ep") * experts.tp > 1
    once = crosses and run.assumptions.dispatcher == "once_per_domain"
    dispatchers = {"flex" if once else "alltoall": kinds <= {ALL_TO_ALL}, "allgather": kinds <= _GATHERED}
    dispatcher = next((name for name, fits in dispatchers.items() if fits), None)
    if dispatcher is None:
        return [], [f"tokens that are dispatched over ep by {' and '.join(sorted(kinds))}"]
    if dispatcher != "flex":
        return [option("model.moe_token_dispatcher_type", dispatcher)], []
    backend = "hybridep" if run.device.family == HYBRID_EP else "deepep"
    flex = options({
        "model.moe_token_dispatcher_type": "flex",
        "model.moe_flex_dispatcher_backend": backend,
        "model.moe_router_dtype": "fp32",
    })  # fmt: skip
    if experts.capacity_percent != 100 and backend == "deepep":
        return flex, ["room for experts beyond their share with one transfer to each domain: DeepEP pads none"]
    return flex, []


def context_options(run: LaunchRun) -> Settings:
    """Return the settings of the exchange of keys and values in a context parallel group."""
    if run.number("cp") == 1 or not run.exchanges:
        return [], []
    kinds = {_CP_COMM_TYPE.get(kind, "") for kind, _ in run.exchanges}
    if len(kinds) > 1 or "" in kinds:
        priced = " and ".join(dict.fromkeys(kind for kind, _ in run.exchanges))
        tensors = ", ".join(dict.fromkeys(tensor for _, tensor in run.exchanges))
        return [], [
            f"context parallelism as it was priced, by {priced} of {tensors}: Megatron-LM's default passes keys and "
            "values around a ring (--cp-comm-type p2p)"
        ]
    (kind,) = kinds
    overlap = run.assumptions.cp_overlap if kind == _CP_COMM_TYPE[ALL_GATHER] else 0.0
    waits = (
        f"keys and values gathered during compute (cp_overlap={overlap:g}): Megatron-LM waits for that all-gather, and "
        "overlaps only a ring (--cp-comm-type p2p)"
    )
    return [option("model.cp_comm_type", kind)], [waits] if overlap else []


def overlap_options(run: LaunchRun) -> Settings:
    """Return the settings that overlap tensor, pipeline and expert parallel communication with compute."""
    overlaps: list[Option] = []
    lost: list[str] = []
    assumptions = run.assumptions
    tp, pp, vpp, ep = (run.number(axis) for axis in ("tp", "pp", "vpp", "ep"))
    if tp > 1 and assumptions.tp_overlap and run.sequence_parallel:  # all-reduces are priced without overlap
        overlaps.append(option("comm_overlap.tp_comm_overlap"))
    if pp > 2 and vpp > 1 and not assumptions.pp_overlap:
        overlaps.append(option("comm_overlap.overlap_p2p_comm", False))
    elif pp > 1 and vpp > 1 and not assumptions.pp_overlap:
        lost.append(f"sends after compute (pp_overlap=0) with pp=2, vpp={vpp}: Megatron-LM overlaps them if pp is 2")
    if pp > 1 and vpp == 1 and assumptions.pp_overlap:
        lost.append(
            f"sends during a microbatch (pp_overlap={assumptions.pp_overlap:g}) with vpp=1: Megatron-LM overlaps them "
            "only if vpp is above 1"
        )
    if overlaps_experts(run):
        overlaps.append(option("comm_overlap.overlap_moe_expert_parallel_comm"))
    elif ep > 1 and assumptions.ep_overlap:
        lost.append(
            f"expert parallel communication during compute (ep_overlap={assumptions.ep_overlap:g}) with "
            f"pp={pp}, vpp={vpp}, recompute={run['recompute']}: Megatron-LM overlaps it without a "
            "pipeline or with vpp above 1, and without full recomputation or that of experts"
        )
    return overlaps, lost


def overlaps_experts(run: LaunchRun) -> bool:
    """Return whether expert parallel communication of one microbatch runs beside the compute of another."""
    priced = run.number("ep") > 1 and bool(run.assumptions.ep_overlap)
    interleaved = run.number("pp") == 1 or run.number("vpp") > 1
    return priced and interleaved and names_in(str(run["recompute"])).isdisjoint((FULL, _EXPERTS))


def fused_options(run: LaunchRun) -> list[Option]:
    """Return the settings of kernels that the layers or the assumptions fuse.

    A device without BF16 is one without Transformer Engine, which needs Ampere: layers are Megatron Core's own.
    """
    # Kernels know causal masks; a tensor of them has an element for each pair of positions. Megatron-Bridge makes none.
    fusions = [Option("--no-create-attention-mask-in-dataloader", "", "")]
    if run.assumptions.set.get("core"):  # scores are kept
        fusions.append(option("model.attention_backend", "unfused"))
    if fused := _LOGIT_BYTES.get(run.assumptions.cross_entropy_bytes):
        fusions.append(option("model.cross_entropy_loss_fusion"))
        # The arguments of Megatron-LM refuse the kernel of Transformer Engine; `refused_by_arguments` says so.
        fusions.append(Option("--cross-entropy-fusion-impl", "native", "model.cross_entropy_fusion_impl", fused))
    if run.device.half_format != "bf16":
        return [*fusions, option("model.transformer_impl", "local")]
    if run.experts is not None:  # routing is one kernel, and so is dispatching
        fusions += [option("model.moe_router_fusion"), option("model.moe_permute_fusion")]
    return fusions


def refused_by_arguments(run: LaunchRun) -> list[str]:
    """Return what fields of Megatron Core express, and the arguments of Megatron-LM do not."""
    kept = run.assumptions.cross_entropy_bytes
    if _LOGIT_BYTES.get(kept) != "te":
        return []
    tokens = run.number("microbatch_size") * run.number("sequence_length") / run.number("cp")
    more = (_OWN_LOGIT_BYTES - kept) * tokens * run.vocabulary / run.number("tp")
    return [
        f"cross-entropy that keeps {kept} bytes per logit (cross_entropy_bytes): Megatron-LM refuses the kernel of "
        f"Transformer Engine (--cross-entropy-fusion-impl te), and its own keeps {_OWN_LOGIT_BYTES}: "
        f"{more / 1e9:.1f} GB more on the GPUs that have the head; --set assumptions.cross_entropy_bytes="
        f"{_OWN_LOGIT_BYTES} prices that"
    ]


_GRAPHED = 12e-6  # s an operator: the stacks that state graphs are below, those of compiled operators above
_RECOMPUTED = {FULL, SELECTIVE, "core-attention", "norms", "feed-forward", "experts"}


def ungraphed(run: LaunchRun, what: str) -> list[str]:
    """Return that a run has no graphs though they were priced, and `what` it has."""
    latency = run.assumptions.dispatch_latency
    if latency > _GRAPHED or run.device.software not in GPU_SOFTWARE:
        return []
    return [f"operators issued in {latency * 1e6:g} us each, as by CUDA graphs (dispatch_latency): {what}"]


def graph_options(run: LaunchRun) -> Settings:
    """Return the settings of graphs of all but the experts, where they were priced."""
    if not ungraphed(run, ""):
        return [], []
    prevented = {
        f"the software {run.device.software}": run.device.software != "cuda",
        f"zero_stage={run['zero_stage']}": run.number("zero_stage") > 1,
        f"offload={run['offload']}": run["offload"] in ("activations", "both"),
        f"recompute={run['recompute']}": not _RECOMPUTED.isdisjoint(names_in(str(run["recompute"]))),
    }
    if why := next((choice for choice, holds in prevented.items() if holds), ""):
        return [], ungraphed(run, f"Megatron-LM captures none of layers with {why}")
    layers = {has for has, _ in run.experts.layers} if run.experts else {False}
    modules = ["attn", *(["mlp"] if False in layers and not overlaps_experts(run) else [])]
    if run.experts and True in layers:  # with room for tokens, preprocessing asks the host
        modules += ["moe_router"] if run.experts.capacity_percent != 100 else ["moe_router", "moe_preprocess"]
    graphs = {"model.cuda_graph_impl": "transformer_engine", "model.cuda_graph_modules": modules}
    return options(graphs | {"rng.te_rng_tracker": True}), []


_NO_MODEL = "Megatron-LM's GPT model"


def refused_model(shape: Architecture) -> list[str]:
    """Return the parts of a model without which Megatron-LM would run another model."""
    parts = [*shape.unusual, *filter(None, [shape.frozen])]
    return [f"{part}: {_NO_MODEL} has none" for part in parts] + (
        [] if shape.causal else [f"attention to all positions: {_NO_MODEL} masks later ones"]
    )


def refused_context(shape: Architecture, run: LaunchRun) -> list[str]:
    """Return what Transformer Engine refuses beside the exchanges of context parallelism that a plan has."""
    kinds = {kind for kind, _ in run.exchanges} if run.number("cp") > 1 else set[str]()
    parts = {
        f"attention to the last {shape.window} positions": shape.window is not None and RING in kinds,
        "attention sinks": shape.sinks and bool(kinds - {ALL_TO_ALL}),
    }
    return [
        f"{part} with cp={run['cp']} by {' and '.join(sorted(kinds))}: Transformer Engine has them with all-to-alls "
        "(--cp-comm-type a2a)"
        for part, refused in parts.items()
        if refused
    ]


def model_options(shape: Architecture, sequence_length: int) -> Settings:
    """Return the settings of a model for sequences of so many tokens."""
    latent, experts, reach = shape.latent, shape.experts, (shape.window or 1) - 1
    attention: list[Option] = []
    if latent is not None:
        rank, field = latent.query_rank, "model.q_lora_rank"
        attention = [
            option("model.multi_latent_attention"),
            Option("", "", field, None) if rank is None else option(field, rank),
        ]
        attention += options({
            "model.kv_lora_rank": latent.kv_rank,
            "model.qk_head_dim": latent.nope,
            "model.qk_pos_emb_head_dim": latent.rope,
            "model.v_head_dim": latent.value,
        })  # fmt: skip
    else:
        attention.append(option("model.kv_channels", shape.head_dim))
        if shape.kv_heads != shape.heads:
            attention.append(Option("--group-query-attention", "", ""))
            attention.append(option("model.num_query_groups", shape.kv_heads))
    attention += [option("model.qk_layernorm")] if shape.qk_norm else []
    attention += [option("model.softmax_type", "learnable")] if shape.sinks else []
    if shape.window is not None:
        # Positions to the left and to the right, without the position itself.
        attention.append(Option("--window-size", f"{reach},0", "model.window_size", (reach, 0)))
        if not all(shape.windowed):
            flags = [int(windowed) for windowed in shape.windowed]
            pattern = f"[{','.join(map(str, flags))}]"
            attention.append(Option("--window-attn-skip-freq", pattern, "model.window_attn_skip_freq", flags))
    activation = {
        GATED: [option("model.gated_linear_unit"), Option("", "", "model.activation_func", "silu")],
        SQUARED_RELU: [Option("--squared-relu", "", "model.activation_func", "squared_relu")],
        GELU: [Option("", "", "model.activation_func", "gelu")],
    }
    balanced = True if experts and experts.balanced else None
    positions = "learned_absolute" if shape.positions else "rope" if shape.rotary else "none"
    settings = [
        *options({
            "model.num_layers": shape.num_layers,
            "model.hidden_size": shape.hidden,
            "model.num_attention_heads": shape.heads,
        }),
        *attention,
        option("model.ffn_hidden_size", shape.width or (experts.width if experts else 0)),
        *activation[shape.activation],
        *options({
            "model.moe_ffn_hidden_size": experts and experts.width,
            "model.moe_shared_expert_intermediate_size": (experts and experts.shared) or None,
            "model.moe_router_score_function": balanced and "sigmoid",
            "model.moe_router_enable_expert_bias": balanced,
            "model.position_embedding_type": positions,
        }),
        # Megatron-Bridge takes that of the sequence.
        Option("--max-position-embeddings", str(max(shape.positions or 0, sequence_length)), ""),
        *options({
            "model.normalization": "LayerNorm" if shape.layernorm else "RMSNorm",
            "model.add_bias_linear": None if shape.bias else False,
            "model.add_qkv_bias": True if shape.qkv_bias and not shape.bias else None,
            "model.share_embeddings_and_output_weights": None if shape.tied else False,
            "model.mtp_num_layers": shape.predictions or None,
            "model.attention_dropout": 0.1 if shape.dropout else 0.0,
            "model.hidden_dropout": 0.1 if shape.residual_dropout else 0.0,
        }),
    ]  # fmt: skip
    mixed = experts is not None and experts.biased != shape.bias
    return settings, ["biases of some multiplies and not of others: Megatron-LM has them in all or in none"] * mixed
