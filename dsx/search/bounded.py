"""The fastest plans with optimal cuts, by bounds: only plans that may be among them get their exact cut.

Every plan of the space is priced with a bound that none of its cuts beats (`dsx.cost.cut_bounds`). Exact cuts are then
found in the order of these bounds, until the next bound is above the slowest plan that is kept. The result is that of
`dsx.search.partitioned`, which cuts every plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from dsx.cost.cut_bounds import cut_bounds
from dsx.pricing.cuts import price_best_cuts
from dsx.pricing.row_costs import Rows, machines, step_choices, take_rows
from dsx.pricing.rows import joined, result_rows
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Progress, silent
from dsx.search.row_groups import leading_rows
from dsx.space.enumerate import Arrays

_ROWS = 1 << 13  # candidates whose bounds are computed together: their arrays fit into the cache of a core
_CUTS = 1 << 6  # candidates that are cut first; the first few have nearly always the fastest
_MOST_CUTS = 1 << 10  # candidates that are cut together
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
    bounds, candidates = _bounds(source, progress)
    order = np.argsort(bounds, kind="stable")
    kept, cut, together = source.no_rows(), 0, _CUTS
    while True:
        slowest = kept["step_time_s"][-1] if len(kept["point"]) == top else np.inf
        here = order[cut : cut + together]
        here = here[bounds[here] <= min(slowest, below) * (1.0 + _ROUNDING)]
        if not len(here):
            break
        rows = _rows_at(source, np.sort(candidates[here]))
        priced = price_best_cuts(source.problem, source.table, rows, "fastest")
        columns = result_rows(source.problem, source.space.keys, rows, priced.costs, priced.cuts)
        fits = {name: column[columns["reject"] == 0] for name, column in columns.items()}
        kept = leading_rows(joined([kept, fits]), top, ["point"], "step_time_s")
        cut, together = cut + len(here), min(2 * together, _MOST_CUTS)
    return kept, BoundedCounts(source.space.size, cut)


def _bounds(source: PricedSpace, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the step times, and the candidates that they are of: those that memory may hold."""
    bounds, candidates = [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    for start, rows in _chunks(source):
        step_s, peak_bytes = _bounds_of(source, rows)
        fits = peak_bytes <= source.problem.hardware.device.hbm_capacity[rows.points] * (1.0 + _ROUNDING)
        bounds.append(step_s[fits])
        candidates.append(start + np.flatnonzero(fits))
        progress(len(fits))
    return np.concatenate(bounds), np.concatenate(candidates)


def _chunks(source: PricedSpace) -> Iterator[tuple[int, Rows]]:
    """Yield the rows of all candidates, and the first candidate of each chunk."""
    for start in range(0, source.space.size, _ROWS):
        positions, choices = source.space.blocks.rows(start, min(start + _ROWS, source.space.size))
        yield start, Rows(np.zeros_like(positions), positions, choices)


def _rows_at(source: PricedSpace, candidates: np.ndarray) -> Rows:
    positions, choices = source.space.blocks.rows_at(candidates)
    return Rows(np.zeros_like(positions), positions, choices)


def _bounds_of(source: PricedSpace, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    problem = source.problem
    kinds = jax.tree.map(lambda leaf: take_rows(np.asarray(leaf), rows.points, rows.positions), source.table)
    tiers = [tier.name for tier in problem.cluster.network.middle]
    choices = step_choices(rows.choices, lambda column: column.astype(np.float64), tiers)
    found = cut_bounds(kinds, choices, problem.workload, *machines(problem, rows.points))
    step_s, peak_bytes = map(np.asarray, found)
    return step_s, peak_bytes
