"""Replays a step from the traces of its ranks on a cluster: prices the nodes, and runs the programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dsx.cost.assumptions import Assumptions
from dsx.errors import TraceError
from dsx.hardware.cluster import Cluster
from dsx.traces.columns import RankTrace
from dsx.traces.communication import communication_of
from dsx.traces.file_order import in_order, stands_in_order
from dsx.traces.joint_events import JointEvents
from dsx.traces.joint_order import order_faults
from dsx.traces.messages import COMM_COLL, COMM_RECV
from dsx.traces.node_names import node_text
from dsx.traces.node_times import NodePricer, senders
from dsx.traces.placement import placement
from dsx.traces.program import ALL_RANKS, program
from dsx.traces.replay import Emit, replayed
from dsx.traces.replay_result import StepTimes
from dsx.traces.start_order import start_orders


@dataclass(frozen=True, slots=True)
class StepTraces:
    """The traces of the ranks of a step, and the process groups of their collectives."""

    ranks: Mapping[int, RankTrace]  # those that have a file
    groups: Mapping[str, Sequence[int]]  # process group -> its ranks
    ranks_per_domain: int | None = None  # None: the size of a fast domain
    # Rank with a file -> ranks without one whose programs are alike, as those of a stage; empty if all have one.
    stands_for: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @property
    def stand_ins(self) -> dict[int, int]:
        """The rank whose file stands for each rank."""
        alike = {other: rank for rank, others in self.stands_for.items() for other in others}
        return alike | {rank: rank for rank in self.ranks}

    @property
    def members(self) -> dict[str, Sequence[int]]:
        """The ranks of each process group, and of that of all ranks: if `groups` lacks it, all that are known."""
        everyone = sorted(self.stand_ins)
        return {ALL_RANKS: everyone, "0": everyone, **self.groups}


def replay_step(
    traces: StepTraces,
    cluster: Cluster,
    assumptions: Assumptions,
    slow: Mapping[int, float] | None = None,
    emit: Emit | None = None,
) -> StepTimes:
    """Return the times of the ranks of a step.

    `slow` has the factor of the kernel seconds of slow ranks. `emit` gets an event for each node: rank, stream, name,
    start and duration in seconds. A collective waits for those of its ranks that have a file; the others must be alike.
    Raises TraceError if a rank lacks a file, a collective has no time, or ranks wait for what never comes.
    """
    members, stand_ins = traces.members, traces.stand_ins
    _check_complete(traces, members, stand_ins)
    alike = senders(traces.ranks.values(), traces.stands_for)
    pricer = NodePricer(cluster, assumptions, placement(cluster.network, traces.ranks_per_domain), members, alike)
    dispatch_latency = float(assumptions.dispatch_latency)
    axes: dict[str, int] = {}
    factors = slow or {}
    programs = [
        program(trace, pricer(trace, factors.get(trace.rank, 1.0)), dispatch_latency, axes, stand_ins)
        for trace in _in_program_order([trace for _, trace in sorted(traces.ranks.items())], members, pricer)
    ]
    waited_for = {name: [rank for rank in ranks if rank in traces.ranks] for name, ranks in members.items()}
    return replayed(programs, waited_for, [*axes], emit)


def _in_program_order(
    ranks: Sequence[RankTrace], members: Mapping[str, Sequence[int]], pricer: NodePricer
) -> Sequence[RankTrace]:
    """Return traces with their nodes in program order: that of their files, unless a node depends on a later one.

    Raises TraceError if there is none, since ranks wait for each other.
    """
    if all(map(stands_in_order, ranks)):
        return ranks
    joint = JointEvents([communication_of(trace, members.get) for trace in ranks])
    if faults := order_faults(joint):
        raise TraceError(f"the replay cannot go on, since ranks wait for each other: {faults[0].detail}")
    orders = start_orders(ranks, [pricer(trace).seconds for trace in ranks], joint)
    return [in_order(trace, rows) for trace, rows in zip(ranks, orders, strict=True)]


def _check_complete(traces: StepTraces, members: Mapping[str, Sequence[int]], stand_ins: Mapping[int, int]) -> None:
    """Raise TraceError if a rank waits for one that has no file and that no other rank stands for."""
    complete = {name for name, ranks in members.items() if all(rank in stand_ins for rank in ranks)}
    for rank, trace in traces.ranks.items():
        collectives = trace.types == COMM_COLL
        for code in np.unique(trace.groups.codes[collectives]).tolist():
            name = ALL_RANKS if code < 0 else trace.groups.table[code]
            first = np.flatnonzero(collectives & (trace.groups.codes == code))[0]
            if name in members and rank not in members[name]:
                raise TraceError(f"rank {rank} has {node_text(trace, first)} of the group {name!r}, which it is not in")
            if name in members and name not in complete:
                absent = next(other for other in members[name] if other not in stand_ins)
                raise TraceError(_waits(rank, trace, first, absent))
        receives = np.flatnonzero(trace.types == COMM_RECV)
        for source in np.unique(trace.comm_src[receives]).tolist():
            if source not in stand_ins:
                first = receives[trace.comm_src[receives] == source][0]
                raise TraceError(_waits(rank, trace, first, source))


def _waits(rank: int, trace: RankTrace, row: int, absent: int) -> str:
    return f"rank {rank} waits for rank {absent}, whose file is not there: {node_text(trace, row)}"
