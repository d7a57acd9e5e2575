"""The seconds of communication between placed ranks: collectives, sends, and transfers to the host.

`dsx.traces.placement` says how many members of a group share a unit of each tier, and which tiers a send crosses.
"""

import numpy as np

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.cost.collectives import Fastest, collective, neighbours
from dsx.cost.expert_domains import routing_of
from dsx.cost.groups import group
from dsx.cost.offload import transfer_s
from dsx.graph.match import ALL_GATHER
from dsx.hardware.cluster import Cluster
from dsx.records import ArrayLike
from dsx.traces.placement import Link


class LinkTimes:
    """Prices communication of a job of `num_ranks` GPUs; groups of the same size and placement are priced as one."""

    def __init__(self, cluster: Cluster, assumptions: Assumptions, num_ranks: int) -> None:
        self._cluster, self._assumptions, self._num_ranks = cluster, assumptions, float(num_ranks)
        self._collectives: dict[tuple[str, int, tuple[int, ...], tuple[int, ...]], Fastest] = {}
        self._links: dict[Link, Fastest] = {}

    @xp.unchecked
    def collective_s(
        self, kind: str, num_ranks: int, shares: tuple[int, ...], size: int, routing: tuple[int, ...] = ()
    ) -> float:
        """Return the seconds of a collective of a kind of `dsx.graph.match`; each rank puts in `size` bytes.

        `shares` are of the group, as `Placement.shares` returns them; `routing` is that of tokens to experts, as in
        `dsx.traces.layer_nodes.Move`.
        """
        shape = kind, num_ranks, shares, routing
        if shape not in self._collectives:
            placed = group(*(np.array([float(count)]) for count in (num_ranks, *shares)))
            self._collectives[shape] = collective(
                kind,
                placed,
                self._cluster.network,
                self._assumptions,
                routing_of(*(np.array([float(count)]) for count in routing)) if routing else None,
            )
        # The volume of an all-gather is the gathered tensor.
        volume = size * num_ranks if kind == ALL_GATHER else size
        return float(self._collectives[shape](np.array([float(volume)]))[0])

    @xp.unchecked
    def send_s(self, link: Link, size: int) -> float:
        """Return the seconds of a send of `size` bytes."""
        if link not in self._links:
            per_unit = [np.array([share]) for share in link.unit_shares]
            nic_share = np.array([link.nic_share])
            self._links[link] = neighbours(per_unit, nic_share, self._cluster.network, self._assumptions)[link.tier]
        return float(self._links[link](np.array([float(size)]))[0])

    def transfer_s(self, sizes: ArrayLike) -> np.ndarray:
        """Return the seconds of transfers of `sizes` bytes to the host or back."""
        return np.asarray(transfer_s(np.asarray(sizes, float), self._num_ranks, self._cluster, self._assumptions))
