"""The fastest plans with even cuts, by bounds: few plans are priced, on NumPy, and nothing is compiled.

A compiled search prices every plan sooner than this one a tenth of them, but compiling it takes seconds. So this one is
for spaces of which bounds leave few plans, and gives up on others.
"""

import numpy as np

from dsx.cost.cut_bounds import least_even_s
from dsx.pricing.rows import Counts, joined
from dsx.search.bounded import by_key_bounds, loose_bounds, rows_at, slowest
from dsx.search.priced_space import PricedSpace
from dsx.search.row_groups import leading_rows
from dsx.space.enumerate import Arrays

_FEW = 1 << 18  # plans that are priced sooner than a search is compiled
_FIRST, _MOST = 1 << 9, 1 << 13  # plans that are priced together


class _TooMany(Exception):
    """Bounds leave more than a few plans."""


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
        candidates = candidates[np.argsort(bounds[candidates], kind="stable")]
        kept, start, together = part.no_rows(), 0, _FIRST
        while True:
            enough = int(np.searchsorted(bounds[candidates], slowest(kept, top, most), "right"))
            here = candidates[start : min(start + together, enough)]
            if not len(here):
                return kept
            if counts.candidates + len(here) > _FEW:
                raise _TooMany
            columns = part.priced_rows(rows_at(part, np.sort(here)))
            fits = {name: column[columns["reject"] == 0] for name, column in columns.items()}
            counts = counts.plus(Counts(len(here), len(fits["reject"])))
            kept = leading_rows(joined([kept, fits]), top, ["point"], "step_time_s")
            start, together = start + len(here), min(2 * together, _MOST)

    try:
        return by_key_bounds(source, top, below, search), counts
    except _TooMany:
        return None
