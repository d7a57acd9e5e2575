"""Contenders if groups are few: the smallest value of each slice of choices of a key.

The choices of a slice belong to one group. Only the smallest value of a slice leaves the hot loop, so this is as fast
as pricing. The k best candidates of a group are in its k slices of smallest value. If groups are many, slices are short
and most of a tile is empty (`dsx.search.blockwise.many_groups`).
"""

from typing import Any

import numpy as np

from dsx.search.blockwise.contenders import Contenders, leading
from dsx.search.blockwise.hot import HotLoop
from dsx.search.blockwise.minima import minima
from dsx.search.blockwise.tiles import Chunk


class FewGroups:
    """Finds the contenders of a chunk. A group is a hardware point and a group code of the hot loop."""

    def __init__(self, hot: HotLoop, objective: str, count: int) -> None:
        self.hot, self._objective, self._count = hot, objective, count
        self.num_groups = hot.problem.num_points * hot.groups.span

    def contenders(self, device: Any, chunk: Chunk, worst: np.ndarray) -> tuple[list[Contenders], int]:
        """Return the slices of a chunk that may hold a winner, and the number of its feasible candidates.

        `worst` [G] is the largest value of each group that may still be kept. The device must be the default device.
        """
        # All calls are dispatched before the first result is read.
        calls = [(tiles, minima(*call, self._objective)) for tiles, *call in self.hot.calls(device, chunk)]
        found = [self._of_tiles(chunk, tiles, np.asarray(least), worst) for tiles, (least, _) in calls]
        return found, sum(int(np.asarray(fitting).sum(dtype=np.float64)) for _, (_, fitting) in calls)

    def _of_tiles(self, chunk: Chunk, tiles: slice, least: np.ndarray, worst: np.ndarray) -> Contenders:
        """Return the contenders in some tiles; `least` has their minima [H, T, S, KEYS]."""
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
