"""Reads a trace file into columns; traces of other writers may count elements or state their groups.

Traces that count elements and multiply-adds, as STAGE writes them: their metadata names a schema of its own.

Sizes become bytes of elements of one width, and operations FLOPs, when a file is read.

Process groups that a node of a trace states, as PyTorch's profiler records them when a process starts.

The node has a text of its inputs: a list with one text, which is JSON and lists the groups of the process. A group
without ranks is that of all ranks.

Reads a trace file into columns.

Messages are parsed by protobuf's C runtime. Most attributes of a node equal those of an earlier node byte by byte, so
an attribute is looked up by its bytes, and parsed if it is new. A node then has the codes of its attributes; they
become columns with all nodes at the end. Only lists of tensors are always parsed
(`tensor_lists.py`), since a tensor is written once.

Traces of other writers have few of the attributes, and others, which are skipped.
"""

import json
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError

from dsx.errors import TraceError
from dsx.traces.codec import (
    ATTRIBUTES,
    INTEGER_LISTS,
    INTEGER_VALUES,
    NODE_TYPES,
    AttributeProto,
    GlobalMetadata,
    RawAttribute,
    RawNode,
    messages,
)
from dsx.traces.columns import (
    NUMBERS_OF_MULTIPLY,
    BadTensorsError,
    Lists,
    RankTrace,
    TensorLists,
    Tensors,
    Texts,
    lists_of,
)

DEFAULT_ELEMENT_BYTES = 2  # 16 bits, in which activations and weights are computed with
_SCHEMA = "symbolic_tensor_network"
_FLOPS = 2  # of a multiply-add


def counts_elements(metadata: Any) -> bool:
    """Return whether the metadata of a file say that it counts elements."""
    return any(attribute.name == "schema" and attribute.string_val == _SCHEMA for attribute in metadata.attr)


def in_bytes(trace: RankTrace, element_bytes: int) -> RankTrace:
    """Return a trace that counts elements with its sizes in bytes, and its operations in FLOPs.

    Raises OverflowError if one of them has more than 63 bits then.
    """
    return replace(
        trace,
        element_bytes=element_bytes,
        tensor_bytes=_times(trace.tensor_bytes, element_bytes),
        tensor_size=_times(trace.tensor_size, element_bytes),
        comm_size=_times(trace.comm_size, element_bytes),
        num_ops=_times(trace.num_ops, _FLOPS),
    )


def _times(column: np.ndarray, factor: int) -> np.ndarray:
    """Return numbers times a factor, but for those that are not stated."""
    if len(column) and int(column.max()) > np.iinfo(np.int64).max // factor:
        raise OverflowError
    return np.where(column > 0, column * factor, column)


NODE_OF_GROUPS = "## process_group:init ##"  # its name
_LIST = re.compile(r"\[\s*\{.*\}\s*\]", re.DOTALL)
_MOST_RANKS = 10**9


def stated_groups(values: str) -> dict[str, Sequence[int]]:
    """Return the ranks of each process group in the inputs of such a node; none if they have another form."""
    listed = _LIST.search(values)
    if listed is None:
        return {}
    try:
        groups = json.loads(listed[0].replace('\\"', '"'))  # quotes in a text are escaped by some
    except (ValueError, RecursionError):
        return {}
    return {str(group["pg_name"]): tuple(group["ranks"]) for group in groups if _is_group(group)}


def _is_group(group: Any) -> bool:
    if not isinstance(group, dict) or not isinstance(group.get("pg_name"), str | int):
        return False
    ranks = group.get("ranks")
    if not isinstance(ranks, list):
        return False
    whole = all(isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < _MOST_RANKS for rank in ranks)
    return whole and len({*ranks}) == len(ranks)


_COLUMNS = (*dict.fromkeys(attribute.column for attribute in ATTRIBUTES.values()),)
_FIELDS = {name: _COLUMNS.index(attribute.column) for name, attribute in ATTRIBUTES.items()}
_REALS, _TEXTS = (
    {attribute.column for attribute in ATTRIBUTES.values() if attribute.kind == kind} for kind in ("double", "string")
)
_LISTS = "multiplies"
_UNKNOWN = len(_COLUMNS)  # what dsx does not read
_LARGEST_TYPE = max(NODE_TYPES.values())
_OF_TENSORS = (b"\n\x06inputs", b"\n\x07outputs")  # how the attributes of tensors begin
_MOST_KNOWN = 100_000  # attributes that are known by their bytes, some 40 MB


