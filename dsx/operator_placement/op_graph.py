"""The graph of the operators of a step: how long each takes, what it keeps in memory, and which tensors it hands on.

An edge carries a set of tensors. Where a file does not name them, edges of one operator with equally many bytes carry
the same tensor. So edges that merge count no tensor twice, and a device that has a tensor needs it once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsx.errors import InputError

Id = int | str
Tensors = frozenset[int]


@dataclass(frozen=True, eq=False, repr=False)
class OpGraph:
    """N operators, without cycles; operators and tensors are numbers."""

    ids: tuple[Id, ...]  # of the operators, as the file has them
    kinds: tuple[str, ...]
    seconds: np.ndarray  # [N, 1], or [N, D] where they differ between the devices
    memory_bytes: np.ndarray  # [N]
    edges: Mapping[tuple[int, int], Tensors]  # (from, to) -> tensors; empty for a dependency without data
    tensor_bytes: np.ndarray  # [T]
    together: (
        np.ndarray
    )  # [N] the label of the operators that share a device with one; each has a label of its own else

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
    def edge_bytes(self) -> dict[tuple[int, int], float]:
        """Bytes of each edge: those of its distinct tensors."""
        return {edge: float(self.tensor_bytes[list(tensors)].sum()) for edge, tensors in self.edges.items()}

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The operators that take something of each."""
        return self._neighbours(0, 1)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """The operators of which each takes something."""
        return self._neighbours(1, 0)

    def _neighbours(self, own: int, other: int) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.ids]
        for edge in self.edges:
            found[edge[own]].append(edge[other])
        return tuple(tuple(sorted(each)) for each in found)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The operators, each after those that it depends on (Kahn's algorithm, in the order of their numbers).

        Raises InputError, with the operators of a cycle, if there is none.
        """
        missing = [len(before) for before in self.predecessors]
        found = [op for op, number in enumerate(missing) if not number]
        for op in found:  # which grows
            for other in self.successors[op]:
                missing[other] -= 1
                if not missing[other]:
                    found.append(other)
        if len(found) < self.num_ops:
            raise InputError(f"operators wait for each other: {' -> '.join(map(str, self._cycle(missing)))}")
        return tuple(found)

    def _cycle(self, missing: Sequence[int]) -> list[Id]:
        """Return the ids of a cycle, the first one at both ends."""
        op = next(op for op, number in enumerate(missing) if number)
        path: list[int] = []
        while op not in path:
            path.append(op)
            op = next(before for before in self.predecessors[op] if missing[before])
        around = path[path.index(op) :][::-1]
        return [self.ids[one] for one in (*around, around[0])]

    @cached_property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """The weakly connected parts, the one with the most operators first."""
        part = list(range(self.num_ops))

        def root(op: int) -> int:
            while part[op] != op:
                part[op] = part[part[op]]
                op = part[op]
            return op

        for source, target in self.edges:
            one, other = root(source), root(target)
            part[max(one, other)] = min(one, other)
        found: dict[int, list[int]] = {}
        for op in range(self.num_ops):
            found.setdefault(root(op), []).append(op)
        return tuple(tuple(ops) for ops in sorted(found.values(), key=lambda ops: (-len(ops), ops[0])))

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
