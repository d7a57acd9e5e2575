"""Warnings about the pipelines of a search: hardly any even one, and schedules that are priced too fast."""

from dsx.pricing.problem import Problem
from dsx.remarks import warn
from dsx.space.divisors import all_divisors
from dsx.space.schedules import SCHEDULES, names_of

_COMMON = range(2, 17)  # numbers of stages of most pipelines


def say_few_pipelines(problem: Problem) -> None:
    """Warn if no common number of stages divides the layers of the model, and name those that do.

    Optimal cuts need no equal stages, so their searches have no such limit.
    """
    if problem.optimal_cuts:
        return
    layers = problem.num_layers
    possible = all_divisors(problem.limits().even_layers).tolist()
    if layers > 1 and not any(stages in _COMMON for stages in possible):
        only = " or ".join(map(str, possible))
        warn(
            f"{problem.model.name} has {layers} layers between embedding and head, which {_COMMON[0]} to {_COMMON[-1]} "
            f"stages do not divide: pp is {only} in this search (partition: optimal has the others)"
        )


def say_inexact_schedules(problem: Problem) -> None:
    """Warn of searched schedules whose closed form a replay of their passes exceeds; only those named are searched."""
    searched = [SCHEDULES[code] for code in problem.workload.searched.schedule]
    if inexact := [schedule for schedule in searched if not schedule.exact]:
        warn(
            f"a step of {names_of(inexact)} takes longer than its closed form: by up to a sixth with many "
            "microbatches, several times as long with few"
        )
