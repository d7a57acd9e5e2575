"""Checks of traces: of each file by itself, then of the communication of all ranks.

What one rank does, the others must do too, and in a possible order; events are what ranks do together
(`dsx.traces.orders`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import numpy as np

from dsx.traces.codec import COLLECTIVES, COMM_COLL, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE
from dsx.traces.columns import RankTrace
from dsx.traces.orders import (
    Communication,
    JointEvents,
    communication_of,
    contradiction,
    cycle,
    group_text,
    joined,
    kind_text,
)
from dsx.traces.read import TraceFolder

_SHOWN_RANKS = _SHOWN_NODES = 6  # in a message, of a cycle
CONTRADICTORY_ORDER = "contradictory order"
_HOST_WITHOUT_WORK = "operation of the host without its work"  # a note

# A kind of fault, [N] whether a node has it, and the detail of all or of a row.
_Finding = tuple[str, np.ndarray, str | Callable[[int], str]]
_MOST_LISTED = 5  # faults of one kind in one rank; the last one says how many more there are


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that a simulator would stop at, or that makes its result wrong."""

    what: str  # kind of fault, such as "unknown dependency"
    rank: int | None  # None for a fault of several ranks
    node: int | None  # id of a node; None for a fault of no single one
    name: str  # of the node; empty if there is none
    detail: str
    more: int = 0  # further faults of this kind in this rank, which are not listed
    is_note: bool = False  # the trace is legal, but was not checked in full

    def __str__(self) -> str:
        where = "" if self.rank is None else f"rank {self.rank}"
        where += "" if self.node is None else f" node {self.node} ({self.name})"
        more = f"; and {self.more:,} more" if self.more else ""
        return f"{self.what}: {where}{': ' if where else ''}{self.detail}{more}"


def _unlisted(at: int, number: int) -> int:
    """Return how many of `number` faults are not listed, for the fault at position `at`: 0 but for the last listed."""
    return max(number - _MOST_LISTED, 0) if at == _MOST_LISTED - 1 else 0


def check(folder: TraceFolder, traces: Iterable[RankTrace]) -> list[Fault]:
    """Return the faults of a folder; `traces` are those of its ranks, of which one at a time is in memory."""
    faults: list[Fault] = []
    parts: list[Communication] = []
    for trace in traces:
        folder = folder.with_groups(trace)
        faults += file_faults(trace, folder)
        parts.append(communication_of(trace, folder.members))
    return faults + joint_faults(parts, folder)


def file_faults(trace: RankTrace, folder: TraceFolder) -> list[Fault]:
    """Return the faults of one file; of the folder only its process groups are used."""
    order = np.argsort(trace.ids, kind="stable")
    repeated = np.sort(order[1:][trace.ids[order][1:] == trace.ids[order][:-1]])
    rows, ids = trace.unknown_deps.T
    unknown = iter(ids.tolist())
    faults = _at_rows("duplicate id", trace, repeated, "an earlier node of the file has the same id")
    faults += _at_rows(
        "unknown dependency", trace, rows, lambda _: f"depends on node {next(unknown)}, which the file does not have"
    )
    if around := cycle(joined(trace.ctrl_deps, trace.data_deps)):
        shown = ", ".join(f"{trace.ids[row]} ({trace.names.of(row)})" for row in around[:_SHOWN_NODES])
        more = f" and {len(around) - _SHOWN_NODES:,} more" if len(around) > _SHOWN_NODES else ""
        several = f"{len(around):,} nodes wait for one another: {shown}{more}"
        detail = several if len(around) > 1 else f"node {shown} waits for itself"
        faults += _at_rows("cycle of dependencies", trace, np.array(around[:1]), detail)
    for what, nodes, detail in (*_in_groups(trace, folder), *_in_numbers(trace)):
        faults += _at_rows(what, trace, np.flatnonzero(nodes), detail, is_note=what == _HOST_WITHOUT_WORK)
    tensors = trace.writes.values
    order = np.argsort(tensors, kind="stable")
    later = np.sort(order[1:][tensors[order][1:] == tensors[order][:-1]])
    rows = np.searchsorted(trace.writes.starts, later, side="right") - 1
    # A node that reads a tensor too changes it in place.
    count = len(trace.tensors)
    changed = np.isin(rows * count + tensors[later], trace.reads.owners() * count + trace.reads.values)
    names = (trace.tensors[tensor] for tensor in tensors[later[~changed]].tolist())
    return faults + _at_rows(
        "tensor written twice", trace, rows[~changed], lambda _: f"{next(names)!r} was written before in the file"
    )


