"""The program of a rank as the replay reads it, and what the replay returns.

A program is the nodes of a rank as Python lists, which a loop reads several times as fast as arrays. Dependencies that
the order of a stream implies are left out: all that a node of the compute stream computed is there when a later node of
the program is reached. A control dependency counts if it joins computation, communication and transfers to the host;
within each of them, program order and streams decide.

A multiply in n panels has n collectives for each operand that comes in panels, one node each, and n for its result if
that is reduced. A node may name only the last one of them as its dependency, so all n count. On their stream the
collectives of the first panel come first, whatever their order in the file.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsx.traces.codec import (
    COLLECTIVES,
    COMM_COLL,
    COMM_RECV,
    COMM_SEND,
    COMP,
    MEM_LOAD,
    MEM_STORE,
    NODE_TYPES,
    STREAM_OF,
    STREAMS,
)
from dsx.traces.columns import RankTrace
from dsx.traces.node_times import NodeTimes, in_panels, is_inline

# What a node does in a replay. Those up to IN_PANELS run on the compute stream.
LAUNCH, INLINE, IN_PANELS, SHARED, PANEL, SEND, RECEIVE, LOAD, STORE, NOTHING = range(10)
_COLLECTIVES = (INLINE, SHARED, PANEL)

# What a compute stream waits for, besides the mesh axes of collectives, which follow in tables.
HOST, RECEIVES, SENDS, LOADS, STORES, PANELS, FIRST_AXIS = range(7)

_COLUMNS = ("roles", "seconds", "held_s", "issue_s", "streams", "keys")  # of a program, besides its dependencies

# What the ranks of a collective, or of a send and its receive, share: (group, how many of it there were before), (from,
# to, tag, how many of these there were before).
EventKey = tuple[Any, ...]
ALL_RANKS = ""  # the group of all ranks, also written "0"
_REDUCES = [COLLECTIVES[name] for name in ("REDUCE", "REDUCE_SCATTER", "ALL_REDUCE")]


@dataclass(frozen=True, slots=True)
class Panels:
    """The multiplies in panels of a rank, by the rows of its file."""

    # Row of a multiply -> for each of its panels, the rows of the collectives that bring it.
    brought: dict[int, list[list[int]]] = field(default_factory=dict)
    reduced: dict[int, int] = field(default_factory=dict)  # row of a collective of a result -> its panel
    order: Sequence[int] = ()  # rows in the order of the streams; empty for that of the file


def panels_of(trace: RankTrace) -> Panels:
    """Return the multiplies in panels of a rank."""
    collective = in_panels(trace)
    multiplied = np.flatnonzero((trace.types == COMP) & (trace.panels > 0))
    if not collective.any() and not multiplied.size:
        return Panels()
    rows = np.flatnonzero(collective)
    of_result = np.isin(trace.comm_type, _REDUCES) & collective
    # The panel of each collective, and the rows of all panels that it is one of.
    number: dict[int, int] = {}
    series: dict[int, list[int]] = {}
    current: dict[tuple[int, ...], list[int]] = {}
    columns = (trace.panels, trace.groups.codes, trace.axes.codes, trace.comm_type)
    for row, *key in zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True):
        members = current.get(tuple(key))
        if members is None or len(members) == key[0]:
            members = current[tuple(key)] = []
        number[row], series[row] = len(members), members
        members.append(row)
    # Collectives of adjacent rows stand by their panels; those of results stay behind others.
    begins = (np.diff(rows, prepend=-2) > 1) | np.diff(of_result[rows], prepend=False)
    begins[:1] = True
    order = np.arange(trace.num_nodes)
    panel = np.array([number[row] for row in rows.tolist()], np.int64)
    order[rows] = rows[np.lexsort((rows, panel, np.cumsum(begins)))]
    multiplies = Panels(order=order.tolist())
    for row, panels in zip(multiplied.tolist(), trace.panels[multiplied].tolist(), strict=True):
        multiplies.brought[row] = [[] for _ in range(panels)]
    readers, read = trace.data_deps.owners(), trace.data_deps.values
    brings = (trace.types[readers] == COMP) & collective[read] & ~of_result[read]
    for row, dep in zip(readers[brings].tolist(), read[brings].tolist(), strict=True):
        panels = multiplies.brought.setdefault(row, [])
        panels += [[] for _ in range(len(series[dep]) - len(panels))]
        for member in series[dep]:
            if member not in panels[number[member]]:
                panels[number[member]].append(member)
    takes = of_result[readers] & (trace.types[read] == COMP)
    for row, dep in zip(readers[takes].tolist(), read[takes].tolist(), strict=True):
        multiplies.brought.setdefault(dep, [[] for _ in series[row]])
        multiplies.reduced[row] = number[row]
    return multiplies


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
    keys: list[EventKey]  # of collectives, sends and receives
    panels: Panels  # by positions here

    def name(self, position: int) -> str:
        """Return the name of a node."""
        return self.trace.names.of(self.rows[position])


def program(
    trace: RankTrace, times: NodeTimes, dispatch_latency: float, axes: dict[str, int], stand_ins: Mapping[int, int]
) -> RankProgram:
    """Return the program of a rank, none of whose nodes depends on a later one; seconds.

    `axes` numbers the mesh axes and gets those that it lacks. `stand_ins` has the rank whose file stands for a rank.
    """
    panels, types = panels_of(trace), trace.types
    roles = np.full(len(types), NOTHING, np.int8)
    for kind, role in ((COMM_SEND, SEND), (COMM_RECV, RECEIVE), (MEM_LOAD, LOAD), (MEM_STORE, STORE), (COMP, LAUNCH)):
        roles[types == kind] = role
    roles[[*panels.brought]] = IN_PANELS
    roles[types == COMM_COLL] = SHARED
    roles[is_inline(trace)] = INLINE
    roles[in_panels(trace)] = PANEL
    launches = np.where(trace.launches < 0, 1, trace.launches)
    issued = np.where(types == COMP, launches, np.isin(roles, (*_COLLECTIVES, SEND)).astype(np.int64))
    in_file_order = RankProgram(
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
    return _ordered(in_file_order) if panels.order else in_file_order


def _ordered(program: RankProgram) -> RankProgram:
    """Return a program in the order that its panels say."""
    order = program.panels.order
    at = np.argsort(np.array(order)).tolist()
    lists = {name: [getattr(program, name)[row] for row in order] for name in _COLUMNS}
    deps = [None if deps is None else tuple(at[dep] for dep in deps) for deps in (program.deps[row] for row in order)]
    panels = Panels(
        {at[row]: [[at[dep] for dep in rows] for rows in panels] for row, panels in program.panels.brought.items()},
        {at[row]: panel for row, panel in program.panels.reduced.items()},
    )
    return replace(program, rows=order, deps=deps, panels=panels, **lists)


def _dependencies(trace: RankTrace, roles: np.ndarray, panels: Panels) -> list[tuple[int, ...] | None]:
    """Return the rows that each node waits for; None for none."""
    owners, ctrl = trace.ctrl_deps.owners(), trace.ctrl_deps.values
    # Control dependencies count between computation, communication, and transfers to the host.
    numbers = [[*STREAMS, ""].index(STREAM_OF.get(kind, "")) for kind in NODE_TYPES.values()]
    streams = np.array(numbers)[trace.types]
    crossing = streams[owners] != streams[ctrl]
    readers = np.concatenate([trace.data_deps.owners(), owners[crossing]])
    read = np.concatenate([trace.data_deps.values, ctrl[crossing]])
    # A panel of the result is there before the multiply ends.
    reduced = np.zeros(len(roles), bool)
    reduced[[*panels.reduced]] = True
    waits = (roles[read] > IN_PANELS) | ((roles[read] == IN_PANELS) & reduced[readers])
    deps: list[tuple[int, ...] | None] = [None] * len(roles)
    for reader, row in zip(readers[waits].tolist(), read[waits].tolist(), strict=True):
        deps[reader] = (*(deps[reader] or ()), row)
    for row, brought in panels.brought.items():
        deps[row] = tuple(dict.fromkeys([*(deps[row] or ()), *(dep for rows in brought for dep in rows)]))
    return deps


def _streams(trace: RankTrace, roles: np.ndarray, axes: dict[str, int]) -> list[int]:
    numbers = [FIRST_AXIS + axes.setdefault(name, len(axes)) for name in trace.axes.table]
    unnamed = FIRST_AXIS
    if (np.isin(roles, _COLLECTIVES) & (trace.axes.codes < 0)).any():
        unnamed += axes.setdefault("", len(axes))
    streams = np.array([*numbers, unnamed])[trace.axes.codes]  # the code of no axis is -1, the last one
    for role, stream in ((SEND, SENDS), (RECEIVE, RECEIVES), (LOAD, LOADS), (STORE, STORES)):
        streams[roles == role] = stream
    return streams.tolist()


def _keys(trace: RankTrace, roles: np.ndarray, stand_ins: Mapping[int, int]) -> list[EventKey]:
    keys: list[EventKey] = [()] * len(roles)
    counts: defaultdict[EventKey, int] = defaultdict(int)
    rank = stand_ins.get(trace.rank, trace.rank)
    names = [ALL_RANKS if name == "0" else name for name in (*trace.groups.table, ALL_RANKS)]
    rows = np.flatnonzero(np.isin(roles, _COLLECTIVES))
    codes = trace.groups.codes[rows].tolist()
    shared: list[tuple[int, EventKey]] = [(row, (names[at],)) for row, at in zip(rows.tolist(), codes, strict=True)]
    for role, peers in ((SEND, trace.comm_dst), (RECEIVE, trace.comm_src)):
        rows = np.flatnonzero(roles == role)
        for row, peer, tag in zip(rows.tolist(), peers[rows].tolist(), trace.comm_tag[rows].tolist(), strict=True):
            other = stand_ins.get(peer, peer)
            shared.append((row, (rank, other, tag, role) if role == SEND else (other, rank, tag, role)))
    for row, what in shared:
        keys[row] = (*what[:3], counts[what])
        counts[what] += 1
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
