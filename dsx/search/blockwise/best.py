"""The best plans of a space: all tiles go through the hot loop, and the winners are priced again.

While the space streams by, what may hold a winner is kept (`dsx.search.blockwise.contenders`): slices of choices of a
key where groups are few, single candidates where groups are many. At the end it is priced again with every column in
float64, some groups at a time. A few more than k are kept, since float32 may order near-ties differently. Equal values
are ordered by key and choice, so the result does not depend on which device was faster.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from dsx.pricing.devices import map_over_devices
from dsx.pricing.layers import Kinds
from dsx.pricing.problem import Problem
from dsx.pricing.rows import Counts, joined, no_rows, priced_rows
from dsx.search.blockwise.cells import group_codes
from dsx.search.blockwise.contenders import Contenders, Kept, together
from dsx.search.blockwise.few_groups import FewGroups
from dsx.search.blockwise.hot import HotLoop
from dsx.search.blockwise.many_groups import ManyGroups
from dsx.search.blockwise.tiles import Chunk, Groups, block_ranges
from dsx.search.groups import leading_rows
from dsx.search.protocol import BlockRange, Progress
from dsx.search.space import Space
from dsx.space.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.space.enumerate import Arrays, changes

_SLACK = 4
_FEW = 1 << 12  # slices that are kept at most where slices are kept
_SPAN = 1 << 20  # codes of groups that are taken as they are, whether there are such groups or not
_ROWS = 1 << 14  # rows that are priced in full at once, unless a group has more


def best(
    problem: Problem,
    space: Space,
    table: Kinds,
    precision: str,
    top: int,
    per: Sequence[str],
    objective: str,
    blocks: BlockRange,
    progress: Progress,
) -> tuple[Arrays, Counts]:
    """Return what `dsx.search.protocol.Search.best` says, of a space with its [H, U] layer costs in float64."""
    # Columns that are not searched are the same everywhere and split nothing.
    per = [name for name in per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS)]
    wide = precision == "float64"
    finder = _finder(problem, space, table, per, wide, blocks, objective, top + _SLACK)
    kept = Kept(finder.num_groups, top + _SLACK, np.float64 if wide else np.float32)
    counts = Counts(0, 0)

    def run(device: Any, chunk: Chunk) -> tuple[list[Contenders], int]:
        with jax.enable_x64(wide), jax.default_device(device):
            return finder.contenders(device, chunk, kept.worst)

    for chunk, (found, feasible) in map_over_devices(run, finder.hot.chunks(*blocks)):
        kept.add(together(found))
        counts = counts.plus(Counts(problem.num_points * chunk.size, feasible))
        progress(problem.num_points * chunk.size)
    slices = kept.slices()
    if slices is None:
        return no_rows(problem, space.keys), counts
    return _winners(problem, space, table, slices, top, per, objective), counts


def _finder(
    problem: Problem,
    space: Space,
    table: Kinds,
    per: Sequence[str],
    wide: bool,
    blocks: BlockRange,
    objective: str,
    count: int,
) -> FewGroups | ManyGroups:
    """Return what finds the contenders: by slices where few are kept, else candidate by candidate."""
    groups = Groups(space.keys, space.blocks, per)
    if problem.num_points * groups.span * count <= _FEW:
        return FewGroups(HotLoop(problem, space, table, groups, [objective], wide), objective, count)
    whole = Groups(space.keys, space.blocks, ())
    hot = HotLoop(problem, space, table, whole, [objective], wide)
    ranges = block_ranges(space.blocks, *blocks)
    codes = np.arange(groups.span) if groups.span <= _SPAN else group_codes(space.blocks, groups, ranges)
    return ManyGroups(hot, groups, codes, objective, count)


def _winners(
    problem: Problem, space: Space, table: Kinds, kept: Contenders, top: int, per: Sequence[str], objective: str
) -> Arrays:
    """Price the kept slices in full, group by group, and return the best rows of each, sorted."""
    groups = ["point", *per]

    def run(device: Any, part: slice) -> Arrays:
        slices = kept.take(part)
        real = np.arange(slices.placement.shape[1])[None] < slices.length[:, None]
        point, key = (np.repeat(column, slices.length) for column in (slices.point, slices.key))
        choices = _choices(space, slices.placement[real], slices.global_batch_size[real], key)
        with jax.default_device(device):
            rows = priced_rows(problem, space.keys, table, point, key, choices)
        return leading_rows({n: c[rows["reject"] == 0] for n, c in rows.items()}, top, groups, objective)

    kept = kept.take(_by_columns(space, kept, per))
    return joined([rows for _, rows in map_over_devices(run, _whole_groups(kept))] or [no_rows(problem, space.keys)])


def _choices(space: Space, placement: np.ndarray, batch: np.ndarray, key: np.ndarray) -> Arrays:
    return space.blocks.choices_at(placement, batch, space.keys["microbatch_size"][key])


def _by_columns(space: Space, kept: Contenders, per: Sequence[str]) -> np.ndarray:
    """Return the order of slices by point and the columns of their group; slices of a group are neighbours already."""
    first = np.flatnonzero(changes(kept.group))
    slices = kept.take(first)
    known = _choices(space, slices.placement[:, 0], slices.global_batch_size[:, 0], slices.key)
    columns = [space.keys[name][slices.key] if name in KEY_COLUMNS else known[name] for name in per]
    order = np.lexsort((*reversed(columns), slices.point))
    rank = np.empty(len(first), dtype=np.int64)
    rank[order] = np.arange(len(first))
    return np.argsort(np.repeat(rank, np.diff(np.append(first, len(kept)))), kind="stable")


def _whole_groups(kept: Contenders) -> Iterator[slice]:
    """Yield ranges of slices that are whole groups, of about `_ROWS` choices together or a single group."""
    ends = np.append(np.flatnonzero(changes(kept.group))[1:], len(kept))
    choices = np.cumsum(kept.length, dtype=np.int64)[ends - 1] if len(kept) else ends
    start = group = done = 0
    while start < len(kept):
        group = max(group + 1, int(np.searchsorted(choices, done + _ROWS, side="right")))
        stop, done = int(ends[group - 1]), int(choices[group - 1])
        yield slice(start, stop)
        start = stop
