"""Reduction of a graph: fusion, co-location and fusion inside groups in turn (QuickP, algorithm 2).

A graph whose operators are merged, one edge at a time.

A merge adds times and memory, and joins sets of tensors. The topological order is kept up to date, so that the test for
a cycle looks at the operators between both ends alone. It is made on the whole graph: a group of operators by itself
may have no path around an edge where the graph has one (QuickP, algorithm 2 line 16, tests the group).

The thresholds of a reduction: the longest an operator may be to be fused away (alpha), and to join a group (beta).

A percentile of the delays of operators that take time (QuickP); or the delay at which the fitted distribution of all
delays is as steep as a share of its steepest point (the thesis, whose equation states slopes where delays are meant):
(max + min) / 4 of the slopes for alpha, (max + min) / 2 for beta.

Fusion of operators along edges that no placement would cut (QuickP, algorithm 1).

An edge whose ends each have another neighbour on the other side may have a path beside it, so it is never fused. Any
other edge is, if it is the only one at both ends, or if the end with the only edge is shorter than alpha.

Groups of operators that a placement should keep on one device (QuickP, algorithm 2): co-location by rank.

The rank of an operator is the longest time from its start to the end of the step, with all transfers on the slowest
link. An operator with several successors is grouped with the one on its longest path. Groups are the connected parts
of these pairs.

Reduction of a graph: fusion, co-location and fusion inside groups in turn (QuickP, algorithm 2).
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.placement.op_graph import OpGraph, Tensors
from dsx.placement.servers import Devices


class Merging:
    """The operators that are left of a graph; an operator has the number of the first one that was merged into it."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.members = {op: [op] for op in range(graph.num_ops)}
        self.seconds = {op: graph.seconds[op] for op in range(graph.num_ops)}
        self.mean_s = dict(enumerate(graph.mean_s.tolist()))
        self.after: dict[int, dict[int, Tensors]] = {op: {} for op in self.members}
        self.before: dict[int, set[int]] = {op: set() for op in self.members}
        for (source, target), tensors in graph.edges.items():
            self.after[source][target] = tensors
            self.before[target].add(source)
        labels = graph.together.tolist()
        shared = {label for label in labels if labels.count(label) > 1} if len({*labels}) < len(labels) else set()
        self.label = {op: label if label in shared else None for op, label in enumerate(labels)}
        self.order = list(graph.order)
        self.place = {op: place for place, op in enumerate(self.order)}

    def edge_bytes(self, source: int, target: int) -> float:
        """Return the bytes of an edge."""
        return float(self.graph.tensor_bytes[list(self.after[source][target])].sum())

    def may_share(self, source: int, target: int) -> bool:
        """Return whether two operators may be one: those of two labels of co-location stay apart."""
        own, other = self.label[source], self.label[target]
        return own is None or other is None or own == other

    def has_detour(self, source: int, target: int) -> bool:
        """Return whether there is a path between two operators besides their edge, so that merging makes a cycle."""
        return self._behind(source, target, detour=True) is None

    def _behind(self, source: int, target: int, detour: bool = False) -> set[int] | None:
        """Return the operators behind `source` and before `target` in the order; None for a `detour` to the target."""
        last = self.place[target]
        found: set[int] = set()
        pending = [other for other in self.after[source] if other != target]
        while pending:
            op = pending.pop()
            if op == target and detour:
                return None
            if op in found or self.place[op] >= last:
                continue
            found.add(op)
            pending += self.after[op]
        return found

    def merge(self, source: int, target: int) -> None:
        """Merge the second operator of an edge without detour into the first one."""
        self._reorder(source, target)
        self.members[source] += self.members.pop(target)
        self.seconds[source] = self.seconds[source] + self.seconds.pop(target)
        self.mean_s[source] += self.mean_s.pop(target)
        self.label[source] = self.label[source] if self.label[source] is not None else self.label[target]
        del self.after[source][target]
        for other, tensors in self.after.pop(target).items():
            self.after[source][other] = self.after[source].get(other, frozenset()) | tensors
            self.before[other].discard(target)
            self.before[other].add(source)
        for other in self.before.pop(target) - {source}:
            self.after[other][source] = self.after[other].get(source, frozenset()) | self.after[other].pop(target)
            self.before[source].add(other)

    def _reorder(self, source: int, target: int) -> None:
        """Keep the order one: what is behind the first operator comes after both, the rest between them before."""
        first, last = self.place[source], self.place[target]
        behind = self._behind(source, target) or set()
        between = self.order[first + 1 : last]
        own = [*(op for op in between if op not in behind), source, *(op for op in between if op in behind)]
        self.order[first:last] = own
        self.order[last] = -1  # the place of the target is empty
        for place, op in enumerate(own, first):
            self.place[op] = place
        del self.place[target]
        # Empty places are left out now and then, which keeps walks short.
        if len(self.order) > 2 * len(self.place):
            self.order = [op for op in self.order if op >= 0]
            self.place = {op: place for place, op in enumerate(self.order)}

    def reduced(self) -> tuple[OpGraph, np.ndarray]:
        """Return what is left as a graph, in topological order, and the number there of each operator [N]."""
        left = [op for op in self.order if op >= 0]
        number = {op: place for place, op in enumerate(left)}
        graph, of_op = self.graph, np.empty(self.graph.num_ops, dtype=np.int64)
        for op, members in self.members.items():
            of_op[members] = number[op]
        first = [self.members[op][0] for op in left]
        return (
            OpGraph(
                ids=tuple(graph.ids[op] for op in first),
                kinds=tuple("+".join(_distinct(graph.kinds[one] for one in self.members[op])) for op in left),
                seconds=np.stack([self.seconds[op] for op in left]),
                memory_bytes=np.bincount(of_op, graph.memory_bytes, len(left)),
                edges={
                    (number[op], number[other]): tensors for op in left for other, tensors in self.after[op].items()
                },
                tensor_bytes=graph.tensor_bytes,
                together=_labels([self.label[op] for op in left]),
            ),
            of_op,
        )


