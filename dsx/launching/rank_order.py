"""How ranks are numbered, and whether that places a plan as it was priced.

The orders are Megatron-LM's (megatron.core, parallel_state.initialize_model_parallel): axes of the rank number, the
fastest first.
"""

from collections.abc import Mapping, Sequence

from dsx.space.domain_fill import numbered_shares
from dsx.space.limits import PLACED, placed
from dsx.space.tiers import ORDERS

# The axes of the rank number, the fastest first; ep groups are ranks of tp, cp and dp.
_RANK_ORDERS = {order: tuple(axis for axis in order.split("-") if axis != "ep") for order in ORDERS}
RANK_ORDER = _RANK_ORDERS[ORDERS[0]]


def shares_of(plan: Mapping[str, int], order: Sequence[str] = RANK_ORDER) -> dict[str, int] | None:
    """Return how many members of each axis share a fast domain if ranks are numbered in `order`.

    A domain holds consecutive ranks, as many as the plan places on one. Returns None if domains cut groups unevenly, so
    that no single number describes them.
    """
    return numbered_shares({axis: plan[axis] for axis in order}, placed(plan, RANK_ORDER))


def other_placement(plan: Mapping[str, int]) -> list[str]:
    """Return how the placement of a plan differs from that of its rank order."""
    wanted = {axis: plan[f"{axis}_nvs"] for axis in RANK_ORDER}
    by_order = {name: shares_of(plan, order) for name, order in _RANK_ORDERS.items()}
    if any(plan[axis] % share for axis, share in wanted.items()):
        return []  # of ranks in the order of the plan: nothing else lays groups unevenly
    own = str(plan["order"])
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


def _on_two_tiers(plan: Mapping[str, int]) -> bool:
    """Return whether a plan was placed on two tiers: with more it has a column for each tier beyond the fast domain."""
    return str(plan["order"]) == ORDERS[0] and {name for name in plan if name.startswith("dp_")} == {"dp_nvs"}


def _shares_text(shares: Mapping[str, int]) -> str:
    return " ".join(f"nvs.{axis}={shares[axis]}" for axis in PLACED if shares.get(axis, 1) > 1) or "of one GPU each"
