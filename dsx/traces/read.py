"""Reads traces: a folder with a file for each rank and the process groups, and each file into columns.

Messages are parsed by protobuf's C runtime. Most attributes of a node equal those of an earlier node byte by byte, so
an attribute is looked up by its bytes, and parsed if it is new. A node then has the codes of its attributes; they
become columns with all nodes at the end. Lists of tensors nearly all differ, and take most of the time of reading, so
many are parsed at a time: repeated fields of messages that follow one another are joined, and a name that no tensor has
separates the lists.

Traces of other writers have few of the attributes, and others, which are skipped. Those of STAGE, whose metadata names
a schema, count elements and multiply-adds: sizes become bytes of elements of one width, and operations FLOPs. PyTorch's
profiler states process groups in a node: JSON that lists the groups of the process, where a group without ranks is that
of all ranks.

A folder is opened without reading its files: it has their ranks, the process groups, and what its writer says of it.
"""

import json
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from google.protobuf.message import DecodeError

from dsx.errors import TraceError, wrong
from dsx.files import MANIFEST
from dsx.traces.codec import (
    ATTRIBUTES,
    INTEGER_LISTS,
    INTEGER_VALUES,
    NODE_TYPES,
    AttributeProto,
    GlobalMetadata,
    Message,
    RawAttribute,
    RawNode,
    StringList,
    messages,
)
from dsx.traces.columns import NUMBERS_OF_MULTIPLY, Lists, RankTrace, Texts, lists_of, scattered

DEFAULT_ELEMENT_BYTES = 2  # 16 bits, in which activations and weights are computed with
_SCHEMA = "symbolic_tensor_network"
_FLOPS = 2  # of a multiply-add

NODE_OF_GROUPS = "## process_group:init ##"  # its name
_LIST = re.compile(r"\[\s*\{.*\}\s*\]", re.DOTALL)
_MOST_RANKS = 10**9

_KINDS = {attribute.column: attribute.kind for attribute in ATTRIBUTES.values()}
_COLUMNS = tuple(_KINDS)
_FIELDS = {name: _COLUMNS.index(attribute.column) for name, attribute in ATTRIBUTES.items()}
_UNKNOWN = len(_COLUMNS)  # what dsx does not read
_LARGEST_TYPE = max(NODE_TYPES.values())
_OF_TENSORS = (b"\n\x06inputs", b"\n\x07outputs")  # how the attributes of tensors begin
_MOST_KNOWN = 100_000  # attributes that are known by their bytes, some 40 MB
# Values that an attribute may have by the type that dsx writes, and what messages call them; other types are integers.
_ACCEPTED = {
    "double": ((*INTEGER_VALUES, "double_val", "float_val"), "a number"),
    "string": ((*INTEGER_VALUES, "string_val"), "a text"),
    "int64_list": (INTEGER_LISTS, "a list of integers"),
}

_AT_ONCE = 1_000  # lists of tensors that are parsed at a time
_BETWEEN = "\0"  # what is no name of a tensor
# Its size is another text, so that a list of an odd length makes sizes of the names behind it, and is seen.
_SEPARATOR = StringList(values=[_BETWEEN, ""]).SerializeToString()
_NEW, _NO_TENSOR = -1, -2  # instead of the place of a tensor


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
        begins = not len(first) or bool(metadata.version or metadata.attr)
    except DecodeError:
        begins = False
    if not begins:
        raise TraceError(f"{name}: byte {at:,} has no metadata of Chakra, with which a trace begins")
    elements = any(attribute.name == "schema" and attribute.string_val == _SCHEMA for attribute in metadata.attr)
    if element_bytes is not None and not elements:
        raise TraceError(f"{name}: counts bytes, so its elements have no size (element_bytes={element_bytes})")
    nodes = _Nodes(tensors)
    parse, take, node = RawNode.FromString, nodes.take, RawNode()
    try:
        for place, message in framed:
            at = place
            node = parse(message)
            take(node)
        trace = nodes.trace(rank, metadata.version)
    except DecodeError:
        raise TraceError(f"{name}: byte {at:,} has no node of Chakra; the file is foreign or damaged") from None
    except _BadTensorsError as error:
        raise TraceError(f"{name}: {nodes.text(error.row)}: {error}") from None
    except OverflowError:
        raise TraceError(f"{name}: node {node.id} ({node.name!r}): a number has more than 63 bits") from None
    except ValueError as error:
        raise TraceError(f"{name}: node {node.id} ({node.name!r}): {error}") from None
    try:
        return _in_bytes(trace, element_bytes or DEFAULT_ELEMENT_BYTES) if elements else trace
    except OverflowError:
        raise TraceError(f"{name}: a size in bytes or a number of FLOPs has more than 63 bits") from None


