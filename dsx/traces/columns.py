"""A trace file in memory: its nodes as columns.

Nodes are rows in file order. Lists of different lengths (dependencies, tensors) are in compressed rows: those of node i
are `values[starts[i] : starts[i + 1]]`. Tensors and repeated texts are positions in tables of names. A multiply is six
numbers: rows, columns, contracted, batch, FLOPs, and a number with a bit for each property.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dsx.cost.layer_work import MultiplyShape
from dsx.notation.work import BACKWARD, FORWARD

NUMBERS_OF_MULTIPLY = 6
_PROPERTIES = {"linear": 1, "of_weight": 2, "fused": 4, "grouped": 8, "wide": 32}  # bits of a `MultiplyShape`
_BACKWARD = 16
# Constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), which spreads each bit of a number over all 64.
_STEP, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Lists:
    """A list of numbers for each of N nodes."""

    starts: np.ndarray  # [N + 1] int64
    values: np.ndarray  # [starts[N]] int64

    @property
    def num_nodes(self) -> int:
        """Number of nodes, those with an empty list among them."""
        return len(self.starts) - 1

    def of(self, node: int) -> np.ndarray:
        """Return the list of a node, by its row."""
        return self.values[self.starts[node] : self.starts[node + 1]]

    def owners(self) -> np.ndarray:
        """Return the row of the node that has each value."""
        return np.repeat(np.arange(self.num_nodes), np.diff(self.starts))

    def reversed(self) -> "Lists":
        """Return, for lists of nodes, those that have each node in their list."""
        lengths = np.bincount(self.values, minlength=self.num_nodes)
        return lists_of(lengths, self.owners()[np.argsort(self.values, kind="stable")])

    def tolist(self) -> list[list[int]]:
        """Return the list of each node, which a loop reads faster."""
        starts, values = self.starts.tolist(), self.values.tolist()
        return [values[begin:end] for begin, end in pairwise(starts)]


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


def texts_of(texts: Sequence[str]) -> Texts:
    """Return texts with a table of those that occur; an empty one is none."""
    table = [*dict.fromkeys(filter(None, texts))]
    codes = {text: code for code, text in enumerate(table)}
    return Texts(table, np.array([codes.get(text, -1) for text in texts], np.int32))


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The nodes of one rank; numbers that a node lacks are -1 (NaN for floats)."""

    rank: int
    version: str  # of the metadata
    ids: np.ndarray  # [N] int64; unique in a valid file
    names: Texts
    types: np.ndarray  # [N] int8, the codes of `dsx.traces.codec.NODE_TYPES`
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
    comm_type: np.ndarray  # [N] int64, the codes of `dsx.traces.codec.COLLECTIVES`
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
    # [K, 2] int64: row, id that no node of the file has
    unknown_deps: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    # Process groups that its nodes state, by name: the ranks of each, none for the group of all ranks.
    stated_groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # Of an element, where the file counts elements and multiply-adds; sizes here are bytes, and operations FLOPs.
    element_bytes: int | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.ids)

    @property
    def has_durations(self) -> bool:
        """Whether nodes have durations; one that has none then takes no time."""
        return not bool(np.all(np.isnan(self.duration_ns)))


def blank_trace(num_nodes: int) -> RankTrace:
    """Return a trace of rank 0 whose nodes, numbered from 1, say nothing."""
    columns: dict[str, object] = {"rank": 0, "version": "", "tensors": [], "tensor_bytes": np.zeros(0, np.int64)}
    columns |= {"ids": np.arange(1, num_nodes + 1), "types": np.zeros(num_nodes, np.int8)}
    columns |= {name: np.full(num_nodes, np.nan) for name in ("overlap", "duration_ns")}
    columns["unknown_deps"] = np.empty((0, 2), np.int64)
    blank = {
        Lists: lists_of(np.zeros(num_nodes), np.empty(0, np.int64)),
        Texts: texts_of([""] * num_nodes),
        np.ndarray: np.full(num_nodes, -1, np.int64),
    }
    for column in fields(RankTrace):
        if column.name not in columns and column.type in blank:
            columns[column.name] = blank[column.type]
    return RankTrace(**columns)  # pyright: ignore[reportArgumentType]


def node_text(trace: RankTrace, row: int) -> str:
    """Return a node, by its row, for a message: its id and its name."""
    return f"node {trace.ids[row]} ({trace.names.of(row)!r})"


class Distinct(NamedTuple):
    """The R distinct ones of N rows."""

    rows: np.ndarray  # [R] the first row of each
    which: np.ndarray  # [N] the distinct one that each row equals
    counts: np.ndarray  # [R] rows that equal it


def distinct(columns: Iterable[np.ndarray]) -> Distinct:
    """Return the distinct rows of integer columns, each [N].

    Rows are equal if hashes of 64 bits are, which sorts a million rows ten times as fast as the rows themselves. Two
    of a thousand different rows share a hash with a probability of 3e-14.
    """
    hashed: np.ndarray | None = None
    for column in columns:
        numbers = np.ascontiguousarray(column, np.int64).view(np.uint64)
        hashed = _mixed(numbers) if hashed is None else _mixed(hashed ^ numbers)
    if hashed is None:
        hashed = np.empty(0, np.uint64)
    _, rows, which, counts = np.unique(hashed, return_index=True, return_inverse=True, return_counts=True)
    return Distinct(rows, which, counts)


def hashed_lists(lists: Lists, nodes: np.ndarray) -> np.ndarray:
    """Return an integer for the list of each of `nodes`; equal lists have the same one."""
    starts, lengths = lists.starts[nodes], lists.starts[nodes + 1] - lists.starts[nodes]
    hashed = lengths.astype(np.uint64)
    for place in range(int(lengths.max(initial=0))):
        longer = lengths > place
        numbers = lists.values[starts[longer] + place].astype(np.int64).view(np.uint64)
        hashed[longer] = _mixed(hashed[longer] ^ numbers)
    return hashed.view(np.int64)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    numbers = numbers + _STEP
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))


def occurrences(codes: np.ndarray) -> np.ndarray:
    """Return for each row how many earlier rows have its code; codes are 0, 1, 2, and so on."""
    counts = np.bincount(codes)
    # NumPy sorts 16 bits ten times as fast.
    order = np.argsort(codes.astype(np.uint16) if len(counts) <= 1 << 16 else codes, kind="stable")
    earlier = np.empty(len(codes), np.int64)
    earlier[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return earlier


def scattered(size: int, missing: float, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a column with `values` at `rows`, and `missing` elsewhere."""
    column = np.full(size, missing, values.dtype)
    column[rows] = values
    return column


def bits_of(shape: MultiplyShape) -> int:
    """Return the last number of a multiply."""
    bits = sum(bit for name, bit in _PROPERTIES.items() if getattr(shape, name))
    return bits | (_BACKWARD if shape.direction == BACKWARD else 0)


def shape_of(bits: int) -> MultiplyShape:
    """Return the multiply without its size, of kernel 0, from its last number."""
    properties = {name: bool(bits & bit) for name, bit in _PROPERTIES.items()}
    return MultiplyShape(kernel=0, direction=BACKWARD if bits & _BACKWARD else FORWARD, **properties)
