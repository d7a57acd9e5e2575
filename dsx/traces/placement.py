"""Where the ranks of a trace are placed: which of them share a fast domain, and a unit of each tier beyond it.

Rank r is in domain r // ranks_per_domain, and a unit of a tier has as many consecutive domains as the network says. A
group whose units have different numbers of its members counts as crossing the tier with the smallest one, as in
`dsx.space.tiers`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.hardware.network import Network
from dsx.space.tiers import units


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks in a fast domain and in a unit of each tier between it and the outermost one."""

    ranks_per_unit: tuple[int, ...]  # innermost first

    def shares(self, members: Sequence[int]) -> tuple[int, ...]:
        """Return how many members of a group share a unit, innermost first."""
        ranks = np.asarray(members)
        return tuple(int(np.unique(ranks // size, return_counts=True)[1].min()) for size in self.ranks_per_unit)

    def link(self, source: int, target: int) -> tuple[int, ...]:
        """Return whether two ranks share a unit, 2 if they do and else 1; innermost first."""
        return tuple(2 if source // size == target // size else 1 for size in self.ranks_per_unit)


def placement(network: Network, ranks_per_domain: int | None = None) -> Placement:
    """Return the placement of ranks on a network; by default they fill its fast domains."""
    in_domain = ranks_per_domain or network.nvs.size
    return Placement((in_domain, *(in_domain * domains for domains in units(network))))
