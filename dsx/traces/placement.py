"""Where the ranks of a trace are placed: which of them share a fast domain, and a unit of each tier beyond it.

Rank r is in domain r // ranks_per_domain, and a unit of a tier has as many consecutive domains as the network says. A
group whose units have different numbers of its members counts as crossing the tier with the smallest one, as in
`dsx.space.tiers`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dsx.hardware.network import Network
from dsx.space.tiers import units


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks in a fast domain and in a unit of each tier between it and the outermost one."""

    ranks_per_unit: tuple[int, ...]  # innermost first

    def shares(self, members: ArrayLike) -> tuple[int, ...]:
        """Return how many members of a group share a unit, innermost first; the fewest of groups [groups, members]."""
        ranks = np.atleast_2d(members)
        group = np.arange(len(ranks))[:, None] * (ranks.max() + 1)  # keeps the units of each apart
        return tuple(int(np.unique(group + ranks // size, return_counts=True)[1].min()) for size in self.ranks_per_unit)

    def link(self, source: ArrayLike, target: ArrayLike) -> tuple[int, ...]:
        """Return whether two ranks share a unit, 2 if they do and else 1, innermost first; of pairs, whether all do."""
        here, there = np.asarray(source), np.asarray(target)
        return tuple(2 if np.all(here // size == there // size) else 1 for size in self.ranks_per_unit)


def placement(network: Network, ranks_per_domain: int | None = None) -> Placement:
    """Return the placement of ranks on a network; by default they fill its fast domains."""
    in_domain = ranks_per_domain or network.nvs.size
    return Placement((in_domain, *(in_domain * domains for domains in units(network))))
