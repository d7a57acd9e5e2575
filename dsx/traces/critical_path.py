"""The longest path in a file over its dependencies: the time or work that no overlap avoids.

Not modelled: waiting for other ranks.
"""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dsx.traces.columns import RankTrace
from dsx.traces.dag import joined, topological_order

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
    rows = _longest(trace, weights)
    return CriticalPath("s" if timed else "flops", float(weights[rows].sum()), rows, weights[rows])


def _longest(trace: RankTrace, weights: np.ndarray) -> np.ndarray:
    """Return the rows of the longest path, first to last."""
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
    return np.array(path[::-1], np.int64)


def path_parts(trace: RankTrace, path: CriticalPath) -> tuple[PathPart, ...]:
    """Return the nodes of a path by name without its numbers, in order of the first node of each."""
    found: dict[str, tuple[set[str], int, float]] = {}
    for row, length in zip(path.rows.tolist(), path.lengths.tolist(), strict=True):
        name = trace.names.of(row)
        names, number, total = found.get(key := _NUMBER.sub("*", name), (set(), 0, 0.0))
        names.add(name)
        found[key] = names, number + 1, total + length
    return tuple(
        PathPart(key if len(names) > 1 else next(iter(names)), number, total)
        for key, (names, number, total) in found.items()
    )
