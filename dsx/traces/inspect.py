"""What is in a folder of traces: nodes, communication, memory, the critical path, faults; as plain data.

The memory of a rank follows from the lifetimes of its buffers. Versions of a tensor (`NAME#VERSION`) are one buffer. A
buffer lives from the first node that writes it to the last one that reads or writes it, both included. One that is read
before it is written was there from the start and stays to the end: weights, optimizer state. Nodes count in their order
in the trace. Not counted: tensors in the host's memory (`NAME@host`), and what no node reads or writes.

The critical path is the longest one in a file over its dependencies: the time or work that no overlap avoids. Not
modelled: waiting for other ranks.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dsx.traces.checks import Fault, file_faults, joint_faults
from dsx.traces.codec import COLLECTIVE_NAMES, COMM_COLL, COMM_RECV, COMM_SEND, COMP, NODE_TYPES
from dsx.traces.columns import RankTrace
from dsx.traces.orders import Communication, after_dependencies, communication_of, joined, topological_order
from dsx.traces.read import TraceFolder
from dsx.traces.traced_plan import buffer_of

HOST = "@host"  # suffix of tensors in the host's memory
_TYPES = {code: name.removesuffix("_NODE") for name, code in NODE_TYPES.items()}
_NO_SIZE = 0  # group size of a collective whose group is unknown
# Sums over nodes by what they are; Python integers, which do not overflow.
_Key = tuple[str | int, ...]
_Sums = dict[_Key, dict[str, int | float]]
# The sums that a rank adds to: keys, the position of that of each row, and columns of rows.
_Addends = tuple[Sequence[_Key], np.ndarray, dict[str, np.ndarray]]
_Row = dict[str, object]  # plain data

# Numbers of layers, microbatches and panels; "tp2" and "w1" are names.
_NUMBER = re.compile(r"(?<![A-Za-z])[0-9]+|(?<=\b[mlL])[0-9]+|(?<=layer)[0-9]+")
_WORD = re.compile(r"[^\W\d_]+(?:_[^\W\d_]+)*")
# What is alive, by the names that dsx gives: of a layer ("L007.w1"), or of a microbatch in it ("m003.L007.n1").
_BUFFER_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"L\d{3,}\.optimizer state", "optimizer state"),
        (r"L\d{3,}\.(?:d|gradients) ", "gradients"),
        (r"L\d{3,}\.", "weights"),
        (r"m\d+\.L\d{3,}\.weights'? \d", "gathered weights"),
        (r"m\d+\.L\d{3,}\.unreduced ", "unreduced gradients"),
        (r"m\d+\.(?:L\d{3,}\.d |chunk \d+ gradient)", "gradients of activations"),
        (r"m\d+\.(?:L\d{3,}\.|chunk \d+ input)", "activations"),
    )
)


@dataclass(frozen=True, slots=True)
class Alive:
    """Buffers of one kind that are alive at the same time."""

    kind: str  # as `kind_of` returns it
    buffers: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of all buffers at each node."""

    curve_bytes: np.ndarray  # [N] int64
    peak_row: int  # the first node at the peak; -1 if there are no nodes
    alive: tuple[Alive, ...]  # at the peak, the largest first

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes at a node."""
        return int(self.curve_bytes[self.peak_row]) if self.peak_row >= 0 else 0


def memory_use(trace: RankTrace) -> MemoryUse:
    """Return the memory of a rank by the lifetimes of its buffers; zeros for a trace without tensors."""
    codes: dict[str, int] = {}  # of the buffers on the device
    of_tensor = np.full(len(trace.tensors), -1, np.int64)
    for tensor, name in enumerate(trace.tensors):
        buffer = buffer_of(name)
        if not name.endswith(HOST) and not buffer.endswith(HOST):
            of_tensor[tensor] = codes.setdefault(buffer, len(codes))
    num_nodes, names = trace.num_nodes, list(codes)
    ends, sizes = np.full(len(codes), -1, np.int64), np.zeros(len(codes), np.int64)
    read, written = np.full((2, len(codes)), num_nodes, np.int64)  # first rows
    for lists, first in ((trace.reads, read), (trace.writes, written)):
        buffers = of_tensor[lists.values]
        rows, buffers = lists.owners()[buffers >= 0], buffers[buffers >= 0]
        np.minimum.at(first, buffers, rows)
        np.maximum.at(ends, buffers, rows)
    np.maximum.at(sizes, of_tensor[of_tensor >= 0], trace.tensor_bytes[of_tensor >= 0])
    persistent = (read <= written) & (read < num_nodes)  # a node reads before it writes
    begins = np.where(persistent, 0, np.minimum(read, written))
    ends[persistent] = num_nodes - 1
    changes = np.zeros(num_nodes + 1, np.int64)
    np.add.at(changes, begins, sizes)
    np.subtract.at(changes, ends + 1, sizes)
    curve = np.cumsum(changes[:-1])
    peak = int(np.argmax(curve)) if num_nodes else -1
    alive: dict[str, Alive] = {}
    for place in np.flatnonzero((begins <= peak) & (peak <= ends)).tolist():
        kind = kind_of(names[place])
        earlier = alive.get(kind, Alive(kind, 0, 0))
        alive[kind] = Alive(kind, earlier.buffers + 1, earlier.size_bytes + int(sizes[place]))
    return MemoryUse(curve, peak, tuple(sorted(alive.values(), key=lambda buffers: -buffers.size_bytes)))


def kind_of(name: str) -> str:
    """Return what a buffer holds, as "weights" of "L007.w1"; for names of other writers their leading word.

    The leading word of "grad.layer3#002" is "grad"; a name that begins with none is its own kind.
    """
    for pattern, kind in _BUFFER_KINDS:
        if pattern.match(name):
            return kind
    match = _WORD.match(name)
    return match[0] if match else name


@dataclass(frozen=True, slots=True)
class PathPart:
    """Nodes of a path whose names differ in their numbers alone."""

    name: str  # with "*" for numbers that differ
    nodes: int
    length: float  # seconds or FLOPs, as of the path


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The longest path; nodes that wait for one another in a cycle are not on it."""

    unit: Literal["s", "flops"]  # of lengths: seconds if nodes have durations, else FLOPs
    length: float
    rows: np.ndarray  # [nodes] int64, first to last
    lengths: np.ndarray  # [nodes] of each


