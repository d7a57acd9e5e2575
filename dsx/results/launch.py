"""A plan as launch flags of Megatron-LM, and in plain words what the flags cannot express.

    launch = megatron_lm(plan, layer, 96)  # a plan as columns by name, the layer of its strategy, body layers
    launch.arguments                       # ["--tensor-model-parallel-size", "8", ...]

The world size is no flag: the launcher starts num_gpus ranks, and Megatron-LM makes dp of what tp, cp and pp
leave of them. What a layer divides is read from the layer, never from the name of its strategy.

Sources: megatron/training/arguments.py for the flags; megatron.core 0.16.1 for the order of the ranks
(parallel_state.initialize_model_parallel), the communication of context parallelism and what limits offload
(TransformerConfig.cp_comm_type, cpu_offloading); of DeepSpeed, which is named where it has what Megatron-LM lacks, the
documentation of its configuration (from memory of it). Not covered: what is no choice of a plan, such as the model's
dimensions, its embedding and head, and number formats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsx.graph.derived import FORWARD, DerivedLayer
from dsx.graph.match import ALL_GATHER, ALL_TO_ALL
from dsx.space.placement import numbered_shares
from dsx.space.rules import PLACED, placed
from dsx.space.tiers import ORDERS

# The axes of a rank's number, the one that changes fastest first; ep lies inside tp, cp and dp.
_RANK_ORDERS = {order: tuple(axis for axis in order.split("-") if axis != "ep") for order in ORDERS}
RANK_ORDER = _RANK_ORDERS[ORDERS[0]]
# Of the orders that are not the default one, the flag that asks for it.
_ORDER_FLAGS = {ORDERS[1]: (("--use-tp-pp-dp-mapping", ""),)}

# dsx hides the reduction behind the backward and the gathering of weights behind the forward.
_OVERLAPPED = (("--overlap-grad-reduce", ""), ("--overlap-param-gather", ""))
_SHARDED = ("--use-distributed-optimizer", "")
_FSDP = (_SHARDED, ("--use-megatron-fsdp", ""), ("--ckpt-format", "fsdp_dtensor"))
_ZERO: dict[int, tuple[tuple[str, str], ...]] = {
    0: (("--overlap-grad-reduce", ""),),
    1: (_SHARDED, *_OVERLAPPED),
    2: (*_FSDP, ("--data-parallel-sharding-strategy", "optim_grads"), *_OVERLAPPED),
    3: (*_FSDP, ("--data-parallel-sharding-strategy", "optim_grads_params"), *_OVERLAPPED),
}
_UNIFORM = ("--recompute-method", "uniform")
_RECOMPUTE: dict[str, tuple[tuple[str, str], ...]] = {
    "none": (),
    "selective": (("--recompute-granularity", "selective"),),
    "full": (("--recompute-granularity", "full"), _UNIFORM, ("--recompute-num-layers", "1")),
}
# Only the distributed, precision-aware optimizer can run on the host.
_HOST_UPDATE = (
    ("--optimizer-cpu-offload", ""),
    ("--optimizer-offload-fraction", "1.0"),
    ("--use-precision-aware-optimizer", ""),
)
# Both are told apart by the virtual stages alone.
_SCHEDULES = ("1f1b", "interleaved")
_KEPT_LAYERS = 2  # of each microbatch on the GPU where activations are offloaded
_CP_COMM_TYPE = {ALL_GATHER: "all_gather", ALL_TO_ALL: "a2a"}


@dataclass(frozen=True, slots=True)
class Launch:
    """A plan for a launcher."""

    flags: tuple[tuple[str, str], ...]  # (flag, value), "" for a flag without one; none if the plan cannot be run
    lost: tuple[str, ...]  # what the flags do not express, one thing each

    @property
    def arguments(self) -> list[str]:
        """The flags as words of a command line."""
        return [word for flag in self.flags for word in flag if word]


def megatron_lm(
    plan: Mapping[str, Any], layer: DerivedLayer, num_layers: int, ends: tuple[int, int] = (0, 0)
) -> Launch:
    """Return the Megatron-LM flags of a plan; `plan` has every candidate column by name, `layer` its strategy.

    `num_layers` are the layers of the model that a pipeline cuts; before and behind them a cut counts `ends`, of which
    `stage_layers` of the plan may make stages.

    A plan whose weights lie as Megatron-LM has no layout for gets no flags at all: without the choice that is
    lost, the remaining flags would start another plan.
    """
    if foreign := _foreign_layout(plan, layer):
        return Launch((), tuple(foreign))
    zero = _ZERO.get(plan["zero_stage"])
    uneven = _uneven(plan, num_layers, ends)
    recompute, not_made_again = _recomputed(plan, num_layers, bool(uneven))
    moved, not_moved = _offloaded(plan, num_layers)
    lost = [f"zero_stage={plan['zero_stage']}"] if zero is None else []
    lost += [*not_made_again, *not_moved]
    lost += [f"schedule={plan['schedule']}"] if plan["schedule"] not in _SCHEDULES else []
    flags = [
        ("--tensor-model-parallel-size", str(plan["tp"])),
        *([("--sequence-parallel", "")] if plan["tp"] > 1 and _divides(layer, "s", "tp") else []),
        ("--context-parallel-size", str(plan["cp"])),
        *([("--expert-model-parallel-size", str(plan["ep"]))] if plan["ep"] > 1 else []),
        *([("--expert-tensor-parallel-size", str(_expert_tensor(plan, layer)))] if "ep" in layer.axes else []),
        ("--pipeline-model-parallel-size", str(plan["pp"])),
        *_layout(uneven),
        *_ORDER_FLAGS.get(plan["order"], ()),
        *([("--num-virtual-stages-per-pipeline-rank", str(plan["vpp"]))] if plan["vpp"] > 1 else []),
        ("--micro-batch-size", str(plan["microbatch_size"])),
        ("--global-batch-size", str(plan["global_batch_size"])),
        ("--seq-length", str(plan["sequence_length"])),
        *(zero or ()),
        *([("--num-distributed-optimizer-instances", str(plan["zero_replicas"]))] if plan["zero_replicas"] > 1 else []),
        *recompute,
        *moved,
    ]
    return Launch(tuple(flags), (*lost, *_context(plan, layer), *_placement(plan)))


def _uneven(plan: Mapping[str, Any], num_layers: int, ends: tuple[int, int]) -> list[int]:
    """Return how many layers of the body each stage has; nothing where all have as many.

    A cut counts `ends` before and behind them.
    """
    found: list[int] = []
    begin, (before, _) = 0, ends
    for size in map(int, plan["stage_layers"].split(",") if "stage_layers" in plan else ()):
        held = min(begin + size, before + num_layers) - max(begin, before)
        found.append(max(held, 0))
        begin += size
    return found if len(set(found)) > 1 else []


def _layout(body: Sequence[int]) -> list[tuple[str, str]]:
    """Return the flag of an uneven cut: E is the embedding, t a layer, L the loss with what is before it."""
    layers = ["t" if size == 1 else f"t*{size}" if size else "" for size in body]
    return [("--pipeline-model-parallel-layout", f"E{'|'.join(layers)}L")] if layers else []


def _recomputed(plan: Mapping[str, Any], num_layers: int, uneven: bool) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the flags of recomputation, and what of it they do not express."""
    mode, stored = plan["recompute"], plan["stored_layers"]
    known = _RECOMPUTE.get(mode)
    if known is None:
        return [], [f"recompute={mode}"]
    if not stored:
        return [*known], []
    if uneven:
        reason = "stages of unequal length, of which the same share of layers is made again: Megatron-LM makes as many"
        return [*known], [f"stored_layers={stored} with {reason}"]
    if stored == num_layers // plan["pp"]:
        return [], []
    again, uneven = divmod(num_layers // plan["pp"] - stored, plan["vpp"])
    if _UNIFORM not in known:
        reason = f"recompute={mode}: Megatron-LM makes regions of all layers again, or of none"
        return [*known], [f"stored_layers={stored} with {reason}"]
    if uneven:
        reason = f"vpp={plan['vpp']}: Megatron-LM makes as many layers of each chunk again"
        return [*known], [f"stored_layers={stored} with {reason}"]
    granularity = [flag for flag in known if flag[0] == "--recompute-granularity"]
    return [*granularity, ("--recompute-method", "block"), ("--recompute-num-layers", str(again))], []


def _offloaded(plan: Mapping[str, Any], num_layers: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the flags of offload, and what of it they do not express."""
    flags: list[tuple[str, str]] = []
    lost: list[str] = []
    if plan["offload"] in ("optimizer", "both"):
        if plan["zero_stage"] == 1:
            flags += _HOST_UPDATE
        else:
            lost.append(
                f"offload of the optimizer with zero_stage={plan['zero_stage']}: Megatron-LM offloads it with a "
                "distributed optimizer alone; DeepSpeed has it as zero_optimization.offload_optimizer.device=cpu"
            )
    if plan["offload"] in ("activations", "both"):
        if plan["pp"] == 1 and plan["recompute"] == "none" and num_layers > _KEPT_LAYERS:
            flags.append(("--cpu-offloading-num-layers", str(num_layers - _KEPT_LAYERS)))
        else:
            lost.append(
                f"offload of activations with pp={plan['pp']}, recompute={plan['recompute']}: Megatron-LM offloads "
                "layers only without a pipeline and without recomputation"
            )
    return flags, lost


def shares_of(plan: Mapping[str, int], order: Sequence[str] = RANK_ORDER) -> dict[str, int] | None:
    """Return how many members of each axis share a fast domain if ranks are numbered in `order`.

    A domain holds ranks that follow each other, as many as the plan places on one. None where the domains cut
    groups unevenly, so that no one number describes them.
    """
    return numbered_shares({axis: plan[axis] for axis in order}, placed(plan, RANK_ORDER))


def _expert_tensor(plan: Mapping[str, Any], layer: DerivedLayer) -> int:
    """Return the ranks that divide an expert; Megatron-LM takes tp where nothing is said."""
    return plan["tp"] if "tp" in layer.expert_axes else 1


def _divides(layer: DerivedLayer, letter: str, axis: str) -> bool:
    return any(dim.letter == letter and axis in dim.axes for dim in layer.divided)


def _foreign_layout(plan: Mapping[str, Any], layer: DerivedLayer) -> list[str]:
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


def _context(plan: Mapping[str, Any], layer: DerivedLayer) -> list[str]:
    """Return how context parallelism differs from Megatron-LM's default, a ring."""
    if plan["cp"] == 1:
        return []
    moves = [move for move in layer.collectives(FORWARD) if move.axis == "cp" and not move.ring]
    if not moves:
        return []
    kinds = " and ".join(dict.fromkeys(move.kind for move in moves))
    tensors = ", ".join(dict.fromkeys(move.tensor for move in moves))
    settings = {_CP_COMM_TYPE.get(move.kind) for move in moves}
    same = f"; cp_comm_type={settings.pop()} is what was priced" if len(settings) == 1 and None not in settings else ""
    return [
        f"context parallelism as it was priced, by {kinds} of {tensors}: Megatron-LM's default passes keys and values "
        f"around a ring (cp_comm_type=p2p){same}"
    ]


def _placement(plan: Mapping[str, Any]) -> list[str]:
    """Return how the placement of a plan differs from that of Megatron-LM's rank order."""
    wanted = {axis: plan[f"{axis}_nvs"] for axis in RANK_ORDER}
    made = {name: shares_of(plan, order) for name, order in _RANK_ORDERS.items()}
    default = plan["order"]
    others = [name for name in made if name != default]
    if made[default] == wanted:
        return []
    found = made[default]
    does = f"puts {_shares_text(found)} there" if found else "cuts its groups unevenly"
    # On more tiers than two another order is another plan.
    alike = [name for name in others if made[name] == wanted and _on_two_tiers(plan)]
    better = [f"; the order {name} would do as priced" for name in alike]
    domains = f"fast domains of {placed(plan, RANK_ORDER)} GPUs"
    which = "default rank order" if default == ORDERS[0] else "rank order"
    return [
        f"the placement {_shares_text(wanted)} on {domains}: the {which} "
        f"({default}, {RANK_ORDER[0]} innermost) {does}{''.join(better)}"
    ]


def _on_two_tiers(plan: Mapping[str, Any]) -> bool:
    """Return whether a plan says nothing of tiers beyond the fast domain, as it does where there are more."""
    return plan["order"] == ORDERS[0] and {name for name in plan if name.startswith("dp_")} == {"dp_nvs"}


def _shares_text(shares: Mapping[str, int]) -> str:
    return " ".join(f"nvs.{axis}={shares[axis]}" for axis in PLACED if shares.get(axis, 1) > 1) or "of one GPU each"
