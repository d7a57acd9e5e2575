"""Where the ranks of a trace are placed: which of them share a fast domain, a unit of each tier beyond it, and a NIC.

Rank r is in domain r // ranks_per_domain, and a unit of a tier has as many consecutive domains as the network says. A
group whose units have different numbers of its members counts as the nearest that is no better, as it is priced
(`dsx.space.domain_fill`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from dsx.records import ArrayLike

from dsx.hardware.network import Network
from dsx.space.domain_fill import nearest_share
from dsx.space.tiers import units


class Link(NamedTuple):
    """What a send crosses, and the share that it has of it, as `dsx.cost.collectives.neighbours` takes them."""

    tier: int  # the outermost one that it crosses
    unit_shares: tuple[
        float, ...
    ]  # ranks of a unit for each one that sends out of it at the same time, innermost first
    nic_share: float  # likewise of a NIC


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks in a fast domain and in a unit of each tier between it and the outermost one."""

    ranks_per_unit: tuple[int, ...]  # innermost first
    linked: int = 1  # tiers inside the NICs
    gpus_per_nic: float = 1.0

    def shares(self, members: ArrayLike) -> tuple[int, ...]:
        """Return how many members of a group share a unit, innermost first; of groups [groups, members], the worst."""
        ranks = np.atleast_2d(members)
        return tuple(_share(ranks // size) for size in self.ranks_per_unit)

    def tier(self, source: ArrayLike, target: ArrayLike) -> np.ndarray:
        """Return the outermost tiers that sends cross; 0 is the innermost one."""
        here, there = np.asarray(source), np.asarray(target)
        return np.sum([here // size != there // size for size in self.ranks_per_unit], axis=0)

    def link(self, source: ArrayLike, target: ArrayLike) -> Link:
        """Return the link of sends that ranks make at the same time; of unlike ones, the worst."""
        here, there = np.atleast_1d(source), np.atleast_1d(target)
        leaving = [here[here // size != there // size] for size in self.ranks_per_unit]
        shares = [
            size / _most_alike(ranks // size) if len(ranks) else 1.0
            for size, ranks in zip(self.ranks_per_unit, leaving, strict=True)
        ]
        size, ranks = self.ranks_per_unit[self.linked - 1], leaving[self.linked - 1]
        on_nic = _most_alike(ranks // size * size + ranks % size // self.gpus_per_nic) if len(ranks) else 1
        nic_share = max(self.gpus_per_nic / on_nic, 1.0)
        return Link(int(self.tier(here, there).max()), tuple(shares), nic_share)


def _most_alike(values: np.ndarray) -> int:
    return int(np.unique(values, return_counts=True)[1].max())


def _share(unit_of: np.ndarray) -> int:
    """Return how many members share a unit, from the units [groups, members] of groups."""
    count, degree = unit_of.shape
    own, members = np.unique(np.arange(count)[:, None] * (unit_of.max() + 1) + unit_of, return_counts=True)
    crossed = np.bincount(own // (unit_of.max() + 1)).max()
    return int(nearest_share(np.array(degree), crossed, members.min(), members.max()))


def placement(network: Network, ranks_per_domain: int | None = None) -> Placement:
    """Return the placement of ranks on a network; by default they fill its fast domains."""
    in_domain = ranks_per_domain or network.nvs.size
    ranks = in_domain, *(in_domain * domains for domains in units(network))
    return Placement(ranks, network.linked, network.gpus_per_nic)
