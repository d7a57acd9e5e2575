"""The fastest plans with even cuts, by bounds: few plans are priced, on NumPy, and nothing is compiled.

A compiled search prices every plan sooner than this one a tenth of them, but compiling it takes seconds. So this one is
for spaces of which bounds leave few plans, and gives up on others.
"""

import numpy as np

from dsx.cost.cut_bounds import least_even_s
from dsx.pricing.rows import Counts
from dsx.search.best_first import fastest_first
from dsx.search.bounded import by_key_bounds, loose_bounds, rows_at
from dsx.search.priced_space import PricedSpace
from dsx.space.enumerate import Arrays

_FEW = 1 << 18  # plans that are priced sooner than a search is compiled


def best_even(source: PricedSpace, top: int, below: float) -> tuple[Arrays, Counts] | None:
    """Return all columns of the `top` feasible candidates of smallest step time, and the counts of those it priced.

    Candidates that take longer than `below` [s] may be missing. The problem has one hardware point. The result is None
    if bounds leave too many candidates.
    """
    counts = Counts(0, 0)

    def search(part: PricedSpace, most: float) -> Arrays:
        nonlocal counts
        bounds = loose_bounds(part, least_even_s)
        candidates = np.flatnonzero(bounds <= most)
        found, of_part = fastest_first(
            part, lambda here: rows_at(part, candidates[here]), bounds[candidates], top, most, _FEW
        )
        counts = counts.plus(of_part)
        if counts.candidates >= _FEW:
            raise _TooManyError
        return found

    try:
        return by_key_bounds(source, top, below, search), counts
    except _TooManyError:
        return None


class _TooManyError(Exception):
    """Bounds leave more than a few plans."""
