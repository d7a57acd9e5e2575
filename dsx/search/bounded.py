"""The fastest plans with optimal cuts, by bounds: only plans that may be among them get their exact cut.

Bounds go from cheap to tight (`dsx.cost.cut_bounds`). No plan of a shard key is faster than its share of the work. So a
few keys are searched first, and most of the others are left out by this bound once some plans are known. Each plan of
the others has a loose bound, those within the limit a tight one, and exact cuts are found in the order of the tight
ones, until the next bound is above the slowest plan that is kept. The result is that of `dsx.search.partitioned`, which
cuts every plan.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dsx.cost.choices import PipelineChoices
from dsx.cost.cut_bounds import ROUNDING, CutBounds, LooseBound, least_passes_s, stages_hold_all
from dsx.cost.headroom import Room, room
from dsx.pricing.batch import stage_costs
from dsx.pricing.chunk_cuts import chunk_pipelines_s
from dsx.pricing.cuts import price_best_cuts
from dsx.pricing.row_costs import Rows, machines, plans_of
from dsx.pricing.rows import Counts, joined, result_rows
from dsx.search.best_first import fastest_first
from dsx.search.key_bounds import key_bounds, shares_of
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Progress, silent
from dsx.search.recompute_front import recomputing
from dsx.search.row_groups import leading_rows
from dsx.space.blocks import Places
from dsx.space.enumerate import Arrays, take
from dsx.space.recompute_values import NONE_CODE

_ROWS = 1 << 13  # candidates whose bounds are computed together: their arrays fit into the cache of a core
_LOOSE_ROWS = 1 << 16  # candidates whose loose bounds are computed together
_LOOKED_UP = 1 << 18  # candidates whose places are looked up together
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
    counts, bounded = Counts(0, 0), 0

    def search(part: PricedSpace, most: float) -> Arrays:
        nonlocal counts, bounded
        found, of_part = _best_cuts(part, top, progress, most)
        counts, bounded = counts.plus(of_part), bounded + part.space.size
        return found

    kept = by_key_bounds(source, top, below, search)
    progress(source.space.size - bounded)
    return kept, BoundedCounts(source.space.size, bounded, counts.candidates, counts.feasible)


def by_key_bounds(
    source: PricedSpace, top: int, below: float, search: Callable[[PricedSpace, float], Arrays]
) -> Arrays:
    """Return the `top` fastest of what `search` finds, a share of the shard keys at a time until `below` [s] is known.

    `search` gets the space of some keys, and the most seconds of a plan that may be kept. Keys whose bound is above are
    left out.
    """
    bounds = key_bounds(source.space, source.table, source.problem.workload)
    kept, shares = source.no_rows(), shares_of(source.space.keys, bounds)
    while shares:
        keys, shares = (shares[0], shares[1:]) if below == np.inf else (np.concatenate(shares), [])
        most = below * (1.0 + ROUNDING)
        found = search(source.of_keys(np.sort(keys[bounds[keys] <= most])), most)
        kept = leading_rows(joined([kept, found]), top, ["point"], "step_time_s")
        below = min(below, float(kept["step_time_s"][-1])) if len(kept["point"]) == top else below
    return kept


def _best_cuts(source: PricedSpace, top: int, progress: Progress, below: float) -> tuple[Arrays, Counts]:
    """Return the fastest plans of some shard keys, and the counts of those that got their exact cut."""
    candidates = np.flatnonzero(loose_bounds(source, least_passes_s) <= below)
    bounds, candidates = _bounded(source, candidates, below)
    progress(source.space.size)
    return fastest_first(source, lambda here: rows_at(source, candidates[here]), bounds, top, below)


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
        here = order[start : start + _CUTS]
        if len(kept["point"]) and bounds[here[0]] > kept["peak_bytes"][0] * (1.0 + ROUNDING):
            break
        rows = rows_at(source, np.sort(here))
        priced = price_best_cuts(source.problem, source.table, rows, "least memory")
        columns = result_rows(source.problem, source.space.keys, rows, priced.costs, priced.cuts)
        columns = take(columns, columns["reject"] == 0)
        kept = leading_rows(joined([kept, columns]), 1, ["point"], "peak_bytes")
    return kept


def loose_bounds(source: PricedSpace, bound: LooseBound) -> np.ndarray:
    """Return the bounds [s] of all candidates from the seconds of their keys' layers alone.

    `bound` is `least_passes_s` or `least_even_s` of `dsx.cost.cut_bounds`.
    """
    if not source.space.size:
        return np.zeros(0)
    searched, seconds = source.problem.workload.searched, source.key_seconds()
    found = [bound(seconds, keys, choices, searched) for keys, choices in _pipelines(source)]
    return np.concatenate(found)


def loose_bounds_of_any_recompute(source: PricedSpace, bound: LooseBound) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of `loose_bounds`, and those of all candidates as if no layer was recomputed."""
    if not source.space.size:
        return np.zeros(0), np.zeros(0)
    usual = source.problem.workload.searched
    bare = replace(source, problem=recomputing(source.problem, [NONE_CODE]))
    without, seconds = bare.problem.workload.searched, (source.key_seconds(), bare.key_seconds())
    found: list[np.ndarray] = []
    of_bare: list[np.ndarray] = []
    for keys, choices in _pipelines(source):
        found.append(bound(seconds[0], keys, choices, usual))
        none = choices._replace(recompute=np.full_like(choices.recompute, NONE_CODE))
        of_bare.append(bound(seconds[1], keys, none, without))
    return np.concatenate(found), np.concatenate(of_bare)


