"""The best of each group are those of all rows, for any groups, chunks, hardware points and workers."""

import time
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import SYSTEM, USUAL, assert_rows_equal, problem_of
from search.sweeps import all_rows, assert_identical, at_one_point, feasible_rows, searched, set_workers, where
from validation.cases import cluster_spec, priced, problem_for

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import load_model
from dsx.plans.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.pricing import compiled as devices
from dsx.pricing.cuts import CandidateCounts, joined
from dsx.pricing.problem import make_problem
from dsx.search.spaces import Space
from dsx.search.sweep import search_of
from dsx.search.tiles import tiles, top_plans
from dsx.search.tiles.hot import HotLoop

PER = [
    (),
    ("tp",), ("strategy",), ("panels", "microbatch_size"),  # of the key
    ("pp",), ("num_gpus", "dp_nvs"), ("pp_nvs", "dp"),  # of the placement
    ("global_batch_size",), ("num_microbatches",), ("num_microbatches", "global_batch_size"),  # of the batch
    ("strategy", "num_gpus", "tp_nvs", "global_batch_size"), ("tp", "pp", "num_microbatches"),  # of all
    ("zero_stage", "tp", "sequence_length"),  # a column that is not searched splits no group
]  # fmt: skip


def compare(found, rows, per, top, rtol=1e-12):
    """The found rows are the first `top` of each group, sorted; tied rows may be any of the tied ones."""
    groups = ("point", *per)
    order = np.lexsort((rows["step_time_s"], *(rows[name] for name in reversed(groups))))
    expected = {}
    for row in order.tolist():
        expected.setdefault(tuple(int(rows[name][row]) for name in groups), []).append(row)
    wanted = np.array([row for members in expected.values() for row in members[:top]], dtype=int)
    for name in groups:
        np.testing.assert_array_equal(found[name], rows[name][wanted], err_msg=name)
    np.testing.assert_allclose(found["step_time_s"], rows["step_time_s"][wanted], rtol=rtol)
    by_id = {one: row for row, one in enumerate(zip(rows["point"].tolist(), rows["candidate"].tolist(), strict=True))}
    ids = list(zip(found["point"].tolist(), found["candidate"].tolist(), strict=True))
    assert len(set(ids)) == len(ids)
    assert_rows_equal(found, where(rows, [by_id[one] for one in ids]), 1e-12)


CASES = [*((per, "float32") for per in PER), *((per, "float64") for per in PER[::3])]


@pytest.mark.sampled(18)
@pytest.mark.parametrize("few", [0, 1 << 12], ids=["candidates", "slices"])
@pytest.mark.parametrize(
    ("per", "precision"), CASES, ids=lambda one: one if isinstance(one, str) else "-".join(one) or "all"
)
def test_best_of_groups(monkeypatch, per, precision, few):
    monkeypatch.setattr(tiles, "_CHUNK", 1000)
    monkeypatch.setattr(top_plans, "_FEW", few)
    problem, space, table = searched()
    told = []
    for top in (1, 7):
        rows, counts = search_of(problem, space, table, precision).best(top, per, progress=told.append)
        assert counts.candidates == problem.num_points * space.size
        assert counts.feasible == len(feasible_rows()["tp"])
        compare(rows, feasible_rows(), per, top)
    assert sum(told) == 2 * problem.num_points * space.size
    assert len(told) > 5


@pytest.mark.slow
def test_all_rows_and_groups_of_every_column():
    problem, space, table = searched()
    rows, _ = search_of(problem, space, table).best(10**6)
    compare(rows, feasible_rows(), (), 10**6)
    assert len(rows["tp"]) == len(feasible_rows()["tp"])
    # Each candidate is a group of its own, however many combinations of values the columns have.
    problem = problem_of("default", ("1d",))
    space = Space(problem, [16384], [8192], fix={"tp": [4], "dp": [1024, 4096]})
    per = (*KEY_COLUMNS, *CHOICE_COLUMNS)
    rows, counts = search_of(problem, space, space.table(problem)).best(2, per)
    assert len(rows["tp"]) == counts.feasible > 10


@pytest.mark.slow
@settings(max_examples=30)
@given(
    per=st.lists(st.sampled_from([*KEY_COLUMNS, *CHOICE_COLUMNS]), max_size=3, unique=True),
    top=st.integers(1, 30),
    size=st.sampled_from([200, 2000, 1 << 17]),
    precision=st.sampled_from(["float32", "float64"]),
    few=st.sampled_from([0, 1 << 12]),
    span=st.sampled_from([0, 1 << 20]),
)
def test_best_of_any_groups_in_any_chunks(per, top, size, precision, few, span):
    problem, space, table = searched()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "_CHUNK", size)
        patch.setattr(top_plans, "_FEW", few)
        patch.setattr(top_plans, "_SPAN", span)
        patch.setattr(top_plans, "_ROWS", 50)
        rows, _ = search_of(problem, space, table, precision).best(top, per)
    compare(rows, feasible_rows(), per, top)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.slow
def test_points_together_are_points_alone(precision):
    problem, space, table = searched()
    together, counts = search_of(problem, space, table, precision).best(5, ("strategy",))
    alone = []
    for point in range(problem.num_points):
        there = at_one_point(point)
        alone.append(search_of(there, space, space.table(there), precision).best(5, ("strategy",)))
        alone[-1][0]["point"] += point
    assert counts == sum_of(counts for _, counts in alone)
    expected = joined([rows for rows, _ in alone])
    np.testing.assert_array_equal(together["candidate"], expected["candidate"])
    assert_rows_equal(together, expected, 1e-13)


