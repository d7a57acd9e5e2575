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
from dsx.launching.architecture import GATED, GELU, SQUARED_RELU, Architecture, ExpertSizes, Latent
from dsx.launching.request import HYBRID_EP, ExpertRun, LaunchRun, Option, Settings, switch, valued, words
from dsx.notation.sharded_layer import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, RING
from dsx.plans.choices import FULL, JOINED, SELECTIVE

_HALF, _FP32 = 2, 4  # bytes
# Adam's two moments in FP32, and an FP32 weight if the model's weight is in 16 bits.
_OPTIMIZER_BYTES = {_HALF: 12, _FP32: 8}
# What is said of gradients, by the 16-bit format of weights and the bytes of a gradient, where they are not as usual.
_GRADIENTS = {
    ("bf16", _HALF): [switch("--grad-reduce-in-bf16", "mixed_precision.grad_reduce_in_fp32", False)],
    ("fp16", _HALF): [Option("", "", "mixed_precision.grad_reduce_in_fp32", False)],
    ("fp16", _FP32): [switch("--accumulate-allreduce-grads-in-fp32", "mixed_precision.grad_reduce_in_fp32", True)],
}
_CP_COMM_TYPE = {ALL_GATHER: "all_gather", ALL_TO_ALL: "a2a", RING: "p2p"}
_GATHERED = {ALL_GATHER, REDUCE_SCATTER}
_OWN_LOGIT_BYTES = 8  # kept per logit by the fused cross-entropy of Megatron Core
_LOGIT_BYTES = {2: "te", _OWN_LOGIT_BYTES: "native"}
_EXPERTS = "experts"  # the region of all of them

# linear_dtype -> in words, the peak of a device, and the settings. dsx prices the largest value of each operand being
# read before its cast (cast_traffic), which is scaling of whole tensors as they are.
_NARROW: dict[str, tuple[str, str, list[Option]]] = {
    "fp8": (
        "8 bits",
        "fp8_flops",
        [
            valued("--fp8-format", "hybrid", "mixed_precision.fp8"),
            valued("--fp8-recipe", "tensorwise", "mixed_precision.fp8_recipe"),
        ],
    ),
    "fp4": (
        "4 bits",
        "fp4_flops",
        [
            valued("--fp4-format", "e2m1", "mixed_precision.fp4"),
            valued("--fp4-recipe", "nvfp4", "mixed_precision.fp4_recipe"),
        ],
    ),
    "int8": ("integers of 8 bits", "int8_flops", []),
}


def number_formats(run: LaunchRun) -> Settings:
    """Return the settings of the priced element sizes, and of multiplies in fewer bits.

    Without one, gradients of BF16 weights are accumulated and reduced in FP32, and those of FP16 weights in FP16.
    """
    options: list[Option] = []
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
        options.append(switch(f"--{half}", f"mixed_precision.{half}"))
        options += _GRADIENTS.get((half, gradients), ())
    if gradients != _FP32 and not (uniform and weights == gradients == _HALF):
        how = " (--grad-reduce-in-bf16)" if half == "bf16" else ""
        lost.append(
            f"gradients of {gradients} bytes per element: Megatron-LM has {_FP32}, or {_HALF} with --{half}{how}"
        )
    if run.number("zero_stage") > 1:
        options += _sharded_gradients(gradients, half)
    kept = assumptions.optimizer_bytes_per_parameter
    if uniform and kept != _OPTIMIZER_BYTES[weights]:
        lost.append(
            f"optimizer state of {kept:g} bytes per parameter: Adam in Megatron-LM keeps {_OPTIMIZER_BYTES[weights]}"
        )
    if assumptions.linear_dtype in _NARROW:
        bits, peak, narrow = _NARROW[assumptions.linear_dtype]
        if getattr(device, peak) is None:
            lost.append(f"multiplies in {bits}: {device.name} has none, so they were priced at its matrix_flops")
        elif not narrow:
            lost.append(f"multiplies in {bits}: Megatron-LM has none")
        else:
            options += narrow
            if run.narrow_head:
                lost.append(f"multiplies of the head in {bits}: Megatron-LM has them in 16 bits")
    return options, lost


def _sharded_gradients(size: int, half: str) -> list[Option]:
    """Return the types of gradients of Megatron-FSDP, which are those of the weights unless it is told."""
    if size not in (_HALF, _FP32):
        return []
    name = half if size == _HALF else "fp32"
    return [
        valued(f"--megatron-fsdp-{what}-dtype", name, f"ddp.megatron_fsdp_{what.replace('-', '_')}_dtype")
        for what in ("main-grads", "grad-comm")
    ]


