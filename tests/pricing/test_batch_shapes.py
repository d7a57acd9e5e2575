"""The shapes that annotations of a batch of plans state are checked in the calls of these tests."""

import numpy as np
import pytest
from jaxtyping import TypeCheckError
from laws.spaces import problem_of, space_of

from dsx.pricing.cuts import RunChains, balanced_cuts, joined
from dsx.pricing.row_costs import Rows, price_rows
from dsx.records import tree_map


def test_plans_of_a_batch_are_as_many_in_all_arrays():
    chain, two, three = RunChains(np.full(1, 4.0), np.ones((1, 2))), np.full(2, 2), np.full(3, 2)
    limits = np.full(2, np.inf)
    assert balanced_cuts(chain, two, two, limits).tolist() == [[0, 1, 2, 3, 4]] * 2
    with pytest.raises(TypeCheckError, match="parameter 'vpp'"):
        balanced_cuts(chain, two, three, limits)
    with pytest.raises(TypeCheckError, match="parameter 'largest_s'"):
        balanced_cuts(chain, two, two, np.full(1, np.inf))  # NumPy would broadcast it
    # Tables that are joined have numbers of rows of their own, but all columns of a table have the same.
    assert joined([{"pp": two, "dp": two}, {"pp": three, "dp": three}])["dp"].tolist() == [2] * 5
    with pytest.raises(TypeCheckError, match="return value"):
        joined([{"pp": two, "dp": two}, {"pp": three, "dp": two}])


def test_layer_costs_are_of_points_and_keys():
    problem, space = problem_of("default"), space_of("default")
    table = space.table(problem)
    positions, choices = space.blocks.rows(0, 2)
    rows = Rows(np.zeros(2, dtype=int), positions, choices)
    assert price_rows(problem, table, rows).step_time_s.shape == (2,)
    with pytest.raises(TypeCheckError, match="parameter 'rows'"):
        price_rows(problem, table, rows._replace(points=np.zeros(1, dtype=int)))
    with pytest.raises(TypeCheckError, match="parameter 'table'"):
        price_rows(problem, tree_map(lambda leaf: leaf[0], table), rows)  # of one point, as a record of plans has it
