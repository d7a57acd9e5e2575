"""Bounds of plans that no cut beats, and searches that price the plans of least bound first.

A search for the fastest plan goes from cheap bounds to tight ones (`dsx.cost.cut_bounds`):

* All GPUs of a job share the work of its step, so no plan of a shard key is faster than the whole of it on as many
  GPUs. A few keys are searched first, and most of the others are left out by this bound once some plans are known.
* Each plan of the others has a loose bound, from the seconds of its key's layers alone.
* Those within the limit have a bound of their memory, one for all plans that differ in where their ranks are, and then
  a tight one of their time.
* A probe says whether one of the cuts of a plan may be within the limit. Those that are left are priced, with their
  exact cut, in the order of their bounds, until the next bound is above the slowest plan that is kept.

The result is that of `dsx.search.sweep`, which prices every plan. Nothing is compiled: a compiled search prices every
plan sooner than this one a tenth of them, but compiling it takes seconds. So a search of even cuts gives up where
bounds leave many plans.
"""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dsx.arrays import Chosen, KeyFloats, PlanBools, PlanFloats, PlanInts
from dsx.cost.context import PipelineChoices
from dsx.cost.cut_bounds import (
    ROUNDING,
    CutBounds,
    LooseBound,
    least_even_s,
    least_microbatch_s,
    least_passes_s,
    stages_hold_all,
)
from dsx.cost.interval import Room, room
from dsx.plans.blocks import Places
from dsx.plans.choices import CHOICE_COLUMNS, KEY_COLUMNS, NONE_CODE
from dsx.plans.enumerate import Arrays, Kept, Keys, take
from dsx.plans.experts import REPLICA_AXES
from dsx.pricing.cuts import CandidateCounts, chunk_pipelines_s, joined, price_best_cuts, result_rows
from dsx.pricing.keys import PointCosts, numbered
from dsx.pricing.probe import first_of_equals
from dsx.pricing.problem import stage_costs
from dsx.pricing.row_costs import Rows, machines, plans_of
from dsx.progress import OutOfTimeError, check_time, seconds_left, time_limit
from dsx.records import Bool, Float, Int, tree_map
from dsx.search.ranking import Progress, leading_rows, ranks, silent
from dsx.search.spaces import PricedSpace, recomputing

_SCOUTS = 16  # keys of each microbatch size
_SHARES = (1 / 16, 1 / 4)  # of the other keys


def key_bounds(source: PricedSpace) -> KeyFloats:
    """Return bounds [s] of the keys of a space at the first hardware point, whatever its values of `recompute`."""
    bounds, keys, workload = source.space.bounds, source.space.keys, source.problem.workload
    gpus = np.prod(np.stack([keys[axis] for axis in REPLICA_AXES]), axis=0)
    microbatches = min(bounds.global_batch_size) / keys["microbatch_size"]
    kinds = tree_map(lambda leaf: np.asarray(leaf)[0], source.table)
    return microbatches * gpus / max(bounds.num_gpus) * least_microbatch_s(kinds, workload.stack, workload.searched)


def shares_of(keys: Keys, bounds: KeyFloats) -> list[Int[np.ndarray, "_"]]:
    """Return the shares of keys that are searched one after the other until the seconds of fast plans are known.

    The first one has keys of each microbatch size, those of least `bounds`; the others have all other keys, those of
    least bounds first. Keys of large microbatches have the least bounds of all, but slow plans: much of few
    microbatches is bubble.
    """
    order = np.lexsort((bounds, keys["microbatch_size"]))
    scouts = ranks(keys["microbatch_size"][order]) < _SCOUTS
    remaining = order[~scouts]
    remaining = remaining[np.argsort(bounds[remaining], kind="stable")]
    return [order[scouts], *np.split(remaining, [math.ceil(share * len(remaining)) for share in _SHARES])]


_FIRST = 1 << 6  # candidates that are priced first; the first few have nearly always the fastest
_MOST_CUT, _MOST_EVEN = 1 << 10, 1 << 13  # candidates that are priced together, with optimal and with even cuts