def critical_path(trace: RankTrace) -> CriticalPath:
    """Return the longest path over dependencies, by durations if nodes have them, else by FLOPs."""
    timed = trace.has_durations
    weights = np.nan_to_num(trace.duration_ns) * 1e-9 if timed else np.maximum(trace.num_ops, 0).astype(np.float64)
    deps = joined(trace.ctrl_deps, trace.data_deps)
    causes, weight = deps.tolist(), weights.tolist()
    ends, latest = [0.0] * trace.num_nodes, [-1] * trace.num_nodes  # length of the path to a node; the node before it
    last, longest = -1, -1.0
    for row in topological_order(deps).tolist():
        begin, cause = 0.0, -1
        for other in causes[row]:
            if ends[other] > begin or cause < 0:
                begin, cause = ends[other], other
        end = ends[row] = begin + weight[row]
        latest[row] = cause
        if end > longest:
            last, longest = row, end
    path: list[int] = []
    while last >= 0:
        path.append(last)
        last = latest[last]
    rows = np.array(path[::-1], np.int64)
    return CriticalPath("s" if timed else "flops", float(weights[rows].sum()), rows, weights[rows])


def path_parts(trace: RankTrace, path: CriticalPath) -> tuple[PathPart, ...]:
    """Return the nodes of a path by name without its numbers, in order of the first node of each."""
    parts: dict[str, tuple[set[str], int, float]] = {}
    for row, length in zip(path.rows.tolist(), path.lengths.tolist(), strict=True):
        name = trace.names.of(row)
        names, number, total = parts.get(key := _NUMBER.sub("*", name), (set(), 0, 0.0))
        names.add(name)
        parts[key] = names, number + 1, total + length
    return tuple(
        PathPart(key if len(names) > 1 else next(iter(names)), number, total)
        for key, (names, number, total) in parts.items()
    )


def summary(folder: TraceFolder, traces: Iterable[RankTrace]) -> _Row:
    """Return a summary of a folder; `traces` are those of its ranks, of which one at a time is in memory.

    Units are in the keys: `*_flops`, `*_bytes`, `*_s`. Counts and sums are those of all ranks together; bytes of
    collectives are sums of `comm_size`. `element_bytes` are those of an element where the files count elements and
    multiply-adds, else None. Raises what reading raises.
    """
    nodes: _Sums = {}
    collectives: _Sums = {}
    transfers: _Sums = {}
    versions: dict[str, None] = {}
    element_bytes: int | None = None
    faults: list[Fault] = []
    parts: list[Communication] = []
    peaks: list[_Row] = []
    largest, worst = -1, None  # the bytes of the rank with the largest peak, and its row
    length, longest = (False, -1.0), None  # whether the longest path is in seconds, its length, and its row
    for trace in traces:
        folder = folder.with_groups(trace)
        versions[trace.version] = None
        element_bytes = trace.element_bytes
        _add(nodes, *_by_kind(trace))
        _add(collectives, *_by_collective(trace, folder))
        _add(transfers, *_by_direction(trace))
        faults += file_faults(trace, folder)
        parts.append(communication_of(trace, folder.members))
        if trace.tensors:
            ordered = after_dependencies(trace)
            use = memory_use(ordered)
            peaks.append({"rank": trace.rank, "peak_bytes": use.peak_bytes})
            if use.peak_bytes > largest:
                largest = use.peak_bytes
                node = {"node": int(ordered.ids[use.peak_row]), "name": ordered.names.of(use.peak_row)}
                worst = {**peaks[-1], **node, "alive": [dataclasses.asdict(alive) for alive in use.alive]}
        path = critical_path(trace)
        if (path.unit == "s", path.length) > length:
            length, longest = (path.unit == "s", path.length), _path(trace, path)
    faults += joint_faults(parts, folder)
    return {
        "folder": str(folder.path),
        "prefix": folder.prefix,
        "versions": list(versions),
        "ranks": len(parts),
        "num_ranks": folder.num_ranks,
        "groups": len(folder.groups),
        "element_bytes": element_bytes,
        "totals": {name: sum(values[name] for values in nodes.values()) for name in next(iter(nodes.values()), ())},
        "nodes": _rows(nodes, ("type", "op_type")),
        "collectives": _rows(collectives, ("collective", "axis", "group_size")),
        "transfers": _rows(transfers, ("type",)),
        "memory": {"ranks": peaks, "worst": worst},
        "critical_path": longest,
        "faults": [dataclasses.asdict(fault) for fault in faults],
    }


