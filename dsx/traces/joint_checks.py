"""Checks of the communication of all ranks: what one rank does, the others must do too, and in a possible order.

Events are what ranks do together (`joint_events.py`); `joint_order.py` checks their order.
"""

from collections.abc import Callable, Sequence
from itertools import chain, islice

import numpy as np

from dsx.traces.communication import Communication
from dsx.traces.faults import MOST_LISTED, Fault, first_rows, unlisted
from dsx.traces.folder import TraceFolder
from dsx.traces.joint_events import JointEvents, group_text, kind_text
from dsx.traces.joint_order import order_faults
from dsx.traces.messages import COMM_COLL, COMM_RECV, COMM_SEND

_SHOWN = 6  # ranks in a message


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
    first = islice(chain((rank for rank in every if rank not in there), beyond), _SHOWN)
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
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    more = f" and {number - _SHOWN:,} more" if number > _SHOWN else ""
    return f"rank{'s' if number > 1 else ''} {shown}{more}"
