"""The orders of passes of a plan: those that its schedule can run, by the rules of plans."""

from dsx.errors import PlanError
from dsx.space.limits import Limits
from dsx.space.passes import Order, one_forward_one_backward
from dsx.space.plan_rules import RULES
from dsx.space.schedules import SCHEDULES, Schedule

# What a schedule asks of stages, chunks and microbatches. These rules compare a plan with no limit.
_REASONS = ("chunks_without_1f1b", "microbatches_not_in_groups", "stages_not_in_groups", "microbatches_too_few")
_RULES = tuple(rule for rule in RULES if rule.reason.name in _REASONS)
_NO_LIMITS = Limits(num_layers=0, nvs_size=0)


def orders_of(schedule: Schedule, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> list[Order]:
    """Return the order in which each stage runs its passes.

    One stage runs each microbatch forward and backward, whatever the schedule. Raises
    PlanError if a rule of plans says that the schedule does not run so many stages, microbatches or chunks per stage.
    """
    plan = {
        "schedule": SCHEDULES.index(schedule),
        "pp": num_stages,
        "vpp": num_chunks,
        "num_microbatches": num_microbatches,
    }
    for rule in _RULES:
        if not rule.holds(plan, _NO_LIMITS):
            raise PlanError(rule.message(plan, _NO_LIMITS))
    passes = one_forward_one_backward if num_stages == 1 else schedule.passes
    return passes(num_stages, num_microbatches, num_chunks)