def _at_rows(
    what: str, trace: RankTrace, rows: np.ndarray, detail: str | Callable[[int], str], is_note: bool = False
) -> list[Fault]:
    """Return a fault for each of some rows of a trace; `detail` is the same text for all, or gives that of a row."""
    faults: list[Fault] = []
    for at, row in enumerate(rows[:_MOST_LISTED].tolist()):
        text = detail if isinstance(detail, str) else detail(row)
        node = int(trace.ids[row]), trace.names.of(row)
        faults.append(Fault(what, trace.rank, *node, text, _unlisted(at, len(rows)), is_note))
    return faults


def _in_groups(trace: RankTrace, folder: TraceFolder) -> list[_Finding]:
    """Return communication whose ranks are unknown."""
    collective = trace.types == COMM_COLL
    unknown, foreign = np.zeros(trace.num_nodes, bool), np.zeros(trace.num_nodes, bool)
    for code in np.unique(trace.groups.codes[collective]).tolist():
        members = folder.members(trace.groups.table[code] if code >= 0 else "")
        if members is None:
            unknown |= trace.groups.codes == code
        elif trace.rank not in members:
            foreign |= trace.groups.codes == code
    kinds = np.isin(trace.comm_type, list(COLLECTIVES.values()))

    def not_in_group(row: int) -> str:
        return f"group {trace.groups.of(row)!r} does not have rank {trace.rank}"

    return [
        ("unknown process group", unknown & collective, lambda row: f"there is no group {trace.groups.of(row)!r}"),
        ("no member of the group", foreign & collective, not_in_group),
        ("unknown collective", collective & ~kinds, "comm_type is none of Chakra's collectives"),
        ("no peer", (trace.types == COMM_SEND) & (trace.comm_dst < 0), "a send without comm_dst"),
        ("no peer", (trace.types == COMM_RECV) & (trace.comm_src < 0), "a receive without comm_src"),
    ]


def _in_numbers(trace: RankTrace) -> list[_Finding]:
    """Return sizes, shares and durations that are none, and computations without their work."""
    barrier = (trace.types == COMM_COLL) & (trace.comm_type == COLLECTIVES["BARRIER"])
    sent = np.isin(trace.types, (COMM_SEND, COMM_RECV, COMM_COLL)) & ~barrier
    moved, computed = np.isin(trace.types, (MEM_LOAD, MEM_STORE)), trace.types == COMP
    bad = (
        ("comm_size", sent & (trace.comm_size <= 0)),
        ("tensor_size", moved & (trace.tensor_size <= 0)),
        ("tensor_size", computed & (trace.tensor_size == 0)),
        ("num_ops", computed & (trace.num_ops == 0)),
        ("panels", (trace.panels == 0) | (trace.panels < -1)),
    )

    def wrong_size(name: str, row: int) -> str:
        size = getattr(trace, name)[row]
        return f"has no {name}" if size == -1 else f"{name} is {size}"

    def without_work(row: int) -> str:
        return f"has no {' and '.join(name for name in ('num_ops', 'tensor_size') if getattr(trace, name)[row] < 0)}"

    overlaps = (trace.overlap < 0.0) | (trace.overlap > 1.0)
    durations = (trace.duration_ns < 0.0) | np.isinf(trace.duration_ns)
    # A computation with a duration is replayed, and needs no work; a profiler records calls of the host without any.
    without = computed & ((trace.num_ops < 0) | (trace.tensor_size < 0)) & np.isnan(trace.duration_ns)
    return [
        *(("size that is not positive", nodes, partial(wrong_size, name)) for name, nodes in bad),
        ("overlap that is no share", overlaps, lambda row: f"overlap is {trace.overlap[row]:g}"),
        ("duration that is none", durations, lambda row: f"{trace.duration_ns[row]:g} ns"),
        ("computation without its work", without & (trace.on_host <= 0), without_work),
        (_HOST_WITHOUT_WORK, without & (trace.on_host > 0), without_work),
    ]


