"""The rows that a sweep keeps (all, feasible, front, top), each against a plain sort of all rows."""

from itertools import pairwise

import numpy as np
import pytest
from laws.spaces import assert_rows_equal, hardware, on, priced, problem_of, space_of
from search.sweeps import run, study_of, swept, where

from dsx.config.sweep_file import KeepPareto, KeepTop
from dsx.pricing.cuts import column_names
from dsx.search.spaces import Space, Study, at_points
from dsx.search.sweep import Sweep, search_of, smallest

PROBLEM, SPACE = problem_of("default"), space_of("default")


PART = 1000
FEW = Space(PROBLEM, SPACE.bounds.num_gpus, SPACE.bounds.global_batch_size, fix={"pp": [2]})


@pytest.fixture(scope="module")
def whole():
    rows = priced(PROBLEM, SPACE)
    fits = rows["peak_bytes"] <= PROBLEM.cluster.device.hbm_capacity
    return rows | {"reject": np.where(fits, 0, 1), "cluster": np.zeros(len(fits), dtype=int)}


def sweep(keep, precision="float64", problem=PROBLEM, space=SPACE):
    return swept([study_of(problem, space)], keep, precision, PART)


@pytest.mark.slow
def test_rows_of_whole_sweeps_and_their_progress(whole):
    rows, counts = sweep("all")
    assert_rows_equal(rows, whole, 1e-13)
    assert (counts.candidates, counts.feasible) == (len(whole["tp"]), (whole["reject"] == 0).sum())
    # Feasible.
    rows, counts = sweep("feasible")
    assert_rows_equal(rows, where(whole, whole["reject"] == 0), 1e-13)
    assert (counts.candidates, counts.feasible) == (len(whole["tp"]), len(rows["tp"]))
    # Progress is told the parts.
    for keep in ("all", "feasible", KeepPareto(pareto=["step_time_s"]), KeepTop(top=1)):
        told = []
        made = Sweep([study_of(PROBLEM, SPACE)], keep, "float32", PART)
        assert len(made.parts) > 2
        made.run(range(len(made.parts)), lambda *part: None, told.append)
        assert sum(told) == made.size == SPACE.size
        assert len(told) >= len(made.parts)
        if isinstance(keep, str):
            assert told[:-1] == [PART] * (len(told) - 1)
    # A longer list of the best begins with the shorter.
    table = SPACE.table(PROBLEM)
    lists = [search_of(PROBLEM, SPACE, table).best(top)[0]["step_time_s"] for top in (1, 50, 5000)]
    for shorter, longer in pairwise(lists):
        np.testing.assert_allclose(longer[: len(shorter)], shorter, rtol=1e-12)
    fits = priced(PROBLEM, SPACE)["peak_bytes"] <= PROBLEM.cluster.device.hbm_capacity
    assert len(lists[-1]) == fits.sum()


@pytest.mark.parametrize(
    "objectives", [["step_time_s", "peak_bytes"], pytest.param(["num_gpus", "-mfu"], marks=pytest.mark.slow)]
)
def test_pareto(whole, objectives):
    rows, counts = sweep(KeepPareto(pareto=objectives))
    feasible = where(whole, whole["reject"] == 0)
    assert counts.feasible == len(feasible["tp"])

    def points(table):
        return np.stack([-table[o[1:]] if o[0] == "-" else table[o] for o in objectives], axis=1).astype(float)

    everything = points(feasible)
    dominated = np.array(
        [((everything <= point).all(axis=1) & (everything < point).any(axis=1)).any() for point in everything]
    )
    # Equal rows may differ in the last bit when they are priced in other chunks.
    assert set(rows["candidate"].tolist()) == set(feasible["candidate"][~dominated].tolist())
    front = points(rows).tolist()
    assert front == sorted(front)
    assert len(front) < len(everything)


@pytest.mark.slow
def test_types_of_rows_and_sweeps_in_which_no_plan_fits():
    rows, _ = sweep("all", "float32")
    assert rows["step_time_s"].dtype == rows["peak_bytes"].dtype == np.float32
    assert rows["candidate"].dtype == np.int64
    rows, _ = sweep(KeepTop(top=3), "float32")
    assert rows["step_time_s"].dtype == np.float64  # the best are priced once more
    # A sweep in which no plan fits.
    tiny = on(PROBLEM, hardware(hbm_capacity=1.0))
    for keep in ("feasible", KeepPareto(pareto=["step_time_s"]), KeepTop(top=3)):
        rows, counts = sweep(keep, problem=tiny)
        assert len(rows["candidate"]) == 0, keep
        assert counts.feasible == 0
    study, rows = smallest([study_of(tiny, SPACE)], lambda candidates: None)
    assert study.problem.num_points == 1
    assert rows["peak_bytes"].tolist() == pytest.approx([priced(PROBLEM, SPACE)["peak_bytes"].min()], rel=1e-12)


def test_the_smallest_of_several_studies_and_hardware_points():
    """Also if memory varies, and if one study needs less than another."""
    capacities = {"device.hbm_capacity": np.array([1.0, 2.0, 3.0])}
    need = [priced(PROBLEM, space)["peak_bytes"].min() for space in (SPACE, FEW)]
    studies = [Study(at_points(PROBLEM, capacities), space, 0, capacities) for space in (SPACE, FEW)]
    told = []
    study, rows = smallest(studies, told.append)
    assert study.space is (SPACE if need[0] <= need[1] else FEW)
    assert rows["peak_bytes"].tolist() == pytest.approx([min(need)], rel=1e-12)
    assert sum(told) == SPACE.size + FEW.size


def test_an_empty_space():
    empty = Space(PROBLEM, [24], [24], fix={"tp": [1000]})
    assert empty.size == 0
    table = empty.table(PROBLEM)
    for rows, counts in (
        search_of(PROBLEM, empty, table).best(3),
        search_of(PROBLEM, empty, table).front(["step_time_s"]),
    ):
        assert len(rows["candidate"]) == 0
        assert (counts.candidates, counts.feasible) == (0, 0)
    for keep in ("all", "feasible", KeepPareto(pareto=["step_time_s"]), KeepTop(top=3)):
        made = Sweep([study_of(PROBLEM, empty)], keep, "float32")
        assert (made.parts, made.size) == ([], 0)
        assert run(made) == {}


@pytest.mark.slow
def test_every_way_to_keep_has_the_same_columns_and_codes(whole):
    for keep in ("all", KeepPareto(pareto=["step_time_s"]), KeepTop(top=1)):
        rows, _ = sweep(keep, space=FEW)
        assert set(rows) == set(whole)
        assert all(len(column) == len(rows["tp"]) for column in rows.values())
    # Codes stand for names.
    known = column_names(PROBLEM)
    assert known["strategy"] == PROBLEM.strategies
    for name in ("strategy", "recompute", "schedule"):
        assert set(whole[name].tolist()) <= set(range(len(known[name])))
