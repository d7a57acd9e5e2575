"""The search that a problem needs."""

from dsx.pricing.layers import KeyCosts
from dsx.pricing.problem import Problem
from dsx.search.blockwise.blockwise import Blockwise
from dsx.search.partitioned import Partitioned
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Search
from dsx.search.space import Space


def search_of(problem: Problem, space: Space, table: KeyCosts, precision: str = "float64", length: int = 0) -> Search:
    """Return the search of a space.

    `table` has the [H, U] layer costs of its keys in float64. Calls for rows with even cuts are padded to `length`, so
    that they are compiled once.
    """
    source = PricedSpace(problem, space, table, precision)
    return Partitioned(source) if problem.optimal_cuts else Blockwise(source, length)
