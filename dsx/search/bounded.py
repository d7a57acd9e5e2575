"""The fastest plans with optimal cuts, by bounds: only plans that may be among them get their exact cut.

No cut of a plan beats its bound (`dsx.cost.cut_bounds`). A loose bound of every plan is cheap. The tight one is
computed in the order of the loose ones, a share of the plans at a time, and exact cuts are found in the order of the
tight ones, until the next bound is above the slowest plan that is kept. The result is that of
`dsx.search.partitioned`, which cuts every plan.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from dsx.cost.cut_bounds import cut_bounds, key_seconds, least_passes_s
from dsx.pricing.cuts import price_best_cuts
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, machines, step_choices, take_rows
from dsx.pricing.rows import joined, result_rows
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Progress, silent
from dsx.search.row_groups import leading_rows
from dsx.space.enumerate import Arrays

_ROWS = 1 << 13  # candidates whose bounds are computed together: their arrays fit into the cache of a core
_LOOSE_ROWS = 1 << 16  # candidates whose loose bounds are computed together
_CUTS = 1 << 6  # candidates that are cut first; the first few have nearly always the fastest
_MOST_CUTS = 1 << 10  # candidates that are cut together
_SHARES = (1 / 256, 1 / 64, 1 / 16, 1 / 4, 1)  # of the candidates whose tight bounds are computed, one after the other
# Bounds and costs add up the same numbers in different orders.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class BoundedCounts:
    """How many candidates a search by bounds has, and how many of them it cut."""

    candidates: int
    cut: int


def best_cuts(
    source: PricedSpace, top: int, progress: Progress = silent, below: float = np.inf
) -> tuple[Arrays, BoundedCounts]:
    """Return all columns of the `top` feasible candidates of smallest step time, with their optimal cuts.

    Candidates that take longer than `below` [s] may be missing. The problem has one hardware point.
    """
    least = _least(source)
    pool = _Pool(np.zeros(0), np.zeros(0, dtype=np.int64))
    most = below * (1.0 + _ROUNDING)  # seconds of the slowest plan that may be kept
    kept, cut, low, bounded, together = source.no_rows(), 0, -np.inf, 0, _CUTS
    for share in _SHARES:
        rank = min(int(len(least) * share), len(least) - 1)
        high = np.inf if share == 1 or not len(least) else float(np.partition(least, rank)[rank])
        new = np.flatnonzero((least > low) & (least <= min(high, most)))
        pool, bounded = pool.joined(_bounded(source, new, progress)), bounded + len(new)
        while len(pool.bounds):
            # A plan whose loose bound is higher may come before those above `high`.
            reach = min(most, high) if len(kept["point"]) == top else most
            here, pool = pool.split(min(together, int(np.searchsorted(pool.bounds, reach, "right"))))
            if not len(here.bounds):
                break
            rows = _rows_at(source, np.sort(here.candidates))
            priced = price_best_cuts(source.problem, source.table, rows, "fastest")
            columns = result_rows(source.problem, source.space.keys, rows, priced.costs, priced.cuts)
            fits = {name: column[columns["reject"] == 0] for name, column in columns.items()}
            kept = leading_rows(joined([kept, fits]), top, ["point"], "step_time_s")
            cut, together = cut + len(here.bounds), min(2 * together, _MOST_CUTS)
            if len(kept["point"]) == top:
                most = min(most, float(kept["step_time_s"][-1]) * (1.0 + _ROUNDING))
        low = high
        if low > most:
            break
    progress(source.space.size - bounded)
    return kept, BoundedCounts(source.space.size, cut)


def smallest_cut(source: PricedSpace, progress: Progress = silent) -> Arrays:
    """Return all columns of the candidate that needs the least memory, with its cut of least memory.

    The problem has one hardware point, whose memory holds every candidate.
    """
    least = [np.zeros(0)]
    for start in range(0, source.space.size, _ROWS):
        candidates = np.arange(start, min(start + _ROWS, source.space.size))
        least.append(_bounds_of(source, _rows_at(source, candidates))[1])
        progress(len(candidates))
    bounds = np.concatenate(least)
    order = np.argsort(bounds, kind="stable")
    kept = source.no_rows()
    for start in range(0, len(order), _MOST_CUTS):
        here = order[start : start + _MOST_CUTS]
        if len(kept["point"]) and bounds[here[0]] > kept["peak_bytes"][0] * (1.0 + _ROUNDING):
            break
        rows = _rows_at(source, np.sort(here))
        priced = price_best_cuts(source.problem, source.table, rows, "least memory")
        columns = result_rows(source.problem, source.space.keys, rows, priced.costs, priced.cuts)
        kept = leading_rows(joined([kept, columns]), 1, ["point"], "peak_bytes")
    return kept


class _Pool(NamedTuple):
    """Candidates that memory may hold, in the order of their bounds [s]."""

    bounds: np.ndarray
    candidates: np.ndarray

    def joined(self, other: "_Pool") -> "_Pool":
        bounds, candidates = (np.concatenate(both) for both in zip(self, other, strict=True))
        order = np.lexsort((candidates, bounds))
        return _Pool(bounds[order], candidates[order])

    def split(self, count: int) -> "tuple[_Pool, _Pool]":
        """Return the first `count` and the others."""
        return _Pool(self.bounds[:count], self.candidates[:count]), _Pool(self.bounds[count:], self.candidates[count:])


def _least(source: PricedSpace) -> np.ndarray:
    """Return the loose bounds [s] of all candidates."""
    if not source.space.size:
        return np.zeros(0)
    problem, blocks = source.problem, source.space.blocks
    searched, tiers = problem.workload.searched, _tiers(problem)
    kinds = jax.tree.map(lambda leaf: np.asarray(leaf)[0], source.table)
    seconds = key_seconds(kinds, problem.workload.stack, searched)
    found = []
    for start in range(0, source.space.size, _LOOSE_ROWS):
        keys, columns = blocks.rows(start, min(start + _LOOSE_ROWS, source.space.size))
        choices = step_choices(columns, lambda column: column.astype(np.float64), tiers)
        found.append(least_passes_s(seconds, keys, choices, searched))
    return np.concatenate(found)


def _bounded(source: PricedSpace, candidates: np.ndarray, progress: Progress) -> _Pool:
    """Return the bounds of the step times of some candidates, without those that memory cannot hold."""
    bounds, kept = [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    for start in range(0, len(candidates), _ROWS):
        here = candidates[start : start + _ROWS]
        rows = _rows_at(source, here)
        step_s, peak_bytes = _bounds_of(source, rows)
        fits = peak_bytes <= source.problem.hardware.device.hbm_capacity[rows.points] * (1.0 + _ROUNDING)
        bounds.append(step_s[fits])
        kept.append(here[fits])
        progress(len(here))
    return _Pool(np.concatenate(bounds), np.concatenate(kept))


def _rows_at(source: PricedSpace, candidates: np.ndarray) -> Rows:
    positions, choices = source.space.blocks.rows_at(candidates)
    return Rows(np.zeros_like(positions), positions, choices)


def _bounds_of(source: PricedSpace, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    problem = source.problem
    kinds = jax.tree.map(lambda leaf: take_rows(np.asarray(leaf), rows.points, rows.positions), source.table)
    choices = step_choices(rows.choices, lambda column: column.astype(np.float64), _tiers(problem))
    found = cut_bounds(kinds, choices, problem.workload, *machines(problem, rows.points))
    step_s, peak_bytes = map(np.asarray, found)
    return step_s, peak_bytes


def _tiers(problem: Problem) -> list[str]:
    return [tier.name for tier in problem.cluster.network.middle]
