"""Where the ranks of a trace are placed: which of them share a fast domain, and a unit of each tier beyond it.

Rank r is in domain r // ranks_per_domain, and a unit of a tier has as many consecutive domains as the network says. A
group whose units have different numbers of its members counts as the nearest that is no better, as it is priced
(`dsx.space.domain_fill`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dsx.hardware.network import Network
from dsx.space.domain_fill import nearest_share
from dsx.space.tiers import units


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks in a fast domain and in a unit of each tier between it and the outermost one."""

    ranks_per_unit: tuple[int, ...]  # innermost first

    def shares(self, members: ArrayLike) -> tuple[int, ...]:
        """Return how many members of a group share a unit, innermost first; of groups [groups, members], the worst."""
        ranks = np.atleast_2d(members)
        return tuple(_share(ranks // size) for size in self.ranks_per_unit)

    def link(self, source: ArrayLike, target: ArrayLike) -> tuple[int, ...]:
        """Return whether two ranks share a unit, 2 if they do and else 1, innermost first; of pairs, whether all do."""
        here, there = np.asarray(source), np.asarray(target)
        return tuple(2 if np.all(here // size == there // size) else 1 for size in self.ranks_per_unit)


def _share(unit_of: np.ndarray) -> int:
    """Return how many members share a unit, from the units [groups, members] of groups."""
    count, degree = unit_of.shape
    own, members = np.unique(np.arange(count)[:, None] * (unit_of.max() + 1) + unit_of, return_counts=True)
    crossed = np.bincount(own // (unit_of.max() + 1)).max()
    return int(nearest_share(np.array(degree), crossed, members.min(), members.max()))


def placement(network: Network, ranks_per_domain: int | None = None) -> Placement:
    """Return the placement of ranks on a network; by default they fill its fast domains."""
    in_domain = ranks_per_domain or network.nvs.size
    return Placement((in_domain, *(in_domain * domains for domains in units(network))))
