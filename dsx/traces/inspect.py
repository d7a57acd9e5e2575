"""What is in a folder of traces: nodes, communication, memory, the critical path, faults; as plain data."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from dsx.traces.checks import Fault, file_faults, joint_faults
from dsx.traces.codec import COLLECTIVES, COMM_COLL, COMM_RECV, COMM_SEND, COMP, NODE_TYPES
from dsx.traces.columns import RankTrace
from dsx.traces.dag import CriticalPath, after_dependencies, critical_path, path_parts
from dsx.traces.joint_events import Communication, communication_of
from dsx.traces.lifetimes import MemoryUse, memory_use
from dsx.traces.trace_folder import TraceFolder

_TYPES = {code: name.removesuffix("_NODE") for name, code in NODE_TYPES.items()}
_KINDS = {code: name for name, code in COLLECTIVES.items()}
_NO_SIZE = 0  # group size of a collective whose group is unknown

# Sums over nodes by what they are; Python integers, which do not overflow.
_Sums = dict[tuple[Any, ...], dict[str, int | float]]
# The sums that a rank adds to: keys, the position of that of each row, and columns of rows.
_Addends = tuple[list[tuple[Any, ...]], np.ndarray, dict[str, np.ndarray]]


def summary(folder: TraceFolder, traces: Iterable[RankTrace]) -> dict[str, Any]:
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
    peaks: list[dict[str, Any]] = []
    worst: tuple[RankTrace, MemoryUse] | None = None
    longest: tuple[RankTrace, CriticalPath] | None = None
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
            if worst is None or use.peak_bytes > worst[1].peak_bytes:
                worst = ordered, use
        path = critical_path(trace)
        if longest is None or (path.unit == "s", path.length) > (longest[1].unit == "s", longest[1].length):
            longest = trace, path
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
        "memory": _memory(peaks, worst),
        "critical_path": _path(longest),
        "faults": [dataclasses.asdict(fault) for fault in faults],
    }


def _add(sums: _Sums, keys: list[tuple[Any, ...]], owners: np.ndarray, columns: dict[str, np.ndarray]) -> None:
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


def _keys(*columns: tuple[np.ndarray, list[str]]) -> tuple[list[tuple[Any, ...]], np.ndarray]:
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
    stated = (trace.matrix_flops >= 0) | (trace.vector_flops >= 0)
    columns = {
        "nodes": np.ones(trace.num_nodes, np.int64),
        "launches": launches,
        "total_flops": np.where(stated, matrix + vector, np.maximum(trace.num_ops, 0)),
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
    kinds = np.where(np.isin(trace.comm_type[rows], list(_KINDS)), trace.comm_type[rows], -1)
    named, owners = _keys(
        (kinds, [_KINDS[code] for code in sorted(_KINDS)]),
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


def _rows(sums: _Sums, names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{**dict(zip(names, key, strict=True)), **sums[key]} for key in sorted(sums)]


def _memory(peaks: list[dict[str, Any]], worst: tuple[RankTrace, MemoryUse] | None) -> dict[str, Any]:
    if worst is None:
        return {"ranks": peaks, "worst": None}
    trace, use = worst
    return {
        "ranks": peaks,
        "worst": {
            "rank": trace.rank,
            "peak_bytes": use.peak_bytes,
            "node": int(trace.ids[use.peak_row]),
            "name": trace.names.of(use.peak_row),
            "alive": [dataclasses.asdict(alive) for alive in use.alive],
        },
    }


def _path(longest: tuple[RankTrace, CriticalPath] | None) -> dict[str, Any] | None:
    if longest is None:
        return None
    trace, path = longest
    length = f"length_{path.unit}"
    return {
        "rank": trace.rank,
        "nodes": len(path.rows),
        length: path.length,
        "parts": [{"name": part.name, "nodes": part.nodes, length: part.length} for part in path_parts(trace, path)],
    }
