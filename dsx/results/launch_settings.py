"""Flags of Megatron-LM that do not follow from the columns of a plan alone: number formats, experts, and overlap.

Each function returns flags, and in words what was priced but has no flag. An overlap is a share of the communication
that could be hidden; a flag can only switch it on, so any share above 0 sets the flag.

Sources: megatron.core 0.16.1 for what Megatron-LM does (ModelParallelConfig.bf16, tp_comm_overlap, overlap_p2p_comm,
overlap_moe_expert_parallel_comm; TransformerConfig.fp8, cp_comm_type, moe_token_dispatcher_type, moe_grouped_gemm,
moe_layer_freq, moe_expert_capacity_factor; DistributedDataParallelConfig.grad_reduce_in_fp32; OptimizerConfig;
schedules.forward_backward_pipelining_without_interleaving), megatron/training/arguments.py for the flags. Not covered:
the scaling recipe of multiplies in fewer than 16 bits, which dsx does not choose. The flag of 4 bits is from memory.
"""

from dsx.graph.derived import FORWARD, DerivedLayer
from dsx.graph.match import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from dsx.graph.model import Model
from dsx.space.plan import Plan
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import DeviceSpec
from dsx.spec.model import EXPERTS

Flag = tuple[str, str]  # (flag, value): "" for a flag without one, words for a flag with several
Settings = tuple[list[Flag], list[str]]  # flags, and what they cannot express

_BF16, _FP32 = 2, 4  # bytes
# Adam's two moments in FP32, and an FP32 weight if the model's weight is in BF16.
_OPTIMIZER_BYTES = {_BF16: 12, _FP32: 8}
_CP_COMM_TYPE = {ALL_GATHER: "all_gather", ALL_TO_ALL: "a2a"}
_GATHERED = {ALL_GATHER, REDUCE_SCATTER}

# linear_dtype -> in words, the peak of a device, and the flag of Megatron-LM.
_NARROW: dict[str, tuple[str, str, Flag | None]] = {
    "fp8": ("8 bits", "fp8_flops", ("--fp8-format", "hybrid")),
    "fp4": ("4 bits", "fp4_flops", ("--fp4-format", "e2m1")),
    "int8": ("integers of 8 bits", "int8_flops", None),
}


def number_formats(assumptions: AssumptionsSpec, device: DeviceSpec) -> Settings:
    """Return the flags of the priced element sizes, and of multiplies in fewer bits.

    Without a flag, gradients of BF16 weights are accumulated and reduced in FP32.
    """
    flags: list[Flag] = []
    lost: list[str] = []
    weights, activations, gradients = (
        getattr(assumptions, f"{name}_bytes") for name in ("weight", "activation", "gradient")
    )
    known = weights == activations and weights in _OPTIMIZER_BYTES
    if not known:
        lost.append(
            f"weights of {weights} and activations of {activations} bytes per element: Megatron-LM has {_FP32} for "
            f"both, or {_BF16} (--bf16)"
        )
    if known and weights == _BF16:
        flags.append(("--bf16", ""))
    if known and weights == gradients == _BF16:
        flags.append(("--grad-reduce-in-bf16", ""))
    elif gradients != _FP32:
        lost.append(
            f"gradients of {gradients} bytes per element: Megatron-LM has {_FP32}, or {_BF16} with --bf16 "
            "(--grad-reduce-in-bf16)"
        )
    kept = assumptions.optimizer_bytes_per_parameter
    if known and kept != _OPTIMIZER_BYTES[weights]:
        lost.append(
            f"optimizer state of {kept:g} bytes per parameter: Adam in Megatron-LM keeps {_OPTIMIZER_BYTES[weights]}"
        )
    if assumptions.linear_dtype in _NARROW:
        bits, peak, flag = _NARROW[assumptions.linear_dtype]
        if getattr(device, peak) is None:
            lost.append(f"multiplies in {bits}: {device.name} has none, so they were priced at its matrix_flops")
        elif flag is None:
            lost.append(f"multiplies in {bits}: Megatron-LM has none")
        else:
            flags.append(flag)
    return flags, lost


