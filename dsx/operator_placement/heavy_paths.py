"""Paths between the longest ("heavy") operators of a graph, through the other ("light") ones alone.

If both ends are on one device, the second waits for the longest such path. If they are not, some edge of each path is
cut. Of the edges of a path that all take z or more to send, the cut one does too. So the second operator waits for the
largest sum, over all z, of z and the longest path of such edges.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.operator_placement.devices import Devices
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.schedule import op_seconds

_MOST_THRESHOLDS = 256


@dataclass(frozen=True, eq=False)
class Paths:
    """Seconds between the end of one heavy operator and the start of another, [K, K]; -inf where no path is."""

    together_s: np.ndarray  # on one device
    apart_s: np.ndarray  # on two


@dataclass(frozen=True, eq=False)
class Ends:
    """Of each operator of a graph, [N], on the best device and without transfers."""

    seconds: np.ndarray
    head_s: np.ndarray  # the longest path from the beginning of the step to its start
    tail_s: np.ndarray  # and from its end to the end of the step


def ends_of(graph: OpGraph, devices: Devices) -> Ends:
    """Return the heads and tails of all operators."""
    seconds = op_seconds(graph, devices).min(axis=1)
    own = seconds.tolist()
    head, tail = [0.0] * graph.num_ops, [0.0] * graph.num_ops
    for op in graph.order:
        head[op] = max((head[before] + own[before] for before in graph.predecessors[op]), default=0.0)
    for op in reversed(graph.order):
        tail[op] = max((tail[after] + own[after] for after in graph.successors[op]), default=0.0)
    return Ends(seconds, np.array(head), np.array(tail))


def sent_s(graph: OpGraph, devices: Devices) -> dict[tuple[int, int], float]:
    """Return the least seconds of a transfer of each edge: those of the best link there is."""
    links = devices.used_links
    known: dict[float, float] = {}
    for num_bytes in graph.edge_bytes.values():
        known.setdefault(num_bytes, min((link.seconds(num_bytes) for link in links), default=0.0))
    return {edge: known[num_bytes] for edge, num_bytes in graph.edge_bytes.items()}


def paths_between(graph: OpGraph, devices: Devices, heavy: Sequence[int], seconds: np.ndarray) -> Paths:
    """Return the paths between heavy operators; `seconds` of all operators are those of their best device."""
    sent = sent_s(graph, devices)
    least = _thresholds(sent.values())
    column = {op: place for place, op in enumerate(heavy)}
    # For each operator, the longest path to its start, from each heavy one, of edges of at least each threshold.
    longest: dict[int, np.ndarray] = {}
    waiting = [len(after) for after in graph.successors]  # successors that have not read it
    for op in graph.order:
        found = np.full((len(heavy), len(least)), -np.inf)
        for before in graph.predecessors[op]:
            reached = int(np.searchsorted(least, sent[before, op], side="right"))  # thresholds that the edge meets
            if before in column:
                np.maximum(found[column[before], :reached], 0.0, out=found[column[before], :reached])
            else:
                along = longest[before][:, :reached] + seconds[before]
                np.maximum(found[:, :reached], along, out=found[:, :reached])
            waiting[before] -= 1
            if not waiting[before] and before not in column:
                del longest[before]
        longest[op] = found
    between = np.stack([longest[op] for op in heavy], axis=1)  # [from, to, threshold]
    return Paths(between[:, :, 0], (between + least).max(axis=2))


def _thresholds(seconds: Iterable[float]) -> np.ndarray:
    """Return zero and the distinct positive seconds of transfers, evenly thinned out if there are many."""
    distinct = np.unique(np.fromiter(seconds, dtype=float))
    distinct = distinct[distinct > 0.0]
    if len(distinct) > _MOST_THRESHOLDS:
        distinct = distinct[np.linspace(0, len(distinct) - 1, _MOST_THRESHOLDS).round().astype(int)]
    return np.concatenate([[0.0], distinct])
