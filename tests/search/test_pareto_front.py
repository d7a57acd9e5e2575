"""The front against its definition, and the laws that follow from it."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.errors import InputError
from dsx.search import ranking as pareto_front

# Few values, so that ties in one or all objectives are common.
FEW = st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.5, np.nan, np.inf, -np.inf])


def points(elements=FEW, max_rows=60):
    shapes = st.tuples(st.integers(0, max_rows), st.integers(1, 4))
    return arrays.arrays(np.float64, shapes, elements=elements)


def brute_force(rows: np.ndarray) -> np.ndarray:
    finite = np.isfinite(rows).all(axis=1)

    def dominated(b):
        return any(ok and (a <= b).all() and (a < b).any() for a, ok in zip(rows, finite, strict=True))

    return np.array([ok and not dominated(b) for b, ok in zip(rows, finite, strict=True)], dtype=bool)


@given(rows=points(), block=st.sampled_from([(2**13, 2**5), (4, 3)]))
def test_is_the_definition(rows, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pareto_front, "BLOCK", block[0])
        patch.setattr(pareto_front, "CHUNK", block[1])
        np.testing.assert_array_equal(pareto_front.front(rows), brute_force(rows))


@given(rows=points(st.floats(width=32)))
def test_is_the_definition_for_any_float(rows):
    np.testing.assert_array_equal(pareto_front.front(rows), brute_force(rows))


@given(rows=points(), cut=st.integers(0, 60))
def test_front_of_fronts_is_the_front(rows, cut):
    parts = [part[pareto_front.front(part)] for part in (rows[:cut], rows[cut:])]
    merged = np.concatenate(parts)
    merged = merged[pareto_front.front(merged)]
    np.testing.assert_array_equal(merged, rows[pareto_front.front(rows)])


@given(rows=points(), seed=st.integers(0, 2**32 - 1))
def test_order_of_rows_and_objectives_changes_nothing(rows, seed):
    rng = np.random.default_rng(seed)
    order, objectives = rng.permutation(len(rows)), rng.permutation(rows.shape[1])
    np.testing.assert_array_equal(pareto_front.front(rows[order][:, objectives]), pareto_front.front(rows)[order])


@pytest.mark.parametrize("objectives", [2, 3])
def test_many_rows_against_a_line(objectives):
    """Rows whose objectives trade one for one are all on the front; rows above are not."""
    x = np.random.default_rng(0).permutation(2000).astype(np.float64)
    line = np.stack([x, -x, *[np.zeros(2000)] * (objectives - 2)], axis=1)
    on_front = pareto_front.front(np.concatenate([line + 1, line]))
    assert on_front[2000:].all()
    assert not on_front[:2000].any()


def test_equal_rows_are_all_kept_also_across_blocks():
    assert pareto_front.front(np.ones((3 * pareto_front.BLOCK, 3))).all()


def test_integers_are_exact():
    big = 2**60
    rows = np.array([[big, 0, 0], [big + 1, 0, 0]])
    assert pareto_front.front(rows).tolist() == [True, False]


@pytest.mark.parametrize("shape", [(3,), (3, 0), (2, 2, 2)])
def test_wrong_shape(shape):
    with pytest.raises(InputError, match="got shape"):
        pareto_front.front(np.zeros(shape))