def expert_flags(plan: Plan, model: Model, assumptions: AssumptionsSpec) -> Settings:
    """Return the flags of layers with experts; none for a model without experts.

    Transfers of a copy of a token to each of its experts are the dispatcher `alltoall`, of one to each fast domain
    `flex` with DeepEP; `allgather` sends every token to all ranks. The experts of a rank are one grouped multiply.
    """
    layers = [layer for layer in model.kinds if EXPERTS in layer.letters]
    if not layers:
        return [], []
    layer = layers[0]
    flags: list[Flag] = [("--num-experts", str(model.dimensions[EXPERTS]))]
    if "topk" in layer.letters:
        flags.append(("--moe-router-topk", str(model.dimensions["topk"])))
    if {"ng", "tg"} <= layer.letters:
        flags.append(("--moe-router-num-groups", str(model.dimensions["ng"])))
        flags.append(("--moe-router-group-topk", str(model.dimensions["tg"])))
    if pattern := _expert_layers(model):
        flags.append(("--moe-layer-freq", pattern))
    room = model.dimensions["capacity_percent"] if "capacity_percent" in layer.letters else 100
    if room != 100:  # dsx also prices capacity beyond the even share as if it were filled
        flags += [("--moe-expert-capacity-factor", f"{room / 100:g}"), ("--moe-pad-expert-input-to-capacity", "")]
    kinds = {collective.kind for collective in layer.collectives(FORWARD) if collective.axis == "ep"}
    exchanged = "flex" if assumptions.dispatcher == "once_per_domain" else "alltoall"
    known = {exchanged: kinds <= {ALL_TO_ALL}, "allgather": kinds <= _GATHERED}
    dispatcher = next((name for name, fits in known.items() if fits), None)
    lost = [] if dispatcher else [f"tokens that are dispatched over ep by {' and '.join(sorted(kinds))}"]
    flags += [("--moe-token-dispatcher-type", dispatcher)] if dispatcher else []
    flags += [("--moe-flex-dispatcher-backend", "deepep")] if dispatcher == "flex" else []
    flags.append(("--moe-grouped-gemm", ""))
    flags += [("--expert-model-parallel-size", str(plan["ep"]))] if plan["ep"] > 1 else []
    # Without this flag Megatron-LM divides experts by tp.
    flags.append(("--expert-tensor-parallel-size", str(plan["tp"] if "tp" in layer.expert_axes else 1)))
    return flags, lost


def _expert_layers(model: Model) -> str:
    """Return which layers of the body have experts, in the form of Megatron-LM; empty if all do."""
    blocks: list[list[int]] = []
    for layer, count in model.body:
        has = int(EXPERTS in layer.letters)
        if blocks and blocks[-1][0] == has:
            blocks[-1][1] += count
        else:
            blocks.append([has, count])
    return "+".join(f"[{has}]*{count}" for has, count in blocks) if len(blocks) > 1 else ""


def context_flags(plan: Plan, layer: DerivedLayer, assumptions: AssumptionsSpec) -> Settings:
    """Return the flags of the exchange of keys and values in a context parallel group."""
    found = [collective for collective in layer.collectives(FORWARD) if collective.axis == "cp"]
    if plan["cp"] == 1 or not found:
        return [], []
    kinds = {"p2p" if collective.ring else _CP_COMM_TYPE.get(collective.kind, "") for collective in found}
    if len(kinds) > 1 or "" in kinds:
        priced = " and ".join(dict.fromkeys(collective.kind for collective in found))
        tensors = ", ".join(dict.fromkeys(collective.tensor for collective in found))
        return [], [
            f"context parallelism as it was priced, by {priced} of {tensors}: Megatron-LM's default passes keys and "
            "values around a ring (--cp-comm-type p2p)"
        ]
    (kind,) = kinds
    lost: list[str] = []
    if kind == _CP_COMM_TYPE[ALL_GATHER] and assumptions.cp_overlap:
        lost.append(
            f"keys and values gathered during compute (cp_overlap={assumptions.cp_overlap:g}): Megatron-LM waits for "
            "that all-gather, and overlaps only a ring (--cp-comm-type p2p)"
        )
    return [("--cp-comm-type", kind)], lost


def overlap_flags(plan: Plan, sequence_parallel: bool, assumptions: AssumptionsSpec) -> Settings:
    """Return the flags that overlap tensor, pipeline and expert parallel communication with compute."""
    flags: list[Flag] = []
    lost: list[str] = []
    if plan["tp"] > 1 and assumptions.tp_overlap:
        if sequence_parallel:
            flags.append(("--tp-comm-overlap", ""))
        else:
            lost.append(
                f"tensor parallel communication during compute (tp_overlap={assumptions.tp_overlap:g}): Megatron-LM "
                "overlaps it only under sequence parallelism"
            )
    if plan["pp"] > 1 and plan["vpp"] > 1 and not assumptions.pp_overlap:
        flags.append(("--no-overlap-p2p-communication", ""))
    if plan["pp"] > 1 and plan["vpp"] == 1 and assumptions.pp_overlap:
        lost.append(
            f"sends during a microbatch (pp_overlap={assumptions.pp_overlap:g}) with vpp=1: Megatron-LM overlaps them "
            "only if vpp is above 1"
        )
    if plan["ep"] > 1 and assumptions.ep_overlap:
        if (plan["pp"] == 1 or plan["vpp"] > 1) and plan["recompute"] != "full":
            flags.append(("--overlap-moe-expert-parallel-comm", ""))
        else:
            lost.append(
                f"expert parallel communication during compute (ep_overlap={assumptions.ep_overlap:g}) with "
                f"pp={plan['pp']}, vpp={plan['vpp']}, recompute={plan['recompute']}: Megatron-LM overlaps it without a "
                "pipeline or with vpp above 1, and without full recomputation"
            )
    return flags, lost
