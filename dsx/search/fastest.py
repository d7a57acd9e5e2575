"""The fastest plans of one job, with even cuts, with optimal cuts, or with either.

Best cuts are known for some schedules (`dsx.space.plan_rules.optimal_cut_covers`): optimal ones for one chunk per
stage, the best of balanced and even ones for several. A search of any cut gives plans of these schedules their best
cut, and the others an even one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsx.cost.cut_bounds import ROUNDING
from dsx.pricing.chain import MAX_LAYERS
from dsx.pricing.evaluate import priced_plans
from dsx.pricing.problem import Problem
from dsx.pricing.rows import Counts
from dsx.search.best_variants import best_variants
from dsx.search.blockwise.blockwise import Blockwise
from dsx.search.bounded import best_cuts
from dsx.search.bounded_even import best_even
from dsx.search.key_bounds import shares_of
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Progress, silent
from dsx.search.search_spaces import SearchSpaces
from dsx.space.choices import Choice
from dsx.space.limits import EVEN, OPTIMAL

ANY = "any"
CUTS = (ANY, EVEN, OPTIMAL)  # that a search may take
_MANY = 1 << 15  # shard keys; fewer are priced in the time that it takes to choose from them


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """How many candidates a search has, and what it did with them."""

    candidates: int
    priced: int  # bounds exclude the others
    feasible: int | None  # that fit in memory; None if some were not priced
    cut: int  # priced ones that got their best cut

    def plus(self, other: "SearchCounts") -> "SearchCounts":
        """Return the sum of two counts."""
        feasible = None if self.feasible is None or other.feasible is None else self.feasible + other.feasible
        return SearchCounts(
            self.candidates + other.candidates, self.priced + other.priced, feasible, self.cut + other.cut
        )


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest plans of a search as records, in the form of a printed evaluation, and its counts."""

    plans: list[dict[str, Any]]
    counts: SearchCounts


def problems_of(cut: str, problem: Problem) -> list[Problem]:
    """Return the problem of each kind of cut that a search takes, best cuts last; `problem` has even cuts."""
    if cut != ANY:
        return [problem.with_partition(cut)]
    # A longer chain has no optimal cut.
    short = problem.num_layers + problem.num_end_layers <= MAX_LAYERS
    return [problem, problem.with_partition(OPTIMAL)] if short else [problem]


def fastest(found: SearchSpaces, top: int, progress: Progress = silent) -> Fastest:
    """Return the `top` fastest feasible plans of a search.

    Some choices are searched last (`dsx.space.variants`). If fewer plans fit with their defaults, those that take
    longer than all of these are left out.
    """
    plans, counts = fastest_below(found, top, np.inf, progress)
    left_out = found.size - counts.candidates
    progress(left_out)
    feasible = None if left_out and plans else counts.feasible
    return Fastest(plans, replace(counts, candidates=found.size, feasible=feasible))


def fastest_below(
    found: SearchSpaces, top: int, below: float, progress: Progress = silent
) -> tuple[list[dict[str, Any]], SearchCounts]:
    """Return what `fastest` does, without plans that take longer than `below` [s], and the counts of what it priced."""
    promising, most = _promising_keys(found, top, below)
    parts = found.priced(promising)
    plans, counts = _fastest(parts, top, progress, most)
    if not plans and below == np.inf and (leaner := found.with_least_memory) is not found:
        return fastest_below(leaner, top, below)
    plans, of_variants = _with_variants(parts, found.varied, plans, top, below)
    return plans, counts.plus(of_variants)


def _with_variants(
    parts: Sequence[PricedSpace], varied: Sequence[Choice], plans: list[dict[str, Any]], top: int, below: float
) -> tuple[list[dict[str, Any]], SearchCounts]:
    """Return the `top` fastest of some plans and of the variants of all plans of some parts.

    Variants that are slower than all of `plans`, or than `below` [s], may be missing. The counts are those of the
    variants.
    """
    counts = SearchCounts(0, 0, 0, 0)
    for source in parts if varied and (plans or below < np.inf) else ():
        slowest = min(below, plans[-1]["step_time_s"]) if plans else below
        rows, of_part = best_variants(source, varied, top, slowest)
        cut = of_part.candidates if source.problem.optimal_cuts else 0
        counts = counts.plus(SearchCounts(of_part.candidates, of_part.candidates, of_part.feasible, cut))
        plans = _leading([*plans, *priced_plans(source.whole_problem, rows)], top)
    return plans, counts


def _leading(plans: Sequence[dict[str, Any]], top: int) -> list[dict[str, Any]]:
    """Return the `top` fastest plans, each once: with its fastest cut."""
    found: dict[str, dict[str, Any]] = {}
    for plan in sorted(plans, key=lambda plan: plan["step_time_s"]):
        found.setdefault(plan["plan"]["candidate"], plan)
    return [*found.values()][:top]


def _promising_keys(found: SearchSpaces, top: int, below: float) -> tuple[np.ndarray, float]:
    """Return the shard keys that may have one of the `top` fastest plans, and the seconds that none of these exceeds.

    Of few keys they are all. Of many, no plan of the others is as fast as some plans of the most promising ones, or as
    `below` [s].
    """
    every = np.arange(found.num_keys)
    if len(every) < _MANY and below == np.inf:
        return every, below
    bounds = found.key_bounds
    for keys in shares_of(found.keys, bounds)[:-1] if below == np.inf else ():
        few = found.priced(np.sort(keys))
        plans, _ = _fastest(few[-1:], top, silent, below)
        if len(plans) == top:
            below = plans[-1]["step_time_s"]
            break
    return np.flatnonzero(bounds <= below * (1.0 + ROUNDING)), below


def _fastest(
    parts: Sequence[PricedSpace], top: int, progress: Progress, below: float
) -> tuple[list[dict[str, Any]], SearchCounts]:
    """Return the fastest plans of some parts; plans that take longer than `below` [s] may be missing."""
    plans: list[dict[str, Any]] = []
    candidates, cut, counts = 0, 0, Counts(0, 0)
    for source in parts:
        slowest = plans[-1]["step_time_s"] if len(plans) == top else np.inf
        if source.problem.optimal_cuts:
            rows, bounded = best_cuts(source, top, progress, below=min(slowest, below))
            cut, counts = cut + bounded.cut, counts.plus(Counts(bounded.cut, bounded.feasible))
        elif found := best_even(source, top, min(slowest, below)):
            rows, of_few = found
            counts = counts.plus(of_few)
            progress(source.space.size)
        else:
            rows, of_all = Blockwise(source, 0).best(top, progress=progress)
            counts = counts.plus(of_all)
        candidates += source.space.size
        plans = _leading([*plans, *priced_plans(source.problem, rows)], top)
    # Where no plan fits, the others have a bound of memory that does not fit either.
    feasible = counts.feasible if counts.priced == candidates or not plans else None
    return plans, SearchCounts(candidates, counts.priced, feasible, cut)
