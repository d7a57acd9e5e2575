"""The file of any rank of a stage, in the wire format: all items as bytes, in which the numbers of a rank are put in.

A node is encoded once for all microbatches and ranks. Its gaps are whole numbers (ids, tags, ranks), digits of
microbatches in texts, and names of groups. A whole number takes as many bytes as its size needs, and lengths before it
follow; so an item has one layout for each combination of lengths. Items of the same layout are written together: their
bytes are copied to their places, and the gaps of all of them are filled at once. What differs between ranks of a stage,
their groups and their peers, is filled last.

Protobuf's encoding guide has the format: fields in the order of their numbers, each behind its key, repeated numbers
packed. What is written here is what protobuf's own runtime writes.
"""

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dsx.traces import codec
from dsx.traces.codec import ATTRIBUTES, COMM_COLL, COMM_SEND, VALUE_FIELDS, AttributeProto, varint
from dsx.traces.stage_items import Block, Item, StageItems
from dsx.traces.traced_plan import MICROBATCH, OWN, PREVIOUS, BasePass, NodeReference, TraceNode, buffer_of

VERSION = "1.0.0"
# Nodes of one stream run in the order of the file.
_STREAM = {codec.COMP: 0, **dict.fromkeys((COMM_SEND, codec.COMM_RECV, COMM_COLL), 1)}
_STREAM |= {codec.MEM_LOAD: 2, codec.MEM_STORE: 3}
_NUM_STREAMS = 4

_LEN, _VARINT = 2, 0
# Fields of a node.
_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 4, 5, 7, 10
_STRING_LIST = VALUE_FIELDS["string"] + 1

PEER, GROUP = "peer", "group"
RankValues = Mapping[Hashable, bytes]  # what differs between the ranks of a stage, by `Gap.what`


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


class Text(NamedTuple):
    """Bytes with microbatches in them."""

    content: bytes
    microbatches: tuple[tuple[int, bool], ...]  # the byte of the first digit, and whether of the microbatch before


class Nested(NamedTuple):
    """Parts behind their length; nothing if that is 0, as of a list of dependencies without any."""

    key: bytes
    parts: "Sequence[Part]"


Part = bytes | Text | Gap | Nested


def _pieces(parts: Sequence[Part], lengths: Iterator[int]) -> list[tuple[bytes, Part]]:
    """Return parts as bytes, with zeros in the gaps, whose `lengths` are bytes."""
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


@dataclass(frozen=True, slots=True)
class StageFile:
    """A file with gaps for the values of a rank, all of the same lengths."""

    content: np.ndarray  # [bytes] uint8
    places: Mapping[Hashable, np.ndarray]  # by `Gap.what`: byte positions [places, length]

    def of_rank(self, values: RankValues) -> np.ndarray:
        """Return the file of a rank: `content` itself with its values put in, valid until the next call."""
        for what, places in self.places.items():
            for at, byte in zip(places.T, values[what], strict=True):
                self.content[at] = byte
        return self.content


@dataclass(frozen=True, slots=True)
class _Template:
    """The nodes of an item in file order, with gaps."""

    nodes: Sequence[tuple[int, Nested]]  # the block of each, and its parts behind their length
    gaps: Sequence[Gap]  # of all nodes, one after the other
    last: tuple[int | None, ...]  # place of the last node of each stream


