"""The graph of the operators of a step, with their times, memory and tensors; and its reduction.

An edge carries a set of tensors. Where a file does not name them, edges of one operator with equally many bytes carry
the same tensor. So edges that merge count no tensor twice, and a device that has a tensor needs it once.

A reduction is fusion, co-location and fusion inside groups in turn (QuickP, algorithms 1 and 2).

Fusion takes edges that no placement would cut. An edge whose ends each have another neighbour on the other side may
have a path beside it, so it is never fused. Any other edge is, if it is the only one at both ends, or if the end with
the only edge is shorter than alpha.

A group is kept on one device. The rank of an operator is the longest time from its start to the end of the step, with
all transfers on the slowest link; an operator with several successors is grouped with the one on its longest path.
Groups are the connected parts of these pairs; operators shorter than beta join the group beside them.

Alpha and beta are a percentile of the delays of operators that take time (QuickP); or the delay at which the fitted
distribution of all delays is as steep as a share of its steepest point (the thesis, whose equation states slopes where
delays are meant): (max + min) / 4 of the slopes for alpha, (max + min) / 2 for beta.
"""

import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsx.config.operator_files import OperatorGraphSpec
from dsx.errors import InputError
from dsx.placement.servers import Devices

_MICRO = 1e-6

Id = int | str
Edge = tuple[int, int]  # from, to
Tensors = frozenset[int]


@dataclass(frozen=True, eq=False, repr=False)
class OpGraph:
    """N operators, without cycles; operators and tensors are numbers."""

    ids: tuple[Id, ...]  # of the operators, as the file has them
    kinds: tuple[str, ...]
    seconds: np.ndarray  # [N, 1], or [N, D] where they differ between the devices
    memory_bytes: np.ndarray  # [N]
    edges: Mapping[Edge, Tensors]  # no tensors: a dependency without data
    tensor_bytes: np.ndarray  # [T]
    together: np.ndarray  # [N] the label of each operator; operators of one label share a device

    def __repr__(self) -> str:
        return f"<OpGraph: {self.num_ops:,} operators, {len(self.edges):,} edges, {float(self.mean_s.sum()):.3g} s>"

    @property
    def num_ops(self) -> int:
        """The number of operators."""
        return len(self.ids)

    @cached_property
    def mean_s(self) -> np.ndarray:
        """Seconds of each operator, the mean of the devices, [N]."""
        return self.seconds.mean(axis=1)

    @cached_property
    def edge_bytes(self) -> dict[Edge, float]:
        """Bytes of the distinct tensors of each edge."""
        return {edge: float(self.tensor_bytes[list(tensors)].sum()) for edge, tensors in self.edges.items()}

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The operators that take something of each."""
        return self._neighbours(sorted(self.edges))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """The operators of which each takes something."""
        return self._neighbours((target, source) for source, target in sorted(self.edges))

    def _neighbours(self, pairs: Iterable[Edge]) -> tuple[tuple[int, ...], ...]:
        near: list[list[int]] = [[] for _ in self.ids]
        for op, neighbour in pairs:
            near[op].append(neighbour)
        return tuple(map(tuple, near))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The operators, each after those that it depends on (Kahn's algorithm, in the order of their numbers).

        Raises InputError, with the operators of a cycle, if there is none.
        """
        missing = [*map(len, self.predecessors)]
        order = [op for op, number in enumerate(missing) if not number]
        for op in order:  # which grows
            for successor in self.successors[op]:
                missing[successor] -= 1
                if not missing[successor]:
                    order.append(successor)
        if len(order) < self.num_ops:
            op = next(op for op, number in enumerate(missing) if number)
            path: list[int] = []
            while op not in path:
                path.append(op)
                op = next(ahead for ahead in self.predecessors[op] if missing[ahead])
            cycle = path[path.index(op) :][::-1]
            raise InputError(
                f"operators wait for each other: {' -> '.join(str(self.ids[op]) for op in (*cycle, cycle[0]))}"
            )
        return tuple(order)

    def heads(self, lengths: Sequence[float]) -> list[float]:
        """Return the longest path up to the start of each operator, without transfers; operators have `lengths`."""
        heads = [*lengths]
        for op in self.order:
            heads[op] = max((heads[ahead] + lengths[ahead] for ahead in self.predecessors[op]), default=0)
        return heads

    def tails(self, lengths: Sequence[float]) -> list[float]:
        """Return the longest path behind the end of each operator, without transfers."""
        tails = [*lengths]
        for op in reversed(self.order):
            tails[op] = max((tails[behind] + lengths[behind] for behind in self.successors[op]), default=0)
        return tails

    def only(self, ops: Sequence[int]) -> "OpGraph":
        """Return the graph of some operators alone."""
        number = {op: place for place, op in enumerate(ops)}
        kept = list(ops)
        return OpGraph(
            ids=tuple(self.ids[op] for op in ops),
            kinds=tuple(self.kinds[op] for op in ops),
            seconds=self.seconds[kept],
            memory_bytes=self.memory_bytes[kept],
            edges={
                (number[source], number[target]): tensors
                for (source, target), tensors in self.edges.items()
                if source in number and target in number
            },
            tensor_bytes=self.tensor_bytes,
            together=self.together[kept],
        )