def joint_faults(parts: Sequence[Communication], folder: TraceFolder) -> list[Fault]:
    """Return the faults between ranks; `parts` are all ranks that have a file."""
    if not parts:
        return []
    joint = JointEvents(parts)
    order = contradiction(joint)
    return [
        *_missing_ranks(joint, folder),
        *_transfers(joint),
        *_different_sequences(joint, folder),
        *([Fault(CONTRADICTORY_ORDER, None, None, "", order)] if order else []),
    ]


def _missing_ranks(joint: JointEvents, folder: TraceFolder) -> list[Fault]:
    ranks_with_file = {part.rank for part in joint.parts}
    groups = [folder.members(name) or () for name in joint.group_names]
    # The group of all ranks may be as large as a file states, so it stays a range.
    every = next((ranks for ranks in groups if isinstance(ranks, range)), range(0))
    transfers = joint.types != COMM_COLL
    named = {*np.unique([joint.sources[transfers], joint.targets[transfers]]).tolist()}
    named.update(rank for ranks in groups if not isinstance(ranks, range) for rank in ranks)
    outside = sorted(rank for rank in named - ranks_with_file if rank not in every)
    number = len(every) - len(_those_in(every, ranks_with_file)) + len(outside)
    if not number:
        return []
    first = islice(chain((rank for rank in every if rank not in ranks_with_file), outside), _SHOWN_RANKS)
    detail = (
        f"{_listed([*first], number)} {'have' if number > 1 else 'has'} no file, and others wait for them; what they "
        "do together is not checked"
    )
    return [Fault("missing ranks", None, None, "", detail, is_note=True)]


def _those_in(group: Sequence[int], ranks: set[int]) -> set[int]:
    """Return the ranks that are in a group."""
    return {rank for rank in ranks if rank in group} if isinstance(group, range) else ranks.intersection(group)


def _transfers(joint: JointEvents) -> list[Fault]:
    """Return sends and receives without the other, and those of different sizes."""
    ranks_with_file = np.array([part.rank for part in joint.parts])
    # The row of the send and of the receive of each event; -1 without one.
    sends, receives = np.full((2, joint.num_events), -1)
    for rows_of, kind in ((sends, COMM_SEND), (receives, COMM_RECV)):
        rows = np.flatnonzero(joint.types == kind)
        rows_of[joint.events[rows]] = rows
    faults: list[Fault] = []
    for kind, partners, peers, what, lacks in (
        (COMM_SEND, receives, joint.targets, "send without its receive", "has no receive from"),
        (COMM_RECV, sends, joint.sources, "receive without its send", "has no send to"),
    ):
        rows = np.flatnonzero((joint.types == kind) & (partners[joint.events] < 0))
        rows = rows[np.isin(peers[rows], ranks_with_file)]
        faults += _by_rank(
            joint,
            rows,
            what,
            lambda row, peers=peers, lacks=lacks: (
                f"rank {peers[row]} {lacks} rank {joint.ranks[row]} with tag {joint.tags[row]}"
                + (f", which is number {joint.turns[row] + 1} of these" if joint.turns[row] else "")
            ),
        )
    rows = np.flatnonzero(joint.types == COMM_SEND)
    partners = receives[joint.events[rows]]
    return faults + _by_rank(
        joint,
        rows[(partners >= 0) & (joint.sizes[rows] != joint.sizes[partners])],
        "send and receive of different sizes",
        lambda row: (
            f"{joint.sizes[row]} bytes are sent to rank {joint.targets[row]}, which receives "
            f"{joint.sizes[receives[joint.events[row]]]} (tag {joint.tags[row]})"
        ),
    )


