"""Blocks cut into strips of one shape, so that everything that consumes them is compiled once.

A strip is KEYS keys times a run of up to CHOICES choices of one group. The shape is a compromise of the hot
loop: wide enough to be vectorised, small enough that blocks of few keys and short runs waste little. Strips
are priced STRIPS at a time (a tile), TILES tiles in one call.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.space.blocks import PLACEMENT_COLUMNS, Blocks, Segments
from dsx.space.enumerate import KEY_COLUMNS, Arrays, all_divisors

KEYS, CHOICES = 8, 64
STRIPS, TILES = 1024, 8
PADDING = -1
_CHUNK = 1 << 17  # choices of a chunk, unless one block has more


class KeyRows:
    """The keys of each block in rows of KEYS.

    Attributes:
        keys: [R, KEYS] positions in the key table; PADDING behind the last key of a block.
        first: [B+1] where the rows of a block begin.
    """

    def __init__(self, blocks: Blocks) -> None:
        num_keys = np.diff(blocks.first_key)
        num_rows = -(-num_keys // KEYS)
        self.first = np.concatenate([[0], np.cumsum(num_rows)])
        self.keys = np.full((self.first[-1], KEYS), PADDING, dtype=np.int32)
        block = np.repeat(np.arange(len(blocks)), num_keys)
        where = np.arange(len(blocks.keys)) - blocks.first_key[block] + KEYS * self.first[block]
        self.keys.ravel()[where] = blocks.keys


class Groups:
    """The groups of equal `per` columns, as codes: a part for the key and a part for the choice, added.

    Attributes:
        of_key: [U] the key's part.
        span: codes are less than this.
        of_keys: whether keys of one block may belong to several groups.
    """

    def __init__(self, keys: Arrays, blocks: Blocks, per: Sequence[str]) -> None:
        self.choice_columns = [name for name in per if name not in KEY_COLUMNS]
        self._values = [_values(name, blocks) for name in self.choice_columns]
        of_key = [keys[name] for name in per if name in KEY_COLUMNS]
        self.of_key = np.zeros(len(keys["tp"]), dtype=np.int64)
        if of_key:
            self.of_key = np.unique(np.stack(of_key), axis=1, return_inverse=True)[1].ravel()
        choices = math.prod(map(len, self._values))
        self.of_key *= choices
        self.span = choices * (int(self.of_key.max(initial=0)) // choices + 1)
        self.of_keys = bool(self.of_key.any())

    @property
    def splits_runs(self) -> bool:
        """Return whether the batch sizes of one placement belong to several groups."""
        return any(name not in PLACEMENT_COLUMNS for name in self.choice_columns)

    def of_segments(self, blocks: Blocks, segments: Segments) -> np.ndarray:
        """Return the choice's part of the code of each segment, [S]; all choices of a segment have it."""
        code = np.zeros(len(segments.block), dtype=np.int64)
        for name, values in zip(self.choice_columns, self._values, strict=True):
            if name in PLACEMENT_COLUMNS:
                # There are far fewer placements than segments.
                of_placement = np.searchsorted(values, blocks.placements[PLACEMENT_COLUMNS.index(name)])
                code = code * len(values) + of_placement[segments.placement]
            else:
                first = Segments(segments.block, segments.placement, segments.first, np.ones_like(segments.length))
                code = code * len(values) + np.searchsorted(values, blocks.choices(first)[name])
        return code


def _values(column: str, blocks: Blocks) -> np.ndarray:
    """Return the values that a column of the choice may take, in increasing order; at least one."""
    if column in PLACEMENT_COLUMNS:
        found = blocks.placements[PLACEMENT_COLUMNS.index(column)]
    elif column == "global_batch_size":
        found = blocks.batches
    else:
        found = all_divisors([1, *np.unique(blocks.batches).tolist()])
    return np.unique(found) if len(found) else np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The N choices of some blocks, in M runs, and the S strips that cover the blocks' candidates."""

    placement: np.ndarray  # [N] column of `Blocks.placements`
    global_batch_size: np.ndarray  # [N]
    start: np.ndarray  # [M] first choice of a run
    length: np.ndarray  # [M] choices of the run, at most CHOICES
    microbatch_size: np.ndarray  # [M]
    group: np.ndarray  # [M] the choice's part of the group's code
    row: np.ndarray  # [S] of `KeyRows.keys`
    run: np.ndarray  # [S]
    size: int  # candidates

    def choices(self, runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (placement, global_batch_size) of [R] runs, [R, CHOICES], the last one repeated."""
        where = self.start[runs, None] + np.minimum(np.arange(CHOICES), self.length[runs, None] - 1)
        return self.placement[where], self.global_batch_size[where]


def block_ranges(blocks: Blocks, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of blocks between `low` and `high` that are a chunk each."""
    ends = np.cumsum(blocks.num_choices[low:high])
    start = done = 0
    while start < high - low:
        stop = max(start + 1, int(np.searchsorted(ends, done + _CHUNK, side="right")))
        yield low + start, low + stop
        start, done = stop, int(ends[stop - 1])


def make_chunk(blocks: Blocks, rows: KeyRows, groups: Groups, low: int, high: int) -> Chunk:
    """Return the chunk of the blocks from `low` up to `high`; no run has choices of two groups."""
    segments = blocks.segments(low, high)
    if groups.splits_runs:
        segments = segments.singly()
    code = groups.of_segments(blocks, segments)
    same_block = np.diff(segments.block) == 0
    if (same_block & (np.diff(code) < 0)).any():
        order = np.lexsort((code, segments.block))
        segments, code = segments.take(order), code[order]
    borders = np.flatnonzero(~same_block | (np.diff(code) != 0)) + 1
    first = np.concatenate([[0], borders])  # [G] first segment of each group's stretch
    stretch = np.add.reduceat(segments.length, first)
    pieces = -(-stretch // CHOICES)
    within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = np.repeat(np.cumsum(stretch) - stretch, pieces) + within * CHOICES
    length = np.minimum(np.repeat(stretch, pieces) - within * CHOICES, CHOICES)
    block = np.repeat(segments.block[first], pieces)
    tall = rows.first[block + 1] - rows.first[block]
    row = np.arange(tall.sum()) - np.repeat(np.cumsum(tall) - tall, tall) + np.repeat(rows.first[block], tall)
    return Chunk(
        placement=np.repeat(segments.placement.astype(np.int32), segments.length),
        global_batch_size=blocks.batches[segments.positions()].astype(np.int32),
        start=start.astype(np.int32),
        length=length.astype(np.int32),
        microbatch_size=blocks.microbatch_size[block].astype(np.int32),
        group=np.repeat(code[first], pieces),
        row=row.astype(np.int32),
        run=np.repeat(np.arange(len(length), dtype=np.int32), tall),
        size=int(blocks.first_candidate[high] - blocks.first_candidate[low]),
    )