def read_trace(path: Path, rank: int, tensors: bool = True, element_bytes: int | None = None) -> RankTrace:
    """Return the trace in a file; `rank` is that of its name. Without `tensors` those of its nodes are skipped.

    `element_bytes` are those of the elements that a file counts; None is the usual number.

    Raises TraceError, with file and byte, if it cannot be read, is truncated or is no Chakra trace, and for the
    `element_bytes` of a file that counts bytes.
    """
    try:
        with path.open("rb") as file:
            return read_stream(file, str(path), rank, tensors, element_bytes)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_stream(
    file: BinaryIO, name: str, rank: int, tensors: bool = True, element_bytes: int | None = None
) -> RankTrace:
    """Return the trace in an open file, whose name in errors is `name`; raises TraceError as `read_trace` does."""
    framed = messages(file, name)
    at, first = next(framed, (0, None))
    if first is None:
        raise TraceError(f"{name}: is empty")
    metadata = GlobalMetadata()
    try:
        metadata.MergeFromString(first)
        known = not len(first) or bool(metadata.version or metadata.attr)
    except DecodeError:
        known = False
    if not known:
        raise TraceError(f"{name}: byte {at:,} has no metadata of Chakra, with which a trace begins")
    elements = counts_elements(metadata)
    if element_bytes is not None and not elements:
        raise TraceError(f"{name}: counts bytes, so its elements have no size (element_bytes={element_bytes})")
    nodes = _Nodes(tensors)
    parse, take, node = RawNode.FromString, nodes.take, RawNode()
    try:
        for place, message in framed:
            at = place
            node = parse(message)
            take(node)
        found = nodes.trace(rank, metadata.version)
    except DecodeError:
        raise TraceError(f"{name}: byte {at:,} has no node of Chakra; the file is foreign or damaged") from None
    except BadTensorsError as error:
        raise TraceError(f"{name}: {nodes.text(error.row)}: {error}") from None
    except OverflowError:
        raise TraceError(f"{name}: node {node.id} ({node.name!r}): a number has more than 63 bits") from None
    except ValueError as error:
        raise TraceError(f"{name}: node {node.id} ({node.name!r}): {error}") from None
    try:
        return in_bytes(found, element_bytes or DEFAULT_ELEMENT_BYTES) if elements else found
    except OverflowError:
        raise TraceError(f"{name}: a size in bytes or a number of FLOPs has more than 63 bits") from None


class _Rows:
    """Lists of the nodes that have one: their rows and lengths, and the numbers one after the other."""

    def __init__(self) -> None:
        self.rows, self.lengths, self.numbers = array("i"), array("i"), array("q")

    def add(self, row: int, numbers: list[int]) -> None:
        """Add the list of a node."""
        self.rows.append(row)
        self.lengths.append(len(numbers))
        self.numbers.extend(numbers)

    def lists(self, num_nodes: int) -> Lists:
        """Return the lists of all nodes."""
        return lists_of(np.bincount(_array(self.rows), _array(self.lengths), num_nodes), _array(self.numbers))