def _add(sums: _Sums, keys: Sequence[_Key], owners: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    """Add to `sums` the columns of a rank; `owners` are positions in `keys`, one for each row."""
    if not keys:
        return
    order = np.argsort(owners, kind="stable")
    begins = np.searchsorted(owners[order], np.arange(len(keys)))
    totals = {name: np.add.reduceat(column[order], begins).tolist() for name, column in columns.items()}
    for place, key in enumerate(keys):
        of_key = sums.setdefault(key, dict.fromkeys(totals, 0))
        for name, values in totals.items():
            of_key[name] += values[place]


def _keys(*columns: tuple[np.ndarray, list[str]]) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Return the combinations that occur of some columns of codes, each with its table, and that of each row."""
    if not len(columns[0][0]):
        return [], np.empty(0, np.int64)
    used, owners = np.unique(np.stack([codes for codes, _ in columns]), axis=1, return_inverse=True)
    tables = [table for _, table in columns]
    keys = [
        tuple(table[code] if code >= 0 else "" for table, code in zip(tables, codes, strict=True))
        for codes in used.T.tolist()
    ]
    return keys, owners.reshape(-1)


def _by_kind(trace: RankTrace) -> _Addends:
    types = [_TYPES.get(code, "") for code in range(max(_TYPES) + 1)]
    keys, owners = _keys((trace.types, types), (trace.op_types.codes, trace.op_types.table))
    launches = np.where(trace.launches >= 0, trace.launches, trace.types == COMP)
    matrix, vector = np.maximum(trace.matrix_flops, 0), np.maximum(trace.vector_flops, 0)
    # Writers may state at least one operation for each node (dsx does), which is no work.
    is_split = (trace.matrix_flops >= 0) | (trace.vector_flops >= 0)
    columns = {
        "nodes": np.ones(trace.num_nodes, np.int64),
        "launches": launches,
        "total_flops": np.where(is_split, matrix + vector, np.maximum(trace.num_ops, 0)),
        "matrix_flops": matrix,
        "vector_flops": vector,
        "traffic_bytes": np.maximum(trace.tensor_size, 0),
        "unfused_bytes": np.maximum(trace.unfused_bytes, 0),
        "duration_s": np.nan_to_num(trace.duration_ns) * 1e-9,
    }
    return keys, owners, columns


def _by_collective(trace: RankTrace, folder: TraceFolder) -> _Addends:
    rows = np.flatnonzero(trace.types == COMM_COLL)
    members = [folder.members(name) for name in [*trace.groups.table, ""]]
    sizes = np.array([_NO_SIZE if ranks is None else len(ranks) for ranks in members])
    used = np.unique(sizes)
    kinds = np.where(np.isin(trace.comm_type[rows], list(COLLECTIVE_NAMES)), trace.comm_type[rows], -1)
    named, owners = _keys(
        (kinds, [COLLECTIVE_NAMES[code] for code in sorted(COLLECTIVE_NAMES)]),
        (trace.axes.codes[rows], trace.axes.table),
        (np.searchsorted(used, sizes)[trace.groups.codes[rows]], [str(size) for size in used]),
    )
    keys = [(kind or "UNKNOWN", axis, int(size)) for kind, axis, size in named]
    return keys, owners, _sent(trace, rows)


def _by_direction(trace: RankTrace) -> _Addends:
    rows = np.flatnonzero(np.isin(trace.types, (COMM_SEND, COMM_RECV)))
    names = [_TYPES[COMM_SEND], _TYPES[COMM_RECV]]
    return *_keys(((trace.types[rows] == COMM_RECV).astype(np.int32), names)), _sent(trace, rows)


def _sent(trace: RankTrace, rows: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "nodes": np.ones(len(rows), np.int64),
        "size_bytes": np.maximum(trace.comm_size[rows], 0),
        "duration_s": np.nan_to_num(trace.duration_ns[rows]) * 1e-9,
    }


def _rows(sums: _Sums, names: tuple[str, ...]) -> list[_Row]:
    return [{**dict(zip(names, key, strict=True)), **sums[key]} for key in sorted(sums)]


def _path(trace: RankTrace, path: CriticalPath) -> _Row:
    length = f"length_{path.unit}"
    parts = [{"name": part.name, "nodes": part.nodes, length: part.length} for part in path_parts(trace, path)]
    return {"rank": trace.rank, "nodes": len(path.rows), length: path.length, "parts": parts}
