"""Replays a step from the traces of its ranks on a cluster, with slow ranks: prices the nodes, and runs the programs.

People write slow ranks as RANKS=FACTOR, such as "0-7=1.3" or "3,5=2".
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dsx.config.cluster_file import Cluster
from dsx.cost.context import Assumptions
from dsx.errors import InputError, TraceError, wrong
from dsx.traces.codec import COMM_COLL, COMM_RECV
from dsx.traces.columns import RankTrace, node_text
from dsx.traces.node_times import NodePricer, placement, senders_of
from dsx.traces.orders import JointEvents, communication_of, contradiction, in_order, stands_in_order, start_orders
from dsx.traces.rank_program import ALL_RANKS, StepTimes, program
from dsx.traces.replay import Emit, Replay

# RANKS=FACTOR as a text, several of them, or the factor of each rank.
Slow = str | Sequence[str] | Mapping[int, float]

_SHOWN = 8  # ranks in an error
_MOST_DIGITS = 9  # of a rank
_EXAMPLE = "RANKS=FACTOR is wanted, as in 0-7=1.3 or 3,5=2"


def slow_ranks(slow: Slow | None, traced: Collection[int]) -> dict[int, float]:
    """Return the factor of each slow rank; `traced` are the ranks with a trace.

    Raises InputError for a text that is not RANKS=FACTOR, a factor that is not positive, and a rank that is unknown or
    named twice.
    """
    factors: dict[int, float] = {}
    for quoted, ranks, number in _stated(slow):
        factor = _factor(number)
        if not 0 < factor < math.inf:
            raise InputError(f"--slow {quoted}: the factor {str(number)!r} is no positive number")
        for part in ranks:
            if (ends := _ends(part)) is None:
                raise InputError(f"--slow {quoted}: {str(part).strip()!r} is no rank and no range of ranks; {_EXAMPLE}")
            low, high = ends
            if low > high:
                raise InputError(f"--slow {quoted}: {str(part).strip()} ends before it begins")
            absent = next((rank for rank in range(low, high + 1) if rank not in traced), None)
            if absent is not None:
                ranks_text = (
                    ", ".join([*map(str, sorted(traced)[:_SHOWN]), *["..."] * (len(traced) > _SHOWN)]) or "none"
                )
                if traced and max(traced) - min(traced) + 1 == len(traced):
                    ranks_text = f"{min(traced)} to {max(traced)}"
                raise InputError(f"--slow {quoted}: rank {absent} has no trace; there are ranks {ranks_text}")
            for rank in range(low, high + 1):
                if rank in factors:
                    raise InputError(f"--slow {quoted}: rank {rank} is named twice")
                factors[rank] = factor
    return factors


def _stated(slow: Slow | None) -> Iterator[tuple[str, Sequence[int | str], float | str]]:
    """Yield slow ranks as an error quotes them, then the ranks or ranges of ranks, and their factor."""
    if isinstance(slow, Mapping):
        for ranks, factor in slow.items():
            try:
                quoted = f"{ranks}={factor}"
            except ValueError:
                raise InputError(f"slow: a number has thousands of digits; {_EXAMPLE}") from None
            yield quoted, ranks.split(",") if isinstance(ranks, str) else [ranks], factor
        return
    texts = [slow] if isinstance(slow, str) else () if slow is None else slow
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise wrong("slow", slow, "RANKS=FACTOR is wanted, such as '0-7=1.3', a list of them, or a mapping of ranks")
    for text in texts:
        ranks, equals, factor = text.partition("=")
        if not equals:
            raise InputError(f"--slow {text}: {_EXAMPLE}")
        yield text, ranks.split(","), factor


def _factor(number: float | str) -> float:
    """Return a factor, which a text may state; NaN for what is no number."""
    try:
        return math.nan if isinstance(number, bool) else float(number)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _ends(ranks: int | str) -> tuple[int, int] | None:
    """Return the first and the last rank of 3, "3" or "0-7"; None for what is no rank and no range of ranks."""
    if not isinstance(ranks, str):
        whole = isinstance(ranks, int | np.integer) and not isinstance(ranks, bool)
        return (int(ranks), int(ranks)) if whole and 0 <= ranks < 10**_MOST_DIGITS else None
    first, dash, last = (end.strip() for end in ranks.partition("-"))
    ends = first, last if dash else first
    if not all(end.isascii() and end.isdigit() and len(end) <= _MOST_DIGITS for end in ends):
        return None
    return int(ends[0]), int(ends[1])


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
        stand_ins = {absent: rank for rank, ranks in self.stands_for.items() for absent in ranks}
        return stand_ins | {rank: rank for rank in self.ranks}

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
    senders = senders_of(traces.ranks.values(), traces.stands_for)
    pricer = NodePricer(cluster, assumptions, placement(cluster.network, traces.ranks_per_domain), members, senders)
    ranks = [trace for _, trace in sorted(traces.ranks.items())]
    if not all(map(stands_in_order, ranks)):  # the order of the files is no program order
        joint = JointEvents([communication_of(trace, members.get) for trace in ranks])
        if cycle := contradiction(joint):
            raise TraceError(f"the replay cannot go on, since ranks wait for each other: {cycle}")
        orders = start_orders(ranks, [pricer(trace).seconds for trace in ranks], joint)
        ranks = [in_order(trace, rows) for trace, rows in zip(ranks, orders, strict=True)]
    dispatch_latency, factors = float(assumptions.dispatch_latency), slow or {}
    axes: dict[str, int] = {}
    programs = [
        program(trace, pricer(trace, factors.get(trace.rank, 1.0)), dispatch_latency, axes, stand_ins)
        for trace in ranks
    ]
    waited_for = {name: [rank for rank in ranks if rank in traces.ranks] for name, ranks in members.items()}
    return Replay(programs, waited_for, [*axes], emit).run()


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
