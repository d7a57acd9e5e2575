"""Tiles: blocks are divided into tiles of one shape, so that the hot loop is compiled once.

A tile is KEYS keys times a slice of up to CHOICES choices of one group. Its shape is a compromise: wide enough for
vector instructions, and small enough that blocks of few keys and short slices waste little. A bundle is TILES tiles,
which are priced together. A call has BUNDLES bundles.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.arrays import PlanInts
from dsx.plans.blocks import Blocks, ChoiceSegments
from dsx.plans.choices import KEY_COLUMNS, PLACEMENT_COLUMNS
from dsx.plans.enumerate import Keys
from dsx.plans.placement import all_divisors
from dsx.records import Int, Over

KEYS, CHOICES = 8, 64
TILES, BUNDLES = 256, 32
PADDING = -1
_CHUNK = 1 << 17  # choices of a chunk, unless one block has more


_InRows = Int[np.ndarray, "rows slots"]  # of KEYS keys


class KeyRows:
    """The keys of each block in rows of KEYS keys.

    Attributes:
        keys: positions in the key table, in rows; PADDING after the last key of a block.
        first: first row of each block, and the end.
    """

    def __init__(self, blocks: Blocks) -> None:
        num_keys = np.diff(blocks.first_key)
        num_rows = -(-num_keys // KEYS)
        self.first = np.concatenate([[0], np.cumsum(num_rows)])
        block = np.repeat(np.arange(len(blocks)), num_keys)
        self._where = np.arange(len(blocks.keys)) - blocks.first_key[block] + KEYS * self.first[block]
        self._first_key = blocks.first_key
        self.keys = self.of_keys(blocks.keys, 0, len(blocks), PADDING)

    def of_keys(self, values: Int[np.ndarray, "keys"], low: int, high: int, padding: int) -> _InRows:
        """Return values of the keys of the blocks from `low` up to `high` in rows."""
        rows = np.full((self.first[high] - self.first[low], KEYS), padding, dtype=np.int32)
        here = self._where[self._first_key[low] : self._first_key[high]]
        rows.ravel()[here - KEYS * self.first[low]] = values
        return rows


class Groups:
    """The groups of equal columns `per`, as codes. A code is the sum of a part of the key and a part of the choice.

    Attributes:
        of_key: the part of each key.
        span: the upper bound of codes, exclusive.
        batches: the codes of one placement, which differ in columns of the batch.
        choices: the codes of choices. Those of keys are multiples of it.
        of_keys: whether keys of one block may belong to several groups.
    """

    def __init__(self, keys: Keys, blocks: Blocks, per: Sequence[str]) -> None:
        self.choice_columns = [name for name in per if name not in KEY_COLUMNS]
        placed = [PLACEMENT_COLUMNS.index(name) for name in self.choice_columns if name in PLACEMENT_COLUMNS]
        # Placements are stored one by one, so there are at most as many codes as placements.
        self._of_placement = dense_codes([blocks.placements[row] for row in placed], blocks.placements.shape[1])
        rest = [name for name in self.choice_columns if name not in PLACEMENT_COLUMNS]
        self._values = {name: _values(name, blocks) for name in rest}
        self.batches = math.prod(map(len, self._values.values()))
        choices = self.batches * _count(self._of_placement)
        of_key = dense_codes([keys[name] for name in per if name in KEY_COLUMNS], len(keys["tp"]))
        self.choices = choices
        self.of_key = of_key * choices
        self.span = choices * _count(of_key)
        self.of_keys = bool(self.of_key.any())

    @property
    def splits_slices(self) -> bool:
        """Whether the batch sizes of one placement may belong to several groups."""
        return any(name not in PLACEMENT_COLUMNS for name in self.choice_columns)

    def of_placements(self, placement: Int[np.ndarray, "placements"]) -> Int[np.ndarray, "placements"]:
        """Return the first code of the choices of placements; each has `batches` of them."""
        return self._of_placement[placement] * self.batches

    def of_segments(self, blocks: Blocks, segments: ChoiceSegments) -> Int[np.ndarray, "segments"]:
        """Return the part of the code that all choices of a segment have."""
        batch = blocks.batches[segments.first] if self._values else segments.first
        return self.of_choices(blocks, segments.placement, batch, segments.block)

    def of_choices(self, blocks: Blocks, placement: PlanInts, batch: PlanInts, block: PlanInts) -> PlanInts:
        """Return the part of the code of choices of blocks."""
        code = self._of_placement[placement]
        if self._values:
            made = blocks.choices_at(placement, batch, blocks.microbatch_size[block])
            for name, values in self._values.items():
                code = code * len(values) + np.searchsorted(values, made[name])
        return code


def dense_codes(columns: Sequence[Int[np.ndarray, "{count}"]], count: int) -> Int[np.ndarray, "{count}"]:
    """Return dense codes of `count` rows; rows that are equal in all columns have one code."""
    codes = np.zeros(count, dtype=np.int64)
    for column in columns:
        values, which = np.unique(column, return_inverse=True)
        # Codes are made dense after each column, so that the product of many columns does not overflow.
        codes = np.unique(codes * len(values) + which, return_inverse=True)[1]
    return codes


def _count(codes: Int[np.ndarray, "rows"]) -> int:
    return int(codes.max(initial=0)) + 1


def _values(column: str, blocks: Blocks) -> Int[np.ndarray, "values"]:
    """Return the possible values of a column of the batch, in increasing order; at least one."""
    if column == "global_batch_size":
        found = blocks.batches
    else:
        found = all_divisors([1, *np.unique(blocks.batches).tolist()])
    return np.unique(found) if len(found) else np.zeros(1, dtype=np.int64)


_InSlices = Int[np.ndarray, "chosen width"]  # of CHOICES choices


@dataclass(frozen=True, slots=True)
class Chunk:
    """The choices of some blocks in slices, and the tiles that cover all of their candidates."""

    placement: Int[np.ndarray, "choices"]  # column of `Blocks.placements`
    global_batch_size: Int[np.ndarray, "choices"]
    start: Int[np.ndarray, "slices"]  # first choice of a slice
    length: Int[np.ndarray, "slices"]  # choices of the slice, at most CHOICES
    microbatch_size: Int[np.ndarray, "slices"]
    group: Int[np.ndarray, "slices"]  # the part of the group code of its choices
    row: Int[np.ndarray, "tiles"]  # row of `KeyRows.keys`
    slices: Int[np.ndarray, "tiles"]  # slice
    size: int  # candidates
    segments: ChoiceSegments  # of its choices, in the same order

    @property
    def blocks(self) -> tuple[int, int]:
        """The first block, and the end."""
        return int(self.segments.block[0]), int(self.segments.block[-1]) + 1

    def choices(self, slices: Int[np.ndarray, "chosen"]) -> tuple[_InSlices, _InSlices]:
        """Return (placement, global_batch_size) of some slices; the last choice is repeated."""
        where = self.positions(slices)
        return self.placement[where], self.global_batch_size[where]

    def positions(self, slices: Int[np.ndarray, "chosen"]) -> _InSlices:
        """Return the positions of the choices of some slices; the last choice is repeated."""
        return self.start[slices, None] + np.minimum(np.arange(CHOICES), self.length[slices, None] - 1)


def block_ranges(blocks: Blocks, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the range of blocks of each chunk, from `low` up to `high`."""
    ends = np.cumsum(blocks.num_choices[low:high])
    start = done = 0
    while start < high - low:
        stop = max(start + 1, int(np.searchsorted(ends, done + _CHUNK, side="right")))
        yield low + start, low + stop
        start, done = stop, int(ends[stop - 1])


