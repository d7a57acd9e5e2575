"""Settings of Megatron Core that do not follow from the columns of a plan alone: number formats, experts, and overlap.

Each function returns options, and in words what was priced but has none. An overlap is a share of the communication
that could be hidden; an option can only switch it on, so any share above 0 does.

Sources: megatron-core 0.19.2 (ModelParallelConfig.bf16, tp_comm_overlap, overlap_p2p_comm,
overlap_moe_expert_parallel_comm; TransformerConfig.fp8, fp8_recipe, cp_comm_type, moe_token_dispatcher_type,
moe_grouped_gemm, moe_layer_freq, moe_expert_capacity_factor, moe_router_dtype; DistributedDataParallelConfig.
grad_reduce_in_fp32 and megatron_fsdp_main_grads_dtype; OptimizerConfig; the warning of fused_a2a.py that DeepEP takes
probabilities in FP32).
"""

from dsx.graph.layer import RING
from dsx.graph.match import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from dsx.launching.option import Option, Settings, switch, valued
from dsx.launching.run import HYBRID_EP, ExpertRun, Run
from dsx.space.recompute_values import FULL, JOINED

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


def number_formats(run: Run) -> Settings:
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
    known = weights == activations and weights in _OPTIMIZER_BYTES
    if not known:
        lost.append(
            f"weights of {weights} and activations of {activations} bytes per element: Megatron-LM has {_FP32} for "
            f"both, or {_HALF} (--{half})"
        )
    if known and weights == _HALF:
        options.append(switch(f"--{half}", f"mixed_precision.{half}"))
        options += _GRADIENTS.get((half, gradients), ())
    if gradients != _FP32 and not (known and weights == gradients == _HALF):
        how = " (--grad-reduce-in-bf16)" if half == "bf16" else ""
        lost.append(
            f"gradients of {gradients} bytes per element: Megatron-LM has {_FP32}, or {_HALF} with --{half}{how}"
        )
    if run.number("zero_stage") > 1:
        options += _sharded_gradients(gradients, half)
    kept = assumptions.optimizer_bytes_per_parameter
    if known and kept != _OPTIMIZER_BYTES[weights]:
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


def expert_options(run: Run) -> Settings:
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
        each = [int(has) for has, count in experts.layers for _ in range(count)]
        options.append(Option("--moe-layer-freq", pattern, "model.moe_layer_freq", each))
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


def _dispatched(run: Run, experts: ExpertRun) -> Settings:
    """Return the settings of the dispatcher."""
    kinds = experts.exchanges
    # Experts that are all on their own rank need no network.
    crosses = run.number("ep") * experts.tp > 1
    once = crosses and run.assumptions.dispatcher == "once_per_domain"
    exchanged = "flex" if once else "alltoall"
    known = {exchanged: kinds <= {ALL_TO_ALL}, "allgather": kinds <= _GATHERED}
    dispatcher = next((name for name, fits in known.items() if fits), None)
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


def context_options(run: Run) -> Settings:
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


def overlap_options(run: Run) -> Settings:
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


def overlaps_experts(run: Run) -> bool:
    """Return whether expert parallel communication of one microbatch runs beside the compute of another."""
    wanted = run.number("ep") > 1 and bool(run.assumptions.ep_overlap)
    interleaved = run.number("pp") == 1 or run.number("vpp") > 1
    return wanted and interleaved and not {FULL, _EXPERTS} & {*str(run["recompute"]).split(JOINED)}


def fused_options(run: Run) -> list[Option]:
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


def refused_by_arguments(run: Run) -> list[str]:
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
