"""The front of a space is that of all its rows, for any objectives, chunks, hardware points, workers and samples."""

import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from laws.spaces import assert_rows_equal
from search.sweeps import all_rows, assert_identical, at_one_point, feasible_rows, searched, set_workers, where

from dsx.cost.context import StepCosts
from dsx.plans.choices import NAMED, PLAN_COLUMNS
from dsx.pricing.cuts import CandidateCounts, joined
from dsx.search.ranking import front_of_groups, objective_points
from dsx.search.spaces import at_points
from dsx.search.sweep import search_of
from dsx.search.tiles import tiles
from dsx.search.tiles import top_plans as space_front
from dsx.search.tiles.hot import HotLoop

OBJECTIVES = [
    ["step_time_s", "peak_bytes"],
    ["-tokens_per_s", "activation_bytes", "tp"],  # a cost to maximise, one to minimise, a column of the key
    ["-mfu", "num_gpus", "-global_batch_size"],  # columns of the choice
    ["num_gpus"],  # every plan of fewest GPUs is on the front
    ["tp", "-dp"],  # whole numbers alone, of the key and of the choice
    ["bubble_s"],  # zero is the least, and many plans have it
    ["bubble_s", "num_gpus"],
    ["vpp", "step_time_s"],  # a column that is not searched has one value and decides nothing
    ["-zero_stage"],
]
MORE = [
    ["step_time_s"],
    ["pp_comm_s", "cp_comm_s", "-global_batch_size"],
    ["recompute_s"],  # no plan recomputes
    ["ep_comm_s", "step_time_s"],
    ["step_time_s", "bubble_s"],
    ["-num_microbatches", "panels", "-tp_nvs"],
    ["-zero_stage", "tp", "sequence_length"],
]


@pytest.fixture(autouse=True)
def small_first_front(small, monkeypatch):
    """A first front of a few candidates, and more chunks than workers."""
    shrink(monkeypatch)


def shrink(patch, sample=20, size=400):
    patch.setattr(space_front, "_SAMPLE", sample)
    patch.setattr(tiles, "_CHUNK", size)


def on_the_front(rows, objectives):
    """The mask of rows that no other row of their hardware point beats, by comparing each with all."""
    columns = [-rows[one[1:]] if one[0] == "-" else rows[one] for one in objectives]
    points = np.stack(columns, axis=1).astype(float)
    kept = np.zeros(len(points), dtype=bool)
    for point in np.unique(rows["point"]).tolist():
        here = np.flatnonzero(rows["point"] == point)
        left = here
        while len(left):  # the least sum of ranks is beaten by none
            mine = points[left]
            ranks = sum(np.unique(column, return_inverse=True)[1] for column in mine.T)
            first = mine[np.argmin(ranks)]
            kept[left[(mine == first).all(axis=1)]] = True
            left = left[(mine < first).any(axis=1)]
    return kept


def separated_by_rounding(some, at, others, objectives):
    """Whether one of `others` beats a row up to rounding.

    The rounding of a plan depends on its batch, so either of two plans with equal times may be on the front.
    """
    one = objective_points(where(some, [at]), objectives)
    there = objective_points(where(others, others["point"] == some["point"][at]), objectives)
    rounding = 1e-12 * np.abs(one)
    real = (there % 1 != 0).any(axis=0) | (one[0] % 1 != 0)
    alike = (np.abs(there - one) <= rounding) & real
    return bool(((there <= one + rounding).all(axis=1) & alike.any(axis=1)).any())


