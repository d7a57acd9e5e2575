"""The program of a rank: its nodes as Python lists, which a loop reads several times as fast as arrays.

Dependencies that the order of a stream implies are left out: all that a node of the compute stream computed is there
when a later node of the program is reached. A control dependency counts if it joins computation, communication and
transfers to the host; within each of them, program order and streams decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.errors import TraceError
from dsx.trace.columns import Lists, RankTrace
from dsx.trace.messages import COMM_COLL, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE
from dsx.trace.node_names import node_text
from dsx.trace.node_times import NodeTimes, in_panels, is_inline

# What a node does in a replay. Those up to IN_PANELS run on the compute stream.
LAUNCH, INLINE, IN_PANELS, SHARED, PANEL, SEND, RECEIVE, LOAD, STORE, NOTHING = range(10)
_LAST_ON_COMPUTE = IN_PANELS

# What a compute stream waits for, besides the mesh axes of collectives, which follow in tables.
HOST, RECEIVES, SENDS, LOADS, STORES, PANELS, FIRST_AXIS = range(7)

ALL_RANKS = ""  # the group of all ranks, also written "0"

# Classes of nodes, between which control dependencies count.
_CLASS = {COMP: 0, COMM_SEND: 1, COMM_RECV: 1, COMM_COLL: 1, MEM_LOAD: 2, MEM_STORE: 2}


@dataclass(frozen=True, slots=True)
class Program:
    """What the replay reads of the N nodes of one rank."""

    trace: RankTrace
    roles: list[int]
    seconds: list[float]  # whole time; of a receive 0
    held_s: list[float]  # of the compute stream
    issue_s: list[float]  # of the host
    deps: list[tuple[int, ...] | None]  # rows
    streams: list[int]  # what waits for the node count as: HOST, ..., STORES, or FIRST_AXIS and the axis
    # What the ranks of a collective, or of a send and its receive, share: (group, how many of it there were before),
    # (from, to, tag, how many of these there were before).
    keys: list[Any]
    panels: dict[
        int, int
    ]  # row of a launch in panels -> their number; of a panel's collective -> its number among them


def program(
    trace: RankTrace,
    times: NodeTimes,
    dispatch_latency: float,
    axes: dict[str, int],
    stand_ins: Mapping[int, int],
) -> Program:
    """Return the program of a rank; seconds.

    `axes` numbers the mesh axes and gets those that it lacks. `stand_ins` has the rank whose file stands for a rank.
    Raises TraceError if a node depends on a later one.
    """
    roles = _roles(trace)
    computing = trace.types == COMP
    launches = np.where(trace.launches < 0, 1, trace.launches)
    communicates = (roles == INLINE) | (roles == SHARED) | (roles == PANEL) | (roles == SEND)
    issued = np.where(computing, launches, communicates.astype(np.int64))
    found = Program(
        trace=trace,
        roles=roles.tolist(),
        seconds=times.seconds.tolist(),
        held_s=times.held_s.tolist(),
        issue_s=(dispatch_latency * issued).tolist(),
        deps=_dependencies(trace, roles),
        streams=_streams(trace, roles, axes),
        keys=_keys(trace, roles, stand_ins),
        panels={row: int(trace.panels[row]) for row in np.flatnonzero(roles == IN_PANELS).tolist()},
    )
    _number_panels(found)
    return found


def _roles(trace: RankTrace) -> np.ndarray:
    types = trace.types
    roles = np.full(len(types), NOTHING, np.int8)
    for kind, role in ((COMM_SEND, SEND), (COMM_RECV, RECEIVE), (MEM_LOAD, LOAD), (MEM_STORE, STORE)):
        roles[types == kind] = role
    roles[types == COMP] = LAUNCH
    roles[(types == COMP) & (trace.panels > 0)] = IN_PANELS
    roles[types == COMM_COLL] = SHARED
    roles[is_inline(trace)] = INLINE
    roles[in_panels(trace)] = PANEL
    return roles


def _dependencies(trace: RankTrace, roles: np.ndarray) -> list[tuple[int, ...] | None]:
    """Return the rows that each node waits for; None for none."""
    readers, read = _edges(trace.data_deps)
    after, before = _edges(trace.ctrl_deps)
    classes = np.array([_CLASS.get(kind, 3) for kind in range(int(trace.types.max(initial=0)) + 1)])
    crossing = classes[trace.types[after]] != classes[trace.types[before]]
    readers, read = np.concatenate([readers, after[crossing]]), np.concatenate([read, before[crossing]])
    if (late := np.flatnonzero(read >= readers)).size:
        this, that = (node_text(trace, int(rows[late[0]])) for rows in (readers, read))
        raise TraceError(f"rank {trace.rank}: {this} depends on {that}, which is not before it in the file")
    # The result of a panel is there before the multiply ends.
    by_panel = (roles[read] == IN_PANELS) & (roles[readers] == PANEL)
    waits = (roles[read] > _LAST_ON_COMPUTE) | by_panel
    deps: list[tuple[int, ...] | None] = [None] * len(roles)
    for reader, row in zip(readers[waits].tolist(), read[waits].tolist(), strict=True):
        known = deps[reader]
        deps[reader] = (row,) if known is None else (*known, row)
    return deps


def _edges(lists: Lists) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the nodes with an entry, and the entries."""
    return np.repeat(np.arange(len(lists.starts) - 1), np.diff(lists.starts)), lists.values


