"""How many GPUs a training run should take: the cheapest plan that is done in time, the fastest that is paid for.

For each number of GPUs there is one plan, its fastest: GPUs cost the same whatever they compute, so it is the cheapest
of that number too. A plan is a mapping with `plan` and the cost columns of a training run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsx.results.objectives import Priced

DAYS, HOURS, COST = "training_days", "gpu_hours", "cost_usd"
LEAST_GOODPUT = 0.01  # share of the time; with less a job gets nowhere


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