def compare(found, rows, objectives):
    expected = where(rows, on_the_front(rows, objectives))
    ids = list(zip(found["point"].tolist(), found["candidate"].tolist(), strict=True))
    wanted = list(zip(expected["point"].tolist(), expected["candidate"].tolist(), strict=True))
    assert len(set(ids)) == len(ids)
    for some, others, those in ((found, wanted, expected), (expected, ids, found)):
        known = set(others)
        alone = [at for at, one in enumerate(ids if some is found else wanted) if one not in known]
        assert all(separated_by_rounding(some, at, those, objectives) for at in alone)
    row = {one: at for at, one in enumerate(wanted)}
    both = [at for at, one in enumerate(ids) if one in row]
    assert_rows_equal(where(found, both), where(expected, [row[ids[at]] for at in both]), 1e-12)
    order = list(zip(found["point"].tolist(), *objective_points(found, objectives).T.tolist(), strict=True))
    assert order == sorted(order)


def test_compare_finds_a_missing_and_an_extra_row():
    objectives = ["step_time_s", "peak_bytes"]
    rows = feasible_rows()
    front = where(rows, on_the_front(rows, objectives))
    front = where(front, np.lexsort((*objective_points(front, objectives).T[::-1], front["point"])))
    compare(front, rows, objectives)
    worst = where(rows, [int(np.argmax(rows["step_time_s"]))])
    first = where(front, front["point"] == front["point"][0])
    for wrong in (where(front, slice(1, None)), where(front, front["point"] != 2), joined([first, worst])):
        with pytest.raises(AssertionError):
            compare(wrong, rows, objectives)


CASES = [*((objectives, "float32") for objectives in OBJECTIVES), (["step_time_s", "peak_bytes"], "float64")]
CASES += [pytest.param(objectives, "float32", marks=pytest.mark.slow) for objectives in MORE]
CASES += [pytest.param(objectives, "float64", marks=pytest.mark.slow) for objectives in OBJECTIVES[1:]]


@pytest.mark.sampled(0)
@pytest.mark.parametrize(
    ("objectives", "precision"), CASES, ids=lambda one: one if isinstance(one, str) else " ".join(one)
)
def test_front(objectives, precision):
    problem, space, table = searched()
    told = []
    rows, counts = search_of(problem, space, table, precision).front(objectives, progress=told.append)
    compare(rows, feasible_rows(), objectives)
    assert counts == CandidateCounts(problem.num_points * space.size, len(feasible_rows()["tp"]))
    assert sum(told) == counts.candidates
    assert len(told) > 5


COLUMNS = [*StepCosts.__dataclass_fields__, *(name for name in PLAN_COLUMNS if name not in NAMED)]


@pytest.mark.slow
@settings(max_examples=4)
@example(["compute_s", "mfu", "tokens_per_s"], ["", "", "-", ""], 1, 50, "float32")
@given(
    objectives=st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4, unique=True),
    signs=st.lists(st.sampled_from(["", "-"]), min_size=4, max_size=4),
    sample=st.sampled_from([1, 100, 5000]),
    size=st.sampled_from([50, 1000, 1 << 17]),
    precision=st.sampled_from(["float32", "float64"]),
)
def test_any_objectives(objectives, signs, sample, size, precision):
    objectives = [sign + name for sign, name in zip(signs, objectives, strict=False)]
    problem, space, table = searched()
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, sample, size)
        rows, _ = search_of(problem, space, table, precision).front(objectives)
    compare(rows, feasible_rows(), objectives)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("references", "sample", "size"), [(1, 1, 1 << 17), (32, 5000, 1 << 17), (5, 1, 100)])
def test_any_sample_and_references(monkeypatch, references, sample, size):
    shrink(monkeypatch, sample, size)
    monkeypatch.setattr(space_front, "_REFERENCES", references)
    problem, space, table = searched()
    rows, _ = search_of(problem, space, table).front(["step_time_s", "peak_bytes"])
    compare(rows, feasible_rows(), ["step_time_s", "peak_bytes"])