def expert_options(run: LaunchRun) -> Settings:
    """Return the settings of layers with experts; none for a model without experts.

    Transfers of a copy of a token to each of its experts are the dispatcher `alltoall`, of one to each fast domain
    `flex`; `allgather` sends every token to all ranks. The experts of a rank are one grouped multiply.
    """
    experts = run.experts
    if experts is None:
        return [], []
    options = [valued("--num-experts", experts.num, "model.num_moe_experts")]
    if experts.chosen is not None:
        options.append(valued("--moe-router-topk", experts.chosen, "model.moe_router_topk"))
    if experts.groups is not None and experts.chosen_groups is not None:
        options.append(valued("--moe-router-num-groups", experts.groups, "model.moe_router_num_groups"))
        options.append(valued("--moe-router-group-topk", experts.chosen_groups, "model.moe_router_group_topk"))
    if len(experts.layers) > 1:
        pattern = "+".join(f"[{int(has)}]*{count}" for has, count in experts.layers)
        flags = [int(has) for has, count in experts.layers for _ in range(count)]
        options.append(Option("--moe-layer-freq", pattern, "model.moe_layer_freq", flags))
    if experts.capacity_percent != 100:  # dsx also prices capacity beyond the even share as if it were filled
        room = experts.capacity_percent / 100
        options.append(Option("--moe-expert-capacity-factor", f"{room:g}", "model.moe_expert_capacity_factor", room))
        options.append(switch("--moe-pad-expert-input-to-capacity", "model.moe_pad_expert_input_to_capacity"))
    dispatched, lost = _dispatched(run, experts)
    options += dispatched
    options.append(switch("--moe-grouped-gemm", "model.moe_grouped_gemm"))
    ep = run.number("ep")
    options += [valued("--expert-model-parallel-size", ep, "model.expert_model_parallel_size")] if ep > 1 else []
    # Without this flag Megatron-LM divides experts by tp.
    options.append(valued("--expert-tensor-parallel-size", experts.tp, "model.expert_tensor_parallel_size"))
    return options, lost


def _dispatched(run: LaunchRun, experts: ExpertRun) -> Settings:
    """Return the settings of the dispatcher."""
    kinds = experts.exchanges
    # Experts that are all on their own rank need no network.
    crosses = run.number("ep") * experts.tp > 1
    once = crosses and run.assumptions.dispatcher == "once_per_domain"
    exchanged = "flex" if once else "alltoall"
    dispatchers = {exchanged: kinds <= {ALL_TO_ALL}, "allgather": kinds <= _GATHERED}
    dispatcher = next((name for name, fits in dispatchers.items() if fits), None)
    if dispatcher is None:
        return [], [f"tokens that are dispatched over ep by {' and '.join(sorted(kinds))}"]
    options = [valued("--moe-token-dispatcher-type", dispatcher, "model.moe_token_dispatcher_type")]
    if dispatcher != "flex":
        return options, []
    backend = "hybridep" if run.device.family == HYBRID_EP else "deepep"
    options += [
        valued("--moe-flex-dispatcher-backend", backend, "model.moe_flex_dispatcher_backend"),
        valued("--moe-router-dtype", "fp32", "model.moe_router_dtype"),
    ]
    if experts.capacity_percent != 100 and backend == "deepep":
        return options, ["room for experts beyond their share with one transfer to each domain: DeepEP pads none"]
    return options, []


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
    lost: list[str] = []
    if kind == _CP_COMM_TYPE[ALL_GATHER] and run.assumptions.cp_overlap:
        lost.append(
            f"keys and values gathered during compute (cp_overlap={run.assumptions.cp_overlap:g}): Megatron-LM waits "
            "for that all-gather, and overlaps only a ring (--cp-comm-type p2p)"
        )
    return [valued("--cp-comm-type", kind, "model.cp_comm_type")], lost


def overlap_options(run: LaunchRun) -> Settings:
    """Return the settings that overlap tensor, pipeline and expert parallel communication with compute."""
    options: list[Option] = []
    lost: list[str] = []
    assumptions = run.assumptions
    tp, pp, vpp, ep = (run.number(axis) for axis in ("tp", "pp", "vpp", "ep"))
    if tp > 1 and assumptions.tp_overlap and run.sequence_parallel:  # all-reduces are priced without overlap
        options.append(switch("--tp-comm-overlap", "comm_overlap.tp_comm_overlap"))
    if pp > 1 and vpp > 1 and not assumptions.pp_overlap:
        if pp > 2:
            options.append(switch("--no-overlap-p2p-communication", "comm_overlap.overlap_p2p_comm", False))
        else:
            lost.append(
                f"sends after compute (pp_overlap=0) with pp=2, vpp={vpp}: Megatron-LM overlaps them if pp is 2"
            )
    if pp > 1 and vpp == 1 and assumptions.pp_overlap:
        lost.append(
            f"sends during a microbatch (pp_overlap={assumptions.pp_overlap:g}) with vpp=1: Megatron-LM overlaps them "
            "only if vpp is above 1"
        )
    if ep > 1 and assumptions.ep_overlap:
        if overlaps_experts(run):
            options.append(
                switch("--overlap-moe-expert-parallel-comm", "comm_overlap.overlap_moe_expert_parallel_comm")
            )
        else:
            lost.append(
                f"expert parallel communication during compute (ep_overlap={assumptions.ep_overlap:g}) with "
                f"pp={pp}, vpp={vpp}, recompute={run['recompute']}: Megatron-LM overlaps it without a "
                "pipeline or with vpp above 1, and without full recomputation or that of experts"
            )
    return options, lost


