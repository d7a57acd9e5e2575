"""A trace file in memory: its nodes as columns, their names, tensors and faults.

A trace file in memory: its nodes as columns.

Nodes are rows in file order. Lists of different lengths (dependencies, tensors) are in compressed rows: those of node i
are `values[starts[i] : starts[i + 1]]`. Tensors and repeated texts are positions in tables of names.

Names nodes in messages.

Finds the distinct rows of columns: a trace repeats the same few hundred launches for each layer and microbatch.

Parses the tensors that nodes read and write: lists of names and bytes in turn.

Nearly every list differs, and they take most of the time of reading. So many are parsed at a time: repeated fields of
messages that follow one another are joined, and a name that no tensor has separates the lists.

What is wrong with traces.

A multiply in a trace: rows, columns, contracted, batch, FLOPs, and a number with a bit for each property.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from dsx.cost.layer_work import MultiplyShape
from dsx.notation.work import BACKWARD, FORWARD
from dsx.traces.codec import StringList


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
    unknown_deps: np.ndarray = field(default_factory=_no_pairs)  # [K, 2] int64: row, id that no node of the file has
    # Process groups that its nodes state, by name: the ranks of each, none for the group of all ranks.
    stated_groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # Of an element, where the file counts elements and multiply-adds; sizes here are bytes, and operations FLOPs.
    element_bytes: int | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.ids)


def node_text(trace: RankTrace, row: int) -> str:
    """Return a node, by its row, for a message: its id and its name."""
    return f"node {trace.ids[row]} ({trace.names.of(row)!r})"


# Constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), which spreads each bit of a number over all 64.
_STEP, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


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
    found = lengths.astype(np.uint64)
    for place in range(int(lengths.max(initial=0))):
        there = lengths > place
        numbers = lists.values[starts[there] + place].astype(np.int64).view(np.uint64)
        found[there] = _mixed(found[there] ^ numbers)
    return found.view(np.int64)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    numbers = numbers + _STEP
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))


_AT_ONCE = 1_000  # lists that are parsed at a time
_BETWEEN = "\0"  # what is no name of a tensor
# Its size is another text, so that a list of an odd length makes sizes of the names behind it, and is seen.
_SEPARATOR = StringList(values=[_BETWEEN, ""]).SerializeToString()
_NEW, _NO_TENSOR = -1, -2  # instead of the place of a tensor


class BadTensorsError(Exception):
    """The list of the node at `row` is none of tensors; the message says why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class Tensors:
    """The tensors of a file: places by name, and bytes by place."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {_BETWEEN: _NO_TENSOR}
        self.sizes = array("q")

    def names(self) -> list[str]:
        """Return the names in the order of their places."""
        return list(islice(self.places, 1, None))

    def found(self, names: list[str], sizes: list[str]) -> list[int]:
        """Return the places of tensors; ValueError for a new one whose size is no number of bytes."""
        places = [self.places.get(name, _NEW) for name in names]
        for at, place in enumerate(places):
            if place == _NEW:
                # A new name may occur twice in `names`.
                place = places[at] = self.places.setdefault(names[at], len(self.sizes))
                if place == len(self.sizes):
                    size = _size(sizes[at])
                    if size is None:
                        raise ValueError
                    self.sizes.append(size)
        return places


class TensorLists:
    """The tensors that nodes read, or those that they write."""

    def __init__(self, attribute: Literal["inputs", "outputs"], tensors: Tensors) -> None:
        self._attribute, self._tensors = attribute, tensors
        self._rows, self._lengths, self._places = array("i"), array("i"), array("q")
        self._pending: list[bytes] = []

    def add(self, row: int, content: bytes) -> None:
        """Add the list of a node, the bytes of a StringList; raises BadTensorsError for this or an earlier one."""
        self._rows.append(row)
        self._pending.append(content)
        if len(self._pending) >= _AT_ONCE:
            self._parse()

    def lists(self, num_nodes: int) -> Lists:
        """Return the places of the tensors of all nodes; raises BadTensorsError."""
        self._parse()
        rows, lengths = np.array(self._rows, np.int64), np.array(self._lengths, np.int64)
        return lists_of(np.bincount(rows, lengths, num_nodes), np.array(self._places, np.int64))

    def _parse(self) -> None:
        """Parse the lists that are pending."""
        if not self._pending:
            return
        try:
            texts = StringList.FromString(_SEPARATOR.join(self._pending)).values[:]
            names, sizes = texts[::2], texts[1::2]
            if len(names) != len(sizes) or names.count(_BETWEEN) != len(self._pending) - 1:
                raise ValueError
            places = np.array(self._tensors.found(names, sizes), np.int64)
        except (DecodeError, ValueError):
            raise self._fault() from None
        ends = np.append(np.flatnonzero(places == _NO_TENSOR), len(places))
        self._lengths.extend((np.diff(ends, prepend=-1) - 1).tolist())
        self._places.frombytes(places[places != _NO_TENSOR].tobytes())
        self._pending.clear()

    def _fault(self) -> BadTensorsError:
        """Return what is wrong with the first of the pending lists that is none of tensors."""
        rows = self._rows[len(self._lengths) :]
        reasons = ((row, self._reason(content)) for row, content in zip(rows, self._pending, strict=True))
        return BadTensorsError(*next((row, reason) for row, reason in reasons if reason))

    def _reason(self, content: bytes) -> str:
        try:
            texts = StringList.FromString(content).values[:]
        except DecodeError:
            return f"{self._attribute} is no list of texts"
        if len(texts) % 2:
            return f"{self._attribute} has {len(texts)} texts, and each tensor has two: its name, its bytes"
        for name, size in zip(texts[::2], texts[1::2], strict=True):
            if name == _BETWEEN:
                return f"{self._attribute}: {name!r} is no name of a tensor"
            if _size(size) is None:
                return f"{self._attribute}: {name!r} has the size {size!r:.60}, which is no number of bytes"
        return ""


def _size(text: str) -> int | None:
    """Return a size from its text, which some writers give with decimals ("2097152.0"); None if it is none."""
    whole, _, decimals = text.partition(".")
    if not text.isascii() or not whole.isdigit() or len(whole) >= 20 or not (decimals.isdigit() or not decimals):
        return None
    size = int(whole) + (decimals[:1] >= "5")
    return size if size < 2**63 else None


MOST_LISTED = 5  # faults of one kind in one rank; the last one says how many more there are


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that a simulator would stop at, or that makes its result wrong."""

    what: str  # kind of fault, such as "unknown dependency"
    rank: int | None  # None for a fault of several ranks
    node: int | None  # id of a node; None for a fault of no single one
    name: str  # of the node; empty if there is none
    detail: str
    more: int = 0  # further faults of this kind in this rank, which are not listed
    is_note: bool = False  # the trace is legal, but was not checked in full

    def __str__(self) -> str:
        where = "" if self.rank is None else f"rank {self.rank}"
        where += "" if self.node is None else f" node {self.node} ({self.name})"
        more = f"; and {self.more:,} more" if self.more else ""
        return f"{self.what}: {where}{': ' if where else ''}{self.detail}{more}"