def _streams(trace: RankTrace, roles: np.ndarray, axes: dict[str, int]) -> list[int]:
    numbers = [FIRST_AXIS + axes.setdefault(name, len(axes)) for name in trace.axes.table]
    unnamed = FIRST_AXIS
    collective = (roles == INLINE) | (roles == SHARED) | (roles == PANEL)
    if (collective & (trace.axes.codes < 0)).any():
        unnamed += axes.setdefault("", len(axes))
    streams = np.array([*numbers, unnamed])[trace.axes.codes]  # the code of no axis is -1, the last one
    for role, stream in ((SEND, SENDS), (RECEIVE, RECEIVES), (LOAD, LOADS), (STORE, STORES)):
        streams[roles == role] = stream
    return streams.tolist()


def _keys(trace: RankTrace, roles: np.ndarray, stand_ins: Mapping[int, int]) -> list[Any]:
    keys: list[Any] = [None] * len(roles)
    counts: dict[Any, int] = {}
    rows = np.flatnonzero((roles == INLINE) | (roles == SHARED) | (roles == PANEL))
    names = [ALL_RANKS if name == "0" else name for name in (*trace.groups.table, ALL_RANKS)]
    for row, code in zip(rows.tolist(), trace.groups.codes[rows].tolist(), strict=True):
        name = names[code]
        number = counts.get(name, 0)
        counts[name] = number + 1
        keys[row] = name, number
    here = stand_ins.get(trace.rank, trace.rank)
    for role, peers in ((SEND, trace.comm_dst), (RECEIVE, trace.comm_src)):
        rows = np.flatnonzero(roles == role)
        counts.clear()
        for row, peer, tag in zip(rows.tolist(), peers[rows].tolist(), trace.comm_tag[rows].tolist(), strict=True):
            there = stand_ins.get(peer, peer)
            key = (here, there, tag) if role == SEND else (there, here, tag)
            number = counts.get(key, 0)
            counts[key] = number + 1
            keys[row] = (*key, number)
    return keys


def _number_panels(found: Program) -> None:
    """Add the number of the panel of each collective that depends on a multiply in panels."""
    numbered: dict[tuple[int, int], int] = {}
    for row, role in enumerate(found.roles) if found.panels else ():
        of = [dep for dep in found.deps[row] or () if found.roles[dep] == IN_PANELS] if role == PANEL else []
        if of:
            place = of[-1], found.streams[row]
            found.panels[row] = numbered[place] = numbered.get(place, -1) + 1
