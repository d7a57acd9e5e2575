"""The graph of the operators of a step: how long each takes, what it keeps in memory, which tensors it hands on.

Seconds as whole ticks, rounded down, for a solver of whole numbers.

The longest path of a schedule in ticks is no longer than in seconds, so the least makespan in ticks is a bound below
that in seconds. Where all times are whole nanoseconds the tick is their greatest common divisor: then a solver knows
which makespans there are. Else it is a small part of the longest makespan that counts.

The graph of the operators of a step: how long each takes, what it keeps in memory, and which tensors it hands on.

An edge carries a set of tensors. Where a file does not name them, edges of one operator with equally many bytes carry
the same tensor. So edges that merge count no tensor twice, and a device that has a tensor needs it once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsx.errors import InputError

_NANO = 1e-9
_LESS = 1e-9  # share that a tick is shorter than the divisor, so that floats just below a multiple count as it
_PARTS = 2**27  # ticks of the longest makespan, at least
_MOST = 2**40  # ticks of the longest makespan


@dataclass(frozen=True, slots=True)
class Ticks:
    """The length of a tick."""

    seconds: float
    exact: bool  # all times are whole ticks

    def of(self, seconds: float) -> int:
        """Return whole ticks, rounded down."""
        return math.floor(seconds / self.seconds)

    def rounding_s(self, num_times: int, longest_s: float) -> float:
        """Return the most that rounding takes off a sum of so many times."""
        return 2 * _LESS * longest_s if self.exact else num_times * self.seconds


def ticks_for(times_s: Iterable[float], longest_s: float) -> Ticks:
    """Return the ticks for times, and makespans up to `longest_s`."""
    times = np.array([time for time in {*times_s} if time > 0.0])
    whole = np.round(times / _NANO)
    if len(times) and (whole >= 1).all() and (np.abs(whole * _NANO - times) < 0.1 * _LESS * times).all():
        divisor = math.gcd(*map(int, whole.tolist()))
        if longest_s < _MOST * divisor * _NANO and times.max() * _LESS < 0.1 * divisor * _NANO:
            return Ticks(divisor * _NANO * (1.0 - _LESS), exact=True)
    return finely(longest_s)


def finely(longest_s: float, parts: int = _PARTS) -> Ticks:
    """Return ticks that are a power of two of seconds, of which the longest makespan has at least so many."""
    return Ticks(2.0 ** math.floor(math.log2(max(longest_s, 1e-30) / parts)), exact=False)


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
