"""The file of any rank of a stage: all items as bytes, in which the numbers of a rank are put in.

Items whose nodes have the same layout are written together: their bytes are copied to their places, and the gaps of all
of them are filled at once. What differs between ranks of a stage, their groups and their peers, is filled last.
"""

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.traces.codec import COMM_COLL, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE
from dsx.traces.encoding import PEER, EncodedNode, Gap, References, encoded
from dsx.traces.node_builder import MICROBATCH, OWN, PREVIOUS, BasePass, NodeReference, PassNodes
from dsx.traces.stage_items import Block, Item, StageItems

# Nodes of one stream run in the order of the file.
_STREAM = {COMP: 0, COMM_SEND: 1, COMM_RECV: 1, COMM_COLL: 1, MEM_LOAD: 2, MEM_STORE: 3}
_NUM_STREAMS = 4

RankValues = Mapping[Hashable, bytes]  # what differs between the ranks of a stage, by `Gap.what`


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

    nodes: tuple[EncodedNode, ...]
    gaps: tuple[Gap, ...]  # of all nodes, one after the other
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
            order = _file_order([self.stage.nodes[key] for key in keys], item.num_passes)
            self._places[keys] = {node: place for place, node in enumerate(order)}
        return self._places[keys]

    def _encoded(self, item: Item) -> _Template:
        nodes: list[EncodedNode] = []
        last: list[int | None] = [None] * _NUM_STREAMS
        owed = [0.0] * _NUM_STREAMS  # microseconds that earlier nodes of each stream left out
        places = self._order(item)
        for (block, number), place in places.items():
            node = self.stage.nodes[item.blocks[block].key].nodes[number]
            stream = _STREAM[node.type]
            previous = last[stream]
            references = References(
                number=Gap("own", place),
                previous=Gap(("before", stream)) if previous is None else Gap("own", previous),
                data=[*dict.fromkeys(gap for dep in node.data_deps if (gap := self._gap(item, block, dep)))],
                partner=None if node.partner is None else Gap("own", places[block, node.partner]),
            )
            last[stream] = place
            # Rounding alone would bias the sum of whole microseconds, so what it leaves out is carried on.
            exact = owed[stream] + (node.duration_ns or 0.0) / 1000.0
            micros = max(round(exact), 1)
            owed[stream] = exact - micros
            nodes.append(encoded(node, block, references, micros, self.tensors))
        return _Template(tuple(nodes), tuple(gap for node in nodes for gap in node.gaps), tuple(last))

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
    digits: Mapping[tuple[int, bool, int], list[int]]  # by block, whether of the microbatch before, and place
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
        for (block, previous, place), at in self.digits.items():
            digit = self.microbatches[:, block, int(previous)] // 10 ** (num_digits - 1 - place) % 10
            file[begins[:, None] + np.array(at)] = (digit + ord("0")).astype(np.uint8)[:, None]


def _joined(
    template: _Template, lengths: Sequence[int], numbers: np.ndarray, ids: np.ndarray, microbatches: np.ndarray
) -> _Part:
    """Return items whose gaps have some lengths."""
    pieces: list[bytes] = []
    columns: dict[int, list[tuple[int, int]]] = {}
    digits: dict[tuple[int, bool, int], list[int]] = {}
    of_rank: dict[Hashable, list[range]] = {}
    at = column = 0
    for node in template.nodes:
        layout = node.layout(tuple(lengths[column : column + len(node.gaps)]))
        for gap, (byte, length) in zip(node.gaps, layout.gaps, strict=True):
            if gap.of_rank:
                of_rank.setdefault(gap.what, []).append(range(at + byte, at + byte + length))
            elif length:
                columns.setdefault(length, []).append((column, at + byte))
            column += 1
        for digit in layout.digits:
            digits.setdefault((node.block, digit.previous, digit.place), []).append(at + digit.at)
        pieces.append(layout.content)
        at += len(layout.content)
    content = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    places = {what: np.array(ranges) for what, ranges in of_rank.items()}
    return _Part(numbers, content, ids, columns, microbatches, digits, places)


def _first_name(block: Block, base: BasePass) -> BasePass:
    """Return the first name of a pass that a block refers to by several, so that a node depends on another once."""
    return next(name for name, place in block.bases.items() if place == block.bases[base])


def _file_order(blocks: Sequence[PassNodes], num_passes: int) -> list[tuple[int, int]]:
    """Return (block, number) of the nodes of an item in the order of the file.

    Two passes that run side by side take turns at each collective that hides behind the other pass. Blocks after the
    passes come before the last layer of the first pass.
    """
    turns: list[list[list[tuple[int, int]]]] = []
    for block, of_pass in enumerate(blocks[:num_passes]):
        turns.append([[]])
        for number, node in enumerate(of_pass.nodes):
            turns[-1][-1].append((block, number))
            if num_passes > 1 and node.type == COMM_COLL and node.overlap == 1.0 and node.partner is None:
                turns[-1].append([])
    order = [node for turn in itertools.zip_longest(*turns, fillvalue=[]) for of_pass in turn for node in of_pass]
    gathers = [(at, number) for at in range(num_passes, len(blocks)) for number in range(len(blocks[at].nodes))]
    ahead = (0, blocks[0].ahead)
    at = order.index(ahead) if ahead in order else len(order)
    return [*order[:at], *gathers, *order[at:]]