@pytest.mark.slow
def test_points_together_are_points_alone():
    problem, space, table = searched()
    objectives = ["step_time_s", "peak_bytes"]
    together, counts = search_of(problem, space, table).front(objectives)
    alone = []
    for point in range(problem.num_points):
        there = at_one_point(point)
        alone.append(search_of(there, space, space.table(there)).front(objectives))
        alone[-1][0]["point"] += point
    expected = joined([rows for rows, _ in alone])
    np.testing.assert_array_equal(together["candidate"], expected["candidate"])
    assert_rows_equal(together, expected, 1e-13)
    assert counts.feasible == sum(made.feasible for _, made in alone)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("objectives", [["step_time_s", "peak_bytes"], ["tp", "-dp"]], ids=" ".join)
def test_the_same_front_however_many_workers_and_chunks(monkeypatch, objectives):
    """The references of a chunk depend on which chunks were done before; the front does not."""
    problem, space, table = searched()
    random = np.random.default_rng(0)
    make = HotLoop.calls

    def at_its_own_pace(self, device, chunk):
        time.sleep(random.random() * 0.01)
        return make(self, device, chunk)

    found = []
    for count, sample, size in ((1, 20, 1 << 17), (1, 20, 200), (4, 20, 200), (4, 2000, 200), (4, 20, 2000)):
        set_workers(monkeypatch, count)
        shrink(monkeypatch, sample, size)
        monkeypatch.setattr(HotLoop, "calls", at_its_own_pace if count > 1 else make)
        found.append(search_of(problem, space, table).front(objectives))
    for rows, counts in found[1:]:
        assert counts == found[0][1]
        assert_identical(rows, found[0][0])


@pytest.mark.slow
def test_some_blocks():
    problem, space, table = searched()
    objectives = ["step_time_s", "peak_bytes"]
    middle, last = len(space.blocks) // 3, len(space.blocks)
    parts = []
    for low, high in ((0, middle), (middle, last), (middle, middle)):
        rows, counts = search_of(problem, space, table).front(objectives, blocks=(low, high))
        here = np.zeros(space.size, dtype=bool)
        here[slice(*space.blocks.first_candidate[[low, high]])] = True
        expected = where(all_rows(), np.tile(here, problem.num_points) & (all_rows()["reject"] == 0))
        compare(rows, expected, objectives)
        assert counts == CandidateCounts(problem.num_points * int(here.sum()), len(expected["tp"]))
        parts.append(rows)
    compare(front_of_groups(joined(parts), ["point"], objectives), feasible_rows(), objectives)


@pytest.mark.slow
def test_no_front_where_no_plan_fits():
    problem, space, table = searched()
    tiny = at_points(at_one_point(0), {"device.hbm_capacity": np.array([1.0, 2.0, 3.0])})
    rows, counts = search_of(tiny, space, table).front(["step_time_s", "tp"])
    assert len(rows["tp"]) == 0
    assert (counts.candidates, counts.feasible) == (3 * space.size, 0)
    assert set(rows) == set(feasible_rows())
    assert problem.num_points == 3


def test_the_front_of_groups():
    """Each group has its own front; a repeated candidate counts once, and equal rows are all kept."""
    rows = {
        "candidate": np.array([5, 1, 2, 1, 7, 8, 3]),
        "cluster": np.array([1, 0, 0, 0, 1, 1, 0]),
        "device.hbm_capacity": np.array([1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0]),
        "step_time_s": np.array([9.0, 1.0, 1.0, 1.0, 5.0, 9.5, 2.0]),
        "mfu": np.array([0.1, 0.5, 0.5, 0.5, 0.0, 0.1, 0.5]),
    }
    found = front_of_groups(rows, ["cluster", "device.hbm_capacity"], ["step_time_s", "-mfu"])
    assert list(zip(found["cluster"].tolist(), found["candidate"].tolist(), strict=True)) == [
        (0, 1),
        (0, 2),
        (1, 5),
        (1, 7),
    ]
    nothing = front_of_groups({name: column[:0] for name, column in rows.items()}, ["cluster"], ["mfu"])
    assert [len(column) for column in nothing.values()] == [0] * 5
