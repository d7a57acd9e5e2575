"""The fastest of some candidates with bounds: those of least bound come first, until the next bound is above.

Candidates with optimal cuts are priced only if a probe says that one of their cuts may be within the limit.

Each group of candidates has its own fastest ones.
"""

from collections.abc import Callable

import numpy as np

from dsx.cost.cut_bounds import ROUNDING
from dsx.pricing.row_costs import Rows
from dsx.pricing.rows import Counts, joined
from dsx.search.priced_space import PricedSpace
from dsx.search.row_groups import leading_rows, ranks
from dsx.space.enumerate import Arrays, take

_FIRST = 1 << 6  # candidates that are priced first; the first few have nearly always the fastest
_MOST_CUT, _MOST_EVEN = 1 << 10, 1 << 13  # candidates that are priced together, with optimal and with even cuts


def best_first(
    source: PricedSpace,
    rows: Callable[[np.ndarray], Rows],
    bounds: np.ndarray,
    group: np.ndarray,
    top: int,
    most: np.ndarray,
    effort: int | None = None,
) -> tuple[Arrays, Counts]:
    """Return the `top` fastest feasible candidates of each group, by group and step time; `group` is a column of them.

    Args:
        source: the space of the candidates.
        rows: returns some of the N candidates as rows, by their positions.
        bounds: [N] seconds that no candidate is faster than.
        group: [N] group of each candidate.
        top: how many of a group are kept.
        most: [G] seconds of a plan that may be kept.
        effort: candidates that may be priced; beyond, others may be faster than the result.
    """
    order = np.lexsort((bounds, group))
    bounds, group_of = bounds[order], group[order]
    rank = ranks(group_of) if len(order) else order
    worst, kept = most * (1.0 + ROUNDING), source.no_rows() | {"group": np.zeros(0, dtype=np.int64)}
    num_groups, largest = max(1, len(np.unique(group))), _MOST_CUT if source.problem.optimal_cuts else _MOST_EVEN
    together = max(top, _FIRST // num_groups)
    done = priced = feasible = 0
    while effort is None or priced < effort:
        waiting = (rank >= done) & (bounds <= worst[group_of])
        if not waiting.any():
            break
        here = np.sort(order[waiting & (rank < done + together)])  # of equal plans the first candidate is kept
        here = here[source.may_take(rows(here), worst[group[here]])]
        found = source.fastest_rows(rows(here)) | {"group": group[here]}
        found = take(found, found["reject"] == 0)
        kept = leading_rows(joined([kept, found]), top, ["group"], "step_time_s")
        last = np.flatnonzero(ranks(kept["group"]) == top - 1)
        worst[kept["group"][last]] = np.minimum(
            worst[kept["group"][last]], kept["step_time_s"][last] * (1.0 + ROUNDING)
        )
        done, priced, feasible = done + together, priced + len(here), feasible + len(found["group"])
        together = max(1, min(2 * together, largest // num_groups))
    return kept, Counts(priced, feasible)


def fastest_first(
    source: PricedSpace,
    rows: Callable[[np.ndarray], Rows],
    bounds: np.ndarray,
    top: int,
    below: float,
    effort: int | None = None,
) -> tuple[Arrays, Counts]:
    """Return what `best_first` does for candidates of one group, of which none slower than `below` [s] is kept."""
    found, counts = best_first(source, rows, bounds, np.zeros(len(bounds), np.int64), top, np.array([below]), effort)
    del found["group"]
    return found, counts
