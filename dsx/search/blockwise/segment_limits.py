"""Segments of a space that may have a plan within limits: the others are left out before their plans are made.

A bound of the plans of a segment has, for each column of its block's keys, the smallest value of any of them, and the
smallest batch. Placements that differ only in what bounds do not depend on share them.
"""

import functools

import numpy as np

from dsx.cost.choices import PipelineChoices
from dsx.cost.cut_bounds import KeySeconds
from dsx.search.blockwise.tiles import Groups, dense_codes
from dsx.search.priced_space import PricedSpace
from dsx.space.blocks import Segments
from dsx.space.choices import PLACEMENT_COLUMNS

# Columns of a placement that the bounds depend on.
_READ = ("pp", "dp", "vpp", "schedule", "recompute")


class SegmentLimits:
    """The segments of a space that may have a plan within the limits of its group.

    Args:
        groups: the groups of the search.
    """

    def __init__(self, source: PricedSpace, groups: Groups) -> None:
        self._blocks, self._groups = source.space.blocks, groups
        self._searched, self._bound = source.problem.workload.searched, source.loose_bound
        self._seconds = [_of_blocks(source, point) for point in range(source.problem.num_points)]
        self._columns = source.space.blocks.placements
        self._alike = functools.cache(self._alike_of)
        # The precision of the search decides how far its values may be below exact ones.
        self._slack = 1.0 - (1e-9 if source.float64 else 1e-4)

    def lower(self, limits: np.ndarray) -> None:
        """Set the most seconds of a plan of each group at each hardware point, [H * groups.span]."""
        # Keys of a block may be of several groups: the loosest limit counts.
        self._limits = limits.reshape(len(self._seconds), -1, self._groups.choices).max(axis=1)
        self._loosest = self._limits.reshape(len(self._seconds), -1, self._groups.batches).max(axis=-1)

    def segments(self, low: int, high: int) -> Segments:
        """Return the segments of the blocks from `low` up to `high` that may have a plan within the limits."""
        found = self._blocks.segments(low, high, self._wanted)
        if not self._groups.splits_slices:
            return found
        found = found.per_choice()
        batch, code = self._blocks.batches[found.first], self._groups.of_segments(self._blocks, found)
        choices = self._choices(found.placement, batch, found.block)
        return found.take(self._within(found.block, choices, self._limits[:, code]))

    def _wanted(self, blocks: np.ndarray, placements: slice) -> np.ndarray:
        """Return whether [B] blocks times the [P] placements of a slice may have a plan within the limits."""
        first, alike = self._alike(placements.start, placements.stop)
        batch = self._blocks.least_batches(blocks, first)
        choices = self._choices(first[None], batch, blocks[:, None])
        code = self._groups.of_placements(first) // self._groups.batches
        return self._within(blocks[:, None], choices, self._loosest[:, None, code])[:, alike]

    def _alike_of(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first of the placements of a range for each kind that bounds tell apart, and the kind of each."""
        here = np.arange(start, stop)
        columns = [self._columns[PLACEMENT_COLUMNS.index(name), here] for name in _READ]
        kind = dense_codes([self._groups.of_placements(here), *columns], len(here))
        _, first = np.unique(kind, return_index=True)
        return here[first], kind

    def _choices(self, placement: np.ndarray, batch: np.ndarray, block: np.ndarray) -> PipelineChoices:
        """Return choices that broadcast; where there is no batch, they have no microbatch."""
        size = self._blocks.microbatch_size[block]
        made = self._blocks.choices_at(placement, batch, size, PipelineChoices._fields)
        return PipelineChoices.of(made)

    def _within(self, block: np.ndarray, choices: PipelineChoices, limits: np.ndarray) -> np.ndarray:
        """Return whether choices with blocks may be within `limits` [H, ...] at any hardware point."""
        bounds = [self._bound(seconds, block, choices, self._searched) for seconds in self._seconds]
        return np.logical_or.reduce([bound * self._slack <= limit for bound, limit in zip(bounds, limits, strict=True)])


def _of_blocks(source: PricedSpace, point: int) -> KeySeconds:
    """Return the smallest seconds of the keys of each block, [values, B]."""
    blocks = source.space.blocks
    least = [
        np.minimum.reduceat(of_keys[:, blocks.keys], blocks.first_key[:-1], axis=1)
        for of_keys in source.key_seconds(point)
    ]
    return KeySeconds(*least)
