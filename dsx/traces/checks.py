"""Checks of traces: of each file by itself, then of the communication of all ranks (`joint_checks.py`)."""

from collections.abc import Iterable

import numpy as np

from dsx.traces.columns import RankTrace
from dsx.traces.communication import Communication, communication_of
from dsx.traces.dag import cycle, joined
from dsx.traces.faults import Fault, at_rows, first_rows
from dsx.traces.folder import TraceFolder
from dsx.traces.joint_checks import joint_faults
from dsx.traces.messages import COLLECTIVES, COMM_COLL, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE

_SHOWN = 6  # nodes of a cycle in a message


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
    shown = ", ".join(f"{trace.ids[row]} ({trace.names.of(row)})" for row in rows[:_SHOWN])
    more = f" and {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else ""
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
