"""Checks of traces: of each file by itself, then of the communication of all ranks.

Checks of the communication of all ranks: what one rank does, the others must do too, and in a possible order.

Events are what ranks do together (`joint_events.py`); `joint_order.py` checks their order.

Checks of traces: of each file by itself, then of the communication of all ranks (`joint_checks.py`).
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice

import numpy as np

from dsx.traces.codec import COLLECTIVES, COMM_COLL, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE
from dsx.traces.columns import MOST_LISTED, Fault, RankTrace, at_rows, first_rows, unlisted
from dsx.traces.dag import cycle, joined
from dsx.traces.joint_events import Communication, JointEvents, communication_of, group_text, kind_text, order_faults
from dsx.traces.trace_folder import TraceFolder

_SHOWN_RANKS = 6  # ranks in a message


def joint_faults(parts: Sequence[Communication], folder: TraceFolder) -> list[Fault]:
    """Return the faults between ranks; `parts` are all ranks that have a file."""
    if not parts:
        return []
    joint = JointEvents(parts)
    return [
        *_missing_ranks(joint, folder),
        *_lone_transfers(joint),
        *_different_sizes(joint),
        *_different_sequences(joint, folder),
        *order_faults(joint),
    ]


def _missing_ranks(joint: JointEvents, folder: TraceFolder) -> list[Fault]:
    there = {part.rank for part in joint.parts}
    groups = [folder.members(name) or () for name in joint.group_names]
    # The group of all ranks may be as large as a file states, so it stays a range.
    every = next((ranks for ranks in groups if isinstance(ranks, range)), range(0))
    transfers = joint.types != COMM_COLL
    others = {*np.unique(joint.sources[transfers]).tolist(), *np.unique(joint.targets[transfers]).tolist()}
    others.update(rank for ranks in groups if not isinstance(ranks, range) for rank in ranks)
    beyond = sorted(rank for rank in others - there if rank not in every)
    number = len(every) - len(_those_in(every, there)) + len(beyond)
    if not number:
        return []
    first = islice(chain((rank for rank in every if rank not in there), beyond), _SHOWN_RANKS)
    detail = (
        f"{_listed([*first], number)} {'have' if number > 1 else 'has'} no file, and others wait for them; what they "
        "do together is not checked"
    )
    return [Fault("missing ranks", None, None, "", detail, is_note=True)]


def _those_in(ranks: Sequence[int], there: set[int]) -> set[int]:
    """Return the ranks that have a file, of a group."""
    return {rank for rank in there if rank in ranks} if isinstance(ranks, range) else there.intersection(ranks)


def _lone_transfers(joint: JointEvents) -> list[Fault]:
    there = np.array([part.rank for part in joint.parts])
    size = int(joint.events.max(initial=-1)) + 1
    faults: list[Fault] = []
    for own, other, peers, what, lacks in (
        (COMM_SEND, COMM_RECV, joint.targets, "send without its receive", "has no receive from"),
        (COMM_RECV, COMM_SEND, joint.sources, "receive without its send", "has no send to"),
    ):
        matched = np.zeros(size, bool)
        matched[joint.events[joint.types == other]] = True
        rows = np.flatnonzero((joint.types == own) & ~matched[joint.events])
        rows = rows[np.isin(peers[rows], there)]
        faults += _by_rank(
            joint,
            rows,
            what,
            lambda row, peers=peers, lacks=lacks: (
                f"rank {peers[row]} {lacks} rank {joint.ranks[row]} with tag {joint.tags[row]}"
                + (f", which is number {joint.turns[row] + 1} of these" if joint.turns[row] else "")
            ),
        )
    return faults


def _different_sizes(joint: JointEvents) -> list[Fault]:
    received = np.full(int(joint.events.max(initial=-1)) + 1, -1)
    receives = np.flatnonzero(joint.types == COMM_RECV)
    received[joint.events[receives]] = receives
    sends = np.flatnonzero(joint.types == COMM_SEND)
    partners = received[joint.events[sends]]
    rows = sends[(partners >= 0) & (joint.sizes[sends] != joint.sizes[partners])]
    return _by_rank(
        joint,
        rows,
        "send and receive of different sizes",
        lambda row: (
            f"{joint.sizes[row]} bytes are sent to rank {joint.targets[row]}, which receives "
            f"{joint.sizes[received[joint.events[row]]]} (tag {joint.tags[row]})"
        ),
    )


def _by_rank(joint: JointEvents, rows: np.ndarray, what: str, detail: Callable[[int], str]) -> list[Fault]:
    """Return the faults at some rows, the first ones of each rank."""
    own_rows = np.split(rows, np.flatnonzero(np.diff(joint.ranks[rows])) + 1) if len(rows) else []
    return [
        Fault(what, int(joint.ranks[row]), joint.node(row), joint.name(row), detail(row), more=unlisted(at, len(own)))
        for own in own_rows
        for at, row in enumerate(first_rows(own))
    ]


def _different_sequences(joint: JointEvents, folder: TraceFolder) -> list[Fault]:
    """Return a fault for each group whose members do not run the same collectives: the first that differs."""
    rows = np.flatnonzero(joint.types == COMM_COLL)
    if not len(rows):
        return []
    there = {part.rank for part in joint.parts}
    members = [_those_in(folder.members(name) or (), there) for name in joint.group_names]
    rows = rows[np.argsort(joint.events[rows], kind="stable")]
    begins = np.flatnonzero(np.diff(joint.events[rows], prepend=-1))
    present = np.diff(np.append(begins, len(rows)))
    wanted = np.array([len(ranks) for ranks in members])[joint.groups[rows[begins]]]
    differs = present != wanted
    for column in (joint.collectives[rows], joint.sizes[rows]):
        differs |= np.minimum.reduceat(column, begins) != np.maximum.reduceat(column, begins)
    first: dict[int, int] = {}  # by group: the position of its first event that differs
    for at in np.flatnonzero(differs).tolist():
        first.setdefault(int(joint.groups[rows[begins[at]]]), at)
    faults = []
    for place, (group, at) in enumerate(list(first.items())[:MOST_LISTED]):
        together = rows[begins[at] : begins[at] + present[at]].tolist()
        detail = _difference(joint, together, members[group])
        text = f"{group_text(joint.group_names[group])}: {detail}"
        faults.append(
            Fault("different sequences of collectives", None, None, "", text, more=unlisted(place, len(first)))
        )
    return faults


def _difference(joint: JointEvents, together: list[int], members: set[int]) -> str:
    """Return how a collective differs between ranks; `together` are the rows of those that have it."""
    one, turn = together[0], joint.turns[together[0]]
    lacking = sorted(members - set(joint.ranks[together].tolist()))
    if lacking:
        return (
            f"{_listed(lacking, len(lacking))} {'have' if len(lacking) > 1 else 'has'} only {turn} collectives, and "
            f"{_node_text(joint, one)} is number {turn + 1}"
        )
    other = next(
        row
        for row in together
        if (joint.collectives[row], joint.sizes[row]) != (joint.collectives[one], joint.sizes[one])
    )
    return f"number {turn + 1} differs: {_node_text(joint, one)} and {_node_text(joint, other)}"


def _node_text(joint: JointEvents, row: int) -> str:
    kind = kind_text(joint.collectives[row])
    size = f"{joint.sizes[row]} bytes" if joint.sizes[row] >= 0 else "no stated size"
    return f"{kind} of {size} on rank {joint.ranks[row]} (node {joint.node(row)}, {joint.name(row)})"


def _listed(ranks: Sequence[int], number: int) -> str:
    """Return the first of so many ranks as text."""
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    more = f" and {number - _SHOWN_RANKS:,} more" if number > _SHOWN_RANKS else ""
    return f"rank{'s' if number > 1 else ''} {shown}{more}"


_SHOWN_NODES = 6  # nodes of a cycle in a message


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
    return [
        *_duplicate_ids(trace),
        *_unknown_dependencies(trace),
        *_cycles(trace),
        *_groups(trace, folder),
        *_peers(trace),
        *_sizes(trace),
        *_times(trace),
        *_work(trace),
        *_written_twice(trace),
    ]


def _duplicate_ids(trace: RankTrace) -> list[Fault]:
    order = np.argsort(trace.ids, kind="stable")
    repeated = np.sort(order[1:][trace.ids[order][1:] == trace.ids[order][:-1]])
    return at_rows("duplicate id", trace, repeated, "an earlier node of the file has the same id")


def _unknown_dependencies(trace: RankTrace) -> list[Fault]:
    rows, ids = trace.unknown_deps[:, 0], trace.unknown_deps[:, 1]
    details = [f"depends on node {number}, which the file does not have" for number in first_rows(ids)]
    return at_rows("unknown dependency", trace, rows, details)


def _cycles(trace: RankTrace) -> list[Fault]:
    rows = cycle(joined(trace.ctrl_deps, trace.data_deps))
    if not rows:
        return []
    shown = ", ".join(f"{trace.ids[row]} ({trace.names.of(row)})" for row in rows[:_SHOWN_NODES])
    more = f" and {len(rows) - _SHOWN_NODES:,} more" if len(rows) > _SHOWN_NODES else ""
    several = f"{len(rows):,} nodes wait for one another: {shown}{more}"
    detail = several if len(rows) > 1 else f"node {shown} waits for itself"
    return at_rows("cycle of dependencies", trace, np.array(rows[:1]), detail)


def _groups(trace: RankTrace, folder: TraceFolder) -> list[Fault]:
    collective = trace.types == COMM_COLL
    unknown, foreign = np.zeros(trace.num_nodes, bool), np.zeros(trace.num_nodes, bool)
    for code in np.unique(trace.groups.codes[collective]).tolist():
        members = folder.members(trace.groups.table[code] if code >= 0 else "")
        if members is None:
            unknown |= trace.groups.codes == code
        elif trace.rank not in members:
            foreign |= trace.groups.codes == code
    lost, others = np.flatnonzero(unknown & collective), np.flatnonzero(foreign & collective)
    return [
        *at_rows(
            "unknown process group",
            trace,
            lost,
            [f"there is no group {trace.groups.of(row)!r}" for row in first_rows(lost)],
        ),
        *at_rows(
            "no member of the group",
            trace,
            others,
            [f"group {trace.groups.of(row)!r} does not have rank {trace.rank}" for row in first_rows(others)],
        ),
        *at_rows(
            "unknown collective",
            trace,
            np.flatnonzero(collective & ~np.isin(trace.comm_type, list(COLLECTIVES.values()))),
            "comm_type is none of Chakra's collectives",
        ),
    ]


def _peers(trace: RankTrace) -> list[Fault]:
    sends = np.flatnonzero((trace.types == COMM_SEND) & (trace.comm_dst < 0))
    receives = np.flatnonzero((trace.types == COMM_RECV) & (trace.comm_src < 0))
    return [
        *at_rows("no peer", trace, sends, "a send without comm_dst"),
        *at_rows("no peer", trace, receives, "a receive without comm_src"),
    ]


def _sizes(trace: RankTrace) -> list[Fault]:
    barrier = (trace.types == COMM_COLL) & (trace.comm_type == COLLECTIVES["BARRIER"])
    sent = np.isin(trace.types, (COMM_SEND, COMM_RECV, COMM_COLL)) & ~barrier
    moved = np.isin(trace.types, (MEM_LOAD, MEM_STORE))
    computed = trace.types == COMP
    bad = (
        ("comm_size", np.flatnonzero(sent & (trace.comm_size <= 0)), trace.comm_size),
        ("tensor_size", np.flatnonzero(moved & (trace.tensor_size <= 0)), trace.tensor_size),
        ("tensor_size", np.flatnonzero(computed & (trace.tensor_size == 0)), trace.tensor_size),
        ("num_ops", np.flatnonzero(computed & (trace.num_ops == 0)), trace.num_ops),
        ("panels", np.flatnonzero((trace.panels == 0) | (trace.panels < -1)), trace.panels),
    )
    return [
        fault
        for attribute, rows, sizes in bad
        for fault in at_rows(
            "size that is not positive",
            trace,
            rows,
            [f"has no {attribute}" if sizes[row] == -1 else f"{attribute} is {sizes[row]}" for row in first_rows(rows)],
        )
    ]


def _times(trace: RankTrace) -> list[Fault]:
    shares = np.flatnonzero((trace.overlap < 0.0) | (trace.overlap > 1.0))
    seconds = np.flatnonzero((trace.duration_ns < 0.0) | np.isinf(trace.duration_ns))
    return [
        *at_rows(
            "overlap that is no share",
            trace,
            shares,
            [f"overlap is {trace.overlap[row]:g}" for row in first_rows(shares)],
        ),
        *at_rows(
            "duration that is none", trace, seconds, [f"{trace.duration_ns[row]:g} ns" for row in first_rows(seconds)]
        ),
    ]


def _work(trace: RankTrace) -> list[Fault]:
    # A computation with a duration is replayed, and needs neither.
    without = (trace.types == COMP) & ((trace.num_ops < 0) | (trace.tensor_size < 0)) & np.isnan(trace.duration_ns)
    lacks = {(True, True): "num_ops and tensor_size", (True, False): "num_ops", (False, True): "tensor_size"}

    def details(rows: np.ndarray) -> list[str]:
        lacking = [(bool(trace.num_ops[row] < 0), bool(trace.tensor_size[row] < 0)) for row in first_rows(rows)]
        return [f"has no {lacks[one]}" for one in lacking]

    # A profiler records calls of the host that launch nothing.
    on_host, on_device = (np.flatnonzero(without & place) for place in (trace.on_host > 0, trace.on_host <= 0))
    return [
        *at_rows("computation without its work", trace, on_device, details(on_device)),
        *at_rows("operation of the host without its work", trace, on_host, details(on_host), is_note=True),
    ]


def _written_twice(trace: RankTrace) -> list[Fault]:
    tensors = trace.writes.values
    order = np.argsort(tensors, kind="stable")
    again = np.sort(order[1:][tensors[order][1:] == tensors[order][:-1]])
    rows = np.searchsorted(trace.writes.starts, again, side="right") - 1
    # A node that reads a tensor too changes it in place.
    reading = np.repeat(np.arange(trace.num_nodes), np.diff(trace.reads.starts))
    count = len(trace.tensors)
    changed = np.isin(rows * count + tensors[again], reading * count + trace.reads.values)
    again, rows = again[~changed], rows[~changed]
    details = [f"{trace.tensors[tensors[place]]!r} was written before in the file" for place in first_rows(again)]
    return at_rows("tensor written twice", trace, rows, details)
