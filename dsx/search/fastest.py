"""The fastest plans of one job, with even cuts, with optimal cuts, or with either.

Best cuts are known for some schedules (`dsx.space.plan_rules.optimal_cut_covers`): optimal ones for one chunk per
stage, balanced ones for several. A search of any cut gives these plans their best cut, and the others an even one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.pricing.chain import MAX_LAYERS
from dsx.pricing.evaluate import priced_plans
from dsx.pricing.problem import Problem
from dsx.pricing.rows import Counts
from dsx.search.blockwise.blockwise import Blockwise
from dsx.search.bounded import ROUNDING, best_cuts
from dsx.search.bounded_even import best_even
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Progress, silent
from dsx.search.search_spaces import SearchSpaces
from dsx.space.limits import EVEN, OPTIMAL

ANY = "any"
CUTS = (ANY, EVEN, OPTIMAL)  # that a search may take
_MANY = 1 << 15  # shard keys; fewer are priced in the time that it takes to choose from them
_SHARES = (1 / 256, 1 / 64, 1 / 16)  # of many shard keys that are searched first


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """How many candidates a search has, and what it did with them."""

    candidates: int
    priced: int  # bounds exclude the others
    feasible: int | None  # that fit in memory; None if some were not priced
    cut: int  # priced ones that got their optimal cut


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest plans of a search as records, in the form of a printed evaluation, and its counts."""

    plans: list[dict[str, Any]]  # that the framework runs
    outside: dict[str, Any] | None  # the fastest plan that it does not run, if it is faster than all of them
    counts: SearchCounts


def problems_of(cut: str, problem: Problem) -> list[Problem]:
    """Return the problem of each kind of cut that a search takes, best cuts last; `problem` has even cuts."""
    if cut != ANY:
        return [problem.with_partition(cut)]
    # A longer chain has no optimal cut.
    short = problem.num_layers + problem.num_end_layers <= MAX_LAYERS
    return [problem, problem.with_partition(OPTIMAL)] if short else [problem]


def fastest(found: SearchSpaces, top: int, progress: Progress) -> Fastest:
    """Return the `top` fastest feasible plans of a search, and what it found outside of the framework."""
    promising, below = _promising_keys(found, top)
    priced = found.priced(promising)
    within, counts = _fastest(priced.within, top, progress, below)
    left_out = found.size - counts.candidates
    progress(left_out)
    slowest = within[0]["step_time_s"] if within else np.inf
    outside, _ = _fastest(priced.outside, 1, silent, slowest)
    return Fastest(
        plans=within,
        outside=outside[0] if outside and outside[0]["step_time_s"] < slowest else None,
        counts=SearchCounts(found.size, counts.priced, None if within and left_out else counts.feasible, counts.cut),
    )


def _promising_keys(found: SearchSpaces, top: int) -> tuple[np.ndarray, float]:
    """Return the shard keys that may have one of the `top` fastest plans, and the seconds that none of these exceeds.

    Of few keys they are all. Of many, no plan of the others is as fast as some plans of the most promising ones.
    """
    every = np.arange(found.num_keys)
    if len(every) < _MANY:
        return every, np.inf
    bounds = found.key_bounds()
    order = np.argsort(bounds, kind="stable")
    for share in _SHARES:
        few = found.priced(np.sort(order[: math.ceil(share * len(order))]))
        plans, _ = _fastest(few.within[-1:], top, silent, np.inf)
        if len(plans) == top:
            slowest = plans[-1]["step_time_s"]
            return np.flatnonzero(bounds <= slowest * (1.0 + ROUNDING)), slowest
    return every, np.inf


def _fastest(
    sources: Sequence[PricedSpace], top: int, progress: Progress, below: float
) -> tuple[list[dict[str, Any]], SearchCounts]:
    """Return the fastest plans of some spaces; plans that take longer than `below` [s] may be missing."""
    plans: dict[int, dict[str, Any]] = {}
    candidates, cut, counts = 0, 0, Counts(0, 0)
    for source in sources:
        slowest = max(plan["step_time_s"] for plan in plans.values()) if len(plans) >= top else np.inf
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
        for plan in priced_plans(source.problem, rows):
            known = plans.setdefault(plan["plan"]["candidate"], plan)
            if plan["step_time_s"] < known["step_time_s"]:
                plans[plan["plan"]["candidate"]] = plan
    fastest_plans = sorted(plans.values(), key=lambda plan: plan["step_time_s"])[:top]
    # Where no plan fits, the others have a bound of memory that does not fit either.
    feasible = counts.feasible if counts.priced == candidates or not plans else None
    return fastest_plans, SearchCounts(candidates, counts.priced, feasible, cut)