def sum_of(counts):
    return reduce(CandidateCounts.plus, counts)


def test_some_blocks(monkeypatch):
    monkeypatch.setattr(tiles, "_CHUNK", 500)
    problem, space, table = searched()
    middle, last = len(space.blocks) // 3, len(space.blocks)
    found = []
    for low, high in ((0, middle), (middle, last), (middle, middle), (last, last)):
        rows, counts = search_of(problem, space, table).best(5, blocks=(low, high))
        here = np.zeros(space.size, dtype=bool)
        here[slice(*space.blocks.first_candidate[[low, high]])] = True
        expected = where(all_rows(), np.tile(here, problem.num_points) & (all_rows()["reject"] == 0))
        compare(rows, expected, (), 5)
        assert counts == CandidateCounts(problem.num_points * int(here.sum()), len(expected["tp"]))
        found.append(counts)
    assert sum_of(found) == search_of(problem, space, table).best(5)[1]


@pytest.mark.sampled(0)
@pytest.mark.parametrize("few", [0, 1 << 12], ids=["candidates", "slices"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_ties_are_resolved_alike_for_any_workers_and_chunks(monkeypatch, precision, few):
    """The order in which chunks finish has no effect."""
    monkeypatch.setattr(top_plans, "_FEW", few)
    problem, space, table = searched()
    random = np.random.default_rng(0)
    make = HotLoop.calls

    def at_its_own_pace(self, device, chunk):
        time.sleep(random.random() * 0.01)
        return make(self, device, chunk)

    found = []
    for count, size in ((1, 1 << 17), (1, 200), (4, 200), (4, 50)):
        set_workers(monkeypatch, count)
        monkeypatch.setattr(tiles, "_CHUNK", size)
        monkeypatch.setattr(HotLoop, "calls", at_its_own_pace if count > 1 else make)
        found.append(search_of(problem, space, table, precision).best(6, ("num_gpus",)))
    for rows, counts in found[1:]:
        assert counts == found[0][1]
        assert_identical(rows, found[0][0])
    times = found[0][0]["step_time_s"]
    assert len(set(times.tolist())) < len(times)


@pytest.mark.parametrize("few", [0, 1 << 12], ids=["candidates", "slices"])
@pytest.mark.parametrize("slack", [0, 4])
def test_the_first_of_many_ties_are_kept(monkeypatch, slack, few):
    """Twelve plans have exactly the same time, in blocks that are not in the order of their keys."""
    system = SYSTEM | {"fast_bandwidth": 5e10, "fast_latency": 5e-6, "fast_size": 16, "hbm_capacity": 1e12}
    problem = problem_for({"l": 8192, "e": 8192, "h": 64, "f": 32768, "depth": 12}, system, "2d")
    space = Space(problem, [1024], [16], fix={"tp": [16], "cp": [16], "pp": [1], "microbatch_size": [1]})
    table = space.table(problem)
    rows = priced(problem, space)
    assert len(rows["tp"]) == 12
    assert len(set(rows["step_time_s"].tolist())) == 1
    order = np.lexsort((rows["cp_nvs"], rows["tp_nvs"]))
    assert (np.diff(order) < 0).any()
    set_workers(monkeypatch, 1)
    monkeypatch.setattr(devices, "_IN_FLIGHT", 1)
    monkeypatch.setattr(top_plans, "_SLACK", slack)
    monkeypatch.setattr(top_plans, "_FEW", few)
    for size in (1, 1 << 17):
        monkeypatch.setattr(tiles, "_CHUNK", size)
        for top in (1, 3, 8):
            found, _ = search_of(problem, space, table).best(top)
            np.testing.assert_array_equal(found["candidate"], rows["candidate"][order[:top]])


@pytest.mark.parametrize("few", [0, 1 << 12], ids=["candidates", "slices"])
@pytest.mark.slow
def test_a_tied_weight_with_pipelines_and_without(monkeypatch, few):
    monkeypatch.setattr(top_plans, "_FEW", few)
    made = make_problem(load_model("mpt-125m"), cluster_spec(SYSTEM), load_assumptions("default"), ["1d"])
    problem = made.searching(USUAL)
    space = Space(problem, [64], [64])
    found, _ = search_of(problem, space, space.table(problem)).best(50)
    every = priced(problem, space)
    rows = where(every, every["reject"] == 0)
    assert {1, 2} <= {*found["pp"].tolist()}
    compare(found, rows | {"point": np.zeros_like(rows["tp"])}, (), 50)


def test_points_and_objectives():
    problem, space, table = searched()
    rows, _ = search_of(problem, space, table).best(3, objective="peak_bytes")
    everything = feasible_rows()
    for point in range(problem.num_points):
        least = np.sort(everything["peak_bytes"][everything["point"] == point])[:3]
        np.testing.assert_allclose(rows["peak_bytes"][rows["point"] == point], least, rtol=1e-12)
    # The points differ as described.
    problem, space, _ = searched()
    counts = np.bincount(feasible_rows()["point"], minlength=problem.num_points)
    assert counts[1] == 0 < counts[0] < 0.5 * space.size < counts[2] < space.size
    times = np.sort(feasible_rows()["step_time_s"][feasible_rows()["point"] == 2])
    assert (np.diff(times) < 1e-12 * times[1:]).sum() > len(times) / 3
