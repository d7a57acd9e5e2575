"""How a plan is placed, in words: what of it ranks in order filled, and its tiers on a network of more than two.

With two tiers its shares of a fast domain say all.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsx.cli.output import print_table

if TYPE_CHECKING:
    from dsx.pricing.evaluate import Evaluation
    from dsx.pricing.problem import Problem

_AXES = ("tp", "tp2", "cp", "ep", "pp", "dp")


def print_filled(result: "Evaluation") -> None:
    """Print the shares of a fast domain that a plan does not name and that its ranks fill in order."""
    if result.filled:
        shares = " ".join(f"{name}={share}" for name, share in result.filled.items())
        print(f"{shares} filled in rank order, {result.plan['order']}")


def print_placement(plan: Mapping[str, Any], problem: "Problem", which: str = "") -> None:
    """Print how many members of each group share a unit of each tier, and the rank order that makes it so.

    `which` plan it is begins the line. One GPU has no groups.
    """
    from dsx.space.choices import BY_NAME
    from dsx.space.tiers import straddling

    network = problem.cluster.network
    axes = [axis for axis in _AXES if plan[axis] > 1]
    if not network.middle or not axes:
        return
    rows = [[tier.name, *(str(plan[f"{axis}_{tier.name}"]) for axis in axes)] for tier in network.tiers[:-1]]
    outermost = network.tiers[-1].name
    print(f"{which}ranks numbered {plan['order']}; members of a group that share a unit of each tier:")
    print_table(["", *axes], [*rows, [outermost, *(str(plan[axis]) for axis in axes)]])
    for axis, tier in straddling({**plan, "order": BY_NAME["order"].code(plan["order"])}, network):
        print(f"{axis} lies unevenly on the units of {tier}: it is counted as crossing that tier")
    print()
