"""The seconds of communication between given ranks: collectives, sends, and transfers to the host."""

from collections.abc import Sequence

import numpy as np

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.cost.collectives import Fastest, collective, send
from dsx.cost.groups import group
from dsx.cost.offload import transfer_s
from dsx.graph.match import ALL_GATHER
from dsx.hardware.cluster import Cluster
from dsx.traces.placement import Placement


class LinkTimes:
    """Prices communication; groups of the same size and placement are priced as one."""

    def __init__(self, cluster: Cluster, assumptions: Assumptions, placed: Placement) -> None:
        self._cluster, self._assumptions, self._placed = cluster, assumptions, placed
        self._shares: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._collectives: dict[tuple[str, tuple[int, ...]], Fastest] = {}
        self._links: dict[tuple[int, ...], Fastest] = {}

    @xp.unchecked
    def collective_s(self, kind: str, members: Sequence[int], size: int) -> float:
        """Return the seconds of a collective of a kind of `dsx.graph.match`; each rank puts in `size` bytes."""
        ranks = tuple(members)
        if ranks not in self._shares:
            self._shares[ranks] = (len(ranks), *self._placed.shares(ranks))
        shape = kind, self._shares[ranks]
        if shape not in self._collectives:
            placed = group(*(np.array([float(count)]) for count in shape[1]))
            self._collectives[shape] = collective(kind, placed, self._cluster.network, self._assumptions)
        # The volume of an all-gather is the gathered tensor.
        volume = size * len(ranks) if kind == ALL_GATHER else size
        return float(self._collectives[shape](np.array([float(volume)]))[0])

    @xp.unchecked
    def send_s(self, source: int, target: int, size: int) -> float:
        """Return the seconds of a send of `size` bytes."""
        shape = self._placed.link(source, target)
        if shape not in self._links:
            # A link is a pipeline of two stages.
            shares = [np.array([float(share)]) for share in shape]
            self._links[shape] = send(np.array([2.0]), shares[0], self._cluster.network, self._assumptions, shares[1:])
        return float(self._links[shape](np.array([float(size)]))[0])

    def transfer_s(self, size: int) -> float:
        """Return the seconds of a transfer of `size` bytes to the host or back."""
        return float(np.asarray(transfer_s(float(size), self._cluster.device, self._assumptions)))