def _in_bytes(trace: RankTrace, element_bytes: int) -> RankTrace:
    """Return a trace that counts elements with its sizes in bytes, and its operations in FLOPs.

    Raises OverflowError if one of them has more than 63 bits then.
    """
    factors = dict.fromkeys(("tensor_bytes", "tensor_size", "comm_size"), element_bytes) | {"num_ops": _FLOPS}
    columns: dict[str, np.ndarray] = {}
    for name, factor in factors.items():
        column = getattr(trace, name)
        if len(column) and int(column.max()) > np.iinfo(np.int64).max // factor:
            raise OverflowError
        columns[name] = np.where(column > 0, column * factor, column)
    return replace(trace, element_bytes=element_bytes, **columns)  # pyright: ignore[reportArgumentType]


def stated_groups(values: str) -> dict[str, Sequence[int]]:
    """Return the ranks of each process group in the inputs of such a node; none if they have another form."""
    listed = _LIST.search(values)
    if listed is None:
        return {}
    try:
        groups = json.loads(listed[0].replace('\\"', '"'))  # quotes in a text are escaped by some
    except (ValueError, RecursionError):
        return {}
    ranks_of: dict[str, Sequence[int]] = {}
    for group in groups:
        name, ranks = (group.get("pg_name"), group.get("ranks")) if isinstance(group, dict) else (None, None)
        if isinstance(name, str | int) and isinstance(ranks, list):
            are_ranks = all(type(rank) is int and 0 <= rank < _MOST_RANKS for rank in ranks)
            if are_ranks and len({*ranks}) == len(ranks):
                ranks_of[str(name)] = tuple(ranks)
    return ranks_of


