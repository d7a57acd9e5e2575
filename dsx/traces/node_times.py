"""The seconds of every node of a trace on a cluster, how long it holds the compute stream, and where ranks are placed.

Rank r is in domain r // ranks_per_domain, and a unit of a tier has as many consecutive domains as the network says. A
group whose units have different numbers of its members counts as the nearest that is no better, as it is priced
(`dsx.plans.placement`).

Kernels, collectives, sends and transfers to the host are priced by `dsx.cost`, one at a time. How they follow each
other, wait and overlap in a step is the replay's (`dsx.traces.replay`), apart from the closed formulas of `dsx.cost`. A
collective with a partner holds the compute stream for its time less what overlaps with the kernel of the partner: a
share `overlap` of it, but no longer than the kernel runs. Collectives of one execution of a kernel do not overlap with
the same part of it. Other communication holds the compute stream for the share of its time that cannot overlap.

Launches with the same kernel text are one kernel. Its time is that of the sums of their FLOPs, bytes and launches, as
`dsx.cost.layer` prices it by the roofline, and each launch has the share of it that it has of the compute time. The
roofline is homogeneous: all executions of a kernel in a file are priced as one, and an execution is an equal part of
that. A computation without a kernel text, as in traces of other writers, is a kernel of its own. One that states
neither operations nor bytes takes its stated duration. One on the host takes its bytes at the bandwidth of the host's
memory: an update of offloaded optimizer state.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dsx import arrays as xp
from dsx.config.cluster_file import Cluster, Device, Network
from dsx.cost.collectives import FastestAlgorithm, collective, neighbours
from dsx.cost.context import BF16, Assumptions
from dsx.cost.groups import group, routing_of
from dsx.cost.layer_work import Multiplies
from dsx.cost.offload import host_memory_rate, transfer_s
from dsx.cost.roofline import cast_bytes, compute_time, exposed_memory_time, memory_time, slowdowns
from dsx.errors import TraceError
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER
from dsx.plans.placement import nearest_share, units
from dsx.records import Array, ArrayLike
from dsx.traces.codec import (
    ACCUMULATION,
    COLLECTIVE_NAMES,
    COMM_COLL,
    COMM_RECV,
    COMM_SEND,
    COMP,
    MEM_LOAD,
    MEM_STORE,
    ROUTING,
)
from dsx.traces.columns import (
    NUMBERS_OF_MULTIPLY,
    Distinct,
    RankTrace,
    distinct,
    hashed_lists,
    node_text,
    occurrences,
    scattered,
    shape_of,
)

# A collective of Chakra -> the kind of `dsx.cost` that it is priced as. A barrier is an all-reduce of few bytes.
_KINDS = {kind.upper().replace("-", "_"): kind for kind in (ALL_REDUCE, REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL)}
_KINDS |= {"REDUCE_SCATTER": REDUCE_SCATTER, "REDUCE_SCATTER_BLOCK": REDUCE_SCATTER, "BARRIER": ALL_REDUCE}


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """Seconds of the N nodes of a trace; 0 for those that are no computations."""

    launch_s: np.ndarray  # [N]
    execution: np.ndarray  # [N] int64, which execution of which kernel a launch belongs to; -1 for other nodes
    execution_s: np.ndarray  # [N] seconds of that whole execution

    def slowed(self, factor: float) -> "LaunchTimes":
        """Return the times of a GPU whose kernels take `factor` times as long."""
        return LaunchTimes(self.launch_s * factor, self.execution, self.execution_s * factor)


@dataclass(frozen=True, slots=True)
class _Launches:
    """R distinct launches of K kernels."""

    kernel: np.ndarray  # [R] position of the kernel
    counts: np.ndarray  # [R] nodes in the file
    matrix: np.ndarray  # [R] FLOPs
    vector: np.ndarray  # [R] FLOPs
    num_bytes: np.ndarray  # [R]
    unfused: np.ndarray  # [R] bytes
    launches: np.ndarray  # [R]
    stated_s: np.ndarray  # [R] stated duration of a launch that states no work, else NaN
    on_host: np.ndarray  # [R] bool
    accumulation: np.ndarray  # [R] bool: traffic after the kernel, which its compute does not hide
    owner: np.ndarray  # [M] launch of each multiply
    multiplies: np.ndarray  # [M, NUMBERS_OF_MULTIPLY]


class KernelPricer:
    """Prices the launches of traces of a job of `num_ranks` GPUs; ranks with the same launches are priced once."""

    def __init__(self, cluster: Cluster, assumptions: Assumptions, num_ranks: int) -> None:
        self._device, self._assumptions = cluster.device, assumptions
        self._host_rate = np.asarray(host_memory_rate(float(num_ranks), cluster.node, assumptions))
        self._known: dict[tuple[bytes, ...], tuple[np.ndarray, np.ndarray]] = {}

    def host_s(self, num_bytes: ArrayLike) -> np.ndarray:
        """Return the seconds in which the memory of the host moves a rank's bytes, while all ranks of a node do so."""
        return np.asarray(num_bytes) / self._host_rate

    def __call__(self, trace: RankTrace) -> LaunchTimes:
        """Return the seconds of the launches of a trace."""
        nodes, on_host = np.flatnonzero(trace.types == COMP), trace.on_host > 0
        # What tells launches apart; durations only where they are their time.
        names = ("num_ops", "tensor_size", "matrix_flops", "vector_flops", "unfused_bytes", "launches")
        columns = [trace.kernels.codes, trace.op_types.codes, *(getattr(trace, name) for name in names)]
        unpriced = (trace.num_ops[nodes] <= 0) & (trace.tensor_size[nodes] <= 0)
        columns = [column[nodes] for column in columns]
        columns.append(np.where(unpriced, trace.duration_ns[nodes], 0.0).view(np.int64))
        kinds = distinct([*columns, hashed_lists(trace.multiplies, nodes), on_host[nodes]])
        launches = _launches(trace, nodes, kinds, on_host)
        key = tuple(getattr(launches, name).tobytes() for name in launches.__dataclass_fields__)
        if key not in self._known:
            self._known[key] = _priced(launches, self._device, self._assumptions, self.host_s(launches.num_bytes))
        launch_s, kernel_s = self._known[key]
        executions = np.full(len(kernel_s), np.iinfo(np.int64).max)
        np.minimum.at(executions, launches.kernel, launches.counts)
        # A kernel may have several equal launches in each execution.
        per_execution = -(-launches.counts // executions[launches.kernel])
        execution = launches.kernel[kinds.which] << 32
        execution += occurrences(kinds.which) // per_execution[kinds.which]
        execution_s = (kernel_s / executions)[launches.kernel]
        times = ((0.0, launch_s[kinds.which]), (-1, execution), (0.0, execution_s[kinds.which]))
        return LaunchTimes(*(scattered(trace.num_nodes, missing, nodes, values) for missing, values in times))


def _launches(trace: RankTrace, nodes: np.ndarray, kinds: Distinct, on_host: np.ndarray) -> _Launches:
    rows = nodes[kinds.rows]
    num_ops, matrix = trace.num_ops[rows], trace.matrix_flops[rows]
    codes = trace.kernels.codes[rows].astype(np.int64)
    alone = np.flatnonzero(codes < 0)
    codes[alone] = len(trace.kernels.table) + np.arange(len(alone))
    unpriced = (num_ops <= 0) & (trace.tensor_size[rows] <= 0)
    lists = [trace.multiplies.of(row).reshape(-1, NUMBERS_OF_MULTIPLY) for row in rows.tolist()]
    return _Launches(
        kernel=np.unique(codes, return_inverse=True)[1],
        counts=kinds.counts,
        matrix=np.maximum(np.where(matrix < 0, num_ops, matrix), 0).astype(float),
        vector=np.maximum(trace.vector_flops[rows], 0).astype(float),
        num_bytes=np.maximum(trace.tensor_size[rows], 0).astype(float),
        unfused=np.maximum(trace.unfused_bytes[rows], 0).astype(float),
        launches=np.where(trace.launches[rows] < 0, 1, trace.launches[rows]).astype(float),
        stated_s=np.where(unpriced, trace.duration_ns[rows] * 1e-9, np.nan),
        on_host=on_host[rows],
        accumulation=np.array([text == ACCUMULATION for text in trace.op_types.table] + [False])[
            trace.op_types.codes[rows]
        ],
        owner=np.repeat(np.arange(len(rows)), [len(multiplies) for multiplies in lists]),
        multiplies=np.concatenate([*lists, np.empty((0, NUMBERS_OF_MULTIPLY), np.int64)]),
    )


@xp.unchecked
def _priced(
    launches: _Launches, device: Device, assumptions: Assumptions, host_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the [R] seconds of the launches, and the [K] seconds of all executions of the kernels.

    `host_s` are the [R] seconds of their bytes on the host.
    """
    shapes = tuple(map(shape_of, launches.multiplies[:, -1].tolist()))
    rows, columns, contracted, batch, flops = (launches.multiplies[:, place, None].astype(float) for place in range(5))
    multiplies = Multiplies(rows=rows, columns=columns, contracted=contracted, batch=batch, flops=flops)

    def per_launch(values: Array) -> np.ndarray:
        return np.bincount(launches.owner, np.asarray(values)[:, 0], len(launches.counts))

    def per_kernel(values: ArrayLike) -> np.ndarray:
        return np.bincount(launches.kernel, launches.counts * np.asarray(values))

    if shapes:
        excess = per_launch(multiplies.flops * (slowdowns(multiplies, shapes, device, assumptions) - 1.0))
        cast = per_launch(cast_bytes(multiplies, shapes, assumptions)) * (assumptions.linear_dtype != BF16)
    else:
        excess = cast = np.zeros(len(launches.counts))
    computing = compute_time(launches.matrix + excess, launches.vector, launches.launches, device, assumptions)
    accumulated = np.where(launches.accumulation, launches.num_bytes, 0.0)
    traffic = launches.num_bytes - accumulated + assumptions.unfused_share * launches.unfused + cast
    compute_s, num_bytes = per_kernel(computing), per_kernel(traffic)
    exposed_s = exposed_memory_time(num_bytes, compute_s, per_kernel(launches.launches), device, assumptions)
    # A kernel that computes nothing divides its time as its bytes.
    weight = np.where((compute_s > 0)[launches.kernel], computing, traffic)
    total = np.where(compute_s > 0, compute_s, num_bytes)
    share = np.where(weight > 0, weight / total[launches.kernel], 0.0)
    launch_s = computing + exposed_s[launches.kernel] * share + memory_time(accumulated, device, assumptions)
    launch_s = np.where(np.isnan(launches.stated_s), launch_s, launches.stated_s)
    launch_s = np.where(launches.on_host, host_s, launch_s)
    return launch_s, per_kernel(launch_s)


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
        self._members, self._placed = members, placed
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
        # Sends of other ranks that go as far at the same time share the link.
        rank = trace.rank
        tier = int(self._placed.tier(rank, peer))
        if (peer - rank, tier) not in self._sends:
            ranks = np.array(self._senders.get(peer - rank, [rank]))
            ranks = ranks[self._placed.tier(ranks, ranks + peer - rank) == tier]
            self._sends[peer - rank, tier] = self._placed.link(ranks, ranks + peer - rank)
        return self._links.send_s(self._sends[peer - rank, tier], size)


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
