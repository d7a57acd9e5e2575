"""The placement of ranks on the tiers beyond the fast domain.

A fast domain may hold any members of any axes. Beyond it ranks are numbered as launchers number them, one axis after
the other (`ORDERS`, Megatron-LM's rank orders), and consecutive ranks fill a unit of each tier. This decides how many
members of a group share a unit. Let an axis have d domains at a stride of s domains: a unit of u domains holds
gcd(d, u / s) of them, and one if s does not divide u. A group that a unit cuts unevenly, or whose stride does not
divide the unit, straddles units. It then counts as crossing the tier with the smallest number of members that any of
its units has. Where groups lie unevenly on domains already, ranks are numbered through, and a group counts as
`dsx.space.domain_fill.laid_share` says, or as apart beyond its domains where those cut inner groups. A job that fits
into one unit has all stages and replicas there. Groups of the axes of a replica count as in a larger job, because a
shard key does not know the size of its job.

The axes of a replica come first in every order, and ep nests in the ranks that follow them. So the shard key does not
depend on the order.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dsx.space.domain_fill import consecutive, laid_share, rank_order_shares
from dsx.space.expert_nesting import REPLICA_AXES, nesting_ranks, share_of_row, share_of_shares

if TYPE_CHECKING:
    from dsx.hardware.network import Network

# Rank orders, the fastest-changing axis first.
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")

Columns = Mapping[str, Any]


def units(network: "Network") -> tuple[int, ...]:
    """Return the fast domains in a unit of each tier between fast domain and outermost tier."""
    return tuple(tier.size // network.nvs.size for tier in network.middle)


def _steps(unit: Any, stride: Any) -> Any:
    """Return how many strides of `stride` domains a unit holds; 1 where the stride does not divide it."""
    return np.where(unit % stride == 0, unit // stride, 1)


class Replica(NamedTuple):
    """A stage of a replica: numbers, or arrays [N]."""

    ranks: Any
    share: Any  # of them in a fast domain
    even: Any  # whether shares divide the degrees of all its axes


def replica_of(keys: Columns) -> Replica:
    """Return the stages of replicas of shard keys."""
    even: Any = True
    for axis in REPLICA_AXES:
        even = even & (keys[axis] % keys[f"{axis}_nvs"] == 0)
    shares = math.prod(keys[f"{axis}_nvs"] for axis in REPLICA_AXES)
    return Replica(math.prod(keys[axis] for axis in REPLICA_AXES), shares, even)


def rank_placement(keys: Columns, network: "Network") -> tuple[np.ndarray, ...]:
    """Return what the placement of the ranks of shard keys on the units of tiers has in common, as [U] floats.

    In order: 1.0 where shares divide the degrees of all axes, else 0.0; how many ranks of a stage of a replica are in a
    fast domain, where they follow each other, else its GPUs; its GPUs; and for each tier between the domain and the
    outermost one, the domains of a unit.
    """
    _, share, even = replica_of(keys)
    in_a_row = consecutive(*({axis: keys[f"{axis}{part}"] for axis in REPLICA_AXES} for part in ("", "_nvs")))
    size = float(network.nvs.size)
    found = (np.where(even, 1.0, 0.0), np.where(in_a_row, share, size), size, *map(float, units(network)))
    return tuple(np.broadcast_to(value, keys["tp"].shape) for value in found)


def may_cut_two_axes(keys: Columns, size: int) -> bool:
    """Return whether domains of `size` GPUs may cut groups of axes of a replica, and those of the replicas, unevenly.

    They do not where the ranks inside a group that is cut divide a domain, and a domain divides those of the group.
    """
    in_order = rank_order_shares({axis: keys[axis] for axis in REPLICA_AXES}, size)
    inside: Any = 1
    cut: Any = False
    chained: Any = True
    ordered: Any = True
    for axis in REPLICA_AXES:
        here = keys[f"{axis}_nvs"] < keys[axis]
        around = inside * keys[axis]
        cut = cut | here
        chained = chained & (~here | ((size % inside == 0) & (around % size == 0)))
        ordered = ordered & (keys[f"{axis}_nvs"] == in_order[axis])
        inside = around
    _, _, even = replica_of(keys)
    return bool(np.any(cut & (~even | (ordered & ~chained))))


def key_shares(keys: Columns, unit: Any, expert_axes: Collection[str]) -> dict[str, Any]:
    """Return, per model axis, how many members of a group share a unit of `unit` domains."""
    found: dict[str, Any] = {}
    inside: dict[str, Any] = {}
    stride: Any = 1
    for axis in REPLICA_AXES:
        domains = keys[axis] // keys[f"{axis}_nvs"]
        inside[axis] = np.gcd(domains, _steps(unit, stride))
        found[axis] = keys[f"{axis}_nvs"] * inside[axis]
        stride = stride * domains
    nested = math.prod(inside[axis] for axis in REPLICA_AXES if axis not in expert_axes)
    found["ep"] = keys["ep_nvs"] * np.gcd(keys["ep"] // keys["ep_nvs"], nested * _steps(unit, stride))
    _, share, even = replica_of(keys)
    if np.all(even):
        return found
    laid: dict[str, Any] = {"ep": keys["ep_nvs"]}
    lies = consecutive(*({axis: keys[f"{axis}{part}"] for axis in REPLICA_AXES} for part in ("", "_nvs")))
    between: Any = 1
    for axis in REPLICA_AXES:
        # Where groups straddle domains, their shares do not tell the ranks of a domain.
        laid[axis] = np.where(lies, laid_share(keys[axis], between, unit * share), keys[f"{axis}_nvs"])
        between = between * keys[axis]
    return {axis: np.where(even, own, laid[axis]) for axis, own in found.items()}


def choice_shares(choices: Columns, replica: Replica, unit: Any) -> dict[str, Any]:
    """Return how many members of pp and dp share a unit."""
    ranks, share, even = replica
    stride = ranks // share
    stages, replicas = (choices[axis] // choices[f"{axis}_nvs"] for axis in ("pp", "dp"))
    replicas_first = np.asarray(choices["order"]) == 0
    pp = np.gcd(stages, _steps(unit, np.where(replicas_first, stride * replicas, stride)))
    dp = np.gcd(replicas, _steps(unit, np.where(replicas_first, stride, stride * stages)))
    one_unit = stride * stages * replicas <= unit  # the job fits into one
    pp, dp = np.where(one_unit, stages, pp), np.where(one_unit, replicas, dp)
    found = {"pp": choices["pp_nvs"] * pp, "dp": choices["dp_nvs"] * dp}
    even = even & (choices["pp"] % choices["pp_nvs"] == 0) & (choices["dp"] % choices["dp_nvs"] == 0)
    if np.all(even):
        return found
    held = unit * share * choices["pp_nvs"] * choices["dp_nvs"]
    job = ranks * choices["pp"] * choices["dp"]
    for axis, inner, first in (("pp", "dp", ~replicas_first), ("dp", "pp", replicas_first)):
        degree, others = choices[axis], choices[inner]
        laid = laid_share(degree, np.where(first, ranks, ranks * others), held, np.where(first, others, 1))
        laid = np.where(ranks == share, np.where(job <= held, degree, laid), choices[f"{axis}_nvs"])
        found[axis] = np.where(even, found[axis], laid)
    return found


def of_order(plan: Columns, found: Callable[[Columns], Any]) -> Any:
    """Return what is found for the degrees of plans in the order in which their ranks are numbered."""
    each = [found({axis: plan[axis] for axis in axes_in(order)}) for order in ORDERS]
    return np.choose(plan["order"], each)


def expert_share(plan: Columns, expert_axes: Collection[str], size: int) -> Any:
    """Return how many members of an ep group share a fast domain of `size` GPUs, the fewest of any group.

    A domain has the ranks that the shares multiply to, or as many consecutive ones as fit.
    """
    axes = axes_in(ORDERS[0])
    world = math.prod(plan[axis] for axis in axes)
    told = np.logical_and.reduce([plan[axis] % plan[f"{axis}_nvs"] == 0 for axis in axes])
    shares = {axis: plan[f"{axis}_nvs"] for axis in axes}
    told = told | of_order(plan, lambda degrees: consecutive(degrees, shares, world))
    of_shares = share_of_shares(plan, expert_axes, plan["dp_nvs"])
    return np.where(told, of_shares, share_of_row(plan, expert_axes, size))


def shares_on_tiers(plan: Columns, network: "Network", expert_axes: Collection[str]) -> dict[str, int]:
    """Return the columns ``<axis>_<tier>`` of a plan for each tier between fast domain and outermost tier."""
    found: dict[str, int] = {}
    for tier, unit in zip(network.middle, units(network), strict=True):
        shares = key_shares(plan, unit, expert_axes) | choice_shares(plan, replica_of(plan), unit)
        found |= {f"{axis}_{tier.name}": int(share) for axis, share in shares.items()}
    return found


def straddling(plan: Columns, network: "Network") -> list[tuple[str, str]]:
    """Return the (axis, tier) whose groups straddle units of the tier; they count as crossing it."""
    found: list[tuple[str, str]] = []
    axes = axes_in(ORDERS[plan["order"]])
    domains = {axis: plan[axis] // plan[f"{axis}_nvs"] for axis in axes}
    if any(plan[axis] % plan[f"{axis}_nvs"] for axis in axes):
        return found  # each group counts as it lies
    for tier, unit in zip(network.middle, units(network), strict=True):
        stride = 1
        one_unit = math.prod(domains.values()) <= unit
        for axis, degree in domains.items():
            steps, uneven = divmod(unit, stride)
            shares_unit = stride < unit and not (one_unit and axis not in REPLICA_AXES)
            if degree > 1 and shares_unit and (uneven or (degree % steps and steps % degree)):
                found.append((axis, tier.name))
            stride *= degree
    return found


def axes_in(order: str) -> tuple[str, ...]:
    """Return the axes that a rank order numbers; tp2 follows tp, and ep is left out because it nests in others."""
    placed = [axis for axis in order.split("-") if axis != "ep"]
    return (placed[0], "tp2", *placed[1:])


def distinct_order(
    choices: Columns, orders: Sequence[int], replica: Replica, unit_sizes: Sequence[int], whole: Any = 1
) -> Any:
    """Return which plans a search tries: those whose order differs in effect from the first of `orders`.

    Two orders that place pp and dp in the same way on every tier are equivalent. An ep group that spans `whole`
    replicas, more than one, needs consecutive replicas.
    """
    first = min(orders)
    distinct = np.asarray(choices["order"]) == first
    for unit in unit_sizes:
        shares = choice_shares(choices, replica, unit)
        of_first = choice_shares({**choices, "order": np.full_like(choices["order"], first)}, replica, unit)
        distinct = distinct | (shares["pp"] != of_first["pp"]) | (shares["dp"] != of_first["dp"])
    return distinct & ep_ranks_adjacent(choices["order"], whole)


def ep_ranks_adjacent(order: Any, whole: Any) -> Any:
    """Return whether an order numbers the ranks of an ep group over `whole` replicas consecutively."""
    return (np.asarray(order) == 0) | (np.asarray(whole) == 1)


def replicas_spanned(plan: Columns, expert_axes: Collection[str]) -> Any:
    """Return how many replicas an ep group spans."""
    return plan["ep"] // np.gcd(plan["ep"], nesting_ranks(plan, expert_axes))
