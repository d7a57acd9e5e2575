"""The placement of a plan as text: shares filled in rank order, and groups on a network of more than two tiers.

On two tiers, the shares of a fast domain are the whole placement.
"""

from collections.abc import Mapping

from dsx.display.table import table
from dsx.pricing.problem import Problem
from dsx.space.limits import DEGREES
from dsx.space.plan import Plan
from dsx.space.tiers import straddling


def filled_text(plan: Plan, filled: Mapping[str, int]) -> str:
    """Return the shares of a fast domain that the user left out, filled in rank order; empty if there are none."""
    shares = " ".join(f"{name}={share}" for name, share in filled.items())
    return f"{shares} filled in rank order, {plan['order']}" if shares else ""


def placement_text(plan: Plan, problem: Problem, which: str = "") -> str:
    """Return how many members of each group share a unit of each tier, and the rank order.

    The text begins with `which`, as in "plan 1: ". It is empty on two tiers, and for one GPU, which has no groups.
    """
    network = problem.cluster.network
    axes = [axis for axis in DEGREES if plan[axis] > 1]
    if not network.middle or not axes:
        return ""
    rows = [[tier.name, *(str(plan[f"{axis}_{tier.name}"]) for axis in axes)] for tier in network.tiers[:-1]]
    rows.append([network.tiers[-1].name, *(str(plan[axis]) for axis in axes)])
    lines = [f"{which}ranks numbered {plan['order']}; members of a group that share a unit of each tier:"]
    lines.append(table(["", *axes], rows))
    for axis, tier in straddling(plan.codes, network):
        lines.append(f"{axis} straddles units of {tier}: it is priced as crossing that tier")
    return "\n".join(lines)