class _Rows:
    """Lists of the nodes that have one: their rows and lengths, and the numbers one after the other."""

    def __init__(self) -> None:
        self.rows, self.lengths, self.numbers = array("i"), array("i"), array("q")

    def add(self, row: int, numbers: Sequence[int]) -> None:
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
        self.tensors = _Tensors()
        self.reads, self.writes = _TensorLists("inputs", self.tensors), _TensorLists("outputs", self.tensors)
        # Attributes by their bytes, as positions in `fields` and `values`. Position 0 is for those that say nothing.
        self.codes_by_bytes: dict[bytes, int] = {}
        self.fields, self.values = array("b", [_UNKNOWN]), array("q", [0])
        self.reals: list[float] = []
        self.texts: dict[str, int] = {}
        self.multiplies: list[list[int]] = []
        self.codes, self.counts = array("i"), array("i")  # the attributes of all nodes, and how many each has
        self.groups: dict[str, Sequence[int]] = {}  # that nodes state

    def take(self, node: Message) -> None:
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
        code_of, parsed = self.codes_by_bytes.get, self._parsed
        codes = [code_of(content) or parsed(row, content) for content in node.attr[:]]
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
            (self.reads if name == "inputs" else self.writes).add_bytes(row, raw.string_list)
            return 0
        attribute = AttributeProto.FromString(content)
        if len(self.codes_by_bytes) >= _MOST_KNOWN:
            self.codes_by_bytes.clear()
        code = self.codes_by_bytes[content] = len(self.fields)
        self.values.append(self._value(attribute) if name in _FIELDS else 0)
        self.fields.append(_FIELDS.get(name, _UNKNOWN))
        return code

    def _value(self, attribute: Message) -> int:
        """Return an integer, or the position of a real number, a text or multiplies in their table."""
        kind, name = ATTRIBUTES[attribute.name].kind, attribute.WhichOneof("value")
        accepted, what = _ACCEPTED.get(kind, (INTEGER_VALUES, "an integer"))
        if name not in accepted:
            raise ValueError(f"{attribute.name}: {what} is wanted, and a {name} is given")
        value = getattr(attribute, name)
        match kind:
            case "double":
                self.reals.append(value)
                return len(self.reals) - 1
            case "string":
                return self.texts.setdefault(str(value), len(self.texts))
            case "int64_list":
                numbers = value.values[:]
                if len(numbers) % NUMBERS_OF_MULTIPLY:
                    has = f"{attribute.name} has {len(numbers)} numbers"
                    raise ValueError(f"{has}; a multiply has {NUMBERS_OF_MULTIPLY}")
                self.multiplies.append(numbers)
                return len(self.multiplies) - 1
            case _:
                return int(value)

    def trace(self, rank: int, version: str) -> RankTrace:
        """Return the columns; raises BadTensorsError."""
        reads, writes = self.reads.lists(len(self.ids)), self.writes.lists(len(self.ids))
        ids = _array(self.ids)
        rows_of = _rows_of(ids)
        ctrl_deps, no_ctrl = _known_deps(self.ctrl_deps.lists(len(ids)), rows_of)
        data_deps, no_data = _known_deps(self.data_deps.lists(len(ids)), rows_of)
        values = self._columns()
        partners, partnered = values["partner"], np.flatnonzero(values["partner"] >= 0)
        values["partner"] = scattered(len(ids), -1, partnered, rows_of(partners[partnered]))
        lost = partnered[values["partner"][partnered] < 0]
        micros, exact = _array(self.micros), values["duration_ns"]
        values["duration_ns"] = np.where(np.isnan(exact), np.where(micros > 0, micros * 1e3, np.nan), exact)
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
            unknown_deps=np.concatenate([no_ctrl, no_data, np.stack([lost, partners[lost]], axis=1)]),
            stated_groups=self.groups,
            **values,
        )

    def _columns(self) -> dict[str, Any]:
        """Return the columns of attributes by name: arrays, lists or texts."""
        size, codes = len(self.ids), _array(self.codes)
        rows = np.repeat(np.arange(size, dtype=np.int32), _array(self.counts))
        fields, values = _array(self.fields), _array(self.values)
        order = np.argsort(fields[codes], kind="stable")  # a node's later attribute of a name counts
        rows, codes = rows[order], codes[order]
        ends = np.searchsorted(fields[codes], np.arange(len(_COLUMNS) + 1))
        texts = list(self.texts)
        columns: dict[str, Any] = {}
        for field, (name, kind) in enumerate(_KINDS.items()):
            of_field = slice(ends[field], ends[field + 1])
            places, of_nodes = rows[of_field], values[codes[of_field]]
            if kind == "string":
                used, used_codes = np.unique(of_nodes, return_inverse=True)
                table = [texts[place] for place in used.tolist()]
                columns[name] = Texts(table, scattered(size, -1, places, used_codes.astype(np.int32)))
            elif kind == "double":
                columns[name] = scattered(size, np.nan, places, np.array(self.reals, np.float64)[of_nodes])
            elif kind == "int64_list":
                lists = _Rows()
                for row, place in zip(places.tolist(), of_nodes.tolist(), strict=True):
                    lists.add(row, self.multiplies[place])
                columns[name] = lists.lists(size)
            else:
                columns[name] = scattered(size, -1, places, of_nodes)
        return columns


def _array(values: array) -> np.ndarray:
    """Return the numbers of an array without a copy; the array may not grow after that."""
    return np.frombuffer(values, values.typecode) if values else np.empty(0, values.typecode)


