"""Contenders: the few slices of smallest value of each group, kept while a space streams through.

A slice has choices of one key, a single choice if groups are many. Equal values are ordered by key and choice, so the
kept slices do not depend on which device was faster. New slices are merged once they are as many as the kept ones, and
only their groups are sorted again. So a slice is sorted only a few times in all. Memory holds the kept slices, and one
number per group.

In a block each key goes with each choice. So its keys of one code and its choices of one code form a rectangle, a cell,
and all candidates of a cell are in one group. Cells are far fewer than candidates: group numbers are looked up per
cell, and a candidate needs only a sum.

If groups are few, the choices of a slice belong to one group, and only the smallest value of a slice leaves the hot
loop, so this is as fast as pricing. The k best candidates of a group are in its k slices of smallest value. If groups
are many, slices are short and most of such a tile would be empty. Then slices have choices of many groups, and all
values leave the hot loop. One look-up and one comparison per value decide whether it may be kept. Of the remaining
values of a call, only the `count` smallest of each cell are kept, because a new group has no kept values to compare
with.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.arrays import Chosen
from dsx.plans.blocks import Blocks, ChoiceSegments
from dsx.plans.enumerate import changes
from dsx.records import Bool, Float, Int, Over, Shaped
from dsx.search.ranking import ranks
from dsx.search.tiles.hot import HotLoop, minima, values
from dsx.search.tiles.tiles import Chunk, Groups

COUNTED = 1 << 22  # groups; counting stops beyond
_PerSlice = Int[np.ndarray, "slices"]


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of some blocks. The cell of a candidate is the sum of the numbers of its key and its choice."""

    of_key: Int[np.ndarray, "keys"]  # in the order of the blocks
    of_choice: Int[np.ndarray, "choices"]  # in the order of the blocks
    code: Int[np.ndarray, "cells"]  # of the group


def cells_of(blocks: Blocks, groups: Groups, low: int, high: int, segments: ChoiceSegments | None = None) -> Cells:
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
    """The distinct codes of each of some blocks, in the order of the blocks, and their numbers."""

    number: Int[np.ndarray, "parts"]  # number of the code within its block
    code: Int[np.ndarray, "codes"]  # distinct ones
    count: Int[np.ndarray, "blocks"]  # distinct codes of each block

    @classmethod
    def made(cls, block: Int[np.ndarray, "parts"], code: Int[np.ndarray, "parts"], num_blocks: int) -> "_Parts":
        order = np.lexsort((code, block))
        new = changes(block[order], code[order])
        count = np.bincount(block[order][new], minlength=num_blocks)
        first = np.cumsum(count) - count
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.cumsum(new) - 1
        return cls(number - first[block], code[order][new], count)


def _rectangles(
    rows: Int[np.ndarray, "rectangles"], columns: Int[np.ndarray, "rectangles"]
) -> tuple[Int[np.ndarray, "cells"], Int[np.ndarray, "cells"]]:
    """Return the rows and columns of all cells of rectangles; both count over all rectangles."""
    widths = np.repeat(columns, rows)
    row = np.repeat(np.arange(len(widths)), widths)
    begins = np.repeat(np.cumsum(columns) - columns, rows) - (np.cumsum(widths) - widths)
    return row, np.arange(len(row)) + begins[row]


def group_codes(blocks: Blocks, groups: Groups, ranges: Iterable[tuple[int, int]]) -> Int[np.ndarray, "codes"]:
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


def _distinct(codes: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "codes"]:
    """Return the distinct codes, sorted. A sort is several times as fast here as the hash table of NumPy."""
    codes = np.sort(codes)
    return codes[changes(codes)]


@dataclass(frozen=True, slots=True)
class Contenders:
    """Slices that may hold a winner, of up to some choices of one key each, with the smallest value of each slice."""

    group: _PerSlice  # number of the group, over all hardware points
    value: Float[np.ndarray, "slices"]  # positive
    point: _PerSlice  # hardware point
    key: _PerSlice
    placement: Int[np.ndarray, "slices width"]
    global_batch_size: Int[np.ndarray, "slices width"]
    length: _PerSlice

    def __len__(self) -> int:
        return len(self.group)

    def take(self, where: Shaped[np.ndarray, "chosen"] | slice) -> "Contenders":
        """Return some of the slices."""
        return Contenders(*(getattr(self, name)[where] for name in Contenders.__dataclass_fields__))

    def leading(self, count: int) -> "Contenders":
        """Return the `count` slices of smallest value of each group, sorted."""
        first = (self.placement[:, 0], self.global_batch_size[:, 0])
        return self.take(leading(self.group, self.value, self.key, first, count))


