"""The file of any rank of a stage: all items as bytes, in which the numbers of a rank are put in.

Items whose nodes have the same layout are written together: their bytes are copied to their places, and the gaps of all
of them are filled at once. What differs between ranks of a stage, their groups and their peers, is filled last.
"""

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.traces.codec import COMM_COLL, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE
from dsx.traces.encoding import EncodedNode, Gap, encoded
from dsx.traces.layer_nodes import MICROBATCH, OWN, PREVIOUS, BasePass, NodeReference
from dsx.traces.stage_items import Block, Item, StageItems
from dsx.traces.traced_plan import PassNodes

# Nodes of one stream run in the order of the file.
_STREAM = {COMP: 0, COMM_SEND: 1, COMM_RECV: 1, COMM_COLL: 1, MEM_LOAD: 2, MEM_STORE: 3}
_NUM_STREAMS = 4
_TAG, _RANK = "tag", "rank"


@dataclass(frozen=True, slots=True)
class RankValues:
    """What differs between the ranks of a stage."""

    groups: Mapping[Hashable, str]  # name of the rank's group, by the key of the groups
    peers: Mapping[Hashable, int]  # rank at the other end


@dataclass(frozen=True, slots=True)
class StageFile:
    """A file with gaps for the numbers of a rank, all of the same lengths."""

    content: np.ndarray  # [bytes] uint8
    groups: Mapping[Hashable, np.ndarray]  # [places, length] byte positions
    peers: Mapping[Hashable, np.ndarray]  # likewise

    def of_rank(self, values: RankValues) -> np.ndarray:
        """Return the file of a rank: `content` itself with its numbers put in, valid until the next call."""
        for key, places in self.groups.items():
            self._fill(places, values.groups[key].encode())
        for key, places in self.peers.items():
            self._fill(places, _varints(np.array([values.peers[key]]), places.shape[1])[0].tobytes())
        return self.content

    def _fill(self, places: np.ndarray, number: bytes) -> None:
        for at, byte in zip(places.T, number, strict=True):
            self.content[at] = byte


@dataclass(frozen=True, slots=True)
class _Template:
    """The nodes of an item in file order, with gaps."""

    nodes: tuple[EncodedNode, ...]
    gaps: tuple[Gap, ...]  # of all nodes, one after the other
    group_keys: tuple[Hashable, ...]
    last: tuple[int | None, ...]  # place of the last node of each stream