def _by_rank(joint: JointEvents, rows: np.ndarray, what: str, detail: Callable[[int], str]) -> list[Fault]:
    """Return the faults at some rows, the first ones of each rank."""
    of_ranks = np.split(rows, np.flatnonzero(np.diff(joint.ranks[rows])) + 1) if len(rows) else []
    return [
        Fault(what, int(joint.ranks[row]), *joint.node(row), detail(row), _unlisted(at, len(of_rank)))
        for of_rank in of_ranks
        for at, row in enumerate(of_rank[:_MOST_LISTED].tolist())
    ]


def _different_sequences(joint: JointEvents, folder: TraceFolder) -> list[Fault]:
    """Return a fault for each group whose members do not run the same collectives: the first that differs."""
    rows = np.flatnonzero(joint.types == COMM_COLL)
    if not len(rows):
        return []
    ranks_with_file = {part.rank for part in joint.parts}
    members = [_those_in(folder.members(name) or (), ranks_with_file) for name in joint.group_names]
    rows = rows[np.argsort(joint.events[rows], kind="stable")]
    begins = np.flatnonzero(np.diff(joint.events[rows], prepend=-1))
    present = np.diff(np.append(begins, len(rows)))
    differs = present != np.array([len(ranks) for ranks in members])[joint.groups[rows[begins]]]
    for column in (joint.collectives[rows], joint.sizes[rows]):
        differs |= np.minimum.reduceat(column, begins) != np.maximum.reduceat(column, begins)
    first: dict[int, int] = {}  # by group: the position of its first event that differs
    for at in np.flatnonzero(differs).tolist():
        first.setdefault(int(joint.groups[rows[begins[at]]]), at)
    faults = []
    for place, (group, at) in enumerate(list(first.items())[:_MOST_LISTED]):
        together = rows[begins[at] : begins[at] + present[at]].tolist()
        detail = _difference(joint, together, members[group])
        text = f"{group_text(joint.group_names[group])}: {detail}"
        faults.append(Fault("different sequences of collectives", None, None, "", text, _unlisted(place, len(first))))
    return faults


def _difference(joint: JointEvents, together: list[int], members: set[int]) -> str:
    """Return how a collective differs between ranks; `together` are the rows of those that have it."""
    first, turn = together[0], joint.turns[together[0]]
    lacking = sorted(members - set(joint.ranks[together].tolist()))
    if lacking:
        return (
            f"{_listed(lacking, len(lacking))} {'have' if len(lacking) > 1 else 'has'} only {turn} collectives, and "
            f"{_node_text(joint, first)} is number {turn + 1}"
        )
    kinds = [(joint.collectives[row], joint.sizes[row]) for row in together]
    other = next(row for row, kind in zip(together, kinds, strict=True) if kind != kinds[0])
    return f"number {turn + 1} differs: {_node_text(joint, first)} and {_node_text(joint, other)}"


def _node_text(joint: JointEvents, row: int) -> str:
    kind = kind_text(joint.collectives[row])
    size = f"{joint.sizes[row]} bytes" if joint.sizes[row] >= 0 else "no stated size"
    number, name = joint.node(row)
    return f"{kind} of {size} on rank {joint.ranks[row]} (node {number}, {name})"


def _listed(ranks: Sequence[int], number: int) -> str:
    """Return the first of so many ranks as text."""
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    more = f" and {number - _SHOWN_RANKS:,} more" if number > _SHOWN_RANKS else ""
    return f"rank{'s' if number > 1 else ''} {shown}{more}"
