"""The front of step time and memory of plans with optimal cuts, by bounds: plans that it dominates by far are not cut.

No cut of a plan beats its bounds of time and memory. So a plan whose bounds a known plan beats, both of them, is not on
the front. The candidates are searched in waves: each leaves out what the front of the waves before it dominates.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsx.cost.cut_bounds import ROUNDING
from dsx.pricing.devices import map_over_devices
from dsx.pricing.row_costs import Rows
from dsx.pricing.rows import Counts, joined
from dsx.search.blockwise.waves import waves
from dsx.search.bounded import bounds_of, may_fit
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Progress
from dsx.search.row_groups import front_of_groups
from dsx.space.enumerate import Arrays, take

OBJECTIVES = ("step_time_s", "peak_bytes")  # that have bounds
_CUTS = 1 << 8  # candidates that are cut together


def front_of_cuts(
    source: PricedSpace, objectives: Sequence[str], chunks: Sequence[tuple[int, int]], progress: Progress
) -> tuple[Arrays, Counts]:
    """Return the front of some ranges of candidates as `dsx.search.protocol.Search.front` says.

    `objectives` are some of `OBJECTIVES`.
    """
    kept, counts = source.no_rows(), Counts(0, 0)

    for wave in waves(chunks):

        def run(device: Any, chunk: tuple[int, int], known: Arrays = kept) -> tuple[Arrays, Counts]:
            del device
            return _front_of_chunk(source, objectives, _rows(source, *chunk), known)

        found = [kept]
        for _, (rows, counted) in map_over_devices(run, wave):
            found.append(rows)
            counts = counts.plus(counted)
            progress(counted.candidates)
        kept = front_of_groups(joined(found), ["point"], objectives)
    return kept, counts


def _front_of_chunk(source: PricedSpace, objectives: Sequence[str], rows: Rows, known: Arrays) -> tuple[Arrays, Counts]:
    """Return the front of [N] rows and of what is known, and the counts of the rows."""
    bounds = bounds_of(source, rows)
    step_s, peak_bytes = np.asarray(bounds.step_s), np.asarray(bounds.peak_bytes)
    fits = may_fit(source, rows, bounds)
    left = np.flatnonzero(fits)
    left = left[np.argsort(step_s[left], kind="stable")]
    cut = feasible = 0
    while True:
        left = left[~_dominated(known, rows.points[left], step_s[left], peak_bytes[left])]
        if not len(left):
            bounded = int(fits.sum()) - cut
            return known, Counts(len(fits), feasible, bounded=bounded, cut=cut)
        here, left = left[:_CUTS], left[_CUTS:]
        found = source.fastest_rows(rows.take(here))
        found = take(found, found["reject"] == 0)
        known = front_of_groups(joined([known, found]), ["point"], objectives)
        cut, feasible = cut + len(here), feasible + len(found["point"])


def _dominated(known: Arrays, points: np.ndarray, step_s: np.ndarray, peak_bytes: np.ndarray) -> np.ndarray:
    """Return whether a known plan beats both bounds of [N] candidates at their hardware points."""
    found = np.zeros(len(points), dtype=bool)
    for point in np.unique(points).tolist():
        here, there = points == point, known["point"] == point
        order = np.argsort(known["step_time_s"][there], kind="stable")
        faster = np.searchsorted(known["step_time_s"][there][order], step_s[here] * (1.0 - ROUNDING))
        # The least memory of the plans that are faster.
        least = np.minimum.accumulate(np.append(np.inf, known["peak_bytes"][there][order]))
        found[here] = least[faster] < peak_bytes[here] * (1.0 - ROUNDING)
    return found


def _rows(source: PricedSpace, start: int, stop: int) -> Rows:
    """Return a range of candidates at all points."""
    positions, choices = source.space.blocks.rows(start, stop)
    num_points = source.problem.num_points
    tiled = {name: np.tile(column, num_points) for name, column in choices.items()}
    return Rows(np.repeat(np.arange(num_points), len(positions)), np.tile(positions, num_points), tiled)
