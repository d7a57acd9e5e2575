"""What plans are ranked by: their role in an answer, an objective over several jobs, or the days and cost of a run.

An answer has the fastest plan, the simplest and the leanest. Of plans as fast as the fastest, to what is printed of a
step time, the one whose features cost least stands for them: many differ in nothing that has a price, such as more
context parallel ranks for larger microbatches.

Jobs of other GPUs and batches do other work in a step, so that its seconds alone do not compare them.

For each number of GPUs a training run has one plan, its fastest: GPUs cost the same whatever they compute, so it is the
cheapest of that number too. A plan is a mapping with `plan` and the cost columns of a training run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dsx.cost.cut_bounds import ROUNDING
from dsx.errors import UnknownNameError, one_text
from dsx.search.one_pass import Wanted
from dsx.text import Data, DataView

FASTEST, SIMPLEST, LEANEST = ROLES = ("fastest", "simplest", "leanest")
DAYS, HOURS, COST = "training_days", "gpu_hours", "cost_usd"
TIED = 1e-3  # of a step time: it prints the same
LEAST_GOODPUT = 0.01  # share of the time; with less a job gets nowhere

P = TypeVar("P")
Priced = DataView  # a plan with its costs, of `dsx.pricing.one_plan` or `dsx.results.frames`


def wanted_by_role(step_time_s: float, resolution: float | None) -> tuple[Wanted, Wanted, Wanted]:
    """Return what each of `ROLES` wants; `resolution` is the difference of step time that measurements cannot rank."""
    within = step_time_s * (1 + max(resolution or 0.0, TIED))
    return Wanted(step_time_s * (1 + TIED), simple=True), Wanted(within, simple=True), Wanted(within)


def launched_first(plans: Sequence[Data], by_hand: Callable[[Data], bool]) -> list[Data]:
    """Return plans, the fastest first, with those that a framework launches as they are before those placed `by_hand`.

    These are in front among the plans that tie with the fastest, and among others of the same seconds.
    """
    ties: list[list[Data]] = []
    for plan in plans:
        within = ROUNDING if len(ties) > 1 else TIED
        if ties and plan["step_time_s"] <= ties[-1][0]["step_time_s"] * (1 + within):
            ties[-1].append(plan)
        else:
            ties.append([plan])
    return [plan for tied in ties for plan in (sorted(tied, key=by_hand) if len(tied) > 1 else tied)]


def by_role(plans: Sequence[P], costs: Sequence[int]) -> dict[str, P]:
    """Return plans by role, for all roles or the first ones: each is what its role wants, in the order of `ROLES`.

    `costs` are those of the features of the plans. The simplest is the fastest where it costs as much: less memory does
    not make a slower plan simpler.
    """
    roles: dict[str, P] = dict(zip(ROLES, plans, strict=False))
    if SIMPLEST in roles and costs[0] == costs[1]:
        roles[SIMPLEST] = roles[FASTEST]
    return roles


@dataclass(frozen=True, slots=True)
class Objective:
    """A column of a priced plan that is to be as small, or as large, as possible."""

    name: str
    largest: bool = False

    def order(self, plan: Priced) -> float:
        """Return what sorts plans, the best first."""
        return -float(plan[self.name]) if self.largest else float(plan[self.name])


_LARGEST = {"tokens_per_s_per_gpu": True, "tokens_per_s": True, "step_time_s": False, "mfu": True, "peak_bytes": False}
OBJECTIVES: Mapping[str, Objective] = {name: Objective(name, largest) for name, largest in _LARGEST.items()}


def objective_named(name: object) -> Objective:
    """Return an objective; raises UnknownNameError for a name that is none."""
    if (objective := OBJECTIVES.get(one_text("objective", name, "mfu"))) is None:
        raise UnknownNameError("objective", str(name), OBJECTIVES)
    return objective


def ranked_by_count(plans: Sequence[Data], objective: Objective) -> list[Data]:
    """Return plans grouped by cluster and GPUs: in each the best first, and the group of the best plan first."""

    def gpus(plan: Priced) -> tuple[str, int]:
        return plan["hardware"]["cluster"], plan["plan"]["num_gpus"]

    ranked = sorted(plans, key=objective.order)
    groups = {of: at for at, of in enumerate(dict.fromkeys(map(gpus, ranked)))}
    return sorted(ranked, key=lambda plan: groups[gpus(plan)])


@dataclass(frozen=True, slots=True)
class Goal:
    """What a training run has to keep to; None: nothing."""

    deadline_days: float | None = None
    budget_usd: float | None = None

    def met(self, plan: Priced) -> bool:
        """Return whether a plan is done in time and paid for."""
        return not self.is_late(plan) and not self.is_dear(plan)

    def is_late(self, plan: Priced) -> bool:
        """Return whether a plan takes longer than the deadline."""
        return self.deadline_days is not None and plan[DAYS] > self.deadline_days

    def is_dear(self, plan: Priced) -> bool:
        """Return whether a plan costs more than the budget."""
        return self.budget_usd is not None and not plan[COST] <= self.budget_usd


def gets_nowhere(plan: Priced) -> bool:
    """Return whether failures leave a plan nothing of its time."""
    return plan["goodput"] < LEAST_GOODPUT


def price_column(plans: Sequence[Priced]) -> str:
    """Return the column that plans are paid in: dollars, or GPU hours where a cluster states no price."""
    return COST if all(math.isfinite(plan[COST]) for plan in plans) else HOURS


def chosen(plans: Sequence[Priced], goal: Goal) -> Priced | None:
    """Return the plan to take; None if none meets the goal.

    It is the cheapest that is done in time, or with a budget and no deadline the fastest that is paid for. Without a
    goal it is the cheapest. Equal ones are decided by the other.
    """
    column = price_column(plans)
    order = (DAYS, column) if goal.deadline_days is None and goal.budget_usd is not None else (column, DAYS)
    return min(filter(goal.met, plans), key=lambda plan: [plan[name] for name in order], default=None)


def fastest(plans: Sequence[Priced]) -> Priced:
    """Return the plan that is done first."""
    return min(plans, key=lambda plan: plan[DAYS])


def cheapest(plans: Sequence[Priced]) -> Priced:
    """Return the plan that costs least."""
    column = price_column(plans)
    return min(plans, key=lambda plan: plan[column])


def days_between(plan: Priced) -> tuple[float, float]:
    """Return the 80 % interval of the days, which is that of the step time; NaN where it is unknown."""
    per_step = plan[DAYS] / plan["step_time_s"]
    return plan["step_time_s_low"] * per_step, plan["step_time_s_high"] * per_step
