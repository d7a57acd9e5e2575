"""The fastest plans with optimal cuts, by bounds: only plans that may be among them get their exact cut.

Bounds go from cheap to tight (`dsx.cost.cut_bounds`). No plan of a shard key is faster than its share of the work. So
keys are searched in the order of this bound, a few at first, and most are left out once some plans are known. Each plan
of the others has a loose bound, those within the limit a tight one, and exact cuts are found in the order of the tight
ones, until the next bound is above the slowest plan that is kept. The result is that of `dsx.search.partitioned`, which
cuts every plan.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from dsx.cost.cut_bounds import ROUNDING, CutBounds, cut_bounds, key_seconds, least_passes_s, stages_hold_all
from dsx.cost.headroom import usable_bytes
from dsx.pricing.cuts import price_best_cuts
from dsx.pricing.row_costs import Rows, machines, plans_of, step_choices
from dsx.pricing.rows import Counts, joined, result_rows
from dsx.search.best_first import fastest_first
from dsx.search.key_bounds import key_bounds
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Progress, silent
from dsx.search.row_groups import leading_rows
from dsx.space.codes import with_values
from dsx.space.enumerate import Arrays
from dsx.space.recompute_values import NONE_CODE

_ROWS = 1 << 13  # candidates whose bounds are computed together: their arrays fit into the cache of a core
_LOOSE_ROWS = 1 << 16  # candidates whose loose bounds are computed together
_CUTS = 1 << 10  # candidates that are cut together
_SHARES = (1 / 256, 1 / 64, 1 / 16, 1 / 4, 1)  # of the shard keys that are searched, one after the other


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
    """Return the `top` fastest of what `search` finds, a share of the shard keys at a time, those of least bound first.

    `search` gets the space of some keys, and the most seconds of a plan that may be kept. Keys whose bound is above are
    left out.
    """
    bounds = key_bounds(source.space, source.table, source.problem.workload)
    order = np.argsort(bounds, kind="stable")
    kept, first = source.no_rows(), 0
    for share in _SHARES:
        last, most = math.ceil(share * len(order)), below * (1.0 + ROUNDING)
        keys = order[first:last]
        found = search(source.of_keys(np.sort(keys[bounds[keys] <= most])), most)
        kept, first = leading_rows(joined([kept, found]), top, ["point"], "step_time_s"), last
        below = min(below, float(kept["step_time_s"][-1])) if len(kept["point"]) == top else below
    return kept


def _best_cuts(source: PricedSpace, top: int, progress: Progress, below: float) -> tuple[Arrays, Counts]:
    """Return the fastest plans of some shard keys, and the counts of those that got their exact cut."""
    candidates = np.flatnonzero(loose_bounds(source, least_passes_s) <= below)
    bounds, candidates = _bounded(source, candidates)
    few = may_have_cuts(source, rows_at(source, candidates), below)
    bounds, candidates = bounds[few], candidates[few]
    progress(source.space.size)
    return fastest_first(source, lambda here: rows_at(source, np.sort(candidates[here])), bounds, top, below)


def smallest_cut(source: PricedSpace, progress: Progress = silent) -> Arrays:
    """Return all columns of the candidate that needs the least memory, with its cut of least memory.

    The problem has one hardware point, whose memory holds every candidate.
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
        kept = leading_rows(joined([kept, columns]), 1, ["point"], "peak_bytes")
    return kept


def loose_bounds(source: PricedSpace, bound: Callable[..., np.ndarray], recomputed: bool = True) -> np.ndarray:
    """Return the bounds [s] of all candidates from the seconds of their keys' layers alone.

    `bound` is `least_passes_s` or `least_even_s` of `dsx.cost.cut_bounds`. Candidates that are not `recomputed` are
    bounded as if no layer was.
    """
    if not source.space.size:
        return np.zeros(0)
    problem, blocks = source.problem, source.space.blocks
    searched, tiers = problem.workload.searched, [tier.name for tier in problem.cluster.network.middle]
    kinds = jax.tree.map(lambda leaf: np.asarray(leaf)[0], source.table)
    if not recomputed:
        searched = with_values(searched, {"recompute": (NONE_CODE,)})
    seconds = key_seconds(kinds, problem.workload.stack, searched)
    found = []
    for start in range(0, source.space.size, _LOOSE_ROWS):
        keys, columns = blocks.rows(start, min(start + _LOOSE_ROWS, source.space.size))
        if not recomputed:
            columns["recompute"] = np.full_like(columns["recompute"], NONE_CODE)
        choices = step_choices(columns, lambda column: column.astype(np.float64), tiers)
        found.append(bound(seconds, keys, choices, searched))
    return np.concatenate(found)


def _bounded(source: PricedSpace, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds [s] of some candidates in order, and the candidates, without those that memory cannot hold."""
    bounds, kept = [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    for start in range(0, len(candidates), _ROWS):
        here = candidates[start : start + _ROWS]
        step_s = fitting_bounds(source, rows_at(source, here))
        fits = step_s < np.inf
        bounds.append(step_s[fits])
        kept.append(here[fits])
    found = np.concatenate(bounds)
    order = np.argsort(found, kind="stable")
    return found[order], np.concatenate(kept)[order]


def rows_at(source: PricedSpace, candidates: np.ndarray) -> Rows:
    """Return candidates of a space as rows at its first hardware point."""
    positions, choices = source.space.blocks.rows_at(candidates)
    return Rows(np.zeros_like(positions), positions, choices)


def fitting_bounds(source: PricedSpace, rows: Rows) -> np.ndarray:
    """Return [N] seconds that no cut of a row is faster than; infinite where memory holds the row with no cut."""
    bounds = bounds_of(source, rows)
    return np.where(bounds.peak_bytes <= most_bytes(source, rows), bounds.step_s, np.inf)


def may_have_cuts(source: PricedSpace, rows: Rows, below: float | np.ndarray) -> np.ndarray:
    """Return which of [N] rows may have a cut that fits and whose pipeline takes at most `below` [s], one or [N]."""
    found, limits = [np.zeros(0, dtype=bool)], np.broadcast_to(below, rows.positions.shape)
    for start in range(0, len(rows.positions), _ROWS):
        part = slice(start, start + _ROWS)
        here = rows.take(part)
        plans, workload = plans_of(source.problem, source.table, here)
        most = most_bytes(source, here)
        found.append(
            stages_hold_all(plans.kinds, plans.choices, workload, plans.cluster, plans.assumptions, limits[part], most)
        )
    return np.concatenate(found)


def most_bytes(source: PricedSpace, rows: Rows) -> np.ndarray:
    """Return the most bytes that a bound of [N] rows may have."""
    cluster, assumptions = machines(source.problem, rows.points)
    return np.asarray(usable_bytes(cluster.device, assumptions) * (1.0 + ROUNDING))


def bounds_of(source: PricedSpace, rows: Rows) -> CutBounds:
    """Return the bounds of [N] rows as NumPy arrays; those of even cuts if the problem has no others."""
    plans, workload = plans_of(source.problem, source.table, rows)
    even = not source.problem.optimal_cuts
    found = cut_bounds(plans.kinds, plans.choices, workload, plans.cluster, plans.assumptions, even)
    return CutBounds(*map(np.asarray, found))
