"""The shapes that annotations of a search state are checked in the calls of these tests."""

from dataclasses import replace

import numpy as np
import pytest
from jaxtyping import TypeCheckError
from laws.spaces import problem_of, space_of

from dsx.pricing.keys import price_keys
from dsx.search.bounds import fitting_bounds, key_bounds, may_be_fast, rows_at
from dsx.search.ranking import leading_rows
from dsx.search.spaces import PricedSpace


def test_candidates_are_as_many_in_all_arrays():
    problem, space = problem_of("default"), space_of("default")
    source = PricedSpace(problem, space, space.table(problem), "float64")
    rows = rows_at(source, np.arange(3))
    among = np.ones(3, dtype=bool)
    assert may_be_fast(source, rows, among, np.full(3, np.inf)).tolist() == [True] * 3
    # NumPy would broadcast the limits.
    with pytest.raises(TypeCheckError, match="parameter 'most'"):
        may_be_fast(source, rows, among, np.full(1, np.inf))
    with pytest.raises(TypeCheckError, match="parameter 'rows'"):
        fitting_bounds(source, rows._replace(points=rows.points[:1]))
    with pytest.raises(TypeCheckError, match="parameter 'candidates'"):
        rows_at(source, np.arange(3.0))


def test_layer_costs_are_of_the_keys_of_their_space():
    problem, space = problem_of("default"), space_of("default")
    source = PricedSpace(problem, space, space.table(problem), "float64")
    assert key_bounds(source).shape == space.keys["tp"].shape
    few = price_keys(problem, {name: column[:1] for name, column in space.keys.items()})
    of_few = replace(source, table=(replace(source.table[0], forward_s=few[0].forward_s), *source.table[1:]))
    with pytest.raises(TypeCheckError, match="parameter 'source'"):
        key_bounds(of_few)


def test_kept_rows_have_all_columns():
    rows = {"point": np.zeros(3, dtype=int), "step_time_s": np.arange(3.0), "candidate": np.arange(2)}
    with pytest.raises(TypeCheckError, match="parameter 'rows'"):
        leading_rows(rows, 1, ["point"])