def _rows_of(ids: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from ids to rows; -1 for an id that no node has, the first row for one that several have."""
    size = len(ids)
    if np.array_equal(ids, np.arange(1, size + 1)):
        return lambda numbers: np.where((numbers >= 1) & (numbers <= size), numbers - 1, -1)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]

    def rows(numbers: np.ndarray) -> np.ndarray:
        place = np.minimum(np.searchsorted(ordered, numbers), max(size - 1, 0))
        return np.where(ordered[place] == numbers, order[place], -1)

    return rows


def _known_deps(lists: Lists, rows_of: Callable[[np.ndarray], np.ndarray]) -> tuple[Lists, np.ndarray]:
    """Return dependencies as rows, and those on unknown ids as pairs of a row and an id."""
    rows = rows_of(lists.values)
    exists = rows >= 0
    if exists.all():
        return Lists(lists.starts, rows), np.empty((0, 2), np.int64)
    owners = lists.owners()
    kept = lists_of(np.bincount(owners[exists], minlength=lists.num_nodes), rows[exists])
    return kept, np.stack([owners[~exists], lists.values[~exists]], axis=1)


class _BadTensorsError(Exception):
    """The list of the node at `row` is none of tensors; the message says why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class _Tensors:
    """The tensors of a file: places by name, and bytes by place."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {_BETWEEN: _NO_TENSOR}
        self.sizes = array("q")

    def names(self) -> list[str]:
        """Return the names in the order of their places."""
        return list(islice(self._places, 1, None))

    def places(self, names: list[str], sizes: list[str]) -> list[int]:
        """Return the places of tensors; ValueError for a new one whose size is no number of bytes."""
        places = [self._places.get(name, _NEW) for name in names]
        for at, place in enumerate(places):
            if place == _NEW:
                # A new name may occur twice in `names`.
                place = places[at] = self._places.setdefault(names[at], len(self.sizes))
                if place == len(self.sizes):
                    size = _size(sizes[at])
                    if size is None:
                        raise ValueError
                    self.sizes.append(size)
        return places


class _TensorLists(_Rows):
    """The tensors that nodes read, or those that they write."""

    def __init__(self, attribute: Literal["inputs", "outputs"], tensors: _Tensors) -> None:
        super().__init__()
        self._attribute, self._tensors = attribute, tensors
        self._pending: list[bytes] = []

    def add_bytes(self, row: int, content: bytes) -> None:
        """Add the list of a node, the bytes of a StringList; raises BadTensorsError for this or an earlier one."""
        self.rows.append(row)
        self._pending.append(content)
        if len(self._pending) >= _AT_ONCE:
            self._parse()

    def lists(self, num_nodes: int) -> Lists:
        """Return the places of the tensors of all nodes; raises BadTensorsError."""
        self._parse()
        return super().lists(num_nodes)

    def _parse(self) -> None:
        """Parse the lists that are pending."""
        if not self._pending:
            return
        try:
            texts = StringList.FromString(_SEPARATOR.join(self._pending)).values[:]
            names, sizes = texts[::2], texts[1::2]
            if len(names) != len(sizes) or names.count(_BETWEEN) != len(self._pending) - 1:
                raise ValueError
            places = np.array(self._tensors.places(names, sizes), np.int64)
        except (DecodeError, ValueError):
            rows = self.rows[len(self.lengths) :]
            reasons = ((row, self._reason(content)) for row, content in zip(rows, self._pending, strict=True))
            raise _BadTensorsError(*next((row, reason) for row, reason in reasons if reason)) from None
        ends = np.append(np.flatnonzero(places == _NO_TENSOR), len(places))
        self.lengths.extend((np.diff(ends, prepend=-1) - 1).tolist())
        self.numbers.frombytes(places[places != _NO_TENSOR].tobytes())
        self._pending.clear()

    def _reason(self, content: bytes) -> str:
        """Return what is wrong with a list; empty if nothing is."""
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
    digits, _, decimals = text.partition(".")
    if not text.isascii() or not digits.isdigit() or len(digits) >= 20 or not (decimals.isdigit() or not decimals):
        return None
    size = int(digits) + (decimals[:1] >= "5")
    return size if size < 2**63 else None


GROUPS = "comm_groups.json"
WORLD = ("", "0")  # names of the process group of all ranks

_TRACE_FILE = re.compile(r"(.+)\.([0-9]+)\.et")
_MOST_DIGITS = 9  # of a rank
_SHOWN = 3  # names in an error
_WIDEST = 16  # bytes of an element


@dataclass(frozen=True, slots=True)
class TraceFolder:
    """The files of a trace; nothing of the ranks is in memory."""

    path: Path
    prefix: str  # of the files: <prefix>.<rank>.et
    files: Mapping[int, Path]  # by rank, in ascending order
    groups: Mapping[str, Sequence[int]]  # process groups by name: their ranks in the order of the ring
    manifest: Mapping[str, Any]  # empty if there is none
    num_ranks: int  # of the job, as far as files, groups and manifest say
    element_bytes: int | None = None  # of files that count elements; None is the usual number

    def members(self, group: str) -> Sequence[int] | None:
        """Return the ranks of a process group; None if there is no group of that name."""
        return self.groups.get(group, range(self.num_ranks) if group in WORLD else None)

    def only(self, ranks: Collection[int]) -> "TraceFolder":
        """Return the folder with the files of some ranks alone."""
        return replace(self, files={rank: file for rank, file in self.files.items() if rank in ranks})

    def with_groups(self, trace: RankTrace) -> "TraceFolder":
        """Return the folder with the process groups that a trace states itself, where no file states them."""
        groups = trace.stated_groups.items()
        new = {name: ranks for name, ranks in groups if name not in self.groups and (ranks or name not in WORLD)}
        if not new:
            return self
        num_ranks = max([self.num_ranks, *(rank + 1 for ranks in new.values() for rank in ranks)])
        complete = {name: ranks or range(num_ranks) for name, ranks in new.items()}
        return replace(self, groups={**self.groups, **complete}, num_ranks=num_ranks)


def open_folder(path: Path, element_bytes: int | None = None) -> TraceFolder:
    """Return the folder of traces at `path`; `element_bytes` are those of files that count elements.

    Raises TraceError if it cannot be read or has no trace, if its traces have two prefixes or a rank twice, and if the
    file of groups is none; InputError for bytes that no element has.
    """
    if element_bytes is not None and (type(element_bytes) is not int or not 1 <= element_bytes <= _WIDEST):
        raise wrong("element_bytes", element_bytes, f"a number of bytes is wanted, from 1 to {_WIDEST}")
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    except OSError as error:
        raise TraceError(f"{path}: cannot be read as a folder of traces: {error.strerror or error}") from None
    prefix, files = _files(path, names)
    manifest = _json(path / MANIFEST) if MANIFEST in names else {}
    if not isinstance(manifest, dict):
        raise TraceError(f"{path / MANIFEST}: an object with keys is wanted")
    groups = _groups(path, names)
    num_ranks = manifest.get("num_ranks", 0)
    if type(num_ranks) is not int or not 0 <= num_ranks < 10**_MOST_DIGITS:
        raise TraceError(f"{path / MANIFEST}: num_ranks is {num_ranks!r:.60}, which is no number of ranks")
    num_ranks = max(num_ranks, 1 + max(*files, *(rank for ranks in groups.values() for rank in ranks), 0))
    return TraceFolder(path, prefix, files, groups, manifest, num_ranks, element_bytes)


def traces(folder: TraceFolder, tensors: bool = True) -> Iterator[RankTrace]:
    """Yield the traces of all ranks, in ascending order, each read when it is asked for; raises TraceError."""
    for rank, file in folder.files.items():
        yield read_trace(file, rank, tensors, folder.element_bytes)


def _files(path: Path, names: list[str]) -> tuple[str, dict[int, Path]]:
    matches = [match for name in names if (match := _TRACE_FILE.fullmatch(name))]
    if not matches:
        raise TraceError(f"{path}: has no file <prefix>.<rank>.et; give the folder of a trace")
    prefixes = sorted({match[1] for match in matches})
    if len(prefixes) > 1:
        shown = ", ".join(f"{prefix}.*.et" for prefix in prefixes[:_SHOWN])
        raise TraceError(f"{path}: has traces of {len(prefixes)} prefixes ({shown}); move all but one elsewhere")
    files: dict[int, Path] = {}
    for match in matches:
        if len(match[2]) > _MOST_DIGITS:
            raise TraceError(f"{path}: {match[0]} has a rank that is too large")
        rank = int(match[2])
        if rank in files:
            raise TraceError(f"{path}: rank {rank} has two files, {files[rank].name} and {match[0]}")
        files[rank] = path / match[0]
    return prefixes[0], dict(sorted(files.items()))


def _groups(path: Path, names: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the process groups of the file of that name, or of the only other JSON file that has groups."""
    if GROUPS in names:
        contents = {path / GROUPS: _json(path / GROUPS)}
    else:
        files = [path / name for name in names if name.endswith(".json") and name != MANIFEST]
        contents = {file: content for file in files if _is_groups(content := _json(file))}
    if len(contents) > 1:
        shown = ", ".join(file.name for file in [*contents][:_SHOWN])
        raise TraceError(f"{path}: has {len(contents)} files of process groups ({shown}); call the right one {GROUPS}")
    file, content = next(iter(contents.items()), (path, {}))
    if (content and not _is_groups(content)) or not isinstance(content, dict):
        raise TraceError(f'{file}: process groups are wanted, as in {{"1": [0, 1]}}')
    for name, ranks in content.items():
        members: set[int] = set()
        for rank in ranks:
            if type(rank) is not int or not 0 <= rank < 10**_MOST_DIGITS:
                raise TraceError(f"{file}: group {name} has {rank!r:.60}, which is no rank")
            if rank in members:
                raise TraceError(f"{file}: group {name} has rank {rank} twice")
            members.add(rank)
    return {name: tuple(ranks) for name, ranks in content.items()}


def _is_groups(content: object) -> bool:
    named = content.items() if isinstance(content, dict) else ()
    return bool(named) and all(name.isdigit() and isinstance(ranks, list) for name, ranks in named)


def _json(file: Path) -> object:
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise TraceError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{file}: is not JSON that can be read: {error}") from None