def at_rows(
    what: str, trace: RankTrace, rows: np.ndarray, details: Sequence[str] | str, is_note: bool = False
) -> list[Fault]:
    """Return a fault for each of some rows of a trace; `details` is one text for all, or one for each listed."""
    listed = rows[:MOST_LISTED].tolist()
    texts = [details] * len(listed) if isinstance(details, str) else details
    return [
        Fault(what, trace.rank, int(trace.ids[row]), trace.names.of(row), detail, unlisted(at, len(rows)), is_note)
        for at, (row, detail) in enumerate(zip(listed, texts, strict=False))
    ]


def first_rows(rows: np.ndarray) -> list[int]:
    """Return the rows of which a fault is listed."""
    return rows[:MOST_LISTED].tolist()


def unlisted(at: int, number: int) -> int:
    """Return how many of `number` faults are not listed, for the fault at position `at`: 0 but for the last listed."""
    return max(number - MOST_LISTED, 0) if at == MOST_LISTED - 1 else 0


NUMBERS_OF_MULTIPLY = 6

_PROPERTIES = {"linear": 1, "of_weight": 2, "fused": 4, "grouped": 8, "wide": 32}  # bits of a `MultiplyShape`
_BACKWARD = 16


def bits_of(shape: MultiplyShape) -> int:
    """Return the last number of a multiply."""
    bits = sum(bit for name, bit in _PROPERTIES.items() if getattr(shape, name))
    return bits | (_BACKWARD if shape.direction == BACKWARD else 0)


def shape_of(bits: int) -> MultiplyShape:
    """Return the multiply without its size, of kernel 0, from its last number."""
    properties = {name: bool(bits & bit) for name, bit in _PROPERTIES.items()}
    return MultiplyShape(kernel=0, direction=BACKWARD if bits & _BACKWARD else FORWARD, **properties)
