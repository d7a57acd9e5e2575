"""The placement of a plan as text: shares filled in rank order, nodes that it fills in part, and groups on outer tiers.

On two tiers, the shares of a fast domain are the whole placement.
"""

from collections.abc import Mapping

from dsx.display.layout import wrapped
from dsx.display.table import table
from dsx.hardware.cluster import Cluster
from dsx.pricing.problem import Problem
from dsx.space.domain_fill import PartlyFilled, partly_filled
from dsx.space.limits import DEGREES
from dsx.space.plan import Plan
from dsx.space.tiers import axes_in, straddling
from dsx.spec.assumptions import AssumptionsSpec
from dsx.units import counted


def filled_text(plan: Plan, filled: Mapping[str, int]) -> str:
    """Return the shares of a fast domain that the user left out, filled in rank order; empty if there are none."""
    shares = " ".join(f"{name}={share}" for name, share in filled.items())
    return f"{shares} filled in rank order, {plan['order']}" if shares else ""


def nodes_in_part(plan: Plan, problem: Problem) -> PartlyFilled | None:
    """Return the nodes, or the domains, that a plan fills in part; None if it needs the fewest.

    None too where plans that fill them all are not searched.
    """
    return _nodes_in_part(plan, problem.cluster) if problem.assumptions_spec.uneven_domains else None


def _nodes_in_part(plan: Plan, cluster: Cluster) -> PartlyFilled | None:
    axes = axes_in(plan["order"])
    degrees, shares = ({axis: int(plan[f"{axis}{part}"]) for axis in axes} for part in ("", "_nvs"))
    return partly_filled(degrees, shares, cluster.network.nvs.size, cluster.node_size)


def taken_text(plan: Plan, cluster: Cluster, assumptions: AssumptionsSpec) -> str:
    """Return what a plan takes of nodes or fast domains, and leaves free; empty if it needs no more than it fills."""
    part = _nodes_in_part(plan, cluster) if assumptions.uneven_domains else None
    if part is None:
        return ""
    last = f", {part.last} of the last" if part.last != part.used else ""
    of = f"{counted(part.needed, 'whole node')} of {part.of}"
    if part.of == cluster.network.nvs.size > cluster.node_size:
        of = f"{part.needed:,} domains"
    return (
        f"takes {part.used} GPUs of each fast domain of {cluster.network.nvs.size}{last}: of the {of} that it needs, "
        f"{counted(part.free, 'GPU')} {'stays' if part.free == 1 else 'stay'} free"
    )


def placement_text(plan: Plan, problem: Problem, which: str = "") -> str:
    """Return how many members of each group share a unit of each tier, and the rank order.

    The text begins with `which`, as in "plan 1: ". It is empty on two tiers, and for one GPU, which has no groups. A
    plan that fills nodes in part has a sentence before it.
    """
    taken = taken_text(plan, problem.cluster, problem.assumptions_spec)
    said = [wrapped(f"{which}{taken}")] if taken else []
    return "\n".join([*said, *_on_tiers(plan, problem, which)])


def _on_tiers(plan: Plan, problem: Problem, which: str) -> list[str]:
    network = problem.cluster.network
    axes = [axis for axis in DEGREES if plan[axis] > 1]
    if not network.middle or not axes:
        return []
    rows = [[tier.name, *(str(plan[f"{axis}_{tier.name}"]) for axis in axes)] for tier in network.tiers[:-1]]
    rows.append([network.tiers[-1].name, *(str(plan[axis]) for axis in axes)])
    lines = [f"{which}ranks numbered {plan['order']}; members of a group that share a unit of each tier:"]
    lines.append(table(["", *axes], rows))
    for axis, tier in straddling(plan.codes, network):
        lines.append(f"{axis} straddles units of {tier}: it is priced as crossing that tier")
    return lines