class Candidates(NamedTuple):
    """Candidates of a space, to be priced in the order of their bounds."""

    rows: Callable[[Chosen], Rows]  # returns some of them as rows, by their positions
    bounds: PlanFloats  # seconds that none is faster than
    group: PlanInts  # number of its group


def best_first(
    source: PricedSpace,
    candidates: Candidates,
    top: int,
    most: Float[np.ndarray, "groups"],
    effort: int | None = None,
) -> tuple[Kept, CandidateCounts]:
    """Return the `top` fastest feasible candidates of each group, by group and step time; `group` is a column of them.

    Args:
        source: the space of the candidates.
        candidates: those that may be kept.
        top: how many of a group are kept.
        most: seconds of a plan that may be kept.
        effort: candidates that may be priced; beyond, or when no time is left, others may be faster than the result.
    """
    rows, bounds, group = candidates
    order = np.lexsort((bounds, group))
    bounds, group_of = bounds[order], group[order]
    rank = ranks(group_of) if len(order) else order
    worst, kept = most * (1.0 + ROUNDING), source.no_rows() | {"group": np.zeros(0, dtype=np.int64)}
    num_groups, largest = max(1, len(np.unique(group))), _MOST_CUT if source.problem.optimal_cuts else _MOST_EVEN
    together = max(top, _FIRST // num_groups)
    done = priced = feasible = 0
    while (effort is None or priced < effort) and seconds_left():
        waiting = (rank >= done) & (bounds <= worst[group_of])
        if not waiting.any():
            break
        positions = np.sort(order[waiting & (rank < done + together)])
        several = rows(positions).choices["vpp"] > 1
        # Plans of several chunks per stage are cut in a tenth of the time, and then a probe leaves out most others.
        parts = (positions[several], positions[~several]) if source.problem.optimal_cuts else (positions,)
        for part in filter(len, parts):
            part = part[source.may_take(rows(part), worst[group[part]])]
            columns = source.fastest_rows(rows(part)) | {"group": group[part]}
            columns = take(columns, columns["reject"] == 0)
            kept = leading_rows(joined([kept, columns]), top, ["group"], "step_time_s")
            last = np.flatnonzero(ranks(kept["group"]) == top - 1)
            worst[kept["group"][last]] = np.minimum(
                worst[kept["group"][last]], kept["step_time_s"][last] * (1.0 + ROUNDING)
            )
            priced, feasible = priced + len(part), feasible + len(columns["group"])
        done += together
        together = max(1, min(2 * together, largest // num_groups))
    return kept, CandidateCounts(priced, feasible)


def fastest_first(
    source: PricedSpace,
    rows: Callable[[Chosen], Rows],
    bounds: PlanFloats,
    top: int,
    below: float,
    effort: int | None = None,
) -> tuple[Kept, CandidateCounts]:
    """Return what `best_first` does for candidates of one group, of which none slower than `below` [s] is kept."""
    candidates = Candidates(rows, bounds, np.zeros(len(bounds), np.int64))
    kept, counts = best_first(source, candidates, top, np.array([below]), effort)
    del kept["group"]
    return kept, counts


_ROWS = 1 << 13  # candidates whose bounds are computed together: their arrays fit into the cache of a core
_LOOSE_ROWS = 1 << 16  # candidates whose loose bounds are computed together
_TOGETHER = 1 << 18  # candidates among which those that differ in where their ranks are have one bound of memory
# What the memory of a plan does not depend on: where its ranks are, and the batch but for the microbatches.
_OF_RANKS = ("pp_nvs", "dp_nvs", "order", "global_batch_size")
_MANY_VALUES = 4  # of `recompute`, from which on a bound of all of them is looked at first
_CUTS = 1 << 10  # candidates that are cut together


@dataclass(frozen=True, slots=True)
class BoundedCounts:
    """How many candidates a search by bounds has, and what it did with them."""

    candidates: int
    bounded: int  # of the shard keys that it searched; the bounds of the others leave them out
    cut: int
    feasible: int  # of those that were cut


def best_cuts(
    source: PricedSpace, top: int, progress: Progress = silent, below: float = np.inf
) -> tuple[Arrays, BoundedCounts]:
    """Return all columns of the `top` feasible candidates of smallest step time, with their optimal cuts.

    Candidates that take longer than `below` [s] may be missing. The problem has one hardware point.
    """
    counts, bounded = CandidateCounts(0, 0), 0

    def search(part: PricedSpace, most: float) -> Arrays:
        nonlocal counts, bounded
        bounds, candidates = _bounded(part, np.flatnonzero(loose_bounds(part, least_passes_s) <= most), most)
        progress(part.space.size)
        rows, of_part = fastest_first(part, lambda positions: rows_at(part, candidates[positions]), bounds, top, most)
        counts, bounded = counts.plus(of_part), bounded + part.space.size
        return rows

    kept = by_key_bounds(source, top, below, search)
    progress(source.space.size - bounded)
    return kept, BoundedCounts(source.space.size, bounded, counts.candidates, counts.feasible)


def by_key_bounds(
    source: PricedSpace, top: int, below: float, search: Callable[[PricedSpace, float], Arrays]
) -> Arrays:
    """Return the `top` fastest of what `search` finds, a share of the shard keys at a time until `below` [s] is known.

    `search` gets the space of some keys, and the most seconds of a plan that may be kept. Keys whose bound is above are
    left out, and when no time is left all but the first share.
    """
    bounds = key_bounds(source)
    kept, shares, first = source.no_rows(), shares_of(source.space.keys, bounds), below == np.inf
    while shares:
        keys, shares = (shares[0], shares[1:]) if below == np.inf else (np.concatenate(shares), [])
        most = below * (1.0 + ROUNDING)
        part = source.of_keys(np.sort(keys[bounds[keys] <= most]))
        try:
            with time_limit(np.inf) if first else nullcontext():
                rows = search(part, most)
        except OutOfTimeError:
            break
        first = False
        kept = leading_rows(joined([kept, rows]), top, ["point"], "step_time_s")
        below = min(below, float(kept["step_time_s"][-1])) if len(kept["point"]) == top else below
    return kept


def smallest_cut(source: PricedSpace, progress: Progress = silent) -> Arrays:
    """Return all columns of the candidate that needs the least memory, with its cut of least memory.

    The problem has one hardware point, whose GPUs hold every candidate. Candidates that its hosts do not hold are left
    out, so there may be none.
    """
    least = [np.zeros(0)]
    for start in range(0, source.space.size, _ROWS):
        candidates = np.arange(start, min(start + _ROWS, source.space.size))
        least.append(np.asarray(bounds_of(source, rows_at(source, candidates)).peak_bytes))
        progress(len(candidates))
    bounds = np.concatenate(least)
    order = np.argsort(bounds, kind="stable")
    kept = source.no_rows()
    for start in range(0, len(order), _CUTS):
        part = order[start : start + _CUTS]
        if len(kept["point"]) and bounds[part[0]] > kept["peak_bytes"][0] * (1.0 + ROUNDING):
            break
        rows = rows_at(source, np.sort(part))
        priced = price_best_cuts(source.problem, source.table, rows, "least memory")
        columns = result_rows(source.problem, source.space.keys, rows, priced.costs, priced.cuts)
        columns = take(columns, columns["reject"] == 0)
        kept = leading_rows(joined([kept, columns]), 1, ["point"], "peak_bytes")
    return kept


def loose_bounds(source: PricedSpace, bound: LooseBound) -> PlanFloats:
    """Return the bounds [s] of all candidates from the seconds of their keys' layers alone.

    `bound` is `least_passes_s` or `least_even_s` of `dsx.cost.cut_bounds`.
    """
    if not source.space.size:
        return np.zeros(0)
    searched, seconds = source.problem.workload.searched, source.key_seconds()
    bounds = [bound(seconds, keys, choices, searched) for keys, choices in _pipelines(source)]
    return np.concatenate(bounds)


def loose_bounds_of_any_recompute(source: PricedSpace, bound: LooseBound) -> tuple[PlanFloats, PlanFloats]:
    """Return the bounds of `loose_bounds`, and those of all candidates as if no layer was recomputed."""
    if not source.space.size:
        return np.zeros(0), np.zeros(0)
    usual = source.problem.workload.searched
    bare = replace(source, problem=recomputing(source.problem, [NONE_CODE]))
    without, seconds = bare.problem.workload.searched, (source.key_seconds(), bare.key_seconds())
    of_usual: list[np.ndarray] = []
    of_bare: list[np.ndarray] = []
    for keys, choices in _pipelines(source):
        of_usual.append(bound(seconds[0], keys, choices, usual))
        bare_choices = choices._replace(recompute=np.full_like(choices.recompute, NONE_CODE))
        of_bare.append(bound(seconds[1], keys, bare_choices, without))
    return np.concatenate(of_usual), np.concatenate(of_bare)


def _pipelines(source: PricedSpace) -> Iterator[tuple[PlanInts, PipelineChoices]]:
    """Yield all candidates, a bounded number at a time: positions in the key table, and choices."""
    blocks = source.space.blocks
    for start in range(0, source.space.size, _LOOSE_ROWS):
        stop = min(start + _LOOSE_ROWS, source.space.size)
        keys, columns = blocks.rows(start, stop, PipelineChoices._fields)
        yield keys, PipelineChoices.of(columns)


def _bounded(
    source: PricedSpace, candidates: Chosen, below: float
) -> tuple[Float[np.ndarray, "kept"], Int[np.ndarray, "kept"]]:
    """Return the bounds [s] of some candidates, and the candidates.

    They are without those that fit with no cut, and those that take longer than `below` [s].
    """
    parts = [fitting_bounds(source, rows, below) for _, rows in parts_of(source, candidates)]
    step_s = np.concatenate([np.zeros(0), *parts])
    candidates, step_s = candidates[step_s <= below], step_s[step_s <= below]
    positions, tightened = cuts_within(source, rows_at(source, candidates), step_s, below)
    return tightened, candidates[positions]


def rows_at(source: PricedSpace, candidates: PlanInts) -> Rows:
    """Return candidates of a space as rows at its first hardware point."""
    return rows_of(source, source.space.blocks.places_of(candidates))


def rows_of(source: PricedSpace, places: Places) -> Rows:
    """Return candidates at some places as rows at the first hardware point."""
    positions, choices = source.space.blocks.rows_of(places)
    return Rows(np.zeros_like(positions), positions, choices)


def parts_of(
    source: PricedSpace, candidates: Chosen, where: Bool[np.ndarray, "placements"] | None = None
) -> Iterator[tuple[Places, Rows]]:
    """Yield candidates of a space in their order, a bounded number at a time, as places and as rows.

    With `where`, only those of some placements.
    """
    for start in range(0, len(candidates), _TOGETHER):
        check_time()
        places = source.space.blocks.places_of(candidates[start : start + _TOGETHER])
        places = places if where is None else places.take(where[places.placement])
        yield places, rows_of(source, places)


def fitting_bounds(source: PricedSpace, rows: Rows, most: float | PlanFloats = np.inf) -> PlanFloats:
    """Return the seconds that no cut of a row is faster than.

    They are infinite where memory holds the row with no cut, and may be where it takes longer than `most` [s].
    """
    least_s = np.full(rows.positions.shape, np.inf)
    # Bounds of memory, pipeline and update leave few rows, and those of the reduction cost most.
    fast = np.flatnonzero(may_be_fast(source, rows, memory_bounds(source, rows).fits, most))
    least_s[fast] = step_bounds(source, rows.take(fast))
    return least_s


def step_bounds(source: PricedSpace, rows: Rows) -> PlanFloats:
    """Return the seconds that no cut of a row is faster than, whether it fits or not."""
    return _of_parts(lambda part: np.asarray(bounds_of(source, part).step_s), rows)


class MemoryBounds(NamedTuple):
    """Bounds of the memory of rows with any cut."""

    peak_bytes: PlanFloats  # of the fullest GPU
    fits: PlanBools  # whether a GPU and its host may hold them


def memory_bounds(source: PricedSpace, rows: Rows, most: float = np.inf) -> MemoryBounds:
    """Return the bounds of the memory of rows; they are infinite where GPUs need more than `most` [bytes].

    They are computed once for rows that differ in where their ranks are, and first as if of each layer the least was
    kept that any recomputation keeps.
    """
    peak_bytes, fits = np.full(rows.positions.shape, np.inf), np.zeros(rows.positions.shape, dtype=bool)
    where = np.arange(len(fits))
    values = source.problem.workload.searched.recompute
    for priced, without in ((_keeping_least(source), {"recompute"}), (source, set[str]())):
        if without and len(values) < _MANY_VALUES:
            continue
        first, of_row = _alike_in_memory(source, rows, without)
        bounds = _of_parts(lambda part, priced=priced: _peak_and_fit(priced, part), rows.take(first), width=(2,))
        of_rows, may_fit = bounds[of_row].T
        possible = (may_fit > 0.0) & (of_rows <= most)
        where, rows, of_rows = where[possible], rows.take(possible), of_rows[possible]
    peak_bytes[where], fits[where] = of_rows, True
    return MemoryBounds(peak_bytes, fits)


def least_bytes(source: PricedSpace, rows: Rows) -> PlanFloats:
    """Return the bounds of the memory [bytes] of rows, whether they fit or not."""
    first, of_row = _alike_in_memory(source, rows)
    return _of_parts(lambda part: np.asarray(bounds_of(source, part).peak_bytes), rows.take(first))[of_row]


def _peak_and_fit(source: PricedSpace, rows: Rows) -> Float[np.ndarray, "plans 2"]:
    """Return bounds of the memory of rows, and whether they may fit."""
    bounds = bounds_of(source, rows)
    return np.stack([bounds.peak_bytes, may_fit(source, rows, bounds)], axis=1)


def _keeping_least(source: PricedSpace) -> PricedSpace:
    """Return the space with layers that keep, under any recomputation, the least that they keep under one of them."""

    def least(costs: PointCosts) -> PointCosts:
        stash = np.asarray(costs.stash_bytes)
        return replace(costs, stash_bytes=np.broadcast_to(stash.min(axis=1, keepdims=True), stash.shape))

    return replace(source, table=tuple(map(least, source.table)))


def _alike_in_memory(
    source: PricedSpace, rows: Rows, without: Collection[str] = ()
) -> tuple[Int[np.ndarray, "distinct"], PlanInts]:
    """Return the first of the rows for each of their memories, and which of these each row has.

    Columns `without` have no part in it.
    """
    of_keys = numbered([source.space.keys[name] for name in KEY_COLUMNS if not name.endswith("_nvs")])
    names = [name for name in CHOICE_COLUMNS if name not in _OF_RANKS and name not in without]
    return first_of_equals([rows.points, of_keys[rows.positions], *(rows.choices[name] for name in names)])


def _of_parts(
    of_part: Callable[[Rows], np.ndarray], rows: Rows, width: tuple[int, ...] = ()
) -> Float[np.ndarray, "plans *width"]:
    """Return what `of_part` returns of rows, a few at a time that fit into the cache of a core."""
    parts = [np.zeros((0, *width))]
    for start in range(0, len(rows.positions), _ROWS):
        check_time()
        parts.append(of_part(rows.take(slice(start, start + _ROWS))))
    return np.concatenate(parts)


def cuts_within(
    source: PricedSpace, rows: Rows, bounds: PlanFloats, most: float | PlanFloats
) -> tuple[Int[np.ndarray, "kept"], Float[np.ndarray, "kept"]]:
    """Return which rows may fit and take at most `most` [s] with a cut that is tried.

    `bounds` are the seconds that no cut of a row is faster than; the second result is those of the rows that are left,
    some of them tighter.
    """
    most = np.broadcast_to(most, bounds.shape)
    positions = np.flatnonzero((bounds <= most) & (bounds < np.inf))
    if not source.problem.optimal_cuts:
        return positions, bounds[positions]
    positions = positions[_may_have_cuts(source, rows.take(positions), most[positions])]
    bounds = bounds[positions]
    several = np.flatnonzero(rows.choices["vpp"][positions] > 1)
    # Few cuts are known of a plan with several chunks per stage, so its pipeline takes no less than with these.
    for start in range(0, len(several), _LOOSE_ROWS):
        part = several[start : start + _LOOSE_ROWS]
        chunked = rows.take(positions[part])
        seconds = chunk_pipelines_s(source.problem, source.table, chunked)
        bounds[part] = np.maximum(bounds[part], bounds_of(source, chunked).step_behind_s(seconds))
    fast = bounds <= most[positions]
    return positions[fast], bounds[fast]


def _may_have_cuts(source: PricedSpace, rows: Rows, below: PlanFloats) -> PlanBools:
    """Return which rows may have a cut that fits and whose pipeline takes at most `below` [s]."""
    may_have = [np.zeros(0, dtype=bool)]
    for start in range(0, len(rows.positions), _ROWS):
        part = slice(start, start + _ROWS)
        rows_of_part = rows.take(part)
        plans, workload = plans_of(source.problem, source.table, rows_of_part)
        most = most_bytes(source, rows_of_part)
        may_have.append(stages_hold_all(stage_costs(plans, workload), below[part], most))
    return np.concatenate(may_have)


def most_bytes(source: PricedSpace, rows: Rows) -> PlanFloats:
    """Return the most bytes of a GPU that a bound of rows may have."""
    return np.asarray(_room(source, rows).gpu * (1.0 + ROUNDING))


def may_be_fast(source: PricedSpace, rows: Rows, among: PlanBools, most: float | PlanFloats) -> PlanBools:
    """Return which rows may take at most `most` [s] with some cut and any ZeRO replicas.

    They are some of those `among`. Their bounds of the pipeline and of the update say so.
    """

    def of_part(part: Rows) -> PlanFloats:
        bounds = bounds_of(source, part)
        return np.asarray(bounds.pipeline_of_any_replicas_s + bounds.update_s)

    least_s = np.full(among.shape, np.inf)
    least_s[among] = _of_parts(of_part, rows.take(among))
    return (least_s <= most) & among


def may_fit(source: PricedSpace, rows: Rows, bounds: CutBounds) -> PlanBools:
    """Return which rows may fit with some cut, by the `bounds` of their memory."""
    fits = np.asarray(bounds.peak_bytes <= most_bytes(source, rows))
    if bounds.costs.uses_host:
        fits = fits & np.asarray(bounds.host_bytes <= _room(source, rows).host * (1.0 + ROUNDING))
    return fits


def _room(source: PricedSpace, rows: Rows) -> Room:
    return room(*machines(source.problem, rows.points), rows.choices["num_gpus"].astype(np.float64))


def bounds_of(source: PricedSpace, rows: Rows) -> CutBounds:
    """Return the bounds of rows; those of even cuts if the problem has no others."""
    plans, workload = plans_of(source.problem, source.table, rows)
    return CutBounds(stage_costs(plans, workload), even=not source.problem.optimal_cuts)


_UNCOMPILED_PLANS = 1 << 18  # plans that are priced sooner than a search is compiled


def best_even(source: PricedSpace, top: int, below: float) -> tuple[Arrays, CandidateCounts] | None:
    """Return all columns of the `top` feasible candidates of smallest step time, and the counts of those it priced.

    Candidates that take longer than `below` [s] may be missing. The problem has one hardware point. The result is None
    if bounds leave too many candidates.
    """
    counts = CandidateCounts(0, 0)

    def search(part: PricedSpace, most: float) -> Arrays:
        nonlocal counts
        bounds = loose_bounds(part, least_even_s)
        candidates = np.flatnonzero(bounds <= most)
        rows, of_part = fastest_first(
            part,
            lambda positions: rows_at(part, candidates[positions]),
            bounds[candidates],
            top,
            most,
            _UNCOMPILED_PLANS,
        )
        counts = counts.plus(of_part)
        if counts.candidates >= _UNCOMPILED_PLANS:
            raise _TooManyError
        return rows

    try:
        return by_key_bounds(source, top, below, search), counts
    except _TooManyError:
        return None


class _TooManyError(Exception):
    """Bounds leave more than a few plans."""