def units_of(graph: OpGraph) -> np.ndarray:
    """Return [N] the unit of each operator: those of one label are one unit, which is placed as a whole."""
    return np.unique(graph.together, return_inverse=True)[1]


def joined(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return the least member of the part of each of `count` things, of which pairs are in one part."""
    least = list(range(count))

    def least_of(member: int) -> int:
        while least[member] != member:
            least[member] = least[least[member]]
            member = least[member]
        return member

    for pair in pairs:
        ends = [*map(least_of, pair)]
        least[max(ends)] = min(ends)
    return [least_of(member) for member in range(count)]


def graph_of(spec: OperatorGraphSpec) -> OpGraph:
    """Return the graph of a file; raises InputError, with the operators of a cycle, if it has one."""
    tensors: dict[tuple[int, object], int] = {}
    sizes: list[float] = []
    edges: dict[Edge, Tensors] = {}
    for edge in spec.edges:
        ends = edge.source, edge.target
        edges.setdefault(ends, frozenset())
        if edge.num_bytes > 0:
            # Without names, edges of an operator with equally many bytes carry the same tensor.
            key = edge.source, (edge.num_bytes if edge.tensor is None else edge.tensor)
            if key not in tensors:
                tensors[key] = len(sizes)
                sizes.append(edge.num_bytes)
            sizes[tensors[key]] = max(sizes[tensors[key]], edge.num_bytes)
            edges[ends] |= {tensors[key]}
    width = max(len(operator.compute_us) for operator in spec.operators)
    labels: dict[object, int] = {}
    keys = [("label", op.colocate) if op.colocate is not None else ("op", at) for at, op in enumerate(spec.operators)]
    graph = OpGraph(
        ids=tuple(operator.id for operator in spec.operators),
        kinds=tuple(operator.kind for operator in spec.operators),
        seconds=np.array([np.broadcast_to(np.array(op.compute_us) * _MICRO, (width,)) for op in spec.operators]),
        memory_bytes=np.array([operator.memory_bytes for operator in spec.operators]),
        edges=edges,
        tensor_bytes=np.array(sizes, dtype=float),
        together=np.array([labels.setdefault(key, len(labels)) for key in keys]),
    )
    try:
        _ = graph.order
    except InputError as error:
        raise InputError(f"{spec.file}: {error}") from None
    return graph


_BINS = 500
_USUAL = 90.0  # percentile where no distribution can be fitted
_MOST_KINDS = 3  # in the kind of merged operators

Groups = dict[int, int]  # operator -> number of its group; operators without one are left out


class Merging:
    """A graph whose operators are merged, one edge at a time; each has the number of the first one merged into it.

    A merge adds times and memory, and joins sets of tensors. The topological order is kept up to date, so that the test
    for a cycle looks at the operators between both ends alone. It is made on the whole graph: a group of operators by
    itself may have no path around an edge where the graph has one (QuickP, algorithm 2 line 16, tests the group).
    """

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
        labels, counts = np.unique(graph.together, return_counts=True)
        shared = {*labels[counts > 1].tolist()}
        self.label = {op: label if label in shared else None for op, label in enumerate(graph.together.tolist())}
        self._order = list(graph.order)  # -1: an empty place
        self.place = {op: place for place, op in enumerate(self._order)}

    @property
    def order(self) -> list[int]:
        """The operators that are left, in topological order."""
        return [op for op in self._order if op >= 0]

    def has_edge(self, source: int, target: int) -> bool:
        """Return whether both operators are left, and the second takes from the first."""
        return target in self.after.get(source, {})

    def edge_bytes(self, source: int, target: int) -> float:
        """Return the bytes of an edge."""
        return float(self.graph.tensor_bytes[list(self.after[source][target])].sum())

    def may_share(self, source: int, target: int) -> bool:
        """Return whether two operators may be one: those of two labels of co-location stay apart."""
        labels = {self.label[source], self.label[target]}
        return None in labels or len(labels) == 1

    def has_detour(self, source: int, target: int) -> bool:
        """Return whether there is a path between two operators besides their edge, so that merging makes a cycle."""
        return self._behind(source, target, detour=True) is None

    def _behind(self, source: int, target: int, detour: bool = False) -> set[int] | None:
        """Return the operators behind `source` and before `target` in the order; None for a `detour` to the target."""
        last = self.place[target]
        behind: set[int] = set()
        pending = [op for op in self.after[source] if op != target]
        while pending:
            op = pending.pop()
            if op == target and detour:
                return None
            if op in behind or self.place[op] >= last:
                continue
            behind.add(op)
            pending += self.after[op]
        return behind

    def merge(self, source: int, target: int) -> None:
        """Merge the second operator of an edge without detour into the first one."""
        # What is behind the first operator comes after both, the others between them before, so the order stays one.
        first, last = self.place[source], self.place[target]
        behind = self._behind(source, target) or set()
        between = self._order[first + 1 : last]
        ops = [*(op for op in between if op not in behind), source, *(op for op in between if op in behind)]
        self._order[first : last + 1] = [*ops, -1]
        self.place |= {op: place for place, op in enumerate(ops, first)}
        del self.place[target]
        # Empty places are left out now and then, which keeps walks short.
        if len(self._order) > 2 * len(self.place):
            self._order = self.order
            self.place = {op: place for place, op in enumerate(self._order)}
        self.members[source] += self.members.pop(target)
        self.seconds[source] = self.seconds[source] + self.seconds.pop(target)
        self.mean_s[source] += self.mean_s.pop(target)
        self.label[source] = self.label[source] if self.label[source] is not None else self.label[target]
        del self.after[source][target]
        for op, tensors in self.after.pop(target).items():
            self.after[source][op] = self.after[source].get(op, frozenset()) | tensors
            self.before[op].discard(target)
            self.before[op].add(source)
        for op in self.before.pop(target) - {source}:
            self.after[op][source] = self.after[op].get(source, frozenset()) | self.after[op].pop(target)
            self.before[source].add(op)

    def reduced(self) -> tuple[OpGraph, np.ndarray]:
        """Return what is left as a graph, in topological order, and the number there of each operator [N]."""
        ops, graph = self.order, self.graph
        number = {op: place for place, op in enumerate(ops)}
        of_op = np.empty(graph.num_ops, dtype=np.int64)
        for op, members in self.members.items():
            of_op[members] = number[op]
        first = [self.members[op][0] for op in ops]
        labels: list[Hashable] = [("alone", op) if self.label[op] is None else self.label[op] for op in ops]
        return (
            OpGraph(
                ids=tuple(graph.ids[op] for op in first),
                kinds=tuple(joined_kinds(graph.kinds[member] for member in self.members[op]) for op in ops),
                seconds=np.stack([self.seconds[op] for op in ops]),
                memory_bytes=np.bincount(of_op, graph.memory_bytes, len(ops)),
                edges={
                    (number[op], number[target]): tensors for op in ops for target, tensors in self.after[op].items()
                },
                tensor_bytes=graph.tensor_bytes,
                together=np.array([*numbered(dict(enumerate(labels))).values()], dtype=np.int64),
            ),
            of_op,
        )


def joined_kinds(kinds: Iterable[str]) -> str:
    """Return the distinct kinds of several operators as one."""
    distinct = [*dict.fromkeys(kinds)]
    return "+".join(distinct if len(distinct) <= _MOST_KINDS else [*distinct[:_MOST_KINDS], "..."])


def numbered(keys: Mapping[int, Hashable]) -> dict[int, int]:
    """Return the keys of operators as numbers from 0 on, in their order."""
    numbers: dict[Hashable, int] = {}
    return {op: numbers.setdefault(key, len(numbers)) for op, key in keys.items()}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Seconds, and how they were chosen."""

    alpha_s: float  # the longest that an operator may be to be fused away
    beta_s: float  # and to join a group
    source: str


def by_percentile(graph: OpGraph, percentile: float) -> Thresholds:
    """Return a percentile of the delays of operators that take time as both thresholds; none is short for 0."""
    delays = graph.mean_s[graph.mean_s > 0]
    seconds = float(np.percentile(delays, percentile)) if percentile and len(delays) else 0.0
    return Thresholds(seconds, seconds, f"p{percentile:g}")


def by_distribution(graph: OpGraph) -> Thresholds:
    """Return the thresholds of the distribution of delays; those of the 90th percentile if a fit fails."""
    from scipy.optimize import curve_fit

    def logistic(x: np.ndarray, top: float, steepness: float, middle: float) -> np.ndarray:
        return top / (1.0 + np.exp(np.clip(-steepness * (x - middle), -500.0, 500.0)))

    delays = graph.mean_s * 1e6  # microseconds: numbers of ordinary size
    if not delays.max(initial=0.0) > 0.0:
        return by_percentile(graph, _USUAL)
    try:
        counts, edges = np.histogram(delays, _BINS)  # ValueError: equal delays so long that bins cannot be told apart
        share, at = np.cumsum(counts) / len(delays), edges[1:]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (top, steepness, middle), _ = curve_fit(logistic, at, share, p0=(1.0, 10.0 / at[-1], 0.0), maxfev=20_000)
    except (ValueError, RuntimeError):
        return by_percentile(graph, _USUAL)
    low = logistic(at, 1.0, steepness, middle)
    slope = top * steepness * low * (1.0 - low)
    if not np.isfinite(slope).all() or slope.max() <= 0.0:
        return by_percentile(graph, _USUAL)
    alpha, beta = (at[np.abs(slope - (slope.max() + slope.min()) / part).argmin()] * 1e-6 for part in (4, 2))
    return Thresholds(float(alpha), float(beta), "distribution")


def fuse(graph: Merging, alpha_s: float) -> int:
    """Fuse edges until none is accepted; return how many were. Edges are taken in topological order."""
    place = graph.place.__getitem__
    merged = 0
    pending = deque((op, target) for op in graph.order for target in sorted(graph.after[op], key=place))
    while pending:
        source, target = pending.popleft()
        if not graph.has_edge(source, target) or not graph.may_share(source, target):
            continue
        only_out, only_in = len(graph.after[source]) == 1, len(graph.before[target]) == 1
        short = (only_out and graph.mean_s[source] <= alpha_s) or (only_in and graph.mean_s[target] <= alpha_s)
        if not short and not (only_out and only_in):
            continue
        graph.merge(source, target)
        merged += 1
        place = graph.place.__getitem__
        pending += [(source, op) for op in sorted(graph.after[source], key=place)]
        pending += [(op, source) for op in sorted(graph.before[source], key=place)]
        # Neighbours have fewer edges than before, so their other edges may be accepted now.
        pending += [(op, near) for near in graph.after[source] for op in sorted(graph.before[near])]
        pending += [(near, op) for near in graph.before[source] for op in sorted(graph.after[near])]
    return merged


def colocated(graph: Merging, devices: Devices) -> Groups:
    """Return the groups of co-location."""
    rank: dict[int, float] = {}
    pairs: list[Edge] = []
    for op in reversed(graph.order):
        longest, following = 0.0, None  # the first one of equal successors
        for successor in sorted(graph.after[op]):
            length = rank[successor] + devices.worst_s(graph.edge_bytes(op, successor))
            if following is None or length > longest:
                longest, following = length, successor
        rank[op] = graph.mean_s[op] + longest
        if following is not None and len(graph.after[op]) > 1:
            pairs.append((op, following))
    least = joined(graph.graph.num_ops, pairs)
    return numbered({op: least[op] for op in sorted({op for pair in pairs for op in pair})})


def fuse_inside(graph: Merging, groups: Groups, alpha_s: float) -> int:
    """Fuse edges inside groups where that makes no cycle; return how many were fused.

    An edge is fused if all successors of its first operator are in the group, or its second one is shorter than alpha.
    """

    def inside(source: int, target: int) -> bool:
        return source in groups and groups[source] == groups.get(target)

    merged = 0
    edges = [(op, target) for op in graph.order for target in sorted(graph.after[op])]
    pending = [edge for edge in reversed(edges) if inside(*edge)]
    while pending:
        source, target = pending.pop()
        if not graph.has_edge(source, target) or not graph.may_share(source, target):
            continue
        if not all(inside(source, op) for op in graph.after[source]) and not graph.mean_s[target] < alpha_s:
            continue
        if graph.has_detour(source, target):
            continue
        graph.merge(source, target)
        groups.pop(target)
        merged += 1
        edges = [(source, op) for op in sorted(graph.after[source])]
        edges += [(op, source) for op in sorted(graph.before[source])]
        pending += [edge for edge in reversed(edges) if inside(*edge)]
    return merged


def expanded(graph: Merging, groups: Groups, beta_s: float) -> Groups:
    """Return groups that short operators beside them have joined: each that of its heaviest edge, the lowest of equal.

    No two groups become one.
    """
    larger = dict(groups)
    changed = True
    while changed:
        changed = False
        for op in sorted(graph.after):
            if op in larger or graph.mean_s[op] >= beta_s:
                continue
            near = [(-graph.edge_bytes(op, target), target) for target in graph.after[op] if target in larger]
            near += [(-graph.edge_bytes(source, op), source) for source in graph.before[op] if source in larger]
            if near:
                larger[op] = larger[min(near)[1]]
                changed = True
    return larger


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
    graph: OpGraph, devices: Devices, thresholds: Thresholds, stop: Callable[[], bool] = lambda: False
) -> Reduction:
    """Return the reduction of a graph; at `stop` no further pass of fusion begins."""
    merging = Merging(graph)
    fuse(merging, thresholds.alpha_s)
    groups = colocated(merging, devices)
    while not stop() and fuse_inside(merging, groups, thresholds.alpha_s):
        fuse(merging, thresholds.alpha_s)
        groups = colocated(merging, devices)
    larger = expanded(merging, groups, thresholds.beta_s)
    reduced, of_op = merging.reduced()
    # Operators of one group are one unit, and so are those of one label.
    first: dict[Hashable, int] = {}
    pairs: list[Edge] = []
    for place, (op, label) in enumerate(zip(merging.order, reduced.together.tolist(), strict=True)):
        keys = [("label", label), *([("group", larger[op])] if op in larger else [])]
        pairs += [(first.setdefault(key, place), place) for key in keys]
    unit = numbered(dict(enumerate(joined(reduced.num_ops, pairs))))
    return Reduction(reduced, of_op, np.array([*unit.values()], dtype=np.int64), len({*groups.values()}), thresholds)
