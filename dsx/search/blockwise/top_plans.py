"""The best plans of a space: the hot loop prices the tiles, and the contenders are priced once more in float64.

Where the fastest are wanted, parts of a large space are searched in waves. Segments of choices are left out whole if
bounds say that none of their plans is as fast as those that are kept (`dsx.search.blockwise.segment_limits`).

While the space streams through, contenders are kept (`dsx.search.blockwise.contenders`): slices of choices of a key if
groups are few, single candidates if groups are many. At the end all their columns are priced in float64, some groups at
a time. A few more than the wanted number are kept, since float32 may order near-ties differently. Equal values are
ordered by key and choice, so the result does not depend on which device was faster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dsx.pricing.devices import map_over_devices
from dsx.pricing.row_costs import Rows
from dsx.pricing.rows import Counts, joined
from dsx.search.blockwise.cells import group_codes
from dsx.search.blockwise.contenders import Contenders, Kept, together
from dsx.search.blockwise.few_groups import FewGroups
from dsx.search.blockwise.hot import HotLoop
from dsx.search.blockwise.many_groups import ManyGroups
from dsx.search.blockwise.segment_limits import SegmentLimits
from dsx.search.blockwise.tiles import Chunk, Groups, block_ranges
from dsx.search.blockwise.waves import waves
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import BlockRange, Progress
from dsx.search.row_groups import leading_rows
from dsx.search.space import Space
from dsx.space.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.space.enumerate import Arrays, changes

_SLACK = 4
MANY = 1 << 22  # candidates; fewer are priced sooner than bounds leave them out
_FEW = 1 << 12  # most slices that are kept by slice
_SPAN = 1 << 20  # most group codes that are used as group numbers without counting the groups
_ROWS = 1 << 14  # rows that are priced in full together, unless a group has more


@dataclass(frozen=True, slots=True)
class Ranking:
    """The `top` candidates of smallest objective in each group of equal columns `per`."""

    top: int
    per: Sequence[str]
    objective: str

    @property
    def kept(self) -> int:
        """The number of contenders per group."""
        return self.top + _SLACK


def best(source: PricedSpace, ranking: Ranking, blocks: BlockRange, progress: Progress) -> tuple[Arrays, Counts]:
    """Return the best plans as `dsx.search.protocol.Search.best` says."""
    # Columns that are not searched have one value everywhere and split no group.
    per = [name for name in ranking.per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS)]
    ranking = Ranking(ranking.top, per, ranking.objective)
    finder = _finder(source, ranking, blocks)
    kept = Kept(finder.num_groups, ranking.kept, source.dtype)
    first, last = source.space.blocks.first_candidate[[*blocks]].tolist()
    num_points, counts = source.problem.num_points, Counts(0, 0)

    def run(device: Any, chunk: Chunk) -> tuple[list[Contenders], int]:
        with jax.enable_x64(source.float64), jax.default_device(device):
            return finder.contenders(device, chunk, kept.worst)

    limits = _limits(source, ranking, finder.num_groups) if last - first >= MANY else None
    ranges_of_all = list(block_ranges(source.space.blocks, *blocks))
    for ranges in waves(ranges_of_all) if limits else [ranges_of_all]:
        if limits:
            limits.lower(kept.worst)
        for chunk, (found, feasible) in map_over_devices(run, finder.hot.chunks(ranges, limits)):
            kept.add(together(found))
            counts = counts.plus(Counts(num_points * chunk.size, feasible))
            progress(num_points * chunk.size)
    skipped = num_points * (last - first) - counts.candidates
    counts = counts.plus(Counts(skipped, 0, skipped))
    progress(skipped)
    slices = kept.slices()
    return (source.no_rows() if slices is None else _winners(source, slices, ranking)), counts


def _limits(source: PricedSpace, ranking: Ranking, num_groups: int) -> SegmentLimits | None:
    """Return limits of what has to be priced; None if everything has."""
    groups = Groups(source.space.keys, source.space.blocks, ranking.per)
    if ranking.objective != "step_time_s" or num_groups != source.problem.num_points * groups.span:
        return None
    return SegmentLimits(source, groups)


def _finder(source: PricedSpace, ranking: Ranking, blocks: BlockRange) -> FewGroups | ManyGroups:
    """Return the finder of contenders: by slice if few slices are kept, else by candidate."""
    space, objective = source.space, ranking.objective
    groups = Groups(space.keys, space.blocks, ranking.per)
    if source.problem.num_points * groups.span * ranking.kept <= _FEW:
        return FewGroups(HotLoop(source, groups, [objective]), objective, ranking.kept)
    one_group = Groups(space.keys, space.blocks, ())
    ranges = block_ranges(space.blocks, *blocks)
    codes = np.arange(groups.span) if groups.span <= _SPAN else group_codes(space.blocks, groups, ranges)
    return ManyGroups(HotLoop(source, one_group, [objective]), groups, codes, objective, ranking.kept)


def _winners(source: PricedSpace, kept: Contenders, ranking: Ranking) -> Arrays:
    """Price the kept slices in full, group by group, and return the best rows of each group, sorted."""
    groups = ["point", *ranking.per]

    def run(device: Any, part: slice) -> Arrays:
        slices = kept.take(part)
        real = np.arange(slices.placement.shape[1])[None] < slices.length[:, None]
        point, key = (np.repeat(column, slices.length) for column in (slices.point, slices.key))
        choices = _choices(source.space, slices.placement[real], slices.global_batch_size[real], key)
        with jax.default_device(device):
            rows = source.priced_rows(Rows(point, key, choices))
        feasible = {name: column[rows["reject"] == 0] for name, column in rows.items()}
        return leading_rows(feasible, ranking.top, groups, ranking.objective)

    kept = kept.take(_by_columns(source.space, kept, ranking.per))
    return joined([rows for _, rows in map_over_devices(run, _whole_groups(kept))] or [source.no_rows()])


def _choices(space: Space, placement: np.ndarray, batch: np.ndarray, key: np.ndarray) -> Arrays:
    return space.blocks.choices_at(placement, batch, space.keys["microbatch_size"][key])


def _by_columns(space: Space, kept: Contenders, per: Sequence[str]) -> np.ndarray:
    """Return the order of slices by point and columns of their group; slices of one group are adjacent already."""
    first = np.flatnonzero(changes(kept.group))
    slices = kept.take(first)
    known = _choices(space, slices.placement[:, 0], slices.global_batch_size[:, 0], slices.key)
    columns = [space.keys[name][slices.key] if name in KEY_COLUMNS else known[name] for name in per]
    order = np.lexsort((*reversed(columns), slices.point))
    rank = np.empty(len(first), dtype=np.int64)
    rank[order] = np.arange(len(first))
    return np.argsort(np.repeat(rank, np.diff(np.append(first, len(kept)))), kind="stable")


def _whole_groups(kept: Contenders) -> Iterator[slice]:
    """Yield ranges of slices that are whole groups: about `_ROWS` choices, or a single larger group."""
    ends = np.append(np.flatnonzero(changes(kept.group))[1:], len(kept))
    choices = np.cumsum(kept.length, dtype=np.int64)[ends - 1] if len(kept) else ends
    start = group = done = 0
    while start < len(kept):
        group = max(group + 1, int(np.searchsorted(choices, done + _ROWS, side="right")))
        stop, done = int(ends[group - 1]), int(choices[group - 1])
        yield slice(start, stop)
        start = stop
