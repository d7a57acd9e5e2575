"""The fastest plans of one job, with even cuts, with optimal cuts, or with either.

Optimal cuts are known for one chunk per stage and some schedules (`dsx.space.plan_rules.optimal_cut_covers`). A search
of any cut gives these plans their optimal cut, and the others an even one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.pricing.chain import MAX_LAYERS
from dsx.pricing.evaluate import priced_plans
from dsx.pricing.layers import KeyCosts, price_keys
from dsx.pricing.problem import Problem
from dsx.search.blockwise.blockwise import Blockwise
from dsx.search.bounded import best_cuts
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Progress
from dsx.search.space import Space, of_used_keys
from dsx.space.boxes import Limitation, Selection
from dsx.space.limits import EVEN, OPTIMAL
from dsx.space.plan_rules import optimal_cut_covers
from dsx.spec.ranges import Limit

ANY = "any"
CUTS = (ANY, EVEN, OPTIMAL)  # that a search may take


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """How many candidates a search has, and what it did with them."""

    candidates: int
    feasible: int | None  # that fit in memory; None if a bound excluded some, which are not counted
    cut: int  # that got their optimal cut


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest plans of a search as records, in the form of a printed evaluation, and its counts."""

    plans: list[dict[str, Any]]
    counts: SearchCounts


def problems_of(cut: str, problem: Problem) -> list[Problem]:
    """Return the problem of each kind of cut that a search takes; `problem` has even cuts.

    Even cuts come first: they are priced at once, and few other plans can then be faster.
    """
    if cut != ANY:
        return [problem.with_partition(cut)]
    # A longer chain has no optimal cut.
    short = problem.num_layers + problem.num_end_layers <= MAX_LAYERS
    return [problem, problem.with_partition(OPTIMAL)] if short else [problem]


@dataclass(frozen=True, slots=True)
class SearchSpaces:
    """The spaces of a search, one for each problem, with their layer costs."""

    problems: Sequence[Problem]  # they differ in their cuts alone
    within: Sequence[Space]  # plans that the framework runs
    outside: Sequence[Space]  # all other plans; none for a framework without limits
    table: KeyCosts

    @property
    def size(self) -> int:
        """The number of candidates."""
        return sum(space.size for space in (*self.within, *self.outside))


def spaces_of(
    problems: Sequence[Problem], num_gpus: int, global_batch_size: int, fix: Selection, limit: Limitation | None = None
) -> SearchSpaces:
    """Return the space of each problem. Plans with an optimal cut have no even one too, as far as schedules allow."""
    first, limit = problems[0], limit or {}
    all_covered = all(optimal_cut_covers(1, schedule) for schedule in first.workload.searched.schedule)
    rest = {"vpp": [*limit.get("vpp", ()), Limit(">=", 2)]} if len(problems) > 1 and all_covered else {}
    spaces: list[Space] = []
    limited = first.framework is not None and not first.framework.unlimited
    for outside in (False, True) if limited else (False,):
        for problem in problems:
            keys = spaces[0].keys if spaces else None
            here = limit if problem.optimal_cuts else {**limit, **rest}
            spaces.append(Space(problem, [num_gpus], [global_batch_size], fix, here, outside, keys))
    spaces = of_used_keys(first, spaces)
    table = price_keys(first, spaces[0].keys)
    return SearchSpaces(problems, spaces[: len(problems)], spaces[len(problems) :], table)


def fastest(found: SearchSpaces, top: int, progress: Progress) -> Fastest:
    """Return the `top` fastest feasible plans that the framework runs, as records, and the counts."""
    return _fastest(found, found.within, top, progress, np.inf)


def faster_outside(found: SearchSpaces, step_time_s: float, progress: Progress) -> dict[str, Any] | None:
    """Return the fastest feasible plan that the framework does not run, if it takes less than `step_time_s` [s]."""
    if not found.outside:
        return None
    plans = _fastest(found, found.outside, 1, progress, step_time_s).plans
    return plans[0] if plans and plans[0]["step_time_s"] < step_time_s else None


def _fastest(found: SearchSpaces, spaces: Sequence[Space], top: int, progress: Progress, below: float) -> Fastest:
    """Return the fastest plans of some of the spaces; plans that take longer than `below` [s] may be missing."""
    plans: dict[int, dict[str, Any]] = {}
    counts: list[SearchCounts] = []
    for problem, space in zip(found.problems, spaces, strict=True):
        source = PricedSpace(problem, space, found.table, "float64")
        if problem.optimal_cuts:
            slowest = max(plan["step_time_s"] for plan in plans.values()) if len(plans) >= top else np.inf
            rows, bounded = best_cuts(source, top, progress, below=min(slowest, below))
            counts.append(SearchCounts(bounded.candidates, None, bounded.cut))
        else:
            rows, counted = Blockwise(source, 0).best(top, progress=progress)
            counts.append(SearchCounts(counted.candidates, counted.feasible, 0))
        for plan in priced_plans(problem, rows):
            known = plans.setdefault(plan["plan"]["candidate"], plan)
            if plan["step_time_s"] < known["step_time_s"]:
                plans[plan["plan"]["candidate"]] = plan
    feasible = [count.feasible for count in counts]
    return Fastest(
        sorted(plans.values(), key=lambda plan: plan["step_time_s"])[:top],
        SearchCounts(
            sum(count.candidates for count in counts),
            None if None in feasible and plans else sum(number or 0 for number in feasible),
            sum(count.cut for count in counts),
        ),
    )
