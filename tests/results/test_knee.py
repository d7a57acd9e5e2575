"""The knee of a front is where it bulges most."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.results.frames import knee


def test_the_knee_is_farthest_below_the_line_between_the_ends():
    assert knee(np.array([0.0, 1.0, 2.0, 10.0]), np.array([10.0, 3.0, 2.5, 0.0])) == 1


@pytest.mark.parametrize(
    ("x", "y"),
    [([], []), ([1], [1]), ([1, 2], [2, 1]), ([1, 2, 3], [3, 2, 1]), ([1, 1, 1], [3, 2, 1]), ([0, 9, 10], [10, 9, 0])],
)
def test_a_front_that_does_not_bulge_has_none(x, y):
    assert knee(np.array(x, float), np.array(y, float)) is None


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=3, max_size=20), st.floats(0.1, 100))
def test_units_do_not_move_it(points, factor):
    x, y = np.array(points, float).T
    x, y = np.sort(x), np.sort(y)[::-1]
    assert knee(x, y) == knee(factor * x, y) == knee(x, 7.0 + factor * y)
