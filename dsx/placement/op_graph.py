"""The graph of the operators of a step: how long each takes, what it keeps in memory, and which tensors it hands on.

An edge carries a set of tensors. Where a file does not name them, edges of one operator with equally many bytes carry
the same tensor. So edges that merge count no tensor twice, and a device that has a tensor needs it once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsx.config.operator_files import OperatorGraphSpec
from dsx.errors import InputError

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
