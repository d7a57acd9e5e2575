"""Where the ranks of a job lie on the tiers beyond the fast domain.

In a fast domain any members of any axes may be placed. Beyond it ranks are numbered as launchers number them, one
axis after the other (`ORDERS`; Megatron-LM's rank orders), and ranks that follow each other fill a unit of each tier.
So how many members of a group share a unit follows: of an axis of d domains, whose neighbours lie s domains apart, a
unit of u domains holds gcd(d, u / s), and one where s does not divide u. Where that cuts a group unevenly, or its
stride does not divide the unit, the group straddles units; it is then counted as crossing the tier with as many
members in each unit as all of its units have at least. A job that fits into one unit has all stages and replicas there;
groups of the axes of a replica are counted as in a larger job, since a shard key does not know how large its job is.

The axes of a replica come first in every order, and ep nests in the ranks that follow them, so what a shard key needs
does not depend on the order.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from dsx.hardware.network import Network
from dsx.space.experts import REPLICA_AXES, room

# Rank orders, the axis that changes fastest first.
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")

Columns = Mapping[str, Any]


def units(network: Network) -> tuple[int, ...]:
    """Return how many fast domains a unit of each tier between the fast domain and the outermost one joins."""
    return tuple(tier.size // network.nvs.size for tier in network.middle)


def _left(unit: Any, stride: Any) -> Any:
    """Return how many steps of `stride` domains a unit has room for; 1 where they do not divide it."""
    return np.where(unit % stride == 0, unit // stride, 1)


def stride_of_replicas(keys: Columns) -> Any:
    """Return how many domains a replica spans: the distance from one to the next."""
    stride: Any = 1
    for axis in REPLICA_AXES:
        stride = stride * (keys[axis] // keys[f"{axis}_nvs"])
    return stride


def key_shares(keys: Columns, unit: Any, expert_axes: Collection[str]) -> dict[str, Any]:
    """Return, per model axis, how many members of a group share a unit of so many domains."""
    found: dict[str, Any] = {}
    inside: dict[str, Any] = {}
    stride: Any = 1
    for axis in REPLICA_AXES:
        beyond = keys[axis] // keys[f"{axis}_nvs"]
        inside[axis] = np.gcd(beyond, _left(unit, stride))
        found[axis] = keys[f"{axis}_nvs"] * inside[axis]
        stride = stride * beyond
    nested = math.prod(inside[axis] for axis in REPLICA_AXES if axis not in expert_axes)
    found["ep"] = keys["ep_nvs"] * np.gcd(keys["ep"] // keys["ep_nvs"], nested * _left(unit, stride))
    return found


def choice_shares(choices: Columns, stride: Any, unit: Any) -> dict[str, Any]:
    """Return how many members of pp and dp share a unit; `stride` are the domains of a replica's stage."""
    stages, replicas = (choices[axis] // choices[f"{axis}_nvs"] for axis in ("pp", "dp"))
    replicas_first = np.asarray(choices["order"]) == 0
    pp = np.gcd(stages, _left(unit, np.where(replicas_first, stride * replicas, stride)))
    dp = np.gcd(replicas, _left(unit, np.where(replicas_first, stride, stride * stages)))
    whole = stride * stages * replicas <= unit  # the job, in one unit
    pp, dp = np.where(whole, stages, pp), np.where(whole, replicas, dp)
    return {"pp": choices["pp_nvs"] * pp, "dp": choices["dp_nvs"] * dp}


def shares_on_tiers(plan: Columns, network: Network, expert_axes: Collection[str]) -> dict[str, int]:
    """Return the columns ``<axis>_<tier>`` of a plan for the tiers between the fast domain and the outermost one."""
    found: dict[str, int] = {}
    for tier, unit in zip(network.middle, units(network), strict=True):
        shares = key_shares(plan, unit, expert_axes) | choice_shares(plan, stride_of_replicas(plan), unit)
        found |= {f"{axis}_{tier.name}": int(share) for axis, share in shares.items()}
    return found


def straddling(plan: Columns, network: Network) -> list[tuple[str, str]]:
    """Return the (axis, tier) whose groups lie unevenly on the units of the tier, and are counted as crossing it."""
    found: list[tuple[str, str]] = []
    axes = axes_in(ORDERS[plan["order"]])
    domains = {axis: plan[axis] // plan[f"{axis}_nvs"] for axis in axes}
    for tier, unit in zip(network.middle, units(network), strict=True):
        stride = 1
        whole = math.prod(domains.values()) <= unit
        for axis, degree in domains.items():
            left, uneven = divmod(unit, stride)
            apart = stride < unit and not (whole and axis not in REPLICA_AXES)
            if degree > 1 and apart and (uneven or (degree % left and left % degree)):
                found.append((axis, tier.name))
            stride *= degree
    return found


def axes_in(order: str) -> tuple[str, ...]:
    """Return the axes that are placed, in a rank order; tp2 follows tp, and ep nests in others."""
    placed = [axis for axis in order.split("-") if axis != "ep"]
    return (placed[0], "tp2", *placed[1:])


def order_fits(choices: Columns, orders: Sequence[int], stride: Any, unit_sizes: Sequence[int], whole: Any = 1) -> Any:
    """Return which orders are one of their own: those that place pp and dp alike on every tier are one.

    Groups of ep that span `whole` replicas, more than one, need those to follow each other.
    """
    first = min(orders)
    own = np.asarray(choices["order"]) == first
    for unit in unit_sizes:
        made = choice_shares(choices, stride, unit)
        alike = choice_shares({**choices, "order": np.full_like(choices["order"], first)}, stride, unit)
        own = own | (made["pp"] != alike["pp"]) | (made["dp"] != alike["dp"])
    return own & nests_in_order(choices["order"], whole)


def nests_in_order(order: Any, whole: Any) -> Any:
    """Return whether ep groups of `whole` replicas each are ranks that an order numbers without a gap."""
    return (np.asarray(order) == 0) | (np.asarray(whole) == 1)


def replicas_spanned(plan: Columns, expert_axes: Collection[str]) -> Any:
    """Return how many replicas an ep group spans."""
    return plan["ep"] // np.gcd(plan["ep"], room(plan, expert_axes))
