"""A trace file in memory: its nodes as columns.

Nodes are rows in file order. Lists of different lengths (dependencies, tensors) are in compressed rows: those of node i
are `values[starts[i] : starts[i + 1]]`. Tensors and repeated texts are positions in tables of names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


def _no_pairs() -> np.ndarray:
    return np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True)
class Lists:
    """A list of numbers for each of N nodes."""

    starts: np.ndarray  # [N + 1] int64
    values: np.ndarray  # [starts[N]] int64

    def of(self, node: int) -> np.ndarray:
        """Return the list of a node, by its row."""
        return self.values[self.starts[node] : self.starts[node + 1]]


def lists_of(lengths: np.ndarray, values: np.ndarray) -> Lists:
    """Return lists of the given lengths, whose values are one after the other."""
    return Lists(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]), values)


@dataclass(frozen=True, slots=True)
class Texts:
    """A text for each of N nodes: [N] positions in `table`; -1 where a node has none."""

    table: list[str]
    codes: np.ndarray  # [N] int32

    def of(self, node: int) -> str:
        """Return the text of a node, by its row; empty where it has none."""
        code = int(self.codes[node])
        return "" if code < 0 else self.table[code]


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The nodes of one rank; numbers that a node lacks are -1 (NaN for floats)."""

    rank: int
    version: str  # of the metadata
    ids: np.ndarray  # [N] int64; unique in a valid file
    names: Texts
    types: np.ndarray  # [N] int8, the codes of `dsx.traces.messages.NODE_TYPES`
    ctrl_deps: Lists  # rows of nodes, not ids
    data_deps: Lists  # rows of nodes, not ids
    num_ops: np.ndarray  # [N] int64
    tensor_size: np.ndarray  # [N] int64, bytes that a computation, a load or a store touches
    matrix_flops: np.ndarray  # [N] int64
    vector_flops: np.ndarray  # [N] int64
    unfused_bytes: np.ndarray  # [N] int64, further traffic where a framework runs an operator as several kernels
    launches: np.ndarray  # [N] int64, that are priced; -1: one for each computation
    multiplies: Lists  # six numbers for each matrix multiply (docs/traces.md)
    op_types: Texts
    kernels: Texts  # launches with the same text are priced as one kernel
    comm_type: np.ndarray  # [N] int64, the codes of `dsx.traces.messages.COLLECTIVES`
    comm_size: np.ndarray  # [N] int64, bytes
    comm_src: np.ndarray  # [N] int64, rank that sends to this one
    comm_dst: np.ndarray  # [N] int64, rank that this one sends to
    comm_tag: np.ndarray  # [N] int64
    groups: Texts  # process group of a collective, a key of comm_groups.json; "" or "0" are all ranks
    axes: Texts  # mesh axis of a collective
    overlap: np.ndarray  # [N] float64, share that may overlap with compute
    partner: np.ndarray  # [N] int64, row (not id) of the launch that a collective overlaps with
    on_host: np.ndarray  # [N] int64, 1 for a computation of the host
    copies: np.ndarray  # [N] int64, of each token in an all-to-all to experts or back
    expert_groups: np.ndarray  # [N] int64, groups of experts that limit the choices of a token
    token_groups: np.ndarray  # [N] int64, groups that the choices of a token may fall in
    panels: np.ndarray  # [N] int64, panels of the multiply that a collective or a launch belongs to
    duration_ns: np.ndarray  # [N] float64; from duration_micros where a file has no exact one
    reads: Lists  # positions in `tensors`
    writes: Lists  # positions in `tensors`
    tensors: list[str]  # names
    tensor_bytes: np.ndarray  # [tensors] int64
    unknown_deps: np.ndarray = field(default_factory=_no_pairs)  # [K, 2] int64: row, id that no node of the file has
    # Process groups that its nodes state, by name: the ranks of each, none for the group of all ranks.
    stated_groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # Of an element, where the file counts elements and multiply-adds; sizes here are bytes, and operations FLOPs.
    element_bytes: int | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.ids)
