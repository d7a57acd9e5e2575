"""A remark on models whose number of layers leaves a search next to no pipelines: stages have equal layers."""

from dsx.pricing.problem import Problem
from dsx.remarks import warn
from dsx.space.divisors import divisors

_COMMON = range(2, 17)  # stages of most pipelines


def say_few_pipelines(problem: Problem) -> None:
    """Warn which pipelines a search has, if the layers of the model divide into none that is common.

    A search whose stages need not be equal has them all.
    """
    if problem.optimal_cuts:
        return
    layers = problem.num_layers
    possible = divisors(layers).tolist()
    if layers > 1 and not any(stages in _COMMON for stages in possible):
        only = " or ".join(map(str, possible))
        warn(
            f"{problem.model.name} has {layers} layers between embedding and head, which {_COMMON[0]} to {_COMMON[-1]} "
            f"stages do not divide: pp is {only} in this search (partition: optimal has the others)"
        )
