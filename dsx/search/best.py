"""The best plans of a space: strips through the hot loop, then the winners' rows priced again.

The k best of a group lie among the k runs of one key whose minima are smallest, so only those runs are
kept while the space streams by, and priced again in float64 with every column at the end. A few more than
k are kept, since float32 may order near-ties differently. Equal minima are ordered by key and choice, so
what is found does not depend on which device was faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dsx.search.devices import map_over_devices
from dsx.search.groups import leading_rows, ranks
from dsx.search.hot import HotLoop
from dsx.search.minima import minima
from dsx.search.optimal_search import best_of_cuts
from dsx.search.pricing import Kinds
from dsx.search.problem import Problem
from dsx.search.rows import Counts, joined, priced_rows
from dsx.search.space import Space
from dsx.search.strips import CHOICES, Chunk
from dsx.space.blocks import CHOICE_COLUMNS
from dsx.space.enumerate import KEY_COLUMNS, Arrays

_SLACK = 4
_RUNS = 512  # runs whose rows are priced in full at once


@dataclass(frozen=True, slots=True)
class _Runs:
    """M runs of choices of one key each that may hold a winner, with the smallest value of each."""

    group: np.ndarray  # [M] hardware point and group as one code
    minimum: np.ndarray  # [M]
    point: np.ndarray  # [M]
    key: np.ndarray  # [M]
    placement: np.ndarray  # [M, CHOICES]
    global_batch_size: np.ndarray  # [M, CHOICES]
    length: np.ndarray  # [M]

    def take(self, where: np.ndarray) -> "_Runs":
        return _Runs(*(getattr(self, name)[where] for name in _Runs.__dataclass_fields__))

    def with_others(self, other: "_Runs") -> "_Runs":
        return _Runs(*(np.concatenate([getattr(self, n), getattr(other, n)]) for n in _Runs.__dataclass_fields__))

    def leading(self, count: int) -> "_Runs":
        """Return the `count` runs of smallest minimum of each group, sorted."""
        first = (self.placement[:, 0], self.global_batch_size[:, 0])
        return self.take(_leading(self.group, self.minimum, self.key, first, count))


def best(
    problem: Problem,
    space: Space,
    table: Kinds,
    top: int,
    per: Sequence[str] = (),
    precision: str = "float64",
    progress: Callable[[int], None] = lambda rows: None,
    blocks: tuple[int, int] | None = None,
    objective: str = "step_time_s",
) -> tuple[Arrays, Counts]:
    """Return all columns of the `top` feasible candidates of smallest `objective` in each group of equal `per` columns.

    Every hardware point of the problem has groups of its own; the column `point` says which one a row is
    of. `table` holds the [H, U] layer costs of the key table in float64; `blocks` is a range of the space's
    blocks, all by default. Rows come sorted by point, group and objective. `progress` is told the number of
    candidates after each chunk.
    """
    blocks = blocks or (0, len(space.blocks))
    if problem.cuts_anyhow:
        return best_of_cuts(problem, space, table, top, per, precision, progress, blocks, objective)
    # Columns that are not searched are the same everywhere and split nothing.
    per = [name for name in per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS)]
    wide = precision == "float64"
    hot = HotLoop(problem, space, table, per, [objective], wide)
    low, high = blocks
    kept, counts = _nothing(np.float64 if wide else np.float32), Counts(0, 0)
    count = top + _SLACK

    def run(device: Any, chunk: Chunk) -> list[tuple[slice, Any, Any]]:
        with jax.enable_x64(wide), jax.default_device(device):
            calls = [(strips, minima(*arguments, objective)) for strips, *arguments in hot.calls(device, chunk)]
            return [(strips, np.asarray(least), np.asarray(fitting)) for strips, (least, fitting) in calls]

    for chunk, called in map_over_devices(run, hot.chunks(low, high)):
        for strips, least, fitting in called:
            found = _contenders(hot, chunk, strips, least, _Worst(kept, count))
            kept = kept.with_others(found).leading(count)
            counts = counts.plus(Counts(0, int(fitting.sum(dtype=np.float64))))
        counts = counts.plus(Counts(problem.num_points * chunk.size, 0))
        progress(problem.num_points * chunk.size)
    return _winners(problem, space, table, kept, top, per, objective), counts


class _Worst:
    """The largest minimum that can still be among the `count` best of a group."""

    def __init__(self, kept: _Runs, count: int) -> None:
        self.count = count
        full = ranks(kept.group) == count - 1
        self._group, self._minimum = kept.group[full], kept.minimum[full]

    def of(self, group: np.ndarray) -> np.ndarray:
        """Return it for each of some groups; where not enough runs are kept yet, the largest finite number."""
        most = np.finfo(self._minimum.dtype).max
        if not len(self._group):
            return np.full(group.shape, most)
        at = np.minimum(np.searchsorted(self._group, group), len(self._group) - 1)
        return np.where(self._group[at] == group, self._minimum[at], most)


def _nothing(kind: type) -> _Runs:
    no_rows = np.zeros(0, dtype=np.int64)
    no_choices = np.zeros((0, CHOICES), dtype=np.int32)
    return _Runs(no_rows, np.zeros(0, dtype=kind), no_rows, no_rows, no_choices, no_choices, no_rows)


def _contenders(hot: HotLoop, chunk: Chunk, strips: slice, least: np.ndarray, worst: _Worst) -> _Runs:
    """Return the runs among some strips of a chunk that may hold a winner; `least` is [H, T, S, KEYS]."""
    points, keys = len(least), hot.rows.keys[chunk.row[strips]]
    least = least.reshape(points, -1, least.shape[-1])[:, : len(keys)]
    span = hot.groups.span
    code = np.arange(points)[:, None, None] * span + chunk.group[chunk.run[strips]][None, :, None]
    if hot.groups.of_keys:
        code = code + hot.groups.of_key[keys]
    point, strip, slot = np.nonzero(least <= worst.of(code))
    group, minimum = np.broadcast_to(code, least.shape)[point, strip, slot], least[point, strip, slot]
    key, run = keys[strip, slot].astype(np.int64), chunk.run[strip + strips.start]
    first = (chunk.placement[chunk.start[run]], chunk.global_batch_size[chunk.start[run]])
    chosen = _leading(group, minimum, key, first, worst.count)
    run = run[chosen]
    placement, batch = chunk.choices(run)
    return _Runs(
        group=group[chosen],
        minimum=minimum[chosen],
        point=point[chosen],
        key=key[chosen],
        placement=placement,
        global_batch_size=batch,
        length=chunk.length[run].astype(np.int64),
    )


def _leading(
    group: np.ndarray, minimum: np.ndarray, key: np.ndarray, first: tuple[np.ndarray, np.ndarray], count: int
) -> np.ndarray:
    """Return the positions of the `count` smallest minima of each group, sorted; `first` is the run's first choice."""
    order = np.lexsort((*first[::-1], key, minimum, group))
    return order[ranks(group[order]) < count]


def _winners(
    problem: Problem, space: Space, table: Kinds, kept: _Runs, top: int, per: Sequence[str], objective: str
) -> Arrays:
    """Price the kept runs in full and return the best rows of each group."""
    groups = ["point", *per]
    parts: list[Arrays] = []
    for start in range(0, max(1, len(kept.key)), _RUNS):
        runs = kept.take(np.arange(start, min(start + _RUNS, len(kept.key))))
        real = np.arange(CHOICES)[None] < runs.length[:, None]
        point, key = (np.repeat(column, runs.length) for column in (runs.point, runs.key))
        choices = space.blocks.choices_at(
            runs.placement[real], runs.global_batch_size[real], space.keys["microbatch_size"][key]
        )
        rows = priced_rows(problem, space.keys, table, point, key, choices)
        parts.append(leading_rows({n: c[rows["reject"] == 0] for n, c in rows.items()}, top, groups, objective))
    return leading_rows(joined(parts), top, groups, objective)