def overlaps_experts(run: LaunchRun) -> bool:
    """Return whether expert parallel communication of one microbatch runs beside the compute of another."""
    priced = run.number("ep") > 1 and bool(run.assumptions.ep_overlap)
    interleaved = run.number("pp") == 1 or run.number("vpp") > 1
    return priced and interleaved and not {FULL, _EXPERTS} & {*str(run["recompute"]).split(JOINED)}


def fused_options(run: LaunchRun) -> list[Option]:
    """Return the settings of kernels that the layers or the assumptions fuse.

    A device without BF16 is one without Transformer Engine, which needs Ampere: layers are Megatron Core's own.
    """
    # Kernels know causal masks; a tensor of them has an element for each pair of positions. Megatron-Bridge makes none.
    options: list[Option] = [Option("--no-create-attention-mask-in-dataloader", "", "")]
    if run.assumptions.set.get("core"):  # scores are kept
        options.append(valued("--attention-backend", "unfused", "model.attention_backend"))
    if fused := _LOGIT_BYTES.get(run.assumptions.cross_entropy_bytes):
        options.append(switch("--cross-entropy-loss-fusion", "model.cross_entropy_loss_fusion"))
        # The arguments of Megatron-LM refuse the kernel of Transformer Engine; `refused_by_arguments` says so.
        options.append(Option("--cross-entropy-fusion-impl", "native", "model.cross_entropy_fusion_impl", fused))
    if local := run.device.half_format != "bf16":
        options.append(valued("--transformer-impl", "local", "model.transformer_impl"))
    if run.experts is not None and not local:  # routing is one kernel, and so is dispatching
        options.append(switch("--moe-router-fusion", "model.moe_router_fusion"))
        options.append(switch("--moe-permute-fusion", "model.moe_permute_fusion"))
    return options


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
    if why := _prevented(run):
        return [], ungraphed(run, f"Megatron-LM captures none of layers with {why}")
    layers = {has for has, _ in run.experts.layers} if run.experts else {False}
    beside = overlaps_experts(run)
    modules = [
        "attn",
        *(["mlp"] if False in layers and not beside else []),
        *(_of_experts(run.experts) if run.experts and True in layers else []),
    ]
    return [
        valued("--cuda-graph-impl", "transformer_engine", "model.cuda_graph_impl"),
        words("--cuda-graph-modules", modules, "model.cuda_graph_modules"),
        switch("--te-rng-tracker", "rng.te_rng_tracker"),
    ], []


def _of_experts(experts: ExpertRun) -> list[str]:
    """Return what of a layer with experts is captured: with room for tokens, preprocessing asks the host."""
    return ["moe_router"] if experts.capacity_percent != 100 else ["moe_router", "moe_preprocess"]


def _prevented(run: LaunchRun) -> str:
    """Return the choice under which Megatron Core captures no graphs of layers; empty if there is none."""
    if run.device.software != "cuda":
        return f"the software {run.device.software}"
    if run.number("zero_stage") > 1:
        return f"zero_stage={run['zero_stage']}"
    if run["offload"] in ("activations", "both"):
        return f"offload={run['offload']}"
    if _RECOMPUTED & {*str(run["recompute"]).split(JOINED)}:
        return f"recompute={run['recompute']}"
    return ""


_NO_MODEL = "Megatron-LM's GPT model"


