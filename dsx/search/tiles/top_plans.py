"""The best plans and the front of plans with even cuts: one compiled loop prices tiles, float64 what remains of them.

While the space streams through, contenders are kept (`dsx.search.tiles.contenders`): slices of choices of a key if
groups are few, single candidates if groups are many. At the end all their columns are priced in float64, some groups at
a time. A few more than the wanted number are kept, since float32 may order near-ties differently. Equal values are
ordered by key and choice, so the result does not depend on which device was faster. Where the fastest are wanted, parts
of a large space are searched in waves, and segments of choices are left out whole if bounds say that none of their
plans is as fast as those that are kept (`dsx.search.tiles.hot`).

For the front the loop drops candidates that a reference dominates. References are a few points of the front so far. The
candidates that no reference dominates are few. They are priced once more in float64, and their front is merged with the
front so far. The first front is that of a sample of the whole space. Every candidate is priced. The front is exact up
to the precision of the hot loop (`dsx.search.tiles.hot.undominated`).
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dsx.arrays import PlanInts
from dsx.cost.context import StepChoices, StepCosts
from dsx.cost.step import Workload
from dsx.plans.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.plans.enumerate import Arrays, Kept, changes
from dsx.pricing.compiled import map_over_devices
from dsx.pricing.cuts import CandidateCounts, joined, result_rows
from dsx.pricing.keys import KeyCosts, power_of_two
from dsx.pricing.problem import Plans, costs, pad
from dsx.pricing.row_costs import PlanCosts, Rows, step_choices, take_rows
from dsx.records import Array, Float, Int, Over
from dsx.search.ranking import BlockRange, Progress, front_of_groups, leading_rows, objective_points, silent
from dsx.search.spaces import PricedSpace, Space
from dsx.search.tiles.contenders import Contenders, FewGroups, KeptSlices, ManyGroups, group_codes, together
from dsx.search.tiles.hot import FrontObjective, HotLoop, Points, SegmentLimits, undominated, waves
from dsx.search.tiles.tiles import Chunk, Groups, block_ranges

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


def best(
    source: PricedSpace, ranking: Ranking, blocks: BlockRange, progress: Progress
) -> tuple[Arrays, CandidateCounts]:
    """Return the best plans as `dsx.search.ranking.Search.best` says."""
    # Columns that are not searched have one value everywhere and split no group.
    per = [name for name in ranking.per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS)]
    ranking = Ranking(ranking.top, per, ranking.objective)
    finder = _finder(source, ranking, blocks)
    kept = KeptSlices(finder.num_groups, ranking.kept, source.dtype)
    first, last = source.space.blocks.first_candidate[[*blocks]].tolist()
    num_points, counts = source.problem.num_points, CandidateCounts(0, 0)

    def run(device: object, chunk: Chunk) -> tuple[list[Contenders], int]:
        with jax.enable_x64(source.float64), jax.default_device(device):
            return finder.contenders(device, chunk, kept.worst)

    limits = _limits(source, ranking, finder.num_groups) if last - first >= MANY else None
    ranges_of_all = list(block_ranges(source.space.blocks, *blocks))
    for ranges in waves(ranges_of_all) if limits else [ranges_of_all]:
        if limits:
            limits.lower(kept.worst)
        for chunk, (contenders, feasible) in map_over_devices(run, finder.hot.chunks(ranges, limits)):
            kept.add(together(contenders))
            counts = counts.plus(CandidateCounts(num_points * chunk.size, feasible))
            progress(num_points * chunk.size)
    skipped = num_points * (last - first) - counts.candidates
    counts = counts.plus(CandidateCounts(skipped, 0, skipped))
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

    def run(device: object, part: slice) -> Arrays:
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


def _choices(space: Space, placement: PlanInts, batch: PlanInts, key: PlanInts) -> Arrays:
    return space.blocks.choices_at(placement, batch, space.keys["microbatch_size"][key])


def _by_columns(space: Space, kept: Contenders, per: Sequence[str]) -> Int[np.ndarray, "slices"]:
    """Return the order of slices by point and columns of their group; slices of one group are adjacent already."""
    first = np.flatnonzero(changes(kept.group))
    slices = kept.take(first)
    choices = _choices(space, slices.placement[:, 0], slices.global_batch_size[:, 0], slices.key)
    columns = [space.keys[name][slices.key] if name in KEY_COLUMNS else choices[name] for name in per]
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


_REFERENCES = 16
_COMPARED = (*StepCosts.__dataclass_fields__, *KEY_COLUMNS, *CHOICE_COLUMNS)
_SAMPLE = 1 << 14  # rows of the sample for the first front, over all hardware points


def front(
    source: PricedSpace, objectives: Sequence[str], blocks: BlockRange, progress: Progress
) -> tuple[Arrays, CandidateCounts]:
    """Return the front as `dsx.search.ranking.Search.front` says."""
    # Columns that are not searched have one value everywhere and decide nothing.
    compared = [name for name in objectives if name.removeprefix("-") in _COMPARED]
    columns = tuple(FrontObjective(name.removeprefix("-"), name.startswith("-")) for name in compared)
    space, num_points = source.space, source.problem.num_points
    hot = HotLoop(source, Groups(space.keys, space.blocks, ()), [objective.column for objective in columns])
    counts = CandidateCounts(0, 0)
    kept = _front_of(_sample(source, blocks), objectives)

    def run(
        device: object, batch: tuple[Chunk, Float[np.ndarray, "points references objectives"]]
    ) -> tuple[Arrays, int]:
        chunk, references = batch
        survivors, feasible = [source.no_rows()], 0
        with jax.enable_x64(source.float64), jax.default_device(device):
            for tiles, *arguments in hot.calls(device, chunk):
                survives, fitting = undominated(*arguments, references.astype(source.dtype), columns)
                feasible += int(np.asarray(fitting, dtype=np.int64).sum())
                survivors.append(source.priced_rows(hot.candidates(chunk, tiles, np.asarray(survives))))
        return _front_of(joined(survivors), objectives), feasible

    batches = (
        (chunk, _references(kept, compared, num_points)) for chunk in hot.chunks(block_ranges(space.blocks, *blocks))
    )
    for (chunk, _), (survivors, feasible) in map_over_devices(run, batches):
        kept = _front_of(joined([kept, survivors]), objectives)
        counts = counts.plus(CandidateCounts(num_points * chunk.size, feasible))
        progress(num_points * chunk.size)
    return kept, counts


def _sample(source: PricedSpace, blocks: BlockRange) -> Arrays:
    """Return the rows of candidates at equal distances in a range of blocks, at every hardware point."""
    num_points = source.problem.num_points
    first, last = source.space.blocks.first_candidate[[*blocks]].tolist()
    count = min(last - first, _SAMPLE // num_points)
    positions, choices = source.space.blocks.rows_at(np.linspace(first, last, count, endpoint=False).astype(np.int64))
    points = np.repeat(np.arange(num_points), count)
    tiled = {name: np.tile(column, num_points) for name, column in choices.items()}
    return source.priced_rows(Rows(points, np.tile(positions, num_points), tiled))


def _front_of(rows: Arrays, objectives: Sequence[str]) -> Kept:
    """Return the front of the feasible rows of each hardware point, each candidate once, sorted."""
    return front_of_groups({n: c[rows["reject"] == 0] for n, c in rows.items()}, ["point"], objectives)


def _references(
    kept: Arrays, objectives: Sequence[str], num_points: int
) -> Float[np.ndarray, "{num_points} references {len(objectives)}"]:
    """Return points spread over the fronts so far; infinite if a front has fewer."""
    points = objective_points(kept, objectives)
    references = np.full((num_points, _REFERENCES, len(objectives)), np.inf)
    for point in range(num_points):
        of_point = points[kept["point"] == point]
        chosen = np.unique(np.linspace(0, len(of_point) - 1, _REFERENCES).astype(np.int64)) if len(of_point) else ()
        references[point, : len(chosen)] = of_point[list(chosen)]
    return references


def _price(
    points: Points,
    point: Int[Array, "plans"],
    position: Int[Array, "plans"],
    choices: Over[StepChoices, "... plans"],
    workload: Workload,
) -> PlanCosts:
    layers = jax.tree.map(lambda leaf: take_rows(leaf, point, position), points.table)
    hardware, assumptions = jax.tree.map(lambda leaf: leaf[point], (points.hardware, points.assumptions))
    return costs(Plans(layers, choices, hardware, assumptions), workload)


_price_rows = jax.jit(_price)


class Blockwise:
    """A `dsx.search.ranking.Search` of plans with even cuts.

    Args:
        length: calls of `rows` are padded to it, so that they are compiled once; longer calls to a power of two.
    """

    def __init__(self, source: PricedSpace, length: int) -> None:
        self._source, self._length = source, length
        self._lock = threading.Lock()
        self._on_device: dict[object, KeyCosts] = {}

    def best(
        self,
        top: int,
        per: Sequence[str] = (),
        objective: str = "step_time_s",
        blocks: BlockRange | None = None,
        progress: Progress = silent,
    ) -> tuple[Arrays, CandidateCounts]:
        """Return the best plans as `dsx.search.ranking.Search.best` says."""
        return best(self._source, Ranking(top, per, objective), self._range(blocks), progress)

    def front(
        self, objectives: Sequence[str], blocks: BlockRange | None = None, progress: Progress = silent
    ) -> tuple[Arrays, CandidateCounts]:
        """Return the front as `dsx.search.ranking.Search.front` says."""
        return front(self._source, objectives, self._range(blocks), progress)

    def rows(self, device: object, rows: Rows, feasible: bool) -> Kept:
        """Return rows as `dsx.search.ranking.Search.rows` says."""
        source = self._source
        priced = result_rows(source.problem, source.space.keys, rows, self._priced(device, rows))
        return {name: column[priced["reject"] == 0] for name, column in priced.items()} if feasible else priced

    def _range(self, blocks: BlockRange | None) -> BlockRange:
        return blocks or (0, len(self._source.space.blocks))

    def _priced(self, device: object, rows: Rows) -> PlanCosts:
        problem, dtype = self._source.problem, self._source.dtype
        count = len(rows.positions)
        length = max(self._length, power_of_two(count))
        tiers = [tier.name for tier in problem.cluster.network.middle]
        with jax.enable_x64(self._source.float64), jax.default_device(device):
            priced = _price_rows(
                Points(self._on(device), problem.hardware, problem.assumptions),
                jnp.asarray(pad(rows.points, length), dtype=jnp.int32),
                jnp.asarray(pad(rows.positions, length), dtype=jnp.int32),
                step_choices(rows.choices, lambda column: jnp.asarray(pad(column, length).astype(dtype)), tiers),
                problem.workload,
            )
            return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], priced)

    def _on(self, device: object) -> KeyCosts:
        """Return the layer costs on a device, which must be the default device, padded to a power of two."""
        source = self._source
        with self._lock:
            if device not in self._on_device:
                length = power_of_two(source.table[0].boundary_bytes.shape[-1])
                self._on_device[device] = jax.tree.map(
                    lambda leaf: jnp.asarray(pad(np.asarray(leaf), length).astype(source.dtype)), source.table
                )
            return self._on_device[device]