class _Nodes:
    """The nodes that were read so far."""

    def __init__(self, with_tensors: bool) -> None:
        self.with_tensors = with_tensors
        self.ids, self.types, self.names, self.micros = array("q"), array("b"), array("i"), array("q")
        self.name_codes: dict[str, int] = {}
        self.ctrl_deps, self.data_deps = _Rows(), _Rows()
        self.tensors = Tensors()
        self.reads, self.writes = TensorLists("inputs", self.tensors), TensorLists("outputs", self.tensors)
        # Attributes by their bytes, as positions in `fields` and `values`. Position 0 is for those that say nothing.
        self.known: dict[bytes, int] = {}
        self.fields, self.values = array("b", [_UNKNOWN]), array("q", [0])
        self.reals: list[float] = []
        self.texts: dict[str, int] = {}
        self.multiplies: list[list[int]] = []
        self.codes, self.counts = array("i"), array("i")  # the attributes of all nodes, and how many each has
        self.groups: dict[str, Sequence[int]] = {}  # that nodes state

    def take(self, node: Any) -> None:
        """Add a node; raises ValueError or OverflowError for a value that no column can have."""
        row = len(self.ids)
        self.ids.append(node.id)
        self.names.append(self.name_codes.setdefault(node.name, len(self.name_codes)))
        if node.name == NODE_OF_GROUPS:
            self.groups = stated_groups(node.inputs.values) | self.groups
        kind = node.type
        if not 0 < kind <= _LARGEST_TYPE:
            raise ValueError(f"the type {kind} is none of Chakra's, 1 to {_LARGEST_TYPE}")
        self.types.append(kind)
        self.micros.append(node.duration_micros)
        if deps := node.ctrl_deps[:]:
            self.ctrl_deps.add(row, deps)
        if deps := node.data_deps[:]:
            self.data_deps.add(row, deps)
        known, parsed = self.known.get, self._parsed
        codes = [known(content) or parsed(row, content) for content in node.attr[:]]
        self.codes.extend(codes)
        self.counts.append(len(codes))

    def text(self, row: int) -> str:
        """Return how errors call a node."""
        return f"node {self.ids[row]} ({list(self.name_codes)[self.names[row]]!r})"

    def _parsed(self, row: int, content: bytes) -> int:
        """Return the code of an attribute that was not known; 0 if it is no number, text or multiplies."""
        if not self.with_tensors and content.startswith(_OF_TENSORS):
            return 0
        raw = RawAttribute.FromString(content)
        name = raw.name
        if name in ("inputs", "outputs"):
            (self.reads if name == "inputs" else self.writes).add(row, raw.string_list)
            return 0
        attribute = AttributeProto.FromString(content)
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        code = self.known[content] = len(self.fields)
        field = _FIELDS.get(name, _UNKNOWN)
        self.values.append(self._value(field, attribute))
        self.fields.append(field)
        return code

    def _value(self, field: int, attribute: Any) -> int:
        """Return an integer, or the position of a real number, a text or multiplies in their table."""
        if field == _UNKNOWN:
            return 0
        name = _COLUMNS[field]
        if name in _REALS:
            self.reals.append(_real(attribute))
            return len(self.reals) - 1
        if name in _TEXTS:
            return self.texts.setdefault(_text(attribute), len(self.texts))
        if name == _LISTS:
            self.multiplies.append(_multiplies(attribute))
            return len(self.multiplies) - 1
        return _integer(attribute)

    def trace(self, rank: int, version: str) -> RankTrace:
        """Return the columns; raises BadTensorsError."""
        reads, writes = self.reads.lists(len(self.ids)), self.writes.lists(len(self.ids))
        size, ids = len(self.ids), _array(self.ids)
        rows_of = _rows_of(ids)
        ctrl_deps, no_ctrl = _known_deps(self.ctrl_deps.lists(size), ids, rows_of)
        data_deps, no_data = _known_deps(self.data_deps.lists(size), ids, rows_of)
        values: dict[str, Any] = self._columns()
        partner, no_partner = _known_partners(values["partner"], ids, rows_of)
        micros = _array(self.micros)
        durations = np.where(
            np.isnan(values["duration_ns"]), np.where(micros > 0, micros * 1e3, np.nan), values["duration_ns"]
        )
        return RankTrace(
            rank=rank,
            version=version,
            ids=ids,
            names=Texts(list(self.name_codes), _array(self.names)),
            types=_array(self.types),
            ctrl_deps=ctrl_deps,
            data_deps=data_deps,
            reads=reads,
            writes=writes,
            tensors=self.tensors.names(),
            tensor_bytes=_array(self.tensors.sizes),
            unknown_deps=np.concatenate([no_ctrl, no_data, no_partner]),
            stated_groups=self.groups,
            **{**values, "partner": partner, "duration_ns": durations},
        )

    def _columns(self) -> dict[str, Any]:
        """Return the columns of attributes by name."""
        size, codes = len(self.ids), _array(self.codes)
        rows = np.repeat(np.arange(size, dtype=np.int32), _array(self.counts))
        fields, values = _array(self.fields), _array(self.values)
        order = np.argsort(fields[codes], kind="stable")  # a node's later attribute of a name counts
        rows, codes = rows[order], codes[order]
        ends = np.searchsorted(fields[codes], np.arange(len(_COLUMNS) + 1))
        columns: dict[str, Any] = {}
        for field, name in enumerate(_COLUMNS):
            part = slice(ends[field], ends[field + 1])
            there, found = rows[part], values[codes[part]]
            if name in _TEXTS:
                columns[name] = _texts(size, there, found, list(self.texts))
            elif name in _REALS:
                columns[name] = _scattered(size, np.nan, there, np.array(self.reals, np.float64)[found])
            elif name == _LISTS:
                columns[name] = _joined(size, there, [self.multiplies[place] for place in found.tolist()])
            else:
                columns[name] = _scattered(size, -1, there, found)
        return columns


