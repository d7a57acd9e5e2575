"""Nodes as bytes of the wire format, with gaps for what differs between microbatches and ranks.

A node is encoded once for all microbatches and ranks. Its gaps are whole numbers (ids, tags, ranks), digits of
microbatches in texts, and names of groups. A whole number takes as many bytes as its size needs, and lengths before it
follow; so a node has one layout for each combination of lengths.

Protobuf's encoding guide has the format: fields in the order of their numbers, each behind its key, repeated numbers
packed. What is written here is what protobuf's own runtime writes.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from dsx.traces.codec import (
    ATTRIBUTES,
    COLLECTIVES,
    COMM_COLL,
    COMM_SEND,
    ROUTING,
    VALUE_FIELDS,
    AttributeProto,
    GlobalMetadata,
    framed,
    varint,
)
from dsx.traces.node_builder import MICROBATCH, PREVIOUS, TraceNode, buffer_of

VERSION = "1.0.0"
_LEN, _VARINT = 2, 0
# Fields of a node.
_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 4, 5, 7, 10
_STRING_LIST = VALUE_FIELDS["string"] + 1

PEER, GROUP = "peer", "group"


class Gap(NamedTuple):
    """A whole number, or the name of a group, that is put in later.

    `what` is "own" for a node of the same item, ("before", stream) for the last node of a stream before it, ("id",
    block, base) for one that a block refers to, or "tag", each with `add`; (PEER, key) and (GROUP, key) differ between
    ranks.
    """

    what: Hashable
    add: int = 0

    @property
    def of_rank(self) -> bool:
        """Whether the ranks of a stage have different values."""
        return isinstance(self.what, tuple) and self.what[0] in (PEER, GROUP)


class Digit(NamedTuple):
    """A digit of a microbatch in a text."""

    at: int  # byte
    previous: bool  # whether of the microbatch before
    place: int  # of the digit, the first one is 0


class Text(NamedTuple):
    """Bytes with digits of microbatches in them."""

    content: bytes
    digits: tuple[Digit, ...]


class Nested(NamedTuple):
    """Parts behind their length."""

    key: bytes
    parts: "Sequence[Part]"


Part = bytes | Text | Gap | Nested


class NodeLayout(NamedTuple):
    """A node for one combination of lengths."""

    content: bytes  # with zeros in the gaps
    gaps: list[tuple[int, int]]  # first byte and length of each gap
    digits: list[Digit]


@dataclass(frozen=True, slots=True)
class EncodedNode:
    """A node with gaps, and its layouts so far."""

    parts: Sequence[Part]
    block: int  # of its item
    gaps: list[Gap]
    layouts: dict[tuple[int, ...], NodeLayout] = field(default_factory=dict)

    def layout(self, lengths: tuple[int, ...]) -> NodeLayout:
        """Return the layout for the bytes of each gap; 0 leaves a dependency out."""
        if lengths not in self.layouts:
            pieces = _pieces(self.parts, iter(lengths))
            length = varint(sum(len(content) for content, _ in pieces))
            layout = NodeLayout(length + b"".join(content for content, _ in pieces), [], [])
            at = len(length)
            for content, part in pieces:
                if isinstance(part, Gap):
                    layout.gaps.append((at, len(content)))
                elif isinstance(part, Text):
                    layout.digits.extend(digit._replace(at=at + digit.at) for digit in part.digits)
                at += len(content)
            self.layouts[lengths] = layout
        return self.layouts[lengths]


def _pieces(parts: Sequence[Part], lengths: Iterator[int]) -> list[tuple[bytes, Part]]:
    """Return parts as bytes, zeros for gaps; a list of dependencies without any is left out."""
    pieces: list[tuple[bytes, Part]] = []
    for part in parts:
        if isinstance(part, Nested):
            inner = _pieces(part.parts, lengths)
            size = sum(len(content) for content, _ in inner)
            key = part.key + varint(size) if size else b""
            pieces += [(key, key), *inner]
        elif isinstance(part, Gap):
            pieces.append((bytes(next(lengths)), part))
        else:
            pieces.append((part.content if isinstance(part, Text) else part, part))
    return pieces


class References(NamedTuple):
    """The nodes of the file that a node names, as gaps."""

    number: Gap  # its own id
    previous: Gap  # the node before it on its stream
    data: Sequence[Gap]
    partner: Gap | None


def encoded(node: TraceNode, block: int, references: References, micros: int, tensors: bool) -> EncodedNode:
    """Return a node of a block with gaps; `micros` are its whole microseconds."""
    parts: list[Part] = [_key(_ID, _VARINT), references.number, _text(_NAME, node.name)]
    parts += [_key(_TYPE, _VARINT) + varint(node.type), Nested(_key(_CTRL_DEPS, _LEN), [references.previous])]
    if references.data:
        parts.append(Nested(_key(_DATA_DEPS, _LEN), references.data))
    if node.duration_ns is not None:
        parts.append(_key(_DURATION, _VARINT) + varint(micros))
    parts += [attribute("is_cpu_op", int(node.on_host)), *_attributes(node)]
    if references.partner is not None:
        parts.append(_open("partner", references.partner))
    if node.duration_ns is not None:
        parts.append(attribute("duration_ns", node.duration_ns))
    if tensors:
        parts += [_tensors("inputs", node.inputs), _tensors("outputs", node.outputs)]
    return EncodedNode(parts, block, [part for _, part in _pieces(parts, repeat(1)) if isinstance(part, Gap)])


def _attributes(node: TraceNode) -> list[Part]:
    """Return what a node says besides its dependencies and tensors."""
    work, sent = node.compute, node.communication
    if work is not None:
        values = {
            "num_ops": max(work.matrix_flops + work.vector_flops, 1),
            "tensor_size": max(work.bytes, 1),
            "matrix_flops": work.matrix_flops,
            "vector_flops": work.vector_flops,
            "op_type": work.op_type,
        }
        optional = {
            "kernel": (work.kernel_text, ""),
            "launches": (work.launches, 1),
            "unfused_bytes": (work.unfused_bytes, 0),
            "multiplies": (work.multiplies, ()),
            "panels": (node.panels, 1),
        }
        values |= {name: value for name, (value, usual) in optional.items() if value != usual}
        return [b"".join(attribute(name, value) for name, value in values.items())]
    overlap = [] if node.overlap is None else [attribute("overlap", node.overlap)]
    if sent is None:
        return [attribute("tensor_size", node.transfer_bytes), *overlap]
    size = attribute("comm_size", sent.size)
    if node.type == COMM_COLL:
        group = Nested(_key(VALUE_FIELDS["string"], _LEN), [Gap((GROUP, sent.group))])
        return [
            attribute("comm_type", COLLECTIVES[sent.kind.upper().replace("-", "_")]) + size,
            Nested(_key(_ATTR, _LEN), [_attribute_name("pg_name"), group]),
            attribute("axis", sent.axis),
            *([attribute("panels", sent.panels)] if sent.panels > 1 else []),
            *(attribute(name, number) for name, number in zip(ROUTING, sent.routing, strict=False)),
            *overlap,
        ]
    end = "comm_dst" if node.type == COMM_SEND else "comm_src"
    return [size, _open(end, Gap((PEER, sent.peer))), _open("comm_tag", Gap("tag", sent.tag)), *overlap]


@lru_cache(maxsize=256)
def _key(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def _behind_length(number: int, content: bytes) -> bytes:
    return _key(number, _LEN) + varint(len(content)) + content


@lru_cache(maxsize=65536)
def attribute(name: str, value: float | str | tuple[int, ...]) -> bytes:
    """Return an attribute of a node."""
    kind, message = ATTRIBUTES[name].kind, AttributeProto(name=name)
    if isinstance(value, tuple):
        getattr(message, kind).values.extend(value)
    else:
        setattr(message, f"{kind}_val", value)
    return _behind_length(_ATTR, message.SerializeToString())


@lru_cache(maxsize=64)
def _attribute_name(name: str) -> bytes:
    return _behind_length(1, name.encode())


def _open(name: str, gap: Gap) -> Nested:
    """Return an attribute with a whole number that is put in later."""
    return Nested(_key(_ATTR, _LEN), [_attribute_name(name) + _key(VALUE_FIELDS[ATTRIBUTES[name].kind], _VARINT), gap])


@lru_cache(maxsize=65536)
def _text(number: int, text: str) -> Text:
    content = text.encode()
    key = _key(number, _LEN) + varint(len(content))
    digits: list[Digit] = []
    for mark, previous in ((MICROBATCH, False), (PREVIOUS, True)):
        first = len(key) + text.find(mark)  # the digits of one microbatch stand together, behind ASCII alone
        digits += [Digit(first + place, previous, place) for place in range(text.count(mark))]
    return Text(key + content, tuple(digits))


def _tensors(name: str, tensors: Sequence[tuple[str, int]]) -> Text:
    """Return tensors as a list of texts; versions of one buffer, which tell nodes apart, have its name."""
    buffers = dict.fromkeys((buffer_of(tensor), size) for tensor, size in tensors)
    texts = [_text(1, text) for buffer, size in buffers for text in (buffer, str(size))]
    size = sum(len(text.content) for text in texts)
    inner = _attribute_name(name) + _key(_STRING_LIST, _LEN) + varint(size)
    content = [_key(_ATTR, _LEN) + varint(len(inner) + size) + inner]
    at, digits = len(content[0]), list[Digit]()
    for text in texts:
        digits += [digit._replace(at=at + digit.at) for digit in text.digits]
        content.append(text.content)
        at += len(text.content)
    return Text(b"".join(content), tuple(digits))


def metadata(rank: int) -> bytes:
    """Return the first message of the file of a rank, behind its length."""
    attributes = [AttributeProto(name="rank", int64_val=rank), AttributeProto(name="generator", string_val="dsx")]
    return framed(GlobalMetadata(version=VERSION, attr=attributes).SerializeToString())
