"""Memory of a rank over its nodes, from the lifetimes of its buffers.

Versions of a tensor (`NAME#VERSION`) are one buffer. A buffer lives from the first node that writes it to the last one
that reads or writes it, both included. One that is read before it is written was there from the start and stays to the
end: weights, optimizer state. Nodes count in their order in the trace.

Not counted: tensors in the host's memory (`NAME@host`), and what no node reads or writes.
"""

import re
from dataclasses import dataclass

import numpy as np

from dsx.traces.columns import RankTrace
from dsx.traces.node_builder import buffer_of

HOST = "@host"  # suffix of tensors in the host's memory

_WORD = re.compile(r"[^\W\d_]+(?:_[^\W\d_]+)*")
# What is alive, by the names that dsx gives: of a layer ("L007.w1"), or of a microbatch in it ("m003.L007.n1").
_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"L\d{3,}\.optimizer state", "optimizer state"),
        (r"L\d{3,}\.(?:d|gradients) ", "gradients"),
        (r"L\d{3,}\.", "weights"),
        (r"m\d+\.L\d{3,}\.weights'? \d", "gathered weights"),
        (r"m\d+\.L\d{3,}\.unreduced ", "unreduced gradients"),
        (r"m\d+\.(?:L\d{3,}\.d |chunk \d+ gradient)", "gradients of activations"),
        (r"m\d+\.(?:L\d{3,}\.|chunk \d+ input)", "activations"),
    )
)


@dataclass(frozen=True, slots=True)
class Alive:
    """Buffers of one kind that are alive at the same time."""

    kind: str  # as `kind_of` returns it
    buffers: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of all buffers at each node."""

    curve_bytes: np.ndarray  # [N] int64
    peak_row: int  # the first node at the peak; -1 if there are no nodes
    alive: tuple[Alive, ...]  # at the peak, the largest first

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes at a node."""
        return int(self.curve_bytes[self.peak_row]) if self.peak_row >= 0 else 0


def memory_use(trace: RankTrace) -> MemoryUse:
    """Return the memory of a rank by the lifetimes of its buffers; zeros for a trace without tensors."""
    num_nodes = trace.num_nodes
    names, sizes, begins, ends = _buffers(trace)
    changes = np.zeros(num_nodes + 1, np.int64)
    np.add.at(changes, begins, sizes)
    np.subtract.at(changes, ends + 1, sizes)
    curve = np.cumsum(changes[:-1])
    peak = int(np.argmax(curve)) if num_nodes else -1
    alive: dict[str, tuple[int, int]] = {}
    for place in np.flatnonzero((begins <= peak) & (peak <= ends)).tolist():
        number, size = alive.get(kind := kind_of(names[place]), (0, 0))
        alive[kind] = number + 1, size + int(sizes[place])
    kinds = (Alive(kind, number, size) for kind, (number, size) in alive.items())
    return MemoryUse(curve, peak, tuple(sorted(kinds, key=lambda buffers: -buffers.size_bytes)))


def _buffers(trace: RankTrace) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Return the buffers on the device: names, bytes, first and last row."""
    codes: dict[str, int] = {}
    of_tensor = np.array([_code(name, codes) for name in trace.tensors], np.int64)
    num_nodes, num_buffers = trace.num_nodes, len(codes)
    last = np.full(num_buffers, -1, np.int64)
    read, written = (np.full(num_buffers, num_nodes, np.int64) for _ in range(2))  # first rows
    for lists, first in ((trace.reads, read), (trace.writes, written)):
        buffers = of_tensor[lists.values]
        rows, buffers = lists.owners()[buffers >= 0], buffers[buffers >= 0]
        np.minimum.at(first, buffers, rows)
        np.maximum.at(last, buffers, rows)
    # A node reads before it writes.
    persistent = (read <= written) & (read < num_nodes)
    sizes = np.zeros(num_buffers, np.int64)
    counted = of_tensor >= 0
    np.maximum.at(sizes, of_tensor[counted], trace.tensor_bytes[counted])
    begins = np.where(persistent, 0, np.minimum(read, written))
    return list(codes), sizes, begins, np.where(persistent, num_nodes - 1, last)


def _code(name: str, codes: dict[str, int]) -> int:
    """Return the buffer of a tensor, -1 for one in the host's memory; new ones are added to `codes`."""
    buffer = buffer_of(name)
    if name.endswith(HOST) or buffer.endswith(HOST):
        return -1
    return codes.setdefault(buffer, len(codes))


def kind_of(name: str) -> str:
    """Return what a buffer holds, as "weights" of "L007.w1"; for names of other writers their leading word.

    The leading word of "grad.layer3#002" is "grad"; a name that begins with none is its own kind.
    """
    for pattern, kind in _KINDS:
        if pattern.match(name):
            return kind
    match = _WORD.match(name)
    return match[0] if match else name