def _labels(given: Sequence[int | None]) -> np.ndarray:
    """Return labels as numbers from 0 on, with one of its own for each operator without."""
    numbers: dict[object, int] = {}
    keys = [("alone", op) if label is None else label for op, label in enumerate(given)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _distinct(kinds: Iterable[str]) -> list[str]:
    found = [*dict.fromkeys(kinds)]
    return found if len(found) <= 3 else [*found[:3], "..."]


_BINS = 500
_USUAL = 90.0  # percentile where no distribution can be fitted


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Seconds, and how they were chosen."""

    alpha_s: float
    beta_s: float
    source: str


def by_percentile(graph: OpGraph, percentile: float) -> Thresholds:
    """Return a percentile of the delays of operators that take time as both thresholds; none is short for 0."""
    delays = graph.mean_s[graph.mean_s > 0]
    seconds = float(np.percentile(delays, percentile)) if percentile and len(delays) else 0.0
    return Thresholds(seconds, seconds, f"p{percentile:g}")


def by_distribution(graph: OpGraph) -> Thresholds:
    """Return the thresholds of the distribution of delays; those of the 90th percentile if a fit fails."""
    from scipy.optimize import curve_fit

    delays = graph.mean_s * 1e6  # microseconds: numbers of ordinary size
    if not delays.max(initial=0.0) > 0.0:
        return by_percentile(graph, _USUAL)
    try:
        counts, edges = np.histogram(delays, _BINS)
    except ValueError:  # equal delays so long that bins cannot be told apart
        return by_percentile(graph, _USUAL)
    share, at = np.cumsum(counts) / len(delays), edges[1:]

    def logistic(x: np.ndarray, top: float, steepness: float, middle: float) -> np.ndarray:
        return top / (1.0 + np.exp(np.clip(-steepness * (x - middle), -500.0, 500.0)))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (top, steepness, middle), _ = curve_fit(logistic, at, share, p0=(1.0, 10.0 / at[-1], 0.0), maxfev=20_000)
    except RuntimeError:
        return by_percentile(graph, _USUAL)
    low = logistic(at, 1.0, steepness, middle)
    slope = top * steepness * low * (1.0 - low)
    if not np.isfinite(slope).all() or slope.max() <= 0.0:
        return by_percentile(graph, _USUAL)
    alpha, beta = (at[np.abs(slope - (slope.max() + slope.min()) / part).argmin()] * 1e-6 for part in (4, 2))
    return Thresholds(float(alpha), float(beta), "distribution")


def accepts(graph: Merging, source: int, target: int, alpha_s: float) -> bool:
    """Return whether an edge is fused."""
    only_out, only_in = len(graph.after[source]) == 1, len(graph.before[target]) == 1
    if not (only_out or only_in):
        return False
    if only_out and only_in:
        return True
    return (only_out and graph.mean_s[source] <= alpha_s) or (only_in and graph.mean_s[target] <= alpha_s)


def fuse(graph: Merging, alpha_s: float) -> int:
    """Fuse edges until none is accepted; return how many were. Edges are taken in topological order."""
    merged = 0
    pending = deque((op, other) for op in graph.order if op >= 0 for other in sorted(graph.after[op], key=_at(graph)))
    while pending:
        source, target = pending.popleft()
        if source not in graph.after or target not in graph.after[source]:
            continue
        if not accepts(graph, source, target, alpha_s) or not graph.may_share(source, target):
            continue
        graph.merge(source, target)
        merged += 1
        pending += [(source, other) for other in sorted(graph.after[source], key=_at(graph))]
        pending += [(other, source) for other in sorted(graph.before[source], key=_at(graph))]
        # Neighbours have fewer edges than before, so their other edges may be accepted now.
        pending += [(other, near) for near in graph.after[source] for other in sorted(graph.before[near])]
        pending += [(near, other) for near in graph.before[source] for other in sorted(graph.after[near])]
    return merged


def _at(graph: Merging) -> Callable[[int], int]:
    return graph.place.__getitem__


Groups = dict[int, int]  # operator -> number of its group; operators without one are left out


def _ranked(graph: Merging, devices: Devices) -> dict[int, tuple[float, int | None]]:
    """Return the rank of each operator, and its successor on the longest path, the first one of equal ones."""
    found: dict[int, tuple[float, int | None]] = {}
    for op in reversed([op for op in graph.order if op >= 0]):
        longest, following = 0.0, None
        for other in sorted(graph.after[op]):
            length = found[other][0] + devices.worst_s(graph.edge_bytes(op, other))
            if following is None or length > longest:
                longest, following = length, other
        found[op] = graph.mean_s[op] + longest, following
    return found


def colocated(graph: Merging, devices: Devices) -> Groups:
    """Return the groups of co-location."""
    root = {op: op for op in graph.after}

    def find(op: int) -> int:
        while root[op] != op:
            root[op] = root[root[op]]
            op = root[op]
        return op

    paired: set[int] = set()
    for op, (_, following) in _ranked(graph, devices).items():
        if following is not None and len(graph.after[op]) > 1:
            paired |= {op, following}
            one, other = find(op), find(following)
            root[max(one, other)] = min(one, other)
    return _numbered({op: find(op) for op in sorted(paired)})


def fuse_inside(graph: Merging, groups: Groups, alpha_s: float) -> int:
    """Fuse edges inside groups where that makes no cycle; return how many were fused.

    An edge is fused if all successors of its first operator are in the group, or its second one is shorter than alpha.
    """
    merged = 0
    pending = [(op, other) for op in graph.order if op >= 0 for other in sorted(graph.after[op])]
    pending = [edge for edge in reversed(pending) if _inside(groups, *edge)]
    while pending:
        source, target = pending.pop()
        if source not in graph.after or target not in graph.after[source]:
            continue
        whole = all(_inside(groups, source, other) for other in graph.after[source])
        if not (whole or graph.mean_s[target] < alpha_s) or not graph.may_share(source, target):
            continue
        if graph.has_detour(source, target):
            continue
        graph.merge(source, target)
        groups.pop(target)
        merged += 1
        near = [(source, other) for other in sorted(graph.after[source])]
        near += [(other, source) for other in sorted(graph.before[source])]
        pending += [edge for edge in reversed(near) if _inside(groups, *edge)]
    return merged


def _inside(groups: Mapping[int, int], source: int, target: int) -> bool:
    return source in groups and groups[source] == groups.get(target)


def expanded(graph: Merging, groups: Groups, beta_s: float) -> Groups:
    """Return groups that short operators beside them have joined: each that of its heaviest edge, the lowest of equal.

    No two groups become one.
    """
    found = dict(groups)
    changed = True
    while changed:
        changed = False
        for op in sorted(graph.after):
            if op in found or graph.mean_s[op] >= beta_s:
                continue
            near = [(graph.edge_bytes(op, other), other) for other in graph.after[op] if other in found]
            near += [(graph.edge_bytes(other, op), other) for other in graph.before[op] if other in found]
            if near:
                found[op] = found[min(near, key=lambda edge: (-edge[0], edge[1]))[1]]
                changed = True
    return found


def _numbered(found: Mapping[int, int]) -> Groups:
    numbers: dict[int, int] = {}
    return {op: numbers.setdefault(group, len(numbers)) for op, group in found.items()}


@dataclass(frozen=True, eq=False)
class Reduction:
    """A reduced graph of n operators."""

    graph: OpGraph
    of_op: np.ndarray  # [N] the reduced operator of each operator of the given graph
    group: np.ndarray  # [n] the group of each reduced operator; one of its own without co-location
    num_groups: int  # those of co-location
    thresholds: Thresholds

    @property
    def num_units(self) -> int:
        """What is placed: groups, and operators without one."""
        return int(self.group.max(initial=-1)) + 1


def reduce(
    graph: OpGraph,
    devices: Devices,
    thresholds: Thresholds,
    iterate: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> Reduction:
    """Return the reduction of a graph; with one pass of fusion alone, and groups, unless told to `iterate`.

    At `stop` no further pass begins.
    """
    merging = Merging(graph)
    fuse(merging, thresholds.alpha_s)
    groups = colocated(merging, devices)
    while iterate and not stop() and fuse_inside(merging, groups, thresholds.alpha_s):
        fuse(merging, thresholds.alpha_s)
        groups = colocated(merging, devices)
    whole = expanded(merging, groups, thresholds.beta_s) if iterate else groups
    reduced, of_op = merging.reduced()
    left = [op for op in merging.order if op >= 0]
    together = reduced.together.tolist()
    keys = [("group", whole[op]) if op in whole else ("op", place) for place, op in enumerate(left)]
    return Reduction(reduced, of_op, _units(keys, together), len({*groups.values()}), thresholds)


def alone(graph: OpGraph) -> np.ndarray:
    """Return [N] the unit of each operator without groups: those of one label of co-location are one unit."""
    return np.unique(graph.together, return_inverse=True)[1]


def _units(keys: list[tuple[str, int]], together: list[int]) -> np.ndarray:
    """Return the unit of each operator: equal keys are one unit, and so are those with a label in common."""
    root: dict[object, object] = {}

    def find(key: object) -> object:
        while root.setdefault(key, key) != key:
            key = root[key]
        return key

    for key, label in zip(keys, together, strict=True):
        root[find(("label", label))] = find(key)
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(find(key), len(numbers)) for key in keys], dtype=np.int64)