class StageEncoder:
    """Encodes the items of a stage; describes each kind of item once."""

    def __init__(self, stage: StageItems, tensors: bool) -> None:
        self.stage, self.tensors = stage, tensors
        self.templates: list[_Template] = []
        self._places: dict[tuple[object, ...], dict[tuple[int, int], int]] = {}
        numbers: dict[Hashable, int] = {}  # of the templates
        self.of_item: list[int] = []  # the number of the template of each item
        for item in stage.items:
            keys = tuple((block.key, tuple(sorted(self._other_keys(block), key=repr))) for block in item.blocks)
            if keys not in numbers:
                numbers[keys] = len(numbers)
                self.templates.append(self._encoded(item))
            self.of_item.append(numbers[keys])
        templates = [self.templates[number] for number in self.of_item]
        sizes = [len(template.nodes) for template in templates]
        self.num_nodes = sum(sizes)  # of a file
        self.starts = np.array([*itertools.accumulate(sizes, initial=1)][:-1])  # id of the first node of each item
        # Id of the last node of each stream before each item; 0 if there is none.
        self.ends = np.zeros((len(sizes), _NUM_STREAMS), dtype=np.int64)
        latest = [0] * _NUM_STREAMS
        for number, (begin, template) in enumerate(zip(self.starts.tolist(), templates, strict=True)):
            self.ends[number] = latest
            ends = zip(latest, template.last, strict=True)
            latest = [end if last is None else begin + last for end, last in ends]

    @property
    def peers(self) -> list[Hashable]:
        """The keys of the ranks at the other end."""
        gaps = (gap.what for template in self.templates for gap in template.gaps)
        return [*dict.fromkeys(what[1] for what in gaps if isinstance(what, tuple) and what[0] == PEER)]

    def num_bytes(self, values: RankValues) -> int:
        """Return the bytes of the file for ranks whose values have the lengths of `values`."""
        return sum(len(part.content) * len(part.numbers) for part in self._parts(values))

    def file(self, values: RankValues) -> StageFile:
        """Return the file for ranks whose values have the lengths of `values`."""
        parts = list(self._parts(values))
        sizes = np.zeros(len(self.of_item), dtype=np.int64)
        for part in parts:
            sizes[part.numbers] = len(part.content)
        begins = np.concatenate([[0], np.cumsum(sizes)])
        content = np.empty(begins[-1], dtype=np.uint8)
        of_rank: dict[Hashable, list[np.ndarray]] = {}
        for part in parts:
            part.write(content, begins[part.numbers], self.stage.digits)
            for what, at in part.of_rank.items():
                of_rank.setdefault(what, []).append((begins[part.numbers][:, None, None] + at).reshape(-1, at.shape[1]))
        return StageFile(content, {what: np.concatenate(places) for what, places in of_rank.items()})

    def _other_keys(self, block: Block) -> Iterator[Hashable]:
        """Yield the kinds of items that a block refers to: places of nodes differ between them."""
        for base, (item, at) in block.bases.items():
            yield base, tuple(other.key for other in self.stage.items[item].blocks), at, _first_name(block, base)

    def _order(self, item: Item) -> dict[tuple[int, int], int]:
        """Return the (block, number) of the nodes of an item in the order of the file, with their places there."""
        keys = tuple(block.key for block in item.blocks)
        if keys not in self._places:
            # Two passes that run side by side take turns at each collective that hides behind the other pass.
            blocks = [self.stage.nodes[key] for key in keys]
            turns: list[list[list[tuple[int, int]]]] = []
            for block, of_pass in enumerate(blocks[: item.num_passes]):
                turns.append([[]])
                for number, node in enumerate(of_pass.nodes):
                    turns[-1][-1].append((block, number))
                    if item.num_passes > 1 and node.type == COMM_COLL and node.overlap == 1.0 and node.partner is None:
                        turns[-1].append([])
            in_turn = itertools.chain.from_iterable(itertools.zip_longest(*turns, fillvalue=[]))
            order = [*itertools.chain.from_iterable(in_turn)]
            # Blocks after the passes come before the last layer of the first pass.
            ahead, behind = (0, blocks[0].ahead), range(item.num_passes, len(blocks))
            at = order.index(ahead) if ahead in order else len(order)
            order[at:at] = [(block, number) for block in behind for number in range(len(blocks[block].nodes))]
            self._places[keys] = {node: place for place, node in enumerate(order)}
        return self._places[keys]

    def _encoded(self, item: Item) -> _Template:
        nodes: list[tuple[int, Nested]] = []
        last: list[int | None] = [None] * _NUM_STREAMS
        owed = [0.0] * _NUM_STREAMS  # microseconds that earlier nodes of each stream left out
        places = self._order(item)
        for (block, number), place in places.items():
            node = self.stage.nodes[item.blocks[block].key].nodes[number]
            stream = _STREAM[node.type]
            previous = last[stream]
            data = [*dict.fromkeys(gap for dep in node.data_deps if (gap := self._gap(item, block, dep)))]
            # Fields in the order of their numbers.
            parts: list[Part] = [_key(_ID, _VARINT), Gap("own", place), _text(_NAME, node.name)]
            ahead = Gap(("before", stream)) if previous is None else Gap("own", previous)
            parts += [_key(_TYPE, _VARINT) + varint(node.type), Nested(_key(_CTRL_DEPS, _LEN), [ahead])]
            parts += [Nested(_key(_DATA_DEPS, _LEN), data)] if data else []
            last[stream] = place
            # Rounding alone would bias the sum of whole microseconds, so what it leaves out is carried on.
            exact = owed[stream] + (node.duration_ns or 0.0) / 1000.0
            micros = max(round(exact), 1)
            owed[stream] = exact - micros
            if node.duration_ns is not None:
                parts.append(_key(_DURATION, _VARINT) + varint(micros))
            parts += [attribute("is_cpu_op", int(node.on_host)), *_attributes(node)]
            if node.partner is not None:
                parts.append(_open("partner", Gap("own", places[block, node.partner])))
            if node.duration_ns is not None:
                parts.append(attribute("duration_ns", node.duration_ns))
            if self.tensors:
                parts += [_tensors("inputs", node.inputs), _tensors("outputs", node.outputs)]
            nodes.append((block, Nested(b"", parts)))
        pieces = (piece for _, node in nodes for piece in _pieces([node], itertools.repeat(1)))
        return _Template(nodes, [part for _, part in pieces if isinstance(part, Gap)], tuple(last))

    def _gap(self, item: Item, at: int, dep: NodeReference) -> Gap | None:
        """Return the gap for a dependency of a node of the block at `at`; None where nothing of a file makes it."""
        if dep.base == OWN:
            return Gap("own", self._order(item)[at, int(dep.target)])
        block = item.blocks[at]
        if (place := block.bases.get(dep.base)) is None:
            return None
        number = self.stage.pass_at(place).writers.get(str(dep.target).replace(PREVIOUS, MICROBATCH))
        if number is None:
            return None
        return Gap(("id", at, _first_name(block, dep.base)), self._order(self.stage.items[place[0]])[place[1], number])

    def _parts(self, values: RankValues) -> Iterator["_Part"]:
        """Yield the items, those of equal layout together."""
        of_item = np.array(self.of_item, dtype=np.int64)
        for number, template in enumerate(self.templates):
            at = np.flatnonzero(of_item == number)
            # The number in each gap, [items, gaps]; 0 where there is nothing to refer to.
            bases = {what: self._bases(what, at) for what in dict.fromkeys(gap.what for gap in template.gaps)}
            ids = np.empty((len(at), len(template.gaps)), dtype=np.int64)
            for column, gap in enumerate(template.gaps):
                base = bases[gap.what]
                ids[:, column] = np.where(base < 0, 0, base + gap.add)
            # Bytes of each number as a varint; 0 for 0.
            bits = int(ids.max(initial=0)).bit_length()
            lengths = sum(((ids >> shift > 0).astype(np.int64) for shift in range(0, bits, 7)), np.zeros_like(ids))
            for column, gap in enumerate(template.gaps):
                if gap.of_rank:
                    lengths[:, column] = len(values[gap.what])
            distinct, which = np.unique(lengths, axis=0, return_inverse=True)
            for row, of_row in enumerate(distinct.tolist()):
                chosen = np.flatnonzero(which.ravel() == row)
                blocks = [self.stage.items[item].blocks for item in at[chosen]]
                microbatches = [[(block.microbatch, block.previous) for block in of_item] for of_item in blocks]
                yield _joined(template, of_row, at[chosen], ids[chosen], np.array(microbatches, dtype=np.int64))

    def _bases(self, what: Hashable, numbers: np.ndarray) -> np.ndarray:
        """Return what the gaps of some items count from; -1 for nothing."""
        items = [self.stage.items[number] for number in numbers]
        match what:
            case "own":
                return self.starts[numbers]
            case ("before", int(stream)):
                ends = self.ends[numbers, stream]
                return np.where(ends > 0, ends, -1)
            case ("id", int(block), base):
                places = [item.blocks[block].bases.get(base) for item in items]  # pyright: ignore
                return np.array([-1 if place is None else self.starts[place[0]] for place in places])
            case _:
                return np.array([item.tag for item in items])


