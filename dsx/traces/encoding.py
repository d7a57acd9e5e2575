"""Nodes as bytes of the wire format, with gaps for what differs between microbatches and ranks.

A node is encoded once for all microbatches and ranks. Its gaps are whole numbers (ids, tags, ranks), digits of
microbatches in texts, and names of groups. A whole number takes as many bytes as its size needs, and lengths before it
follow; so a node has one layout for each combination of lengths.

Protobuf's encoding guide has the format: fields in the order of their numbers, each behind its key, repeated numbers
packed. What is written here is what protobuf's own runtime writes.
"""

import struct
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from dsx.traces.codec import COLLECTIVES, COMM_COLL, COMM_RECV, COMM_SEND, COMP, ROUTING, varint
from dsx.traces.layer_nodes import MICROBATCH, PREVIOUS, TraceNode, buffer_of

VERSION = "1.0.0"
_LEN, _VARINT, _I64 = 2, 0, 1
# Fields of a node, of an attribute, and of the values of one.
_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 4, 5, 7, 10
_DOUBLE, _INT32, _INT64, _INT64_LIST, _UINT64, _BOOL, _STRING, _STRING_LIST = 3, 7, 9, 10, 13, 27, 29, 30


class Gap(NamedTuple):
    """A whole number that is put in later."""

    what: Hashable  # ("id", block, base) for a node of a pass; ("rank", peer); "tag"
    add: int = 0


class Digits(NamedTuple):
    """A digit of a microbatch in a text."""

    at: int  # byte in the node
    block: int
    previous: bool
    place: int  # of the digit, the first one is 0


class Marked(NamedTuple):
    """Bytes with the places of digits of microbatches in them."""

    content: bytes
    marks: tuple[tuple[int, bool, int], ...]  # (byte, previous, place of the digit)


class GroupGap(NamedTuple):
    """The name of a group, which is put in later."""

    key: Hashable


@dataclass(slots=True)
class Nested:
    """Parts behind their length."""

    key: bytes
    parts: "list[Part]"


Part = bytes | Marked | Gap | GroupGap | Nested


@dataclass(slots=True)
class NodeLayout:
    """A node for one combination of lengths: its bytes, and where the gaps are."""

    content: bytes
    numbers: list[tuple[int, int, Gap]] = field(default_factory=list)  # (byte, length, gap)
    groups: list[tuple[int, int, Hashable]] = field(default_factory=list)  # (byte, length, key)
    digits: list[Digits] = field(default_factory=list)


