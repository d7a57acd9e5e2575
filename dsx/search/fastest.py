"""The fastest plans of one job, with even cuts, with optimal cuts, or with either.

Optimal cuts are known for one chunk per stage and some schedules (`dsx.space.plan_rules.optimal_cut_covers`). A search
of any cut gives these plans their optimal cut, and the others an even one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.pricing.chain import MAX_LAYERS
from dsx.pricing.evaluate import priced_plans
from dsx.pricing.layers import price_keys
from dsx.pricing.problem import Problem
from dsx.search.blockwise.blockwise import Blockwise
from dsx.search.bounded import best_cuts
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Progress
from dsx.search.space import Limitation, Selection, Space
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


def problems_of(cut: str, problem: Callable[[str], Problem]) -> list[Problem]:
    """Return the problem of each kind of cut that a search takes; `problem` returns that of a partition.

    Even cuts come first: they are priced at once, and few other plans can then be faster.
    """
    if cut != ANY:
        return [problem(cut)]
    even = problem(EVEN)
    # A longer chain has no optimal cut.
    return [even, problem(OPTIMAL)] if even.num_layers + even.num_end_layers <= MAX_LAYERS else [even]


def spaces_of(
    problems: Sequence[Problem], num_gpus: int, global_batch_size: int, fix: Selection, limit: Limitation | None = None
) -> list[Space]:
    """Return the space of each problem. Plans with an optimal cut have no even one too, as far as schedules allow."""
    schedules = problems[0].workload.searched.schedule
    all_covered = all(optimal_cut_covers(1, schedule) for schedule in schedules)
    limit = limit or {}
    rest = {"vpp": [*limit.get("vpp", ()), Limit(">=", 2)]} if len(problems) > 1 and all_covered else {}
    return [
        Space(problem, [num_gpus], [global_batch_size], fix, limit if problem.optimal_cuts else {**limit, **rest})
        for problem in problems
    ]


def fastest(spaces: Sequence[Space], problems: Sequence[Problem], top: int, progress: Progress) -> Fastest:
    """Return the `top` fastest feasible plans of all spaces, as records, and the counts."""
    plans: dict[int, dict[str, Any]] = {}
    counts: list[SearchCounts] = []
    # The problems differ in their cuts alone, so their keys have the same costs.
    table = price_keys(problems[0], spaces[0].keys)
    for problem, space in zip(problems, spaces, strict=True):
        source = PricedSpace(problem, space, table, "float64")
        if problem.optimal_cuts:
            slowest = max(plan["step_time_s"] for plan in plans.values()) if len(plans) >= top else np.inf
            rows, bounded = best_cuts(source, top, progress, below=slowest)
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