@dataclass(frozen=True, slots=True)
class _Part:
    """Items of one layout; places are bytes from the beginning of an item."""

    numbers: np.ndarray  # [items]
    content: np.ndarray  # [bytes] of one item
    ids: np.ndarray  # [items, gaps]
    columns: Mapping[int, list[tuple[int, int]]]  # by length: the columns of `ids`, and the first byte of each
    microbatches: np.ndarray  # [items, blocks, 2]: of each block, and the one before
    digits: Mapping[tuple[int, bool], list[int]]  # the first ones, by block, and whether of the microbatch before
    of_rank: Mapping[Hashable, np.ndarray]  # [places, length]

    def write(self, file: np.ndarray, begins: np.ndarray, num_digits: int) -> None:
        """Write the items at their places in a file, without the values of a rank."""
        size = len(self.content)
        for begin in begins.tolist():
            file[begin : begin + size] = self.content
        for length, gaps in self.columns.items():
            columns, at = np.array(gaps).T
            for byte in range(length):
                varint = self.ids[:, columns] >> 7 * byte & 0x7F | (0x80 if byte < length - 1 else 0)
                file[begins[:, None] + (at + byte)] = varint.astype(np.uint8)
        for (block, previous), at in self.digits.items():
            for place in range(num_digits):
                digit = self.microbatches[:, block, int(previous)] // 10 ** (num_digits - 1 - place) % 10
                file[begins[:, None] + np.array(at) + place] = (digit + ord("0")).astype(np.uint8)[:, None]


