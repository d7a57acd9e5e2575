"""The program of a rank as the replay reads it, and what the replay returns.

The program of a rank: its nodes as Python lists, which a loop reads several times as fast as arrays.

Dependencies that the order of a stream implies are left out: all that a node of the compute stream computed is there
when a later node of the program is reached. A control dependency counts if it joins computation, communication and
transfers to the host; within each of them, program order and streams decide.

What a replay found: for each rank, where the time of its step went.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsx.traces.codec import COMM_COLL, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE
from dsx.traces.columns import Lists, RankTrace
from dsx.traces.kernel_times import Panels, in_panels, panels_of
from dsx.traces.node_times import NodeTimes, is_inline

# What a node does in a replay. Those up to IN_PANELS run on the compute stream.
LAUNCH, INLINE, IN_PANELS, SHARED, PANEL, SEND, RECEIVE, LOAD, STORE, NOTHING = range(10)
_LAST_ON_COMPUTE = IN_PANELS

# What a compute stream waits for, besides the mesh axes of collectives, which follow in tables.
HOST, RECEIVES, SENDS, LOADS, STORES, PANELS, FIRST_AXIS = range(7)

_COLUMNS = ("roles", "seconds", "held_s", "issue_s", "streams", "keys")  # of a program, besides its dependencies

ALL_RANKS = ""  # the group of all ranks, also written "0"

# Classes of nodes, between which control dependencies count.
_CLASS = {COMP: 0, COMM_SEND: 1, COMM_RECV: 1, COMM_COLL: 1, MEM_LOAD: 2, MEM_STORE: 2}


@dataclass(frozen=True, slots=True)
class RankProgram:
    """What the replay reads of the N nodes of one rank, in the order of its streams."""

    trace: RankTrace
    rows: Sequence[int]  # of the file; they differ from the order here where panels do
    roles: list[int]
    seconds: list[float]  # whole time; of a receive 0
    held_s: list[float]  # of the compute stream
    issue_s: list[float]  # of the host
    deps: list[tuple[int, ...] | None]
    streams: list[int]  # what waits for the node count as: HOST, ..., STORES, or FIRST_AXIS and the axis
    # What the ranks of a collective, or of a send and its receive, share: (group, how many of it there were before),
    # (from, to, tag, how many of these there were before).
    keys: list[Any]
    panels: Panels  # by positions here

    def name(self, position: int) -> str:
        """Return the name of a node."""
        return self.trace.names.of(self.rows[position])


def program(
    trace: RankTrace,
    times: NodeTimes,
    dispatch_latency: float,
    axes: dict[str, int],
    stand_ins: Mapping[int, int],
) -> RankProgram:
    """Return the program of a rank, none of whose nodes depends on a later one; seconds.

    `axes` numbers the mesh axes and gets those that it lacks. `stand_ins` has the rank whose file stands for a rank.
    """
    panels = panels_of(trace)
    roles = _roles(trace, panels)
    launches = np.where(trace.launches < 0, 1, trace.launches)
    communicates = (roles == INLINE) | (roles == SHARED) | (roles == PANEL) | (roles == SEND)
    issued = np.where(trace.types == COMP, launches, communicates.astype(np.int64))
    found = RankProgram(
        trace=trace,
        rows=range(trace.num_nodes),
        roles=roles.tolist(),
        seconds=times.seconds.tolist(),
        held_s=times.held_s.tolist(),
        issue_s=(dispatch_latency * issued).tolist(),
        deps=_dependencies(trace, roles, panels),
        streams=_streams(trace, roles, axes),
        keys=_keys(trace, roles, stand_ins),
        panels=panels,
    )
    return _ordered(found) if panels.order else found


def _ordered(found: RankProgram) -> RankProgram:
    """Return a program in the order that its panels say."""
    order = found.panels.order
    at = [0] * len(order)
    for position, row in enumerate(order):
        at[row] = position
    lists = {name: [getattr(found, name)[row] for row in order] for name in _COLUMNS}
    deps = [None if deps is None else tuple(at[dep] for dep in deps) for deps in (found.deps[row] for row in order)]
    panels = Panels(
        {at[row]: [[at[one] for one in rows] for rows in panels] for row, panels in found.panels.brought.items()},
        {at[row]: panel for row, panel in found.panels.reduced.items()},
    )
    return replace(found, rows=order, deps=deps, panels=panels, **lists)


def _roles(trace: RankTrace, panels: Panels) -> np.ndarray:
    types = trace.types
    roles = np.full(len(types), NOTHING, np.int8)
    for kind, role in ((COMM_SEND, SEND), (COMM_RECV, RECEIVE), (MEM_LOAD, LOAD), (MEM_STORE, STORE)):
        roles[types == kind] = role
    roles[types == COMP] = LAUNCH
    roles[[*panels.brought]] = IN_PANELS
    roles[types == COMM_COLL] = SHARED
    roles[is_inline(trace)] = INLINE
    roles[in_panels(trace)] = PANEL
    return roles


def _dependencies(trace: RankTrace, roles: np.ndarray, panels: Panels) -> list[tuple[int, ...] | None]:
    """Return the rows that each node waits for; None for none."""
    readers, read = _edges(trace.data_deps)
    after, before = _edges(trace.ctrl_deps)
    classes = np.array([_CLASS.get(kind, 3) for kind in range(int(trace.types.max(initial=0)) + 1)])
    crossing = classes[trace.types[after]] != classes[trace.types[before]]
    readers, read = np.concatenate([readers, after[crossing]]), np.concatenate([read, before[crossing]])
    waits = roles[read] > _LAST_ON_COMPUTE
    # A panel of the result is there before the multiply ends.
    reduced = np.zeros(len(roles), bool)
    reduced[[*panels.reduced]] = True
    waits |= (roles[read] == IN_PANELS) & reduced[readers]
    deps: list[tuple[int, ...] | None] = [None] * len(roles)
    for reader, row in zip(readers[waits].tolist(), read[waits].tolist(), strict=True):
        known = deps[reader]
        deps[reader] = (row,) if known is None else (*known, row)
    for row, brought in panels.brought.items():
        deps[row] = tuple(dict.fromkeys([*(deps[row] or ()), *(dep for rows in brought for dep in rows)]))
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


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The time of one rank's step, seconds; the parts add up to `step_s`.

    A part besides `compute_s` is time in which the compute stream is held or waits.
    """

    rank: int
    step_s: float  # until the end of its last node
    compute_s: float  # of its kernels
    comm_s: Mapping[str, float]  # by mesh axis, exposed: held by collectives, or waiting for them and their ranks
    send_s: float  # held by sends
    bubble_s: float  # waiting for receives
    offload_s: float  # held by transfers to the host and back, or waiting for them
    host_s: float  # waiting for the host to issue what is next


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The times of all replayed ranks."""

    ranks: tuple[RankTimes, ...]  # by rank
    num_nodes: int  # of all files

    @property
    def step_time_s(self) -> float:
        """Seconds of the step: those of the slowest rank."""
        return max((rank.step_s for rank in self.ranks), default=0.0)