def _scattered(size: int, missing: float, rows: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return a column with `found` at `rows`, and `missing` elsewhere."""
    column = np.full(size, missing, found.dtype)
    column[rows] = found
    return column


def _texts(size: int, rows: np.ndarray, found: np.ndarray, table: list[str]) -> Texts:
    """Return a column of texts with a table of its own."""
    used, codes = np.unique(found, return_inverse=True)
    return Texts([table[place] for place in used.tolist()], _scattered(size, -1, rows, codes.astype(np.int32)))


def _joined(size: int, rows: np.ndarray, found: list[list[int]]) -> Lists:
    """Return the list of each node, from lists in the order of their rows."""
    lengths = np.bincount(rows, [len(numbers) for numbers in found], size)
    return lists_of(lengths, np.fromiter((number for numbers in found for number in numbers), np.int64))


def _array(values: array) -> np.ndarray:
    """Return the numbers of an array without a copy; the array may not grow after that."""
    return np.frombuffer(values, values.typecode) if values else np.empty(0, values.typecode)


def _integer(attribute: Any) -> int:
    value = attribute.WhichOneof("value")
    if value not in INTEGER_VALUES:
        raise ValueError(f"{attribute.name}: an integer is wanted, and a {value} is given")
    return int(getattr(attribute, value))


def _real(attribute: Any) -> float:
    value = attribute.WhichOneof("value")
    if value not in (*INTEGER_VALUES, "double_val", "float_val"):
        raise ValueError(f"{attribute.name}: a number is wanted, and a {value} is given")
    return getattr(attribute, value)


def _text(attribute: Any) -> str:
    value = attribute.WhichOneof("value")
    if value not in (*INTEGER_VALUES, "string_val"):
        raise ValueError(f"{attribute.name}: a text is wanted, and a {value} is given")
    return str(getattr(attribute, value))


def _multiplies(attribute: Any) -> list[int]:
    value = attribute.WhichOneof("value")
    if value not in INTEGER_LISTS:
        raise ValueError(f"{attribute.name}: a list of integers is wanted, and a {value} is given")
    numbers = getattr(attribute, value).values[:]
    if len(numbers) % NUMBERS_OF_MULTIPLY:
        raise ValueError(f"{attribute.name} has {len(numbers)} numbers; a multiply has {NUMBERS_OF_MULTIPLY}")
    return numbers


def _rows_of(ids: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from ids to rows; -1 for an id that no node has, the first row for one that several have."""
    size = len(ids)
    if np.array_equal(ids, np.arange(1, size + 1)):
        return lambda wanted: np.where((wanted >= 1) & (wanted <= size), wanted - 1, -1)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]

    def rows(wanted: np.ndarray) -> np.ndarray:
        place = np.minimum(np.searchsorted(ordered, wanted), max(size - 1, 0))
        return np.where(ordered[place] == wanted, order[place], -1)

    return rows


def _known_deps(lists: Lists, ids: np.ndarray, rows_of: Callable[[np.ndarray], np.ndarray]) -> tuple[Lists, np.ndarray]:
    """Return dependencies as rows, and those on unknown ids as pairs of a row and an id."""
    rows = rows_of(lists.values)
    known = rows >= 0
    if known.all():
        return Lists(lists.starts, rows), np.empty((0, 2), np.int64)
    owners = np.repeat(np.arange(len(ids)), np.diff(lists.starts))
    kept = lists_of(np.bincount(owners[known], minlength=len(ids)), rows[known])
    return kept, np.stack([owners[~known], lists.values[~known]], axis=1)


def _known_partners(
    partners: np.ndarray, ids: np.ndarray, rows_of: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return partners as rows, and those that are unknown as pairs of a row and an id."""
    stated = np.flatnonzero(partners >= 0)
    rows = np.full(len(ids), -1, np.int64)
    rows[stated] = rows_of(partners[stated])
    lost = stated[rows[stated] < 0]
    return rows, np.stack([lost, partners[lost]], axis=1)