def _pipelines(source: PricedSpace) -> Iterator[tuple[np.ndarray, PipelineChoices]]:
    """Yield all candidates, a bounded number at a time: positions in the key table, and choices."""
    blocks = source.space.blocks
    for start in range(0, source.space.size, _LOOSE_ROWS):
        stop = min(start + _LOOSE_ROWS, source.space.size)
        keys, columns = blocks.rows(start, stop, PipelineChoices._fields)
        yield keys, PipelineChoices.of(columns)


def _bounded(source: PricedSpace, candidates: np.ndarray, below: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds [s] of some candidates, and the candidates.

    They are without those that fit with no cut, and those that take longer than `below` [s].
    """
    bounds = [np.zeros(0)]
    for _, rows in parts_of(source, candidates):
        bounds.append(fitting_bounds(source, rows, below))
    step_s = np.concatenate(bounds)
    candidates, step_s = candidates[step_s <= below], step_s[step_s <= below]
    here, found = cuts_within(source, rows_at(source, candidates), step_s, below)
    return found, candidates[here]


def rows_at(source: PricedSpace, candidates: np.ndarray) -> Rows:
    """Return candidates of a space as rows at its first hardware point."""
    return rows_of(source, source.space.blocks.places_of(candidates))


def rows_of(source: PricedSpace, places: Places) -> Rows:
    """Return candidates at some places as rows at the first hardware point."""
    positions, choices = source.space.blocks.rows_of(places)
    return Rows(np.zeros_like(positions), positions, choices)


def parts_of(
    source: PricedSpace, candidates: np.ndarray, where: np.ndarray | None = None
) -> Iterator[tuple[Places, Rows]]:
    """Yield candidates of a space in their order, as places and as rows, a few that fit into the cache of a core.

    With `where` [P], only those of some placements. Many are looked up together: that takes longer for few of them.
    """
    for start in range(0, len(candidates), _LOOKED_UP):
        places = source.space.blocks.places_of(candidates[start : start + _LOOKED_UP])
        places = places if where is None else places.take(where[places.placement])
        for first in range(0, len(places.key), _ROWS):
            part = places.take(slice(first, first + _ROWS))
            yield part, rows_of(source, part)


def fitting_bounds(source: PricedSpace, rows: Rows, most: float | np.ndarray = np.inf) -> np.ndarray:
    """Return [N] seconds that no cut of a row is faster than.

    They are infinite where memory holds the row with no cut, and may be where it takes longer than `most` [s], one or
    [N].
    """
    found = np.full(rows.positions.shape, np.inf)
    # Bounds of memory, pipeline and update leave few rows, and those of the reduction cost most.
    here = np.flatnonzero(may_be_fast(source, rows, bounds_of(source, rows), most))
    found[here] = bounds_of(source, rows.take(here)).step_s
    return found


def cuts_within(
    source: PricedSpace, rows: Rows, bounds: np.ndarray, most: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which of N rows may fit and take at most `most` [s], one or [N], with a cut that is tried.

    `bounds` [N] are those of `fitting_bounds`; the second result is the bounds of these rows, some of them tighter.
    """
    most = np.broadcast_to(most, bounds.shape)
    here = np.flatnonzero((bounds <= most) & (bounds < np.inf))
    if not source.problem.optimal_cuts:
        return here, bounds[here]
    here = here[_may_have_cuts(source, rows.take(here), most[here])]
    bounds = bounds[here]
    several = np.flatnonzero(rows.choices["vpp"][here] > 1)
    # Few cuts are known of a plan with several chunks per stage, so its pipeline takes no less than with these.
    for start in range(0, len(several), _LOOSE_ROWS):
        part = several[start : start + _LOOSE_ROWS]
        few = rows.take(here[part])
        seconds = chunk_pipelines_s(source.problem, source.table, few)
        bounds[part] = np.maximum(bounds[part], bounds_of(source, few).step_behind_s(seconds))
    fast = bounds <= most[here]
    return here[fast], bounds[fast]


def _may_have_cuts(source: PricedSpace, rows: Rows, below: np.ndarray) -> np.ndarray:
    """Return which of [N] rows may have a cut that fits and whose pipeline takes at most `below` [N] s."""
    found = [np.zeros(0, dtype=bool)]
    for start in range(0, len(rows.positions), _ROWS):
        part = slice(start, start + _ROWS)
        here = rows.take(part)
        plans, workload = plans_of(source.problem, source.table, here)
        most = most_bytes(source, here)
        found.append(
            stages_hold_all(plans.kinds, plans.choices, workload, plans.cluster, plans.assumptions, below[part], most)
        )
    return np.concatenate(found)


def most_bytes(source: PricedSpace, rows: Rows) -> np.ndarray:
    """Return the most bytes of a GPU that a bound of [N] rows may have."""
    return np.asarray(_room(source, rows).gpu * (1.0 + ROUNDING))


def may_be_fast(source: PricedSpace, rows: Rows, bounds: CutBounds, most: float | np.ndarray) -> np.ndarray:
    """Return which of [N] rows may fit and take at most `most` [s], one or [N], with some cut and any ZeRO replicas.

    Their `bounds` of memory, of the pipeline and of the update say so.
    """
    fast = bounds.pipeline_of_any_replicas_s + bounds.update_s <= most
    return np.asarray(may_fit(source, rows, bounds) & fast)


def may_fit(source: PricedSpace, rows: Rows, bounds: CutBounds) -> np.ndarray:
    """Return which of [N] rows may fit with some cut, by the `bounds` of their memory."""
    fits = np.asarray(bounds.peak_bytes <= most_bytes(source, rows))
    if bounds.costs.uses_host:
        fits = fits & np.asarray(bounds.host_bytes <= _room(source, rows).host * (1.0 + ROUNDING))
    return fits


def _room(source: PricedSpace, rows: Rows) -> Room:
    return room(*machines(source.problem, rows.points), rows.choices["num_gpus"].astype(np.float64))


def bounds_of(source: PricedSpace, rows: Rows) -> CutBounds:
    """Return the bounds of [N] rows; those of even cuts if the problem has no others."""
    plans, workload = plans_of(source.problem, source.table, rows)
    return CutBounds(stage_costs(plans, workload), even=not source.problem.optimal_cuts)