def refused_model(shape: Architecture) -> list[str]:
    """Return the parts of a model without which Megatron-LM would run another model."""
    return [f"{part}: {_NO_MODEL} has none" for part in shape.unusual] + (
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
    options = [
        valued("--num-layers", shape.num_layers, "model.num_layers"),
        valued("--hidden-size", shape.hidden, "model.hidden_size"),
        valued("--num-attention-heads", shape.heads, "model.num_attention_heads"),
        *_attention(shape),
        *_feed_forward(shape),
        *_positions(shape, sequence_length),
        valued("--normalization", "LayerNorm" if shape.layernorm else "RMSNorm", "model.normalization"),
        *_biases(shape),
        *([] if shape.tied else [_untied()]),
        *([valued("--mtp-num-layers", shape.predictions, "model.mtp_num_layers")] if shape.predictions else []),
        valued("--attention-dropout", 0.1 if shape.dropout else 0.0, "model.attention_dropout"),
        valued("--hidden-dropout", 0.1 if shape.residual_dropout else 0.0, "model.hidden_dropout"),
    ]
    lost: list[str] = []
    biased = {shape.bias, shape.experts.biased if shape.experts else shape.bias}
    if len(biased) > 1:
        lost.append("biases of some multiplies and not of others: Megatron-LM has them in all or in none")
    return options, lost


def _untied() -> Option:
    flag = "--untie-embeddings-and-output-weights"
    return switch(flag, "model.share_embeddings_and_output_weights", False)


def _attention(shape: Architecture) -> list[Option]:
    options: list[Option] = []
    if shape.latent is not None:
        options += _latent_attention(shape.latent)
    else:
        options.append(valued("--kv-channels", shape.head_dim, "model.kv_channels"))
        if shape.kv_heads != shape.heads:
            options.append(Option("--group-query-attention", "", ""))
            options.append(valued("--num-query-groups", shape.kv_heads, "model.num_query_groups"))
    if shape.qk_norm:
        options.append(switch("--qk-layernorm", "model.qk_layernorm"))
    if shape.sinks:
        options.append(valued("--softmax-type", "learnable", "model.softmax_type"))
    if shape.window is not None:
        # Positions to the left and to the right, without the position itself.
        reach = shape.window - 1
        options.append(Option("--window-size", f"{reach},0", "model.window_size", (reach, 0)))
        if not all(shape.windowed):
            flags = [int(windowed) for windowed in shape.windowed]
            pattern = f"[{','.join(map(str, flags))}]"
            options.append(Option("--window-attn-skip-freq", pattern, "model.window_attn_skip_freq", flags))
    return options


def _latent_attention(latent: Latent) -> list[Option]:
    rank, field = latent.query_rank, "model.q_lora_rank"
    return [
        switch("--multi-latent-attention", "model.multi_latent_attention"),
        Option("", "", field, None) if rank is None else valued("--q-lora-rank", rank, field),
        valued("--kv-lora-rank", latent.kv_rank, "model.kv_lora_rank"),
        valued("--qk-head-dim", latent.nope, "model.qk_head_dim"),
        valued("--qk-pos-emb-head-dim", latent.rope, "model.qk_pos_emb_head_dim"),
        valued("--v-head-dim", latent.value, "model.v_head_dim"),
    ]


def _feed_forward(shape: Architecture) -> list[Option]:
    experts = shape.experts
    options = [valued("--ffn-hidden-size", shape.width or (experts.width if experts else 0), "model.ffn_hidden_size")]
    if shape.activation == GATED:
        options += [switch("--swiglu", "model.gated_linear_unit"), Option("", "", "model.activation_func", "silu")]
    if shape.activation == SQUARED_RELU:
        options.append(switch("--squared-relu", "model.activation_func", "squared_relu"))
    if shape.activation == GELU:
        options.append(Option("", "", "model.activation_func", "gelu"))
    return options + (_expert_sizes(experts) if experts else [])


def _expert_sizes(experts: ExpertSizes) -> list[Option]:
    options = [valued("--moe-ffn-hidden-size", experts.width, "model.moe_ffn_hidden_size")]
    if experts.shared:
        name = "shared_expert_intermediate_size"
        options.append(valued(f"--moe-{name.replace('_', '-')}", experts.shared, f"model.moe_{name}"))
    if experts.balanced:
        options.append(valued("--moe-router-score-function", "sigmoid", "model.moe_router_score_function"))
        options.append(switch("--moe-router-enable-expert-bias", "model.moe_router_enable_expert_bias"))
    return options


def _positions(shape: Architecture, sequence_length: int) -> list[Option]:
    kind = "learned_absolute" if shape.positions else "rope" if shape.rotary else "none"
    longest = max(shape.positions or 0, sequence_length)
    return [
        valued("--position-embedding-type", kind, "model.position_embedding_type"),
        Option("--max-position-embeddings", str(longest), ""),  # Megatron-Bridge takes that of the sequence
    ]


def _biases(shape: Architecture) -> list[Option]:
    options: list[Option] = []
    if not shape.bias:
        options.append(switch("--disable-bias-linear", "model.add_bias_linear", False))
        if shape.qkv_bias:
            options.append(switch("--add-qkv-bias", "model.add_qkv_bias"))
    return options
