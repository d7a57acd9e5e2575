"""Cells: the group of each candidate of a chunk, found by a sum.

In a block each key goes with each choice. So its keys of one code and its choices of one code form a rectangle, a cell,
and all candidates of a cell are in one group. Cells are far fewer than candidates: group numbers are looked up per
cell, and a candidate needs only a sum.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dsx.search.blockwise.tiles import Groups
from dsx.space.blocks import Blocks, Segments
from dsx.space.enumerate import changes

COUNTED = 1 << 22  # groups; counting stops beyond


@dataclass(frozen=True, slots=True)
class Cells:
    """The C cells of some blocks. The cell of a candidate is the sum of the numbers of its key and its choice.

    Attributes:
        of_key: [K] per key, in the order of the blocks.
        of_choice: [N] per choice, in the order of the blocks.
        code: [C] code of the group.
    """

    of_key: np.ndarray
    of_choice: np.ndarray
    code: np.ndarray


def cells_of(blocks: Blocks, groups: Groups, low: int, high: int, segments: Segments | None = None) -> Cells:
    """Return the cells of the blocks from `low` up to `high`, in the order of the blocks.

    With `segments` of these blocks, they are the cells of their choices.
    """
    segments = segments or blocks.segments(low, high)
    # A segment is of one block, and its choices differ only in columns of the batch.
    parts = segments.per_choice() if groups.splits_slices else segments
    choice = _Parts.made(parts.block - low, groups.of_segments(blocks, parts), high - low)
    of_choice = choice.number if groups.splits_slices else np.repeat(choice.number, segments.length)
    block = np.repeat(np.arange(high - low), np.diff(blocks.first_key[low : high + 1]))
    key = _Parts.made(block, groups.of_key[blocks.keys[blocks.first_key[low] : blocks.first_key[high]]], high - low)
    cells = key.count * choice.count
    first = np.cumsum(cells) - cells
    row, column = _rectangles(key.count, choice.count)
    return Cells(
        of_key=(first[block] + key.number * choice.count[block]).astype(np.int32),
        of_choice=of_choice.astype(np.int32),
        code=key.code[row] + choice.code[column],
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The distinct codes of each of B blocks, in the order of the blocks, and their numbers."""

    number: np.ndarray  # [N] number of the code within its block
    code: np.ndarray  # [P] distinct codes
    count: np.ndarray  # [B] distinct codes of each block

    @classmethod
    def made(cls, block: np.ndarray, code: np.ndarray, num_blocks: int) -> "_Parts":
        order = np.lexsort((code, block))
        new = changes(block[order], code[order])
        count = np.bincount(block[order][new], minlength=num_blocks)
        first = np.cumsum(count) - count
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.cumsum(new) - 1
        return cls(number - first[block], code[order][new], count)


def _rectangles(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns of all cells of B rectangles; both count over all rectangles."""
    widths = np.repeat(columns, rows)
    row = np.repeat(np.arange(len(widths)), widths)
    begins = np.repeat(np.cumsum(columns) - columns, rows) - (np.cumsum(widths) - widths)
    return row, np.arange(len(row)) + begins[row]


def group_codes(blocks: Blocks, groups: Groups, ranges: Iterable[tuple[int, int]]) -> np.ndarray:
    """Return the sorted group codes of some ranges of blocks; stops soon after `COUNTED` codes."""
    known = np.zeros(0, dtype=np.int64)
    new: list[np.ndarray] = []
    for low, high in ranges:
        new.append(_distinct(cells_of(blocks, groups, low, high).code))
        # New codes are merged once they are as many as the known ones. So a code is sorted only a few times in all.
        if sum(map(len, new)) > len(known):
            known, new = _distinct(np.concatenate([known, *new])), []
        if len(known) > COUNTED:
            return known
    return _distinct(np.concatenate([known, *new]))


def _distinct(codes: np.ndarray) -> np.ndarray:
    """Return the distinct codes, sorted. A sort is several times as fast here as the hash table of NumPy."""
    codes = np.sort(codes)
    return codes[changes(codes)]
