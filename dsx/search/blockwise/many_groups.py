"""Contenders if groups are many: the value of each candidate, compared with the kept values of its group.

Slices have choices of many groups, so tiles are full whatever the groups are. All values leave the hot loop. One
look-up and one comparison per value decide whether it may be kept. Of the remaining values of a call, only the `count`
smallest of each cell are kept, because a new group has no kept values to compare with.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.search.blockwise.cells import Cells, cells_of
from dsx.search.blockwise.contenders import Contenders, packed
from dsx.search.blockwise.hot import HotLoop
from dsx.search.blockwise.minima import values
from dsx.search.blockwise.tiles import Chunk, Groups
from dsx.space.enumerate import changes


@dataclass(frozen=True, slots=True)
class _Call:
    """The tiles of one call of the hot loop, and the cells of their candidates."""

    chunk: Chunk
    tiles: slice
    cell: np.ndarray  # [S, KEYS, CHOICES]
    group: np.ndarray  # [C] group of each cell at the first hardware point


class ManyGroups:
    """Finds the contenders of a chunk. A group is a hardware point and one of the sorted `codes`.

    The slices of the hot loop may have choices of several groups.
    """

    def __init__(self, hot: HotLoop, groups: Groups, codes: np.ndarray, objective: str, count: int) -> None:
        self.hot, self._groups, self._codes = hot, groups, codes
        self._objective, self._count = objective, count
        self.num_groups = hot.problem.num_points * len(codes)

    def contenders(self, device: Any, chunk: Chunk, worst: np.ndarray) -> tuple[list[Contenders], int]:
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

    def _cells(self, chunk: Chunk, tiles: slice, of_slot: np.ndarray, cells: Cells) -> np.ndarray:
        """Return the cells [S, KEYS, CHOICES] of the candidates of some tiles."""
        row = chunk.row[tiles] - self.hot.rows.first[chunk.blocks[0]]
        of_slice = cells.of_choice[chunk.positions(chunk.slices[tiles])]
        return of_slot[row][:, :, None] + of_slice[:, None, :]

    def _of_call(self, call: _Call, point: int, value: np.ndarray, worst: np.ndarray) -> Contenders:
        """Return the contenders of a call at a hardware point, from the values [T, S, KEYS, CHOICES] of its tiles."""
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


def _smallest(cell: np.ndarray, value: np.ndarray, count: int) -> np.ndarray:
    """Return the mask of [M] values among the `count` smallest of their cell; of equal values all or none."""
    word = packed(cell, value)
    ordered = np.sort(word)
    first = np.flatnonzero(changes(ordered >> np.uint64(32)))
    last = np.minimum(first + count, np.append(first[1:], len(word))) - 1
    limit = np.zeros(int(cell.max(initial=0)) + 1, dtype=np.uint64)
    limit[ordered[first] >> np.uint64(32)] = ordered[last]
    return word <= limit[cell]
