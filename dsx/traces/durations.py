"""The groups of ranks that communicate, what each rank of a stage has in its file, and the seconds of its nodes.

The name of a group is a whole number from 1 on. Groups are those of the whole job, so names do not depend on which
ranks are written. Groups of one rank have no name, and groups with the same members have one.

Seconds are those of `dsx.cost`, which also price the plan. The launches of a kernel share its time
(`dsx.traces.node_times`), so those of a layer add up to its price. A kernel with a measured time takes that. Ranks of
a stage have the same durations. Where groups are placed unlike each other, each communication takes as long as that of
the group, or the pair of ranks, which shares least (`dsx.plans.placement`); a replay places each of them.
"""

import functools
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dsx.config.cluster_file import Cluster
from dsx.cost.context import Assumptions
from dsx.plans.ranks import zero_groups
from dsx.traces.codec import COMM_COLL, COMM_SEND, COMP, MEM_LOAD, MEM_STORE, varint
from dsx.traces.columns import blank_trace, lists_of, texts_of
from dsx.traces.layer_nodes import Compute
from dsx.traces.node_builder import TraceNode
from dsx.traces.node_times import KernelPricer, Link, LinkTimes, placement
from dsx.traces.stage_file import GROUP, PEER, RankValues
from dsx.traces.traced_plan import TracedPlan


@dataclass(frozen=True)
class RankGroups:
    """The groups of a job: by key, arrays [groups, members] of ranks and [groups] names."""

    members: dict[Hashable, np.ndarray]
    names: dict[Hashable, np.ndarray]
    of_rank: dict[Hashable, np.ndarray]  # [world] row of each rank's group; -1 without one
    ranks: dict[int, list[int]]  # by name

    def name(self, key: Hashable, rank: int) -> str:
        """Return the name of a rank's group; empty if it has none."""
        row = int(self.of_rank[key][rank]) if key in self.of_rank else -1
        return "" if row < 0 else str(self.names[key][row])

    def to_json(self) -> bytes:
        """Return the content of comm_groups.json."""
        lines = (f'"{name}": {json.dumps(ranks)}' for name, ranks in self.ranks.items())
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def rank_groups(plan: TracedPlan) -> RankGroups:
    """Return all groups of a plan's job."""
    grid, columns = plan.grid, plan.columns
    weight_groups = dict.fromkeys(
        ranks
        for position in range(len(plan.layers))
        for ranks, weights in plan.nodes(position).groups.items()
        if weights
    )
    members: dict[Hashable, np.ndarray] = {
        ("axis", axis): grid.groups((axis,)) for axis in ("tp", "tp2", "cp", "ep") if int(columns[axis]) > 1
    }
    for ranks in () if plan.forward_only else weight_groups:
        members["shards", ranks], members["replicas", ranks] = zero_groups(
            grid, ("dp", *ranks.axes), plan.replicas(ranks), ranks.over_ep, plan.holds.num_chains
        )
    if plan.ties_ends:
        first = np.flatnonzero(grid.columns["pp"] == 0)
        last = [grid.stage_peer(int(rank), int(columns["pp"]) - 1) for rank in first]
        members["ends",] = np.stack([first, np.array(last)], axis=1)
    groups = RankGroups({key: rows for key, rows in members.items() if rows.shape[1] > 1}, {}, {}, {})
    numbers: dict[bytes, int] = {}  # names by the members
    for key, rows in groups.members.items():
        names = [numbers.setdefault(row.tobytes(), len(numbers) + 1) for row in np.sort(rows, axis=1)]
        for name, row in zip(names, rows.tolist(), strict=True):
            groups.ranks.setdefault(name, row)
        groups.names[key] = np.array(names)
        groups.of_rank[key] = np.full(grid.world, -1, dtype=np.int64)
        groups.of_rank[key][rows.ravel()] = np.repeat(np.arange(len(rows)), rows.shape[1])
    return groups


def rank_values(plan: TracedPlan, groups: RankGroups, rank: int, peers: Sequence[Hashable]) -> RankValues:
    """Return what the file of a rank has in its gaps; `peers` are keys of ranks at the other end."""
    names: dict[Hashable, bytes] = {(GROUP, key): groups.name(key, rank).encode() for key in groups.members}
    return names | {(PEER, key): varint(peer_of(plan, groups, rank, key)) for key in peers}


