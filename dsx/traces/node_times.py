"""The seconds of every node of a trace on a cluster, how long it holds the compute stream, and where ranks are placed.

Rank r is in domain r // ranks_per_domain, and a unit of a tier has as many consecutive domains as the network says. A
group whose units have different numbers of its members counts as the nearest that is no better, as it is priced
(`dsx.plans.placement`).

Kernels, collectives, sends and transfers to the host are priced by `dsx.cost`, one at a time. How they follow each
other, wait and overlap in a step is the replay's (`dsx.traces.replay`), apart from the closed formulas of `dsx.cost`. A
collective with a partner holds the compute stream for its time less what overlaps with the kernel of the partner: a
share `overlap` of it, but no longer than the kernel runs. Collectives of one execution of a kernel do not overlap with
the same part of it. Other communication holds the compute stream for the share of its time that cannot overlap.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dsx import arrays as xp
from dsx.cost.collectives import FastestAlgorithm, collective, neighbours
from dsx.cost.context import Assumptions
from dsx.cost.groups import group, routing_of
from dsx.cost.offload import transfer_s
from dsx.errors import TraceError
from dsx.hardware.cluster import Cluster, Network
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER
from dsx.plans.placement import nearest_share, units
from dsx.records import ArrayLike
from dsx.traces.codec import COLLECTIVE_NAMES, COMM_COLL, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE, ROUTING
from dsx.traces.columns import RankTrace, distinct, node_text
from dsx.traces.kernel_times import KernelPricer, LaunchTimes


class Link(NamedTuple):
    """What a send crosses, and the share that it has of it, as `dsx.cost.collectives.neighbours` takes them."""

    tier: int  # the outermost one that it crosses
    unit_shares: tuple[float, ...]  # ranks of a unit for each that sends out of it at the same time, innermost first
    nic_share: float  # likewise of a NIC


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks in a fast domain and in a unit of each tier between it and the outermost one."""

    ranks_per_unit: tuple[int, ...]  # innermost first
    linked: int = 1  # tiers inside the NICs
    gpus_per_nic: float = 1.0

    def shares(self, members: npt.ArrayLike) -> tuple[int, ...]:
        """Return how many members of a group share a unit, innermost first; of groups [groups, members], the worst."""
        ranks = np.atleast_2d(members)
        return tuple(_share(ranks // size) for size in self.ranks_per_unit)

    def tier(self, source: npt.ArrayLike, target: npt.ArrayLike) -> np.ndarray:
        """Return the outermost tiers that sends cross; 0 is the innermost one."""
        sources, targets = np.asarray(source), np.asarray(target)
        return np.sum([sources // size != targets // size for size in self.ranks_per_unit], axis=0)

    def link(self, source: npt.ArrayLike, target: npt.ArrayLike) -> Link:
        """Return the link of sends that ranks make at the same time; of unlike ones, the worst."""
        sources, targets = np.atleast_1d(source), np.atleast_1d(target)
        leaving = [sources[sources // size != targets // size] for size in self.ranks_per_unit]
        shares = [
            size / _largest_count(ranks // size) if len(ranks) else 1.0
            for size, ranks in zip(self.ranks_per_unit, leaving, strict=True)
        ]
        size, ranks = self.ranks_per_unit[self.linked - 1], leaving[self.linked - 1]
        on_nic = _largest_count(ranks // size * size + ranks % size // self.gpus_per_nic) if len(ranks) else 1
        nic_share = max(self.gpus_per_nic / on_nic, 1.0)
        return Link(int(self.tier(sources, targets).max()), tuple(shares), nic_share)


def _largest_count(values: np.ndarray) -> int:
    return int(np.unique(values, return_counts=True)[1].max())


def _share(unit_of: np.ndarray) -> int:
    """Return how many members share a unit, from the units [groups, members] of groups."""
    count, degree = unit_of.shape
    parts, members = np.unique(np.arange(count)[:, None] * (unit_of.max() + 1) + unit_of, return_counts=True)
    crossed = np.bincount(parts // (unit_of.max() + 1)).max()
    return int(nearest_share(np.array(degree), crossed, members.min(), members.max()))


def placement(network: Network, ranks_per_domain: int | None = None) -> Placement:
    """Return the placement of ranks on a network; by default they fill its fast domains."""
    in_domain = ranks_per_domain or network.nvs.size
    ranks = in_domain, *(in_domain * domains for domains in units(network))
    return Placement(ranks, network.linked, network.gpus_per_nic)


class LinkTimes:
    """Prices communication of a job of `num_ranks` GPUs; groups of the same size and placement are priced as one."""

    def __init__(self, cluster: Cluster, assumptions: Assumptions, num_ranks: int) -> None:
        self._cluster, self._assumptions, self._num_ranks = cluster, assumptions, float(num_ranks)
        self._collectives: dict[tuple[str, int, tuple[int, ...], tuple[int, ...]], FastestAlgorithm] = {}
        self._links: dict[Link, FastestAlgorithm] = {}

    @xp.unchecked
    def collective_s(
        self, kind: str, num_ranks: int, shares: tuple[int, ...], size: int, routing: tuple[int, ...] = ()
    ) -> float:
        """Return the seconds of a collective of a kind of `dsx.notation.sharded_layer`; each rank puts in `size` bytes.

        `shares` are of the group, as `Placement.shares` returns them; `routing` is that of tokens to experts, as in
        `dsx.traces.layer_nodes.Move`.
        """
        shape = kind, num_ranks, shares, routing
        if shape not in self._collectives:
            placed = group(*(np.array([float(count)]) for count in (num_ranks, *shares)))
            routed = routing_of(*(np.array([float(count)]) for count in routing)) if routing else None
            network = self._cluster.network
            self._collectives[shape] = collective(kind, placed, network, self._assumptions, routed)
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


# A collective of Chakra -> the kind of `dsx.cost` that it is priced as. A barrier is an all-reduce of few bytes.
_KINDS = {
    "ALL_REDUCE": ALL_REDUCE,
    "REDUCE": REDUCE,
    "ALL_GATHER": ALL_GATHER,
    "BROADCAST": BROADCAST,
    "ALL_TO_ALL": ALL_TO_ALL,
    "REDUCE_SCATTER": REDUCE_SCATTER,
    "REDUCE_SCATTER_BLOCK": REDUCE_SCATTER,
    "BARRIER": ALL_REDUCE,
}


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Seconds of the N nodes of one rank, in file order."""

    seconds: np.ndarray  # [N], 0 for a receive
    held_s: np.ndarray  # [N], of the compute stream


class NodePricer:
    """Prices the nodes of ranks; nodes that are equal but for their rank are priced once.

    `members` has the ranks of each group by its name; an unnamed one is that of all ranks. `senders` has the ranks that
    send as far as each other, as `senders_of` returns them.
    """

    def __init__(
        self,
        cluster: Cluster,
        assumptions: Assumptions,
        placed: Placement,
        members: Mapping[str, Sequence[int]],
        senders: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self._cluster, self._assumptions, self._members, self._placed = cluster, assumptions, members, placed
        num_ranks = max((len(ranks) for ranks in members.values()), default=1)
        self._kernels = KernelPricer(cluster, assumptions, num_ranks)
        self._links = LinkTimes(cluster, assumptions, num_ranks)
        self._shares: dict[str, tuple[int, ...]] = {}  # of groups by name
        self._senders = senders or {}
        self._sends: dict[tuple[int, int], Link] = {}  # by the difference of the ranks and the tier that they cross

    @xp.unchecked
    def __call__(self, trace: RankTrace, slow: float = 1.0) -> NodeTimes:
        """Return the times of a rank whose kernels take `slow` times as long.

        Raises TraceError for a collective of a kind or a group that is unknown.
        """
        kernels = self._kernels(trace).slowed(slow)
        seconds = kernels.launch_s.copy()
        of_collective = trace.comm_type, trace.comm_size, trace.groups.codes, *_routing(trace)
        of_send = trace.comm_dst, trace.comm_size
        for kind, columns, seconds_of in (
            (COMM_COLL, of_collective, self._collective_s),
            (COMM_SEND, of_send, self._send_s),
        ):
            nodes = np.flatnonzero(trace.types == kind)
            kinds = distinct([column[nodes] for column in columns])
            priced = [seconds_of(trace, row) for row in nodes[kinds.rows].tolist()]
            seconds[nodes] = np.array(priced, float)[kinds.which]
        transfers = np.flatnonzero((trace.types == MEM_LOAD) | (trace.types == MEM_STORE))
        sizes = np.maximum(trace.tensor_size[transfers], 0).astype(float)
        seconds[transfers] = self._links.transfer_s(sizes)
        return NodeTimes(seconds, _held_s(trace, seconds, kernels))

    def _collective_s(self, trace: RankTrace, row: int) -> float:
        code, name, size = int(trace.comm_type[row]), trace.groups.of(row), max(int(trace.comm_size[row]), 0)
        kind = _KINDS.get(COLLECTIVE_NAMES.get(code, ""))
        if kind is None:
            raise TraceError(
                f"rank {trace.rank}: {node_text(trace, row)}: collectives of type {COLLECTIVE_NAMES.get(code, code)} "
                f"have no time; those with one are {', '.join(_KINDS)}"
            )
        members = self._members.get(name)
        if members is None:
            raise TraceError(
                f"rank {trace.rank}: {node_text(trace, row)} has the group {name!r}, which comm_groups.json lacks"
            )
        routing = tuple(int(column[row]) for column in _routing(trace) if column[row] > 0)
        if name not in self._shares:
            self._shares[name] = self._placed.shares(members)
        return self._links.collective_s(kind, len(members), self._shares[name], size, routing)

    def _send_s(self, trace: RankTrace, row: int) -> float:
        peer, size = int(trace.comm_dst[row]), max(int(trace.comm_size[row]), 0)
        return self._links.send_s(self._link(trace.rank, peer), size)

    def _link(self, rank: int, peer: int) -> Link:
        """Return the link of a send, and of those of other ranks that send as far at the same time."""
        tier = int(self._placed.tier(rank, peer))
        if (peer - rank, tier) not in self._sends:
            ranks = np.array(self._senders.get(peer - rank, [rank]))
            ranks = ranks[self._placed.tier(ranks, ranks + peer - rank) == tier]
            self._sends[peer - rank, tier] = self._placed.link(ranks, ranks + peer - rank)
        return self._sends[peer - rank, tier]


def senders_of(ranks: Iterable[RankTrace], stands_for: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """Return the ranks that send as far as each other, by the difference of the two ranks."""
    senders: dict[int, list[int]] = {}
    for trace in ranks:
        peers = np.unique(trace.comm_dst[trace.types == COMM_SEND])
        for distance in (peers - trace.rank).tolist():
            senders.setdefault(distance, []).extend((trace.rank, *stands_for.get(trace.rank, ())))
    return senders


def _routing(trace: RankTrace) -> list[np.ndarray]:
    """Return the columns that say how the tokens of an all-to-all choose experts."""
    return [getattr(trace, name) for name in ROUTING]


def in_panels(trace: RankTrace) -> np.ndarray:
    """Return the [N] collectives of one panel of a multiply."""
    return (trace.types == COMM_COLL) & (trace.panels > 0)


def is_inline(trace: RankTrace) -> np.ndarray:
    """Return the [N] collectives that are part of the compute stream: with a partner, or with no word on overlap."""
    return (trace.types == COMM_COLL) & ~in_panels(trace) & ((trace.partner >= 0) | np.isnan(trace.overlap))


def _held_s(trace: RankTrace, seconds: np.ndarray, kernels: LaunchTimes) -> np.ndarray:
    """Return the seconds that each node holds the compute stream, [N]."""
    overlap = np.where(np.isnan(trace.overlap), 0.0, trace.overlap)
    partnered = np.flatnonzero(is_inline(trace) & (trace.partner >= 0))
    # The collectives of an execution of a kernel use up its time one after the other, in file order.
    partners, overlapping = trace.partner[partnered], seconds.copy()
    order = np.argsort(kernels.execution[partners], kind="stable")
    partnered, partners = partnered[order], partners[order]
    until = np.cumsum(seconds[partnered])
    begin = until - seconds[partnered]
    firsts = np.flatnonzero(np.diff(kernels.execution[partners], prepend=-2))
    start = np.repeat(begin[firsts], np.diff(firsts, append=len(order)))
    execution_s = kernels.execution_s[partners]
    overlapping[partnered] = np.minimum(until - start, execution_s) - np.minimum(begin - start, execution_s)
    held = np.maximum(seconds - overlap * overlapping, 0.0)  # rounding
    # The multiply that they belong to waits for panels, and what reads a received tensor for it.
    held[in_panels(trace) | (trace.types == COMM_RECV)] = 0.0
    return np.where(trace.types == COMP, seconds, held)
