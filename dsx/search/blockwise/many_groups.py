"""Contenders where groups are many: the values of all candidates, compared with what is kept of the group of each.

Slices have choices of many groups, so tiles are full whatever the groups are. All values leave the hot loop; which of
them matter is a look-up and a comparison each. What is left of a call is cut to the `count` smallest of each cell:
where a group comes for the first time, nothing is known to compare it with.
"""

from typing import Any

import numpy as np

from dsx.search.blockwise.cells import Cells, cells_of
from dsx.search.blockwise.contenders import Contenders, packed
from dsx.search.blockwise.hot import HotLoop
from dsx.search.blockwise.minima import values
from dsx.search.blockwise.tiles import Chunk, Groups
from dsx.space.enumerate import changes


class ManyGroups:
    """What finds the contenders of a chunk; a group is a hardware point and one of the `codes`, which are sorted.

    Slices of the hot loop need not respect the groups.
    """

    def __init__(self, hot: HotLoop, groups: Groups, codes: np.ndarray, objective: str, count: int) -> None:
        self.hot, self._groups, self._codes = hot, groups, codes
        self._objective, self._count = objective, count
        self.num_groups = hot.problem.num_points * len(codes)

    def contenders(self, device: Any, chunk: Chunk, worst: np.ndarray) -> tuple[list[Contenders], int]:
        """Return what `FewGroups.contenders` does; each slice is one choice."""
        cells = cells_of(self.hot.blocks, self._groups, *chunk.blocks)
        # What stands in place of a key is never feasible.
        of_slot = self.hot.rows.of_keys(cells.of_key, *chunk.blocks, 0)
        group = np.searchsorted(self._codes, cells.code)
        found: list[Contenders] = []
        feasible = 0
        for tiles, points, *call in self.hot.calls(device, chunk):
            cell = self._cells(chunk, tiles, of_slot, cells)
            for point in range(self.hot.problem.num_points):
                value, fitting = values(points, np.int32(point), *call, self._objective)
                feasible += int(np.asarray(fitting).sum(dtype=np.int64))
                value = np.asarray(value).reshape(-1, *cell.shape[1:])[: len(cell)]
                found.append(self._of_tiles(chunk, tiles, value, cell, point, group, worst))
        return found, feasible

    def _cells(self, chunk: Chunk, tiles: slice, of_slot: np.ndarray, cells: Cells) -> np.ndarray:
        """Return the [S, KEYS, CHOICES] cells of the candidates of some tiles."""
        row = chunk.row[tiles] - self.hot.rows.first[chunk.blocks[0]]
        of_slice = cells.of_choice[chunk.positions(chunk.slices[tiles])]
        return of_slot[row][:, :, None] + of_slice[:, None, :]

    def _of_tiles(
        self,
        chunk: Chunk,
        tiles: slice,
        value: np.ndarray,
        cell: np.ndarray,
        point: int,
        group: np.ndarray,
        worst: np.ndarray,
    ) -> Contenders:
        """Return the contenders among some tiles at a point, from [S, KEYS, CHOICES] values and cells.

        `group` [C] are those of the cells at the first point.
        """
        group = group + point * len(self._codes)
        at = np.flatnonzero(value <= worst[group][cell])
        at = at[_smallest(cell.ravel()[at], value.ravel()[at], self._count)]
        tile, slot, position = np.unravel_index(at, value.shape)
        chosen_slice = chunk.slices[tile + tiles.start]
        choice = chunk.start[chosen_slice] + position
        return Contenders(
            group=group[cell.ravel()[at]],
            value=value.ravel()[at],
            point=np.full(len(at), point, dtype=np.int32),
            key=self.hot.rows.keys[chunk.row[tile + tiles.start], slot],
            placement=chunk.placement[choice, None],
            global_batch_size=chunk.global_batch_size[choice, None],
            length=np.ones(len(at), dtype=np.int8),
        )


def _smallest(cell: np.ndarray, value: np.ndarray, count: int) -> np.ndarray:
    """Return which of [M] values are among the `count` smallest of their cell, equal ones all or none."""
    word = packed(cell, value)
    ordered = np.sort(word)
    first = np.flatnonzero(changes(ordered >> np.uint64(32)))
    last = np.minimum(first + count, np.append(first[1:], len(word))) - 1
    limit = np.zeros(int(cell.max(initial=0)) + 1, dtype=np.uint64)
    limit[ordered[first] >> np.uint64(32)] = ordered[last]
    return word <= limit[cell]