class StageEncoder:
    """Encodes the items of a stage; describes each kind of item once."""

    def __init__(self, items: StageItems, tensors: bool) -> None:
        self.items, self.tensors = items, tensors
        self.templates: dict[Hashable, _Template] = {}
        self._places: dict[tuple[object, ...], dict[tuple[int, int], int]] = {}
        self.of_item = [self._template(item) for item in items.items]
        self.starts = self._starts()
        self.ends = self._ends()

    @property
    def peers(self) -> list[Hashable]:
        """The keys of the ranks at the other end."""
        gaps = (gap.what for template in self.templates.values() for gap in template.gaps)
        return [*dict.fromkeys(what[1] for what in gaps if isinstance(what, tuple) and what[0] == _RANK)]

    @property
    def num_nodes(self) -> int:
        """Nodes of a file."""
        return sum(len(template.nodes) for template in self.of_item)

    def num_bytes(self, values: RankValues) -> int:
        """Return the bytes of the file for ranks whose numbers have the lengths of `values`."""
        return sum(len(part.content) * len(part.numbers) for part in self._parts(values))

    def file(self, values: RankValues) -> StageFile:
        """Return the file for ranks whose numbers have the lengths of `values`."""
        parts = self._parts(values)
        sizes = np.zeros(len(self.of_item), dtype=np.int64)
        for part in parts:
            sizes[part.numbers] = len(part.content)
        places = np.concatenate([[0], np.cumsum(sizes)])
        content = np.empty(places[-1], dtype=np.uint8)
        groups: dict[Hashable, list[np.ndarray]] = {}
        peers: dict[Hashable, list[np.ndarray]] = {}
        for part in parts:
            part.write(content, places[part.numbers], groups, peers)
        return StageFile(content, _stacked(groups), _stacked(peers))

    def _parts(self, values: RankValues) -> list["_Part"]:
        """Return the items, those of equal layout together."""
        members: dict[int, list[int]] = {}
        for number, template in enumerate(self.of_item):
            members.setdefault(id(template), []).append(number)
        return [part for numbers in members.values() for part in self._batch(numbers, values)]

    # Templates

    def _template(self, item: Item) -> _Template:
        keys = tuple((block.key, tuple(sorted(self._other_keys(block), key=repr))) for block in item.blocks)
        if keys not in self.templates:
            self.templates[keys] = self._encoded(item)
        return self.templates[keys]

    def _other_keys(self, block: Block) -> list[Hashable]:
        """Return the kinds of items that a block refers to: places of nodes differ between them."""
        found: list[Hashable] = []
        for base, (item, at) in block.bases.items():
            keys = tuple(other.key for other in self.items.items[item].blocks)
            found.append((base, keys, at, _first_name(block, base)))
        return found

    def _order(self, item: Item) -> dict[tuple[int, int], int]:
        """Return the (block, number) of the nodes of an item in the order of the file, with their places there."""
        keys = tuple(block.key for block in item.blocks)
        if keys not in self._places:
            order = _file_order([self.items.nodes[key] for key in keys], item.num_passes)
            self._places[keys] = {node: place for place, node in enumerate(order)}
        return self._places[keys]

    def _encoded(self, item: Item) -> _Template:
        nodes: list[EncodedNode] = []
        last: list[int | None] = [None] * _NUM_STREAMS
        owed = [0.0] * _NUM_STREAMS
        places = self._order(item)
        for (block, number), place in places.items():
            node = self.items.nodes[item.blocks[block].key].nodes[number]
            stream = _STREAM[node.type]
            before = last[stream]
            ctrl = Gap(("before", stream)) if before is None else Gap("own", before)
            last[stream] = place
            data = [self._gap(item, block, dep) for dep in node.data_deps]
            partner = None if node.partner is None else Gap("own", places[block, node.partner])
            once = [*dict.fromkeys(gap for gap in data if gap)]
            whole = _whole_micros(node.duration_ns, owed, stream)
            nodes.append(encoded(node, block, Gap("own", place), [ctrl], once, partner, self.tensors, whole))
        gaps = tuple(gap for node in nodes for gap in node.gaps)
        keys = tuple(key for node in nodes for key in node.group_keys)
        return _Template(tuple(nodes), gaps, keys, tuple(last))

    def _gap(self, item: Item, at: int, dep: NodeReference) -> Gap | None:
        if dep.base == OWN:
            return Gap("own", self._order(item)[at, int(dep.target)])
        block = item.blocks[at]
        place = block.bases.get(dep.base)
        if place is None:
            return None
        other = self.items.items[place[0]]
        number = self.items.nodes[other.blocks[place[1]].key].made.get(str(dep.target).replace(PREVIOUS, MICROBATCH))
        return (
            None
            if number is None
            else Gap(("id", at, _first_name(block, dep.base)), self._order(other)[place[1], number])
        )

    # Numbers of nodes

    def _starts(self) -> list[int]:
        """Return the id of the first node of each item."""
        return [*itertools.accumulate((len(template.nodes) for template in self.of_item), initial=1)][:-1]

    def _ends(self) -> np.ndarray:
        """Return the id of the last node of each stream before each item, [items, streams]; 0 if there is none."""
        found = np.zeros((len(self.of_item), _NUM_STREAMS), dtype=np.int64)
        latest = [0] * _NUM_STREAMS
        for number, template in enumerate(self.of_item):
            found[number] = latest
            for stream, last in enumerate(template.last):
                if last is not None:
                    latest[stream] = self.starts[number] + last
        return found

    def _batch(self, numbers: Sequence[int], values: RankValues) -> list["_Part"]:
        """Return the items of one template, those of equal layout together."""
        template = self.of_item[numbers[0]]
        at = np.array(numbers)
        gaps = self._values(template, numbers, values)
        lengths = _lengths(gaps)
        of_ranks = [isinstance(gap.what, tuple) and gap.what[0] == _RANK for gap in template.gaps]
        lengths[:, of_ranks] = np.maximum(lengths[:, of_ranks], 1)  # rank 0 is a rank
        group_lengths = tuple(len(values.groups[key]) for key in template.group_keys)
        distinct, which = np.unique(lengths, axis=0, return_inverse=True)
        found: list[_Part] = []
        for row, of_row in enumerate(distinct):
            chosen = np.flatnonzero(which.ravel() == row)
            digits = self._microbatches(at[chosen])
            content, layouts = _joined(template, of_row.tolist(), group_lengths)
            found.append(_Part(at[chosen], content, layouts, gaps[chosen], digits, self.items.digits))
        return found

    def _values(self, template: _Template, numbers: Sequence[int], values: RankValues) -> np.ndarray:
        """Return the value of each gap in each item, [items, gaps]; 0 where there is nothing to refer to."""
        wanted = dict.fromkeys(gap.what for gap in template.gaps)
        bases = {what: self._bases(what, numbers, values) for what in wanted}
        found = np.empty((len(numbers), len(template.gaps)), dtype=np.int64)
        for column, gap in enumerate(template.gaps):
            base = bases[gap.what]
            found[:, column] = np.where(base < 0, 0, base + gap.add)
        return found

    def _bases(self, what: Hashable, numbers: Sequence[int], values: RankValues) -> np.ndarray:
        items = self.items.items
        match what:
            case "own":
                return np.array([self.starts[number] for number in numbers])
            case ("before", int(stream)):
                found = self.ends[np.array(numbers), stream]
                return np.where(found > 0, found, -1)
            case ("id", int(block), base):
                places = [items[number].blocks[block].bases.get(base) for number in numbers]  # pyright: ignore
                return np.array([-1 if place is None else self.starts[place[0]] for place in places])
            case ("rank", peer):
                return np.full(len(numbers), values.peers[peer])
            case _:
                return np.array([items[number].tag for number in numbers])

    def _microbatches(self, numbers: np.ndarray) -> np.ndarray:
        """Return the microbatches of items, [items, blocks, 2]: their own, and the one before."""
        blocks = [self.items.items[number].blocks for number in numbers]
        return np.array([[(block.microbatch, block.previous) for block in of] for of in blocks], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Part:
    """Items of one layout."""

    numbers: np.ndarray  # [items]
    content: np.ndarray  # [bytes] of one item
    layouts: "_Places"
    gaps: np.ndarray  # [items, gaps]
    microbatches: np.ndarray  # [items, blocks, 2]
    num_digits: int

    def write(
        self,
        into: np.ndarray,
        places: np.ndarray,
        groups: dict[Hashable, list[np.ndarray]],
        peers: dict[Hashable, list[np.ndarray]],
    ) -> None:
        """Write the items at their places, and note where the gaps of a rank are."""
        size = len(self.content)
        for place in places.tolist():
            into[place : place + size] = self.content
        for length, (columns, at) in self.layouts.numbers.items():
            filled = _varints(self.gaps[:, columns], length)
            for byte in range(length):
                into[places[:, None] + (at + byte)] = filled[..., byte]
        for (block, previous, place), at in self.layouts.digits.items():
            digit = self.microbatches[:, block, int(previous)] // 10 ** (self.num_digits - 1 - place) % 10
            into[places[:, None] + at] = (digit + ord("0")).astype(np.uint8)[:, None]
        for found, own in ((groups, self.layouts.groups), (peers, self.layouts.peers)):
            for key, at in own.items():
                found.setdefault(key, []).append((places[:, None, None] + at).reshape(-1, at.shape[1]))


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the gaps of an item are, as bytes from its beginning."""

    numbers: Mapping[int, tuple[np.ndarray, np.ndarray]]  # by length: columns of the gaps, first bytes
    digits: Mapping[tuple[int, bool, int], np.ndarray]  # by block, whether of the microbatch before, and place
    groups: Mapping[Hashable, np.ndarray]  # [places, length]
    peers: Mapping[Hashable, np.ndarray]


def _joined(template: _Template, lengths: Sequence[int], group_lengths: Sequence[int]) -> tuple[np.ndarray, _Places]:
    """Return the bytes of an item, and the places of its gaps."""
    pieces: list[bytes] = []
    numbers: dict[int, tuple[list[int], list[int]]] = {}
    digits: dict[tuple[int, bool, int], list[int]] = {}
    groups: dict[Hashable, list[range]] = {}
    peers: dict[Hashable, list[range]] = {}
    at = column = group = 0
    for node in template.nodes:
        of_gaps = tuple(lengths[column : column + len(node.gaps)])
        layout = node.layout(of_gaps, tuple(group_lengths[group : group + len(node.group_keys)]))
        there = [column + index for index, length in enumerate(of_gaps) if length]
        for own, (byte, length, gap) in zip(there, layout.numbers, strict=True):
            columns, places = numbers.setdefault(length, ([], []))
            columns.append(own)
            places.append(at + byte)
            if isinstance(gap.what, tuple) and gap.what[0] == _RANK:
                peers.setdefault(gap.what[1], []).append(range(at + byte, at + byte + length))
        for byte, length, key in layout.groups:
            groups.setdefault(key, []).append(range(at + byte, at + byte + length))
        for mark in layout.digits:
            digits.setdefault((mark.block, mark.previous, mark.place), []).append(at + mark.at)
        pieces.append(layout.content)
        at += len(layout.content)
        column, group = column + len(node.gaps), group + len(node.group_keys)
    content = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    as_arrays = {length: (np.array(columns), np.array(places)) for length, (columns, places) in numbers.items()}
    return content, _Places(
        as_arrays,
        {key: np.array(places) for key, places in digits.items()},
        {key: np.array(places) for key, places in groups.items()},
        {key: np.array(places) for key, places in peers.items()},
    )


def _first_name(block: Block, base: BasePass) -> BasePass:
    """Return the first name of a pass that a block refers to by several, so that a node depends on another once."""
    return next(name for name, place in block.bases.items() if place == block.bases[base])


def _file_order(each: Sequence[PassNodes], num_passes: int) -> list[tuple[int, int]]:
    """Return (block, number) of the nodes of an item in the order of the file.

    Two passes that run side by side take turns at each collective that hides behind the other pass. Blocks after the
    passes come before the last layer of the first pass.
    """
    runs: list[list[list[tuple[int, int]]]] = []
    for block, of_pass in enumerate(each[:num_passes]):
        runs.append([[]])
        for number, node in enumerate(of_pass.nodes):
            runs[-1][-1].append((block, number))
            if num_passes > 1 and node.type == COMM_COLL and node.overlap == 1.0 and node.partner is None:
                runs[-1].append([])
    found: list[tuple[int, int]] = []
    for turn in range(max(map(len, runs))):
        for of_block in runs:
            found += of_block[turn] if turn < len(of_block) else []
    more = [(num_passes + at, number) for at, of in enumerate(each[num_passes:]) for number in range(len(of.nodes))]
    ahead = (0, each[0].ahead)
    at = found.index(ahead) if ahead in found else len(found)
    return [*found[:at], *more, *found[at:]]


def _lengths(values: np.ndarray) -> np.ndarray:
    """Return the bytes of each whole number as a varint; 0 for 0, which stands for nothing."""
    found = np.zeros(values.shape, dtype=np.int64)
    left = values.copy()
    while left.any():
        found += left > 0
        left >>= 7
    return found


def _varints(values: np.ndarray, length: int) -> np.ndarray:
    """Return whole numbers as varints of `length` bytes, [..., length]."""
    shifts = 7 * np.arange(length)
    more = np.where(np.arange(length) < length - 1, 0x80, 0)
    return ((values[..., None] >> shifts & 0x7F) | more).astype(np.uint8)


def _stacked(found: Mapping[Hashable, list[np.ndarray]]) -> dict[Hashable, np.ndarray]:
    return {key: np.concatenate(parts) for key, parts in found.items()}


def _whole_micros(duration_ns: float | None, owed: list[float], stream: int) -> int:
    """Return the whole microseconds of a node, at least 1, and carry what they leave out to the next of its stream.

    `owed` are the microseconds that earlier nodes of each stream have left out, which rounding alone would bias.
    """
    exact = owed[stream] + (duration_ns or 0.0) / 1000.0
    whole = max(round(exact), 1)
    owed[stream] = exact - whole
    return whole