def peer_of(plan: TracedPlan, groups: RankGroups, rank: int, key: Hashable) -> int:
    """Return the rank at the other end: on another stage, or some places on in the ring of an axis."""
    match key:
        case ("stage", int(stage)):
            return plan.grid.stage_peer(rank, stage)
        case ("ring", str(axis), int(way)):
            of_axis = ("axis", axis)
            ring = groups.members[of_axis][groups.of_rank[of_axis][rank]].tolist()
            return ring[(ring.index(rank) + way) % len(ring)]
        case _:
            raise ValueError(f"no rank is at the other end of {key}")


@dataclass(frozen=True, slots=True)
class Machine:
    """What durations depend on besides the plan."""

    cluster: Cluster
    assumptions: Assumptions
    # Seconds over those of the roofline, by kernel text, of kernels with measured times.
    measured: Mapping[str, float] = field(default_factory=dict)
    slow: Mapping[int, float] = field(default_factory=dict)  # how many times as long kernels take on slow ranks


class NodeDurations:
    """Prices the nodes of a plan's stages."""

    def __init__(self, machine: Machine, plan: TracedPlan, groups: RankGroups) -> None:
        cluster, assumptions = machine.cluster, machine.assumptions
        self._plan, self._groups, self._assumptions = plan, groups, assumptions
        self._measured = machine.measured
        num_ranks = int(plan.columns["num_gpus"])
        self._kernels = KernelPricer(cluster, assumptions, num_ranks)
        self._links = LinkTimes(cluster, assumptions, num_ranks)
        self._placed = placement(cluster.network, plan.grid.ranks_per_domain)
        self._shares = functools.cache(lambda key: self._placed.shares(groups.members[key]))
        self._link = functools.cache(self._least_link)
        self._launches: dict[Compute, float] = {}
        for nodes in plan.distinct_nodes.values():
            self._price([node.compute for node in (*nodes.forward, *nodes.backward) if node.compute])

    def set(self, nodes: Iterable[TraceNode], stage: int, slowness: float = 1.0) -> None:
        """Give nodes of a stage their durations; a receive has none of its own."""
        for node in nodes:
            seconds = self._seconds(node, stage)
            if seconds is not None and node.type == COMP and not node.on_host:
                seconds *= slowness
            node.duration_ns = None if seconds is None else seconds * 1e9

    def _seconds(self, node: TraceNode, stage: int) -> float | None:
        sent, work = node.communication, node.compute
        if work is not None:
            if node.on_host:
                return float(self._kernels.host_s(work.bytes))
            if work not in self._launches:
                self._price([work])
            return self._launches[work]
        if node.type in (MEM_LOAD, MEM_STORE):
            return float(self._links.transfer_s(node.transfer_bytes))
        if sent is None:
            return None
        if node.type == COMM_COLL:
            num_ranks = self._groups.members[sent.group].shape[1]
            return self._links.collective_s(sent.kind, num_ranks, self._shares(sent.group), sent.size, sent.routing)
        return self._links.send_s(self._link(stage, sent.peer), sent.size) if node.type == COMM_SEND else None

    def _least_link(self, stage: int, peer: Hashable) -> Link:
        """Return which tiers some send of a stage's ranks crosses."""
        ranks = np.flatnonzero(self._plan.grid.columns["pp"] == stage)
        return self._placed.link(ranks, [peer_of(self._plan, self._groups, rank, peer) for rank in ranks.tolist()])

    def _price(self, works: Sequence[Compute]) -> None:
        """Price launches of which each kernel has each of its own as often as the others."""
        if works:
            names = ("matrix_flops", "vector_flops", "bytes", "unfused_bytes", "launches")
            columns = {name: np.array([getattr(work, name) for work in works], np.int64) for name in names}
            trace = replace(
                blank_trace(len(works)),
                types=np.full(len(works), COMP, np.int8),
                num_ops=np.maximum(columns["matrix_flops"] + columns["vector_flops"], 1),
                tensor_size=np.maximum(columns.pop("bytes"), 1),
                multiplies=lists_of(
                    np.array([len(work.multiplies) for work in works]),
                    np.array([number for work in works for number in work.multiplies], np.int64),
                ),
                op_types=texts_of([work.op_type for work in works]),
                kernels=texts_of([work.kernel_text for work in works]),
                **columns,
            )
            for work, seconds in zip(works, self._kernels(trace).launch_s.tolist(), strict=True):
                self._launches[work] = seconds * self._measured.get(work.kernel_text, 1.0)