def varint_length(number: int) -> int:
    """Return the bytes of a varint."""
    return max((number.bit_length() + 6) // 7, 1)


@lru_cache(maxsize=256)
def _key(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def _behind_length(number: int, content: bytes) -> bytes:
    return _key(number, _LEN) + varint(len(content)) + content


@lru_cache(maxsize=65536)
def _text(number: int, text: str) -> Marked:
    content = text.encode()
    before = _key(number, _LEN) + varint(len(content))
    marks: list[tuple[int, bool, int]] = []
    for mark, previous in ((MICROBATCH, False), (PREVIOUS, True)):
        first = text.find(mark)  # the digits of one microbatch stand together, behind ASCII alone
        marks += [(len(before) + first + place, previous, place) for place in range(text.count(mark))]
    return Marked(before + content, tuple(marks))


def _joined(texts: Sequence[Marked], before: bytes) -> Marked:
    """Return texts one after the other, behind `before`."""
    at, content, marks = len(before), [before], list[tuple[int, bool, int]]()
    for text in texts:
        marks += [(at + place, previous, digit) for place, previous, digit in text.marks]
        content.append(text.content)
        at += len(text.content)
    return Marked(b"".join(content), tuple(marks))


@lru_cache(maxsize=64)
def _attribute_name(name: str) -> bytes:
    return _behind_length(1, name.encode())


@lru_cache(maxsize=65536)
def whole(name: str, number: int, value: int) -> bytes:
    """Return an attribute with a whole number; `number` is the field of its type."""
    return _behind_length(_ATTR, _attribute_name(name) + _key(number, _VARINT) + varint(value))


@lru_cache(maxsize=4096)
def _double(name: str, value: float) -> bytes:
    return _behind_length(_ATTR, _attribute_name(name) + _key(_DOUBLE, _I64) + struct.pack("<d", value))


@lru_cache(maxsize=4096)
def string(name: str, value: str) -> bytes:
    """Return an attribute with a text."""
    return _behind_length(_ATTR, _attribute_name(name) + _behind_length(_STRING, value.encode()))


@lru_cache(maxsize=4096)
def _integers(name: str, values: tuple[int, ...]) -> bytes:
    packed = _behind_length(1, b"".join(map(varint, values)))
    return _behind_length(_ATTR, _attribute_name(name) + _behind_length(_INT64_LIST, packed))


def _strings(name: str, tensors: Sequence[tuple[str, int]]) -> Marked:
    """Return tensors as a list of texts; versions of one buffer, which tell nodes apart, have its name."""
    buffers = dict.fromkeys((buffer_of(tensor), size) for tensor, size in tensors)
    texts = [_text(1, text) for buffer, size in buffers for text in (buffer, str(size))]
    size = sum(len(text.content) for text in texts)
    inner = _attribute_name(name) + _key(_STRING_LIST, _LEN) + varint(size)
    return _joined(texts, _key(_ATTR, _LEN) + varint(len(inner) + size) + inner)


def _open(name: str, number: int, gap: Gap) -> Nested:
    return Nested(_key(_ATTR, _LEN), [_attribute_name(name) + _key(number, _VARINT), gap])


def _group(name: str, key: Hashable) -> Nested:
    return Nested(_key(_ATTR, _LEN), [_attribute_name(name), Nested(_key(_STRING, _LEN), [GroupGap(key)])])


_NO_CPU = whole("is_cpu_op", _BOOL, 0)
_CPU = whole("is_cpu_op", _BOOL, 1)


@dataclass(slots=True)
class EncodedNode:
    """A node with gaps, and its layouts so far."""

    parts: list[Part]
    block: int
    gaps: list[Gap]
    group_keys: list[Hashable]
    layouts: dict[tuple[int, ...], NodeLayout] = field(default_factory=dict)

    def layout(self, lengths: tuple[int, ...], group_lengths: tuple[int, ...]) -> NodeLayout:
        """Return the layout for the bytes of each gap (0 leaves a dependency out) and of each group's name."""
        key = lengths + group_lengths
        if key not in self.layouts:
            self.layouts[key] = _laid_out(self, iter(lengths), iter(group_lengths))
        return self.layouts[key]


def encoded(
    node: TraceNode,
    block: int,
    own: Gap,
    ctrl: Sequence[Gap],
    data: Sequence[Gap],
    partner: Gap | None,
    tensors: bool,
    micros: int,
) -> EncodedNode:
    """Return a node with gaps; `own` is its id, `ctrl` and `data` its dependencies, `micros` its whole microseconds."""
    parts: list[Part] = [_key(_ID, _VARINT), own, _text(_NAME, node.name), _key(_TYPE, _VARINT) + varint(node.type)]
    for number, deps in ((_CTRL_DEPS, ctrl), (_DATA_DEPS, data)):
        if deps:
            parts.append(Nested(_key(number, _LEN), list(deps)))
    if node.duration_ns is not None:
        parts.append(_key(_DURATION, _VARINT) + varint(micros))
    parts.append(_CPU if node.on_host else _NO_CPU)
    parts += _attributes(node)
    if partner is not None:
        parts.append(_open("partner", _INT64, partner))
    if node.duration_ns is not None:
        parts.append(_double("duration_ns", node.duration_ns))
    if tensors:
        parts += [_strings("inputs", node.inputs), _strings("outputs", node.outputs)]
    gaps, groups = list[Gap](), list[Hashable]()
    _collect(parts, gaps, groups)
    return EncodedNode(parts, block, gaps, groups)


def _attributes(node: TraceNode) -> list[Part]:
    """Return what a node says besides its dependencies and tensors."""
    if node.type == COMP:
        return _of_compute(node)
    found: list[Part] = []
    sent = node.communication
    if sent is None:
        found.append(whole("tensor_size", _UINT64, node.transfer_bytes))
    elif node.type == COMM_COLL:
        code = COLLECTIVES[sent.kind.upper().replace("-", "_")]
        found.append(whole("comm_type", _INT64, code) + whole("comm_size", _INT64, sent.size))
        found += [_group("pg_name", sent.group), string("axis", sent.axis)]
        if sent.panels > 1:
            found.append(whole("panels", _INT64, sent.panels))
        found += [whole(name, _INT64, number) for name, number in zip(ROUTING, sent.routing, strict=False)]
    elif node.type in (COMM_SEND, COMM_RECV):
        found.append(whole("comm_size", _INT64, sent.size))
        end = "comm_dst" if node.type == COMM_SEND else "comm_src"
        found += [_open(end, _INT32, Gap(("rank", sent.peer))), _open("comm_tag", _INT32, Gap("tag", sent.tag))]
    if node.overlap is not None:
        found.append(_double("overlap", node.overlap))
    return found


def _of_compute(node: TraceNode) -> list[Part]:
    work = node.compute
    if work is None:
        return []
    found = [
        whole("num_ops", _INT64, max(work.matrix_flops + work.vector_flops, 1)),
        whole("tensor_size", _UINT64, max(work.bytes, 1)),
        whole("matrix_flops", _INT64, work.matrix_flops) + whole("vector_flops", _INT64, work.vector_flops),
        string("op_type", node.op_type),
    ]
    if node.kernel_text:
        found.append(string("kernel", node.kernel_text))
    if work.launches != 1:
        found.append(whole("launches", _INT64, work.launches))
    if work.unfused_bytes:
        found.append(whole("unfused_bytes", _UINT64, work.unfused_bytes))
    if work.multiplies:
        found.append(_integers("multiplies", work.multiplies))
    if node.panels > 1:
        found.append(whole("panels", _INT64, node.panels))
    return [b"".join(found)]


def _collect(parts: Sequence[Part], gaps: list[Gap], groups: list[Hashable]) -> None:
    for part in parts:
        if isinstance(part, Nested):
            _collect(part.parts, gaps, groups)
        elif isinstance(part, Gap):
            gaps.append(part)
        elif isinstance(part, GroupGap):
            groups.append(part.key)


def _laid_out(node: EncodedNode, lengths: Iterator[int], group_lengths: Iterator[int]) -> NodeLayout:
    """Return a node's layout, its own length first."""
    inner = _flat(node.parts, lengths, group_lengths)
    before = varint(sum(len(content) for content, _ in inner))
    layout = NodeLayout(before + b"".join(content for content, _ in inner))
    at = len(before)
    for content, part in inner:
        if isinstance(part, Gap):
            layout.numbers.append((at, len(content), part))
        elif isinstance(part, GroupGap):
            layout.groups.append((at, len(content), part.key))
        elif isinstance(part, Marked):
            layout.digits += [Digits(at + mark, node.block, previous, place) for mark, previous, place in part.marks]
        at += len(content)
    return layout


def _flat(
    parts: Sequence[Part], lengths: Iterator[int], group_lengths: Iterator[int]
) -> list[tuple[bytes, Part | None]]:
    """Return parts as bytes, zeros for gaps; a list of dependencies without any is left out."""
    found: list[tuple[bytes, Part | None]] = []
    for part in parts:
        if isinstance(part, bytes):
            found.append((part, None))
        elif isinstance(part, Marked):
            found.append((part.content, part))
        elif isinstance(part, Nested):
            inner = _flat(part.parts, lengths, group_lengths)
            if size := sum(len(content) for content, _ in inner):
                found += [(part.key + varint(size), None), *inner]
        elif isinstance(part, Gap):
            if length := next(lengths):
                found.append((bytes(length), part))
        else:
            found.append((bytes(next(group_lengths)), part))
    return found


_METADATA_ATTR = 2  # field of the metadata


def metadata(rank: int) -> bytes:
    """Return the first message of the file of a rank, behind its length."""
    named = _attribute_name("rank") + _key(_INT64, _VARINT) + varint(rank)
    by = _attribute_name("generator") + _behind_length(_STRING, b"dsx")
    content = _text(1, VERSION).content
    content += _behind_length(_METADATA_ATTR, named) + _behind_length(_METADATA_ATTR, by)
    return varint(len(content)) + content