def together(parts: Sequence[Over[Contenders, "..."]]) -> Contenders:
    """Return the slices of several parts as one."""
    names = Contenders.__dataclass_fields__
    return Contenders(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def leading(
    group: _PerSlice,
    value: Float[np.ndarray, "slices"],
    key: _PerSlice,
    first: tuple[_PerSlice, _PerSlice],
    count: int,
) -> Chosen:
    """Return the positions of the `count` smallest values of each group, sorted.

    Equal values are ordered by key and by `first`, the first choice of a slice.
    """
    code = packed(group, value)
    order = np.argsort(code)
    code = code[order]
    tied = np.zeros(len(code) + 1, dtype=bool)
    tied[1:-1] = code[1:] == code[:-1]
    (equal,) = np.nonzero(tied[1:] | tied[:-1])
    here = order[equal]
    order[equal] = here[np.lexsort((*(part[here] for part in reversed(first)), key[here], value[here], code[equal]))]
    return order[ranks(group[order]) < count]


def packed(group: _PerSlice, value: Float[np.ndarray, "slices"]) -> Shaped[np.ndarray, "slices"]:
    """Return words in the order of group and float32 value; positive floats have the order of their bits.

    One sort of words is several times as fast as a sort by two columns.
    """
    return group.astype(np.uint64) << np.uint64(32) | value.astype(np.float32).view(np.uint32)


class KeptSlices:
    """The `count` slices of smallest value so far, of each group.

    Attributes:
        worst: the largest value of each group that may still be kept. It only falls: a thread that reads it during a
            change passes a few slices too many, and never one too few.
    """

    def __init__(self, num_groups: int, count: int, dtype: type) -> None:
        self.worst = np.full(num_groups, np.finfo(dtype).max, dtype=dtype)
        self._count = count
        self._kept: Contenders | None = None
        self._new: list[Contenders] = []

    def add(self, found: Contenders) -> None:
        """Add new slices."""
        self._new.append(found)
        if sum(map(len, self._new)) >= (len(self._kept) if self._kept else 0):
            self._merge()

    def slices(self) -> Contenders | None:
        """Return the kept slices, sorted by group and value; None if none were added."""
        self._merge()
        return None if self._kept is None else self._kept.leading(self._count)

    def _merge(self) -> None:
        if not self._new:
            return
        new = together(self._new)
        self._new = []
        untouched = None
        if self._kept is not None:
            touched = np.zeros(len(self.worst), dtype=bool)
            touched[new.group] = True
            touched = touched[self._kept.group]
            untouched = self._kept.take(~touched)
            new = together([self._kept.take(touched), new])
        new = new.leading(self._count)
        full = ranks(new.group) == self._count - 1
        self.worst[new.group[full]] = new.value[full]
        self._kept = together([untouched, new]) if untouched is not None else new


_Contenders = list[Over[Contenders, "..."]]
_PerGroup = Float[np.ndarray, "groups"]


class FewGroups:
    """Finds the contenders of a chunk. A group is a hardware point and a group code of the hot loop."""

    def __init__(self, hot: HotLoop, objective: str, count: int) -> None:
        self.hot, self._objective, self._count = hot, objective, count
        self.num_groups = hot.problem.num_points * hot.groups.span

    def contenders(self, device: Any, chunk: Over[Chunk, "..."], worst: _PerGroup) -> tuple[_Contenders, int]:
        """Return the slices of a chunk that may hold a winner, and the number of its feasible candidates.

        `worst` is the largest value of each group that may still be kept. The device must be the default device.
        """
        # All calls are dispatched before the first result is read.
        calls = [(tiles, minima(*call, self._objective)) for tiles, *call in self.hot.calls(device, chunk)]
        found = [self._of_tiles(chunk, tiles, np.asarray(least), worst) for tiles, (least, _) in calls]
        return found, sum(int(np.asarray(fitting).sum(dtype=np.float64)) for _, (_, fitting) in calls)

    def _of_tiles(
        self,
        chunk: Over[Chunk, "..."],
        tiles: slice,
        least: Float[np.ndarray, "points bundles tiles slots"],
        worst: _PerGroup,
    ) -> Contenders:
        """Return the contenders in some tiles; `least` has their minima."""
        hot = self.hot
        points, keys = len(least), hot.rows.keys[chunk.row[tiles]]
        least = least.reshape(points, -1, least.shape[-1])[:, : len(keys)]
        code = np.arange(points)[:, None, None] * hot.groups.span + chunk.group[chunk.slices[tiles]][None, :, None]
        if hot.groups.of_keys:
            code = code + hot.groups.of_key[keys]
        point, tile, slot = np.nonzero(least <= worst[code])
        group, value = np.broadcast_to(code, least.shape)[point, tile, slot], least[point, tile, slot]
        key, chosen_slice = keys[tile, slot].astype(np.int64), chunk.slices[tile + tiles.start]
        first = (chunk.placement[chunk.start[chosen_slice]], chunk.global_batch_size[chunk.start[chosen_slice]])
        chosen = leading(group, value, key, first, self._count)
        placement, batch = chunk.choices(chosen_slice[chosen])
        length = chunk.length[chosen_slice[chosen]]
        return Contenders(group[chosen], value[chosen], point[chosen], key[chosen], placement, batch, length)


@dataclass(frozen=True, slots=True)
class _Call:
    """The tiles of one call of the hot loop, and the cells of their candidates."""

    chunk: Chunk
    tiles: slice
    cell: Int[np.ndarray, "chosen slots width"]
    group: Int[np.ndarray, "cells"]  # group of each cell at the first hardware point


class ManyGroups:
    """Finds the contenders of a chunk. A group is a hardware point and one of the sorted `codes`.

    The slices of the hot loop may have choices of several groups.
    """

    def __init__(
        self, hot: HotLoop, groups: Groups, codes: Int[np.ndarray, "codes"], objective: str, count: int
    ) -> None:
        self.hot, self._groups, self._codes = hot, groups, codes
        self._objective, self._count = objective, count
        self.num_groups = hot.problem.num_points * len(codes)

    def contenders(self, device: Any, chunk: Over[Chunk, "..."], worst: _PerGroup) -> tuple[_Contenders, int]:
        """Return contenders as `FewGroups.contenders` does; each slice is one choice."""
        cells = cells_of(self.hot.blocks, self._groups, *chunk.blocks, chunk.segments)
        # The padding in place of a key is never feasible.
        of_slot = self.hot.rows.of_keys(cells.of_key, *chunk.blocks, 0)
        group = np.searchsorted(self._codes, cells.code)
        found: list[Contenders] = []
        feasible = 0
        for tiles, points, *call in self.hot.calls(device, chunk):
            call_of_tiles = _Call(chunk, tiles, self._cells(chunk, tiles, of_slot, cells), group)
            for point in range(self.hot.problem.num_points):
                value, fitting = values(points, np.int32(point), *call, self._objective)
                feasible += int(np.asarray(fitting).sum(dtype=np.int64))
                found.append(self._of_call(call_of_tiles, point, np.asarray(value), worst))
        return found, feasible

    def _cells(
        self, chunk: Chunk, tiles: slice, of_slot: Int[np.ndarray, "rows slots"], cells: Cells
    ) -> Int[np.ndarray, "chosen slots width"]:
        """Return the cells of the candidates of some tiles."""
        row = chunk.row[tiles] - self.hot.rows.first[chunk.blocks[0]]
        of_slice = cells.of_choice[chunk.positions(chunk.slices[tiles])]
        return of_slot[row][:, :, None] + of_slice[:, None, :]

    def _of_call(
        self,
        call: Over[_Call, "..."],
        point: int,
        value: Float[np.ndarray, "bundles tiles slots width"],
        worst: _PerGroup,
    ) -> Over[Contenders, "..."]:
        """Return the contenders of a call at a hardware point, from the values of its tiles."""
        chunk, cell = call.chunk, call.cell
        value = value.reshape(-1, *cell.shape[1:])[: len(cell)]
        group = call.group + point * len(self._codes)
        at = np.flatnonzero(value <= worst[group][cell])
        at = at[_smallest(cell.ravel()[at], value.ravel()[at], self._count)]
        tile, slot, position = np.unravel_index(at, value.shape)
        tile = tile + call.tiles.start
        chosen_slice = chunk.slices[tile]
        choice = chunk.start[chosen_slice] + position
        return Contenders(
            group=group[cell.ravel()[at]],
            value=value.ravel()[at],
            point=np.full(len(at), point, dtype=np.int32),
            key=self.hot.rows.keys[chunk.row[tile], slot],
            placement=chunk.placement[choice, None],
            global_batch_size=chunk.global_batch_size[choice, None],
            length=np.ones(len(at), dtype=np.int8),
        )


def _smallest(
    cell: Int[np.ndarray, "chosen"], value: Float[np.ndarray, "chosen"], count: int
) -> Bool[np.ndarray, "chosen"]:
    """Return the mask of values among the `count` smallest of their cell; of equal values all or none."""
    word = packed(cell, value)
    ordered = np.sort(word)
    first = np.flatnonzero(changes(ordered >> np.uint64(32)))
    last = np.minimum(first + count, np.append(first[1:], len(word))) - 1
    limit = np.zeros(int(cell.max(initial=0)) + 1, dtype=np.uint64)
    limit[ordered[first] >> np.uint64(32)] = ordered[last]
    return word <= limit[cell]
