"""A graph whose operators are merged, one edge at a time.

A merge adds times and memory, and joins sets of tensors. The topological order is kept up to date, so that the test for
a cycle looks at the operators between both ends alone. It is made on the whole graph: a group of operators by itself
may have no path around an edge where the graph has one (QuickP, algorithm 2 line 16, tests the group).
"""

from collections.abc import Iterable, Sequence

import numpy as np

from dsx.operator_placement.op_graph import OpGraph, Tensors


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
