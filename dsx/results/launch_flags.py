"""A plan as launch flags of Megatron-LM, and in words what the flags cannot express.

    launch = megatron_lm(plan, model, assumptions, device)  # a plan as columns by name, the model under its strategy
    launch.arguments                                        # ["--tensor-model-parallel-size", "8", ...]

The world size is not a flag: the launcher starts num_gpus ranks, and Megatron-LM derives dp from tp, cp and pp. What a
layer divides is read from the layer, never from the name of its strategy. `dsx.results.launch_settings` has the flags
of settings that are not columns of a plan.

Sources: megatron/training/arguments.py for the flags; megatron.core 0.16.1 for the order of the ranks
(parallel_state.initialize_model_parallel), the limits of offload (TransformerConfig.cpu_offloading), and the rule that
experts with tensor parallelism need sequence parallelism (MoELayer.forward). DeepSpeed is named where it has what
Megatron-LM lacks, from memory of the documentation of its configuration. Not covered: settings that are not choices of
a plan, such as the other dimensions of the model, its embedding and head.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsx.graph.derived import DerivedLayer
from dsx.graph.expressions import names
from dsx.graph.model import Model
from dsx.results.launch_settings import Flag, context_flags, expert_flags, number_formats, overlap_flags
from dsx.space.domain_fill import numbered_shares
from dsx.space.limits import PLACED, placed
from dsx.space.plan import Plan
from dsx.space.recompute_values import FULL, NONE, SELECTIVE, VALUES, megatron_lm_modules
from dsx.space.schedules import SCHEDULES
from dsx.space.tiers import ORDERS
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import DeviceSpec
from dsx.spec.model import EXPERTS

# The axes of the rank number, the fastest first; ep groups are ranks of tp, cp and dp.
_RANK_ORDERS = {order: tuple(axis for axis in order.split("-") if axis != "ep") for order in ORDERS}
RANK_ORDER = _RANK_ORDERS[ORDERS[0]]
# The flag for each order that is not the default.
_ORDER_FLAGS = {ORDERS[1]: (("--use-tp-pp-dp-mapping", ""),)}

_SOFTWARE = ("cuda", "rocm")  # software that Megatron-LM runs on; with ROCm it is AMD's fork
_LAYOUT = "the rest would start another plan"

# dsx overlaps the gradient reduction with the backward, and the gathering of weights with the forward.
_OVERLAPPED = (("--overlap-grad-reduce", ""), ("--overlap-param-gather", ""))
_SHARDED = ("--use-distributed-optimizer", "")
_FSDP = (_SHARDED, ("--use-megatron-fsdp", ""), ("--ckpt-format", "fsdp_dtensor"))
_ZERO: dict[int, tuple[Flag, ...]] = {
    0: (("--overlap-grad-reduce", ""),),
    1: (_SHARDED, *_OVERLAPPED),
    2: (*_FSDP, ("--data-parallel-sharding-strategy", "optim_grads"), *_OVERLAPPED),
    3: (*_FSDP, ("--data-parallel-sharding-strategy", "optim_grads_params"), *_OVERLAPPED),
}
_UNIFORM = ("--recompute-method", "uniform")
_SELECTIVE = ("--recompute-granularity", "selective")
_RECOMPUTE: dict[str, tuple[Flag, ...]] = {
    NONE: (),
    SELECTIVE: (_SELECTIVE,),
    FULL: (("--recompute-granularity", "full"), _UNIFORM, ("--recompute-num-layers", "1")),
}
# Only the distributed, precision-aware optimizer can run on the host.
_HOST_UPDATE = (
    ("--optimizer-cpu-offload", ""),
    ("--optimizer-offload-fraction", "1.0"),
    ("--use-precision-aware-optimizer", ""),
)
_SCHEDULES = {schedule.name: schedule.megatron_lm for schedule in SCHEDULES}
_KEPT_LAYERS = 2  # layers of each microbatch whose activations stay on the GPU under offload


@dataclass(frozen=True, slots=True)
class Launch:
    """A plan for Megatron-LM; `str(launch)` can be pasted behind a command."""

    flags: tuple[Flag, ...]  # pairs of a flag and its value; none if the plan cannot be run
    lost: tuple[str, ...]  # what the flags do not express, one thing each
    none_since: str = ""  # why there are no flags; empty if there are some

    @property
    def arguments(self) -> list[str]:
        """The flags as words of a command line."""
        return [word for flag in self.flags for word in words_of(flag)]

    def __str__(self) -> str:
        return shlex.join(self.arguments)


def words_of(flag: Flag) -> tuple[str, ...]:
    """Return a flag as words of a command line."""
    name, value = flag
    return name, *value.split()


def megatron_lm(plan: Plan, model: Model, assumptions: AssumptionsSpec, device: DeviceSpec) -> Launch:
    """Return the Megatron-LM flags of a plan; `plan` has every candidate column by name, `model` its strategy.

    There are no flags if Megatron-LM has no such layout of weights: without that choice the remaining flags would start
    another plan. There are none either if Megatron-LM does not run on the device.
    """
    if device.software not in _SOFTWARE:
        lost = (
            f"{device.name}, which is programmed with {device.software}: Megatron-LM runs on {' and '.join(_SOFTWARE)}"
        )
        return Launch((), (lost,), "Megatron-LM does not run on this device")
    layer, num_layers, outside = model.body_layer, model.num_body_layers, (len(model.first), len(model.last))
    # Between blocks: tokens that are routed to experts can be divided without sequence parallelism.
    sequence_parallel = plan["tp"] > 1 and "tp" in names(layer.boundary_bytes)
    foreign = _foreign_layout(plan, layer)
    if plan["tp"] > 1 and not sequence_parallel and EXPERTS in layer.letters:
        foreign.append(f"experts with tp={plan['tp']} without sequence parallelism: Megatron-LM refuses them")
    if foreign:
        return Launch((), tuple(foreign), _LAYOUT)
    zero = _zero(plan["zero_stage"], assumptions)
    schedule = _SCHEDULES.get(plan["schedule"]) if plan["pp"] > 1 else ()  # one stage has no schedule
    uneven = _uneven(plan, num_layers, outside)
    recompute, not_recomputed = _recomputed(plan, num_layers, bool(uneven))
    offload, not_offloaded = _offloaded(plan, num_layers)
    context, not_exchanged = context_flags(plan, layer, assumptions)
    experts, not_dispatched = expert_flags(plan, model, assumptions)
    formats, not_stored = number_formats(assumptions, device)
    overlaps, not_hidden = overlap_flags(plan, sequence_parallel, assumptions)
    flags = [
        ("--tensor-model-parallel-size", str(plan["tp"])),
        *([("--sequence-parallel", "")] if sequence_parallel else []),
        ("--context-parallel-size", str(plan["cp"])),
        *context,
        ("--pipeline-model-parallel-size", str(plan["pp"])),
        *_layout(uneven),
        *([] if uneven else _counted(plan, num_layers)),
        *_ORDER_FLAGS.get(plan["order"], ()),
        # A layout says itself how many chunks a stage has.
        *([("--num-virtual-stages-per-pipeline-rank", str(plan["vpp"]))] if plan["vpp"] > 1 and not uneven else []),
        *(schedule or ()),
        *experts,
        ("--micro-batch-size", str(plan["microbatch_size"])),
        ("--global-batch-size", str(plan["global_batch_size"])),
        ("--seq-length", str(plan["sequence_length"])),
        *(zero or ()),
        *([("--num-distributed-optimizer-instances", str(plan["zero_replicas"]))] if plan["zero_replicas"] > 1 else []),
        *recompute,
        *offload,
        *formats,
        *overlaps,
    ]
    lost = [
        *([f"zero_stage={plan['zero_stage']}"] if zero is None else _sharded_in_pipeline(plan)),
        *not_recomputed,
        *not_offloaded,
        *([f"schedule={plan['schedule']}"] if schedule is None else []),
        *not_exchanged,
        *not_dispatched,
        *not_stored,
        *not_hidden,
        *_placement(plan),
    ]
    return Launch(tuple(flags), tuple(lost))


def _zero(stage: int, assumptions: AssumptionsSpec) -> tuple[Flag, ...] | None:
    """Return the flags of a ZeRO stage; None if it is unknown. From stage 2 on Megatron-LM always overlaps."""
    known = _ZERO.get(stage)
    if known is None or stage > 1 or assumptions.dp_overlap:
        return known
    return tuple(flag for flag in known if flag not in _OVERLAPPED)


def _sharded_in_pipeline(plan: Plan) -> list[str]:
    """Return that Megatron-FSDP, which has ZeRO stages 2 and 3, is not documented to run in a pipeline."""
    if plan["zero_stage"] < 2 or plan["pp"] == 1:
        return []
    return [
        f"zero_stage={plan['zero_stage']} with pp={plan['pp']}: Megatron-FSDP is documented with tensor, context and "
        "expert parallelism, not with pipelines"
    ]


def _uneven(plan: Plan, num_layers: int, outside: tuple[int, int]) -> list[int]:
    """Return how many layers of the body each chunk has; an empty list if all have the same number.

    `outside` are the numbers of layers before and after the body, which `stage_layers` also counts.
    """
    found: list[int] = []
    begin, (before, _) = 0, outside
    for size in map(int, plan["stage_layers"].split(",") if "stage_layers" in plan else ()):
        held = min(begin + size, before + num_layers) - max(begin, before)
        found.append(max(held, 0))
        begin += size
    return found if len(set(found)) > 1 else []


def _layout(body: Sequence[int]) -> list[Flag]:
    """Return the flag of an uneven layer layout, which `dsx.space.layer_layout` reads."""
    layers = ["t" if size == 1 else f"t*{size}" if size else "" for size in body]
    return [("--pipeline-model-parallel-layout", f"E{'|'.join(layers)}L")] if layers else []


def _counted(plan: Plan, num_layers: int) -> list[Flag]:
    """Return the flags that count embedding and head as a layer each, where the body alone does not divide."""
    chunks = plan["pp"] * plan["vpp"]
    if "stage_layers" in plan or num_layers % chunks == 0 or (num_layers + 2) % chunks:
        return []
    return [("--account-for-embedding-in-pipeline-split", ""), ("--account-for-loss-in-pipeline-split", "")]


def _recomputed(plan: Plan, num_layers: int, uneven: bool) -> tuple[list[Flag], list[str]]:
    """Return the flags of recomputation, and what they cannot express of it."""
    mode, stored = plan["recompute"], plan["stored_layers"]
    if mode not in VALUES:
        return [], [f"recompute={mode}"]
    known = _RECOMPUTE[mode] if mode in _RECOMPUTE else _regions(mode)
    if not stored:
        return [*known], []
    if uneven:
        reason = "uneven stages, which recompute the same share of their layers: Megatron-LM recomputes the same number"
        return [*known], [f"stored_layers={stored} with {reason}"]
    if stored == num_layers // plan["pp"]:
        return [], []
    recomputed, rest = divmod(num_layers // plan["pp"] - stored, plan["vpp"])
    if _UNIFORM not in known:
        reason = f"recompute={mode}: Megatron-LM recomputes regions of all layers, or of none"
        return [*known], [f"stored_layers={stored} with {reason}"]
    if rest:
        reason = f"vpp={plan['vpp']}: Megatron-LM recomputes the same number of layers in each chunk"
        return [*known], [f"stored_layers={stored} with {reason}"]
    granularity = [flag for flag in known if flag[0] == "--recompute-granularity"]
    return [*granularity, ("--recompute-method", "block"), ("--recompute-num-layers", str(recomputed))], []


def _regions(value: str) -> tuple[Flag, ...]:
    """Return the flags of a value of `recompute` that is a set of regions."""
    return _SELECTIVE, ("--recompute-modules", " ".join(megatron_lm_modules(value)))


def _offloaded(plan: Plan, num_layers: int) -> tuple[list[Flag], list[str]]:
    """Return the flags of offload, and what they cannot express of it."""
    flags: list[Flag] = []
    lost: list[str] = []
    if plan["offload"] in ("optimizer", "both"):
        if plan["zero_stage"] == 1:
            flags += _HOST_UPDATE
        else:
            lost.append(
                f"offload of the optimizer with zero_stage={plan['zero_stage']}: Megatron-LM offloads it only with a "
                "distributed optimizer; DeepSpeed has it as zero_optimization.offload_optimizer.device=cpu"
            )
    if plan["offload"] in ("activations", "both"):
        if plan["pp"] == 1 and plan["recompute"] == NONE and num_layers > _KEPT_LAYERS:
            flags.append(("--cpu-offloading-num-layers", str(num_layers - _KEPT_LAYERS)))
        else:
            lost.append(
                f"offload of activations with pp={plan['pp']}, recompute={plan['recompute']}: Megatron-LM offloads "
                "layers only without a pipeline and without recomputation"
            )
    return flags, lost


def shares_of(plan: Mapping[str, int], order: Sequence[str] = RANK_ORDER) -> dict[str, int] | None:
    """Return how many members of each axis share a fast domain if ranks are numbered in `order`.

    A domain holds consecutive ranks, as many as the plan places on one. Returns None if domains cut groups unevenly, so
    that no single number describes them.
    """
    return numbered_shares({axis: plan[axis] for axis in order}, placed(plan, RANK_ORDER))


def _divides(layer: DerivedLayer, letter: str, axis: str) -> bool:
    return any(dim.letter == letter and axis in dim.axes for dim in layer.divided)


def _foreign_layout(plan: Plan, layer: DerivedLayer) -> list[str]:
    """Return why Megatron-LM has no layout for the weights and activations of a plan."""
    lost: list[str] = []
    if plan["tp2"] > 1:
        degrees = f"tp={plan['tp']} by tp2={plan['tp2']}"
        lost.append(f"weights divided in two dimensions ({degrees}): Megatron-LM divides one, by tp")
    if plan["panels"] > 1 and max(plan["tp"], plan["tp2"]) > 1:
        lost.append(f"multiplies in {plan['panels']} panels: Megatron-LM gathers an operand whole")
    if plan["tp"] > 1 and _divides(layer, "e", "tp"):
        lost.append("the hidden dimension divided by tp: Megatron-LM keeps it whole between blocks")
    return lost


def _placement(plan: Plan) -> list[str]:
    """Return how the placement of a plan differs from that of Megatron-LM's rank order."""
    wanted = {axis: plan[f"{axis}_nvs"] for axis in RANK_ORDER}
    by_order = {name: shares_of(plan, order) for name, order in _RANK_ORDERS.items()}
    own = plan["order"]
    others = [name for name in by_order if name != own]
    if by_order[own] == wanted:
        return []
    found = by_order[own]
    does = f"puts {_shares_text(found)} there" if found else "cuts its groups unevenly"
    # On more than two tiers another order is another plan.
    equal = [name for name in others if by_order[name] == wanted and _on_two_tiers(plan)]
    better = [f"; the order {name} would do as priced" for name in equal]
    domains = f"fast domains of {placed(plan, RANK_ORDER)} GPUs"
    which = "default rank order" if own == ORDERS[0] else "rank order"
    return [
        f"the placement {_shares_text(wanted)} on {domains}: the {which} "
        f"({own}, {RANK_ORDER[0]} innermost) {does}{''.join(better)}"
    ]


def _on_two_tiers(plan: Plan) -> bool:
    """Return whether a plan was placed on two tiers: with more it has a column for each tier beyond the fast domain."""
    return plan["order"] == ORDERS[0] and {name for name in plan if name.startswith("dp_")} == {"dp_nvs"}


def _shares_text(shares: Mapping[str, int]) -> str:
    return " ".join(f"nvs.{axis}={shares[axis]}" for axis in PLACED if shares.get(axis, 1) > 1) or "of one GPU each"
