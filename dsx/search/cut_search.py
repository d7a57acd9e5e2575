"""Plans with optimal cuts by bounds: the fastest of each group, and the front of step time and memory.

Only plans that may be among them are cut; the results are those of `dsx.search.sweep`, which cuts every plan.

For the fastest, the best plans of a sample of a large space limit the step times that may be kept. Then the space is
searched in waves. Segments of choices that no key brings within the limits are left out whole, other plans by their own
bounds, from the loosest to the tightest (`dsx.cost.cut_bounds`). What is left of a wave is cut in the order of its
bounds, and lowers the limits of the next wave.

For the front, no cut of a plan beats its bounds of time and memory. So a plan whose bounds a known plan beats, both of
them, is not on it. Each wave leaves out what the front of the waves before it dominates.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dsx.arrays import Chosen, PlanBools, PlanFloats, PlanInts
from dsx.cost.context import PipelineChoices
from dsx.cost.cut_bounds import ROUNDING
from dsx.plans.blocks import Blocks, ChoiceSegments, Places
from dsx.plans.enumerate import Arrays, Kept, take
from dsx.pricing.compiled import map_over_devices
from dsx.pricing.cuts import CandidateCounts, joined
from dsx.pricing.row_costs import Rows
from dsx.records import Float, Over
from dsx.search.bounds import (
    Candidates,
    best_first,
    bounds_of,
    cuts_within,
    fitting_bounds,
    may_fit,
)
from dsx.search.ranking import BlockRange, Progress, front_of_groups, leading_rows, ranks
from dsx.search.spaces import PricedSpace
from dsx.search.tiles.hot import SegmentLimits, waves
from dsx.search.tiles.tiles import Groups, block_ranges

_SAMPLE = 1 << 16  # candidates of the sample, over all hardware points; a space with fewer is its own sample
_EFFORT = 1 << 10  # candidates of the sample that are cut
_BOUNDED_CANDIDATES = 1 << 15  # candidates whose bounds are computed together


_Limits = Float[np.ndarray, "groups"]  # seconds of a plan that may be kept of a group at a hardware point
_Known = Over[Arrays, "... known"]


class _Looked(NamedTuple):
    """Candidates that may be kept, and the counts of those that were looked at.

    Until they are cut, they count as left out by their own bounds.
    """

    point: PlanInts  # hardware point
    places: Places
    group: PlanInts  # number of the group, over all hardware points
    bounds: PlanFloats  # seconds
    counts: CandidateCounts


def fastest_cuts(
    source: PricedSpace, top: int, per: Sequence[str], blocks: BlockRange, progress: Progress
) -> tuple[Arrays, CandidateCounts]:
    """Return the best plans as `dsx.search.ranking.Search.best` says; `per` are searched columns."""
    search = _CutSearch(source, top, per)
    first, last = source.space.blocks.first_candidate[[*blocks]].tolist()
    if (last - first) * source.problem.num_points <= _SAMPLE:
        kept, counts = search.cut(search.looked_at(np.arange(first, last)), search.no_limits)
        progress(counts.priced)
    else:
        kept, counts = _in_waves(search, blocks, progress)
        progress(counts.skipped)
    del kept["group"]
    return leading_rows(kept, top, ["point", *per]), counts


def _in_waves(search: "_CutSearch", blocks: BlockRange, progress: Progress) -> tuple[Arrays, CandidateCounts]:
    source, of_all = search.source, search.source.space.blocks
    first, last = of_all.first_candidate[[*blocks]].tolist()
    sample = np.random.default_rng(0).integers(first, last, _SAMPLE // source.problem.num_points)
    kept, _ = search.cut(search.looked_at(np.unique(sample)), search.no_limits, _EFFORT)
    limits, by_segment = search.limits_of(kept, search.no_limits), SegmentLimits(source, search.groups)
    kept, counts = search.no_rows, CandidateCounts(0, 0)
    for ranges in waves(list(block_ranges(of_all, *blocks))):
        by_segment.lower(limits)

        def look(device: object, of_range: BlockRange, limits: _Limits = limits) -> list[_Looked]:
            del device
            return [search.within(places, limits) for places in _parts(of_all, by_segment.segments(*of_range))]

        looked: list[_Looked] = []
        for _, parts in map_over_devices(look, ranges):
            looked += parts
            progress(sum(part.counts.priced for part in parts))
        if looked:
            rows, counted = search.cut(looked, limits)
            counts = counts.plus(counted)
            kept = leading_rows(joined([kept, rows]), search.top, ["group"])
            limits = search.limits_of(kept, limits)
    skipped = (last - first) * source.problem.num_points - counts.candidates
    return kept, counts.plus(CandidateCounts(skipped, 0, skipped))


def _parts(blocks: Blocks, segments: ChoiceSegments) -> Iterator[Places]:
    """Yield the candidates of some segments, a bounded number at a time."""
    choices = segments.per_choice()
    num_keys = np.diff(blocks.first_key)[choices.block]
    ends = np.cumsum(num_keys)
    start = 0
    while start < len(ends):
        keys_before = int(ends[start] - num_keys[start])
        stop = max(start + 1, int(np.searchsorted(ends, keys_before + _BOUNDED_CANDIDATES, side="right")))
        choice = np.repeat(np.arange(start, stop), num_keys[start:stop])
        block = choices.block[choice]
        key = np.arange(len(choice)) - (ends - num_keys)[choice] + keys_before
        batch = blocks.batches[choices.first[choice]]
        yield Places(block, blocks.keys[blocks.first_key[block] + key], choices.placement[choice], batch)
        start = stop


class _CutSearch:
    """The groups of a search, and how its candidates are bounded and cut."""

    def __init__(self, source: PricedSpace, top: int, per: Sequence[str]) -> None:
        self.source, self.top = source, top
        self.groups = Groups(source.space.keys, source.space.blocks, per)
        self.no_limits = np.full(source.problem.num_points * self.groups.span, np.inf)
        self.no_rows: Arrays = source.no_rows() | {"group": np.zeros(0, dtype=np.int64)}
        self._seconds = [source.key_seconds(point) for point in range(source.problem.num_points)]

    def looked_at(self, candidates: Chosen) -> list[Over[_Looked, "..."]]:
        """Return some candidates at all points."""
        blocks = self.source.space.blocks
        starts = range(0, len(candidates), _BOUNDED_CANDIDATES)
        places = [blocks.places_of(candidates[start : start + _BOUNDED_CANDIDATES]) for start in starts]
        return [self.within(part, self.no_limits) for part in places]

    def within(self, places: Places, limits: _Limits) -> Over[_Looked, "... kept"]:
        """Return those candidates at all points that their bounds leave within the limits."""
        blocks, searched = self.source.space.blocks, self.source.problem.workload.searched
        code = self.groups.of_key[places.key]
        code = code + self.groups.of_choices(blocks, places.placement, places.global_batch_size, places.block)
        choices = PipelineChoices.of(self._choices(places, PipelineChoices._fields))
        points: list[np.ndarray] = []
        positions: list[np.ndarray] = []
        bounds: list[np.ndarray] = []
        infeasible = 0
        for point, seconds in enumerate(self._seconds):
            most = limits[point * self.groups.span + code] * (1.0 + ROUNDING)
            position = np.flatnonzero(self.source.loose_bound(seconds, places.key, choices, searched) <= most)
            at_point = np.full(len(position), point)
            rows = self._rows(at_point, places.take(position))
            tight = fitting_bounds(self.source, rows)
            infeasible += int(np.isinf(tight).sum())
            fast, tight = cuts_within(self.source, rows, tight, most[position])
            points.append(at_point[fast])
            positions.append(position[fast])
            bounds.append(tight)
        point, position = np.concatenate(points), np.concatenate(positions)
        size = len(places.key) * len(self._seconds)
        group = point * self.groups.span + code[position]
        return _Looked(
            point,
            places.take(position),
            group,
            np.concatenate(bounds),
            CandidateCounts(size, 0, bounded=size - infeasible),
        )

    def cut(
        self, looked: Sequence[Over[_Looked, "..."]], limits: _Limits, effort: int | None = None
    ) -> tuple[Arrays, CandidateCounts]:
        """Return the fastest plans of each group with a column `group`, and the counts of all that were looked at."""
        places = Places(*(np.concatenate(columns) for columns in zip(*(part.places for part in looked), strict=True)))
        point, group, bounds = (
            np.concatenate([getattr(part, name) for part in looked]) for name in ("point", "group", "bounds")
        )

        def rows(where: np.ndarray) -> Rows:
            return self._rows(point[where], places.take(where))

        kept, cut = best_first(self.source, Candidates(rows, bounds, group), self.top, limits, effort)
        counts = functools.reduce(CandidateCounts.plus, [part.counts for part in looked])
        return kept, counts.plus(CandidateCounts(0, cut.feasible, bounded=-cut.candidates, cut=cut.candidates))

    def _rows(self, point: PlanInts, places: Places) -> Rows:
        return Rows(point, places.key, self._choices(places))

    def _choices(self, places: Places, names: Sequence[str] | None = None) -> Arrays:
        blocks = self.source.space.blocks
        size = blocks.microbatch_size[places.block]
        return blocks.choices_at(places.placement, places.global_batch_size, size, names)

    def limits_of(self, kept: Arrays, limits: _Limits) -> _Limits:
        """Return the limits where groups have as many plans as are kept."""
        lower = limits.copy()
        last = np.flatnonzero(ranks(kept["group"]) == self.top - 1)
        lower[kept["group"][last]] = np.minimum(lower[kept["group"][last]], kept["step_time_s"][last])
        return lower


OBJECTIVES = ("step_time_s", "peak_bytes")  # that have bounds
_CUTS = 1 << 8  # candidates that are cut together


def front_of_cuts(
    source: PricedSpace, objectives: Sequence[str], chunks: Sequence[tuple[int, int]], progress: Progress
) -> tuple[Arrays, CandidateCounts]:
    """Return the front of some ranges of candidates as `dsx.search.ranking.Search.front` says.

    `objectives` are some of `OBJECTIVES`.
    """
    kept, counts = source.no_rows(), CandidateCounts(0, 0)

    for wave in waves(chunks):

        def run(device: object, chunk: tuple[int, int], front: Arrays = kept) -> tuple[Arrays, CandidateCounts]:
            del device
            return _front_of_chunk(source, objectives, _rows(source, *chunk), front)

        fronts = [kept]
        for _, (rows, counted) in map_over_devices(run, wave):
            fronts.append(rows)
            counts = counts.plus(counted)
            progress(counted.candidates)
        kept = front_of_groups(joined(fronts), ["point"], objectives)
    return kept, counts


def _front_of_chunk(
    source: PricedSpace, objectives: Sequence[str], rows: Rows, front: _Known
) -> tuple[Kept, CandidateCounts]:
    """Return the front of rows and of what is known, and the counts of the rows."""
    bounds = bounds_of(source, rows)
    step_s, peak_bytes = np.asarray(bounds.step_s), np.asarray(bounds.peak_bytes)
    fits = may_fit(source, rows, bounds)
    candidates = np.flatnonzero(fits)
    candidates = candidates[np.argsort(step_s[candidates], kind="stable")]
    cut = feasible = 0
    while True:
        candidates = candidates[~_dominated(front, rows.points[candidates], step_s[candidates], peak_bytes[candidates])]
        if not len(candidates):
            bounded = int(fits.sum()) - cut
            return front, CandidateCounts(len(fits), feasible, bounded=bounded, cut=cut)
        part, candidates = candidates[:_CUTS], candidates[_CUTS:]
        columns = source.fastest_rows(rows.take(part))
        columns = take(columns, columns["reject"] == 0)
        front = front_of_groups(joined([front, columns]), ["point"], objectives)
        cut, feasible = cut + len(part), feasible + len(columns["point"])


def _dominated(front: _Known, points: PlanInts, step_s: PlanFloats, peak_bytes: PlanFloats) -> PlanBools:
    """Return whether a known plan beats both bounds of candidates at their hardware points."""
    dominated = np.zeros(len(points), dtype=bool)
    for point in np.unique(points).tolist():
        at_point, front_at_point = points == point, front["point"] == point
        order = np.argsort(front["step_time_s"][front_at_point], kind="stable")
        faster = np.searchsorted(front["step_time_s"][front_at_point][order], step_s[at_point] * (1.0 - ROUNDING))
        # The least memory of the plans that are faster.
        least = np.minimum.accumulate(np.append(np.inf, front["peak_bytes"][front_at_point][order]))
        dominated[at_point] = least[faster] < peak_bytes[at_point] * (1.0 - ROUNDING)
    return dominated


def _rows(source: PricedSpace, start: int, stop: int) -> Rows:
    """Return a range of candidates at all points."""
    positions, choices = source.space.blocks.rows(start, stop)
    num_points = source.problem.num_points
    tiled = {name: np.tile(column, num_points) for name, column in choices.items()}
    return Rows(np.repeat(np.arange(num_points), len(positions)), np.tile(positions, num_points), tiled)
