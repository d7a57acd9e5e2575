"""A warning about models whose number of layers allows almost no even pipeline."""

from dsx.pricing.problem import Problem
from dsx.remarks import warn
from dsx.space.divisors import all_divisors

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