def _joined(
    template: _Template, lengths: Sequence[int], numbers: np.ndarray, ids: np.ndarray, microbatches: np.ndarray
) -> _Part:
    """Return items whose gaps have some lengths."""
    content: list[bytes] = []
    columns: dict[int, list[tuple[int, int]]] = {}
    digits: dict[tuple[int, bool], list[int]] = {}
    of_rank: dict[Hashable, list[range]] = {}
    at, column, lengths_left = 0, 0, iter(lengths)
    for block, node in template.nodes:
        for piece, part in _pieces([node], lengths_left):
            if isinstance(part, Gap):
                if part.of_rank:
                    of_rank.setdefault(part.what, []).append(range(at, at + len(piece)))
                elif piece:
                    columns.setdefault(len(piece), []).append((column, at))
                column += 1
            elif isinstance(part, Text):
                for first, previous in part.microbatches:
                    digits.setdefault((block, previous), []).append(at + first)
            content.append(piece)
            at += len(piece)
    places = {what: np.array(ranges) for what, ranges in of_rank.items()}
    joined = np.frombuffer(b"".join(content), dtype=np.uint8)
    return _Part(numbers, joined, ids, columns, microbatches, digits, places)


def _first_name(block: Block, base: BasePass) -> BasePass:
    """Return the first name of a pass that a block refers to by several, so that a node depends on another once."""
    return next(name for name, place in block.bases.items() if place == block.bases[base])


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
            attribute("comm_type", codec.COLLECTIVES[sent.kind.upper().replace("-", "_")]) + size,
            Nested(_key(_ATTR, _LEN), [_attribute_name("pg_name"), group]),
            attribute("axis", sent.axis),
            *([attribute("panels", sent.panels)] if sent.panels > 1 else []),
            *(attribute(name, number) for name, number in zip(codec.ROUTING, sent.routing, strict=False)),
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
    # The digits of a microbatch stand together, behind ASCII alone.
    firsts = ((len(key) + text.find(mark), mark == PREVIOUS) for mark in (MICROBATCH, PREVIOUS) if mark in text)
    return Text(key + content, tuple(firsts))


def _tensors(name: str, tensors: Sequence[tuple[str, int]]) -> Text:
    """Return tensors as a list of texts; versions of one buffer, which tell nodes apart, have its name."""
    buffers = dict.fromkeys((buffer_of(tensor), size) for tensor, size in tensors)
    texts = [_text(1, text) for buffer, size in buffers for text in (buffer, str(size))]
    size = sum(len(text.content) for text in texts)
    inner = _attribute_name(name) + _key(_STRING_LIST, _LEN) + varint(size)
    content = [_key(_ATTR, _LEN) + varint(len(inner) + size) + inner]
    at, microbatches = len(content[0]), list[tuple[int, bool]]()
    for text in texts:
        microbatches += [(at + first, previous) for first, previous in text.microbatches]
        content.append(text.content)
        at += len(text.content)
    return Text(b"".join(content), tuple(microbatches))


def metadata(rank: int) -> bytes:
    """Return the first message of the file of a rank, behind its length."""
    attributes = [AttributeProto(name="rank", int64_val=rank), AttributeProto(name="generator", string_val="dsx")]
    return codec.framed(codec.GlobalMetadata(version=VERSION, attr=attributes).SerializeToString())