def joined_segments(parts: Iterable[ChoiceSegments]) -> Iterator[ChoiceSegments]:
    """Yield some parts together, as long as they have no more choices than a chunk; empty ones are left out."""
    together: list[ChoiceSegments] = []
    done = 0
    for part in parts:
        count = int(part.length.sum())
        if together and done + count > _CHUNK:
            yield _in_order(together)
            together, done = [], 0
        if count:
            together, done = [*together, part], done + count
    if together:
        yield _in_order(together)


def _in_order(parts: Sequence[ChoiceSegments]) -> ChoiceSegments:
    """Return parts of different blocks together, in the order of the blocks."""
    return ChoiceSegments.together(sorted(parts, key=lambda part: int(part.block[0])))


def make_chunk(blocks: Blocks, rows: KeyRows, groups: Groups, segments: ChoiceSegments) -> Over[Chunk, "..."]:
    """Return the chunk of some segments, at least one, in the order of the blocks.

    Each slice has choices of one group.
    """
    if groups.splits_slices:
        segments = segments.per_choice()
    code = groups.of_segments(blocks, segments)
    same_block = np.diff(segments.block) == 0
    if (same_block & (np.diff(code) < 0)).any():
        order = np.lexsort((code, segments.block))
        segments, code = segments.take(order), code[order]
    borders = np.flatnonzero(~same_block | (np.diff(code) != 0)) + 1
    first = np.concatenate([[0], borders])  # [G] first segment of each group of a block
    count = np.add.reduceat(segments.length, first)  # [G] choices
    num_slices = -(-count // CHOICES)
    within = np.arange(num_slices.sum()) - np.repeat(np.cumsum(num_slices) - num_slices, num_slices)
    start = np.repeat(np.cumsum(count) - count, num_slices) + within * CHOICES
    length = np.minimum(np.repeat(count, num_slices) - within * CHOICES, CHOICES)
    block = np.repeat(segments.block[first], num_slices)
    height = rows.first[block + 1] - rows.first[block]  # [M] rows of keys
    row = np.arange(height.sum()) - np.repeat(np.cumsum(height) - height, height)
    row += np.repeat(rows.first[block], height)
    return Chunk(
        placement=np.repeat(segments.placement.astype(np.int32), segments.length),
        global_batch_size=blocks.batches[segments.positions()].astype(np.int32),
        start=start.astype(np.int32),
        length=length.astype(np.int32),
        microbatch_size=blocks.microbatch_size[block].astype(np.int32),
        group=np.repeat(code[first], num_slices),
        row=row.astype(np.int32),
        slices=np.repeat(np.arange(len(length), dtype=np.int32), height),
        size=int((segments.length * np.diff(blocks.first_key)[segments.block]).sum()),
        segments=segments,
    )
