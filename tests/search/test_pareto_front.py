"""Fronts, and groups of which the best are kept."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.sweeps import feasible_rows, run, searched, study_of

from dsx.config.sweep_file import KeepPareto, KeepTop
from dsx.errors import InputError
from dsx.search import ranking as pareto_front
from dsx.search import sweep as max_groups
from dsx.search.sweep import MAX_ROWS, Sweep, fault_of_groups, most_rows

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


def test_fronts_of_equal_rows_and_many_groups():
    assert pareto_front.front(np.ones((3 * pareto_front.BLOCK, 3))).all()
    # Integers are exact.
    big = 2**60
    rows = np.array([[big, 0, 0], [big + 1, 0, 0]])
    assert pareto_front.front(rows).tolist() == [True, False]
    # Ten rows of a hundred thousand groups are kept.
    assert MAX_ROWS // 10 >= 100_000


@pytest.mark.parametrize("shape", [(3,), (3, 0), (2, 2, 2)])
def test_wrong_shape(shape):
    with pytest.raises(InputError, match="got shape"):
        pareto_front.front(np.zeros(shape))


PER = ["tp", "pp", "dp", "global_batch_size"]


@pytest.fixture(scope="module")
def study():
    problem, space, _ = searched()
    return study_of(problem, space)


def fault(study, keep, part_size=None):
    return fault_of_groups([study], Sweep([study], keep, "float32", part_size).parts, keep)


@pytest.mark.parametrize("keep", ["all", "feasible", KeepTop(top=2, per=PER), KeepTop(top=2)], ids=str)
def test_the_most_rows_bound_what_is_kept(study, keep):
    sweep, kept = Sweep([study], keep, "float32"), []
    sweep.run(range(len(sweep.parts)), lambda number, rows, counts: kept.append(len(rows["tp"])))
    assert sum(kept) <= most_rows([study], sweep.parts, keep) <= sweep.size
    assert keep != "all" or sum(kept) == most_rows([study], sweep.parts, keep)


def test_groups_of_all_and_of_parts(study, monkeypatch):
    monkeypatch.setattr(max_groups, "MAX_ROWS", 1)
    assert fault(study, "all") == fault(study, KeepPareto(pareto=["step_time_s"])) == ""
    monkeypatch.undo()
    # A top beyond all candidates is all of them.
    assert fault(study, KeepTop(top=10**9)) == ""
    # Each part has its own groups.
    monkeypatch.setattr(max_groups, "MAX_ROWS", 5)
    message = fault(study, KeepTop(top=3), part_size=study.size // 4)
    assert "of up to 3 rows over " in message
    assert " parts exceed the limit of 5 rows (3 for each of 1 groups); name fewer columns in 'per'" in message


def test_groups_are_counted_exactly(study, monkeypatch):
    """The groups of the space at all three points, whether their plans fit or not; not all combinations of values."""
    first, last = study.space.blocks.first_candidate[[0, -1]].tolist()
    positions, choices = study.space.blocks.rows(first, last)
    columns = [study.space.keys["tp"][positions], *(choices[name] for name in PER[1:])]
    count = 3 * len(set(zip(*(column.tolist() for column in columns), strict=True)))
    monkeypatch.setattr(max_groups, "MAX_ROWS", 2 * count)
    keep = KeepTop(top=2, per=PER)
    assert fault(study, keep) == ""
    monkeypatch.setattr(max_groups, "MAX_ROWS", count - 1)
    one = KeepTop(top=1, per=PER)
    assert f"{count:,} groups of up to 1 rows exceed the limit of {count - 1:,} rows" in fault(study, one)
    rows, _ = run(Sweep([study], one, "float32"))[0]
    assert 0 < len(rows["tp"]) <= count
    assert feasible_rows()["tp"].size > len(rows["tp"])
