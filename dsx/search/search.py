"""The search that suits a problem."""

from dsx.pricing.layers import Kinds
from dsx.pricing.problem import Problem
from dsx.search.blockwise.search import Blockwise
from dsx.search.partitioned import Partitioned
from dsx.search.protocol import Search
from dsx.search.space import Space


def search_of(problem: Problem, space: Space, table: Kinds, precision: str = "float64", length: int = 0) -> Search:
    """Return the search of a space.

    `table` holds the [H, U] layer costs of its keys in float64. Calls for rows with even stages are padded to `length`,
    so that they are compiled once.
    """
    if problem.optimal_cuts:
        return Partitioned(problem, space, table, precision)
    return Blockwise(problem, space, table, precision, length)
