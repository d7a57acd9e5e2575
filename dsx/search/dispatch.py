"""The search that a problem needs."""

import numpy as np

from dsx.pricing.layers import KeyCosts, price_keys
from dsx.pricing.problem import Problem
from dsx.pricing.rows import Counts
from dsx.search.blockwise.blockwise import Blockwise
from dsx.search.bounded_even import best_even
from dsx.search.partitioned import Partitioned
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Search
from dsx.search.space import Space
from dsx.space.enumerate import Arrays


def search_of(problem: Problem, space: Space, table: KeyCosts, precision: str = "float64", length: int = 0) -> Search:
    """Return the search of a space.

    `table` has the [H, U] layer costs of its keys in float64. Calls for rows with even cuts are padded to `length`, so
    that they are compiled once.
    """
    source = PricedSpace(problem, space, table, precision)
    return Partitioned(source) if problem.optimal_cuts else Blockwise(source, length)


def fastest_row(problem: Problem, space: Space) -> tuple[Arrays, Counts]:
    """Return all columns of the fastest feasible candidate of a space, and its counts.

    Even cuts are searched without a compiled search where bounds leave few candidates.
    """
    table = price_keys(problem, space.keys)
    found = None if problem.optimal_cuts else best_even(PricedSpace(problem, space, table, "float64"), 1, np.inf)
    if found is None:
        return search_of(problem, space, table).best(1)
    row, counts = found
    skipped = space.size - counts.candidates
    return row, counts.plus(Counts(skipped, 0, skipped))
