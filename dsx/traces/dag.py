"""Orders of the nodes of a trace: topological order, cycles, file order, and the longest path over dependencies.

The longest path is the time or work of a rank that no overlap avoids. Not modelled: waiting for other ranks.
"""

import heapq
import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from dsx.traces.columns import Lists, RankTrace, Texts, lists_of


def joined(*lists: Lists) -> Lists:
    """Return the lists of each node one after the other."""
    owners = np.concatenate([part.owners() for part in lists])
    values = np.concatenate([part.values for part in lists])
    lengths = np.bincount(owners, minlength=lists[0].num_nodes)
    return lists_of(lengths, values[np.argsort(owners, kind="stable")])


def topological_order(before: Lists) -> np.ndarray:
    """Return the nodes, each after those in its list `before`; fewer than all if some are on or behind a cycle.

    Of nodes that may come next the first one does, so it is the order of the nodes themselves if that is one.
    """
    num_nodes, owners = before.num_nodes, before.owners()
    if np.all(before.values < owners):
        return np.arange(num_nodes)
    by_cause = np.argsort(before.values, kind="stable")
    after = owners[by_cause].tolist()
    starts = np.searchsorted(before.values[by_cause], np.arange(num_nodes + 1)).tolist()
    missing = np.diff(before.starts).tolist()
    ready = [node for node, number in enumerate(missing) if number == 0]  # in ascending order, which is a heap
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for other in after[starts[node] : starts[node + 1]]:
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(ready, other)
    return np.array(order, np.int64)


def cycle(before: Lists) -> list[int]:
    """Return the nodes of a cycle, each before the next one, and the last before the first; empty if there is none.

    The first of them is the one with the smallest number.
    """
    order = topological_order(before)
    if len(order) == before.num_nodes:
        return []
    waiting = np.ones(before.num_nodes, bool)
    waiting[order] = False
    # Each node that waits has another waiting one before it: going back ends in a cycle.
    node, places, path = int(np.flatnonzero(waiting)[0]), {}, []
    while node not in places:
        places[node] = len(path)
        path.append(node)
        causes = before.of(node)
        node = int(causes[waiting[causes]][0])
    around = path[places[node] :][::-1]
    first = around.index(min(around))
    return around[first:] + around[:first]


_NOT_OF_NODES = ("tensor_bytes", "unknown_deps")  # columns


def stands_in_order(trace: RankTrace) -> bool:
    """Return whether no node depends on a later one."""
    return all(bool(np.all(part.values < part.owners())) for part in (trace.ctrl_deps, trace.data_deps))


def after_dependencies(trace: RankTrace) -> RankTrace:
    """Return a trace whose nodes stand behind those that they depend on, else as in its file; the same for a cycle."""
    order = topological_order(joined(trace.ctrl_deps, trace.data_deps))
    return in_order(trace, order) if len(order) == trace.num_nodes else trace


def in_order(trace: RankTrace, rows: np.ndarray) -> RankTrace:
    """Return a trace with all its nodes in the order of `rows`."""
    if np.array_equal(rows, np.arange(trace.num_nodes)):
        return trace
    places = np.empty(trace.num_nodes, np.int64)
    places[rows] = np.arange(trace.num_nodes)
    columns: dict[str, Any] = {}
    for name in (field.name for field in fields(trace)):
        column = getattr(trace, name)
        if isinstance(column, Lists):
            lengths = np.diff(column.starts)[rows]
            moved = lists_of(lengths, column.values)
            shift = np.repeat(column.starts[rows] - moved.starts[:-1], lengths)
            columns[name] = Lists(moved.starts, column.values[np.arange(len(shift)) + shift])
        elif isinstance(column, Texts):
            columns[name] = Texts(column.table, column.codes[rows])
        elif isinstance(column, np.ndarray) and name not in _NOT_OF_NODES:
            columns[name] = column[rows]
    for name in ("ctrl_deps", "data_deps"):
        columns[name] = Lists(columns[name].starts, places[columns[name].values])
    columns["partner"] = np.where(columns["partner"] >= 0, places[columns["partner"]], columns["partner"])
    unknown = trace.unknown_deps.copy()
    unknown[:, 0] = places[unknown[:, 0]]
    return replace(trace, **columns, unknown_deps=unknown)


# Of layers, microbatches and panels; "tp2" and "w1" are names.
_NUMBER = re.compile(r"(?<![A-Za-z])[0-9]+|(?<=\b[mlL])[0-9]+|(?<=layer)[0-9]+")


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


def has_durations(trace: RankTrace) -> bool:
    """Return whether nodes have durations; one that has none then takes no time."""
    return not bool(np.all(np.isnan(trace.duration_ns)))


def critical_path(trace: RankTrace) -> CriticalPath:
    """Return the longest path over dependencies, by durations if nodes have them, else by FLOPs."""
    timed = has_durations(trace)
    weights = np.nan_to_num(trace.duration_ns) * 1e-9 if timed else np.maximum(trace.num_ops, 0).astype(np.float64)
    before = joined(trace.ctrl_deps, trace.data_deps)
    starts, causes, weight = before.starts.tolist(), before.values.tolist(), weights.tolist()
    ends, latest = [0.0] * trace.num_nodes, [-1] * trace.num_nodes  # length of the path to a node; the node before it
    last, longest = -1, -1.0
    for row in topological_order(before).tolist():
        begin, cause = 0.0, -1
        for other in causes[starts[row] : starts[row + 1]]:
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
