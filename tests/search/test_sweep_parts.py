"""Parts cover a sweep exactly once. Each is a function of its number, and together they are the whole sweep."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from checkout import OPTIMISED
from hypothesis import given
from hypothesis import strategies as st
from laws.spaces import SYSTEM, assert_rows_equal, hardware, on, problem_of
from search.sweeps import STRATEGIES, assert_identical, everything, run, set_workers, study_of, swept, where
from validation.cases import problem_for

from dsx.config.sweep_file import KeepPareto, KeepTop
from dsx.config.what_if import WhatIf
from dsx.pricing.cuts import joined
from dsx.search import sweep as sweep_parts
from dsx.search.ranking import front, objective_points
from dsx.search.spaces import Space, make_studies
from dsx.search.sweep import Sweep, block_parts, row_parts
from dsx.search.tiles import tiles
from dsx.search.tiles import top_plans as space_front

HARDWARE = WhatIf(
    ("device.hbm_capacity", "network.nvs.size", "assumptions.matrix_efficiency"),
    tuple((capacity, size, share) for capacity in (4e9, 7e9) for size in (4, 8) for share in (0.5, 0.6, 0.9)),
)
KEEPS = {
    "top": KeepTop(top=4),
    "groups": KeepTop(top=2, per=["cluster", "strategy", "num_microbatches", "device.hbm_capacity", "zero_stage"]),
    "front": KeepPareto(pareto=["step_time_s", "peak_bytes"]),
    "whole numbers": KeepPareto(pareto=["num_gpus", "-tp"]),
}


@pytest.fixture(autouse=True)
def few(small, monkeypatch):
    """Price three points at once, and begin a front with a few candidates."""
    monkeypatch.setattr(sweep_parts, "_POINTS", 3)
    monkeypatch.setattr(space_front, "_SAMPLE", 40)


@cache
def studies():
    """Two clusters, each at six points of two spaces, which are priced three at once."""
    problems = [problem_of("default", STRATEGIES), on(problem_of("default", STRATEGIES), hardware(hbm_bandwidth=1e12))]
    return make_studies(problems, HARDWARE, [12, 24], [24])


@cache
def all_rows():
    return everything(studies())


def sizes():
    """Candidates of a part: fewer than a point has, one point, more, all points priced together, and more than that."""
    space = studies()[0].space
    return [2 * space.size // 3, space.size, 2 * space.size + 1, 3 * space.size, 10 * space.size]


@pytest.mark.slow
def test_the_sweep_is_as_described_and_has_no_empty_part():
    assert [(study.cluster, study.problem.nvs_size, study.problem.num_points) for study in studies()] == [
        (0, 4, 6), (0, 8, 6), (1, 4, 6), (1, 8, 6)
    ]  # fmt: skip
    assert len({study.space.size for study in studies()}) == 2
    counts = np.bincount((all_rows()["reject"] == 0) + 2 * all_rows()["cluster"])
    assert (counts > 100).all()
    # No candidate makes no part.
    empty = Space(problem_of("default"), [24], [24], fix={"tp": [1000]})
    assert row_parts([study_of(problem_of("default"), empty)], 10) == []
    assert block_parts([study_of(problem_of("default"), empty)], 10) == []


@given(
    size=st.sampled_from([7, 100, 500, 2000, 10**9]), most=st.integers(1, 20), table=st.sampled_from([1, 500, 1 << 21])
)
def test_parts_cover_every_row_once(size, most, table):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_parts, "_POINTS", most)
        patch.setattr(sweep_parts, "_TABLE", table)
        by_rows, by_blocks = row_parts(studies(), size), block_parts(studies(), size)
    for made in (by_rows, by_blocks):
        assert sum(part.size for part in made) == sum(study.size for study in studies())
        assert [part.study for part in made] == sorted(part.study for part in made)
        covered = {}
        for part in made:
            assert 0 < part.last_point - part.first_point <= most
            covered.setdefault((part.study, part.first_point, part.last_point), []).append((part.start, part.stop))
        for code, study in enumerate(studies()):
            ranges = [(first, last) for number, first, last in covered if number == code]
            assert [0, *(last for _, last in ranges)] == [*(first for first, _ in ranges), study.problem.num_points]
            for first, last in ranges:
                end = study.space.size * (last - first) if made is by_rows else len(study.space.blocks)
                here = covered[code, first, last]
                assert [0, *(stop for _, stop in here)] == [*(start for start, _ in here), end]
    for part in by_rows:
        assert part.stop - part.start == part.size <= size
    for part in by_blocks:
        first, stop = studies()[part.study].space.blocks.first_candidate[[part.start, part.stop]]
        assert part.size == (stop - first) * (part.last_point - part.first_point)
        assert part.size >= size or part.stop == len(studies()[part.study].space.blocks)


def test_ranges_of_points_have_one_length_if_possible():
    """Then they are compiled once."""

    def ranges(count, most):
        what_if = WhatIf(("device.hbm_capacity",), tuple((1e9 + point,) for point in range(count)))
        (study,) = make_studies([problem_of("default", STRATEGIES)], what_if, [2], [2])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep_parts, "_POINTS", most)
            return [part.last_point - part.first_point for part in block_parts([study], 10**9)]

    assert ranges(6, 16) == [6]
    assert ranges(32, 16) == [16, 16]
    assert ranges(24, 16) == [12, 12]
    assert ranges(17, 16) == [16, 1]
    assert ranges(1, 16) == [1]


@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (0, 1, 3, 4))])
@pytest.mark.slow
def test_parts_of_all_rows_are_all_rows(size):
    sweep = Sweep(studies(), "all", "float64", sizes()[size])
    found = run(sweep)
    assert len(found) == len(sweep.parts)
    assert_rows_equal(joined([found[number][0] for number in range(len(found))]), all_rows(), 1e-13)
    assert [counts.candidates for _, counts in found.values()] == [sweep.parts[number].size for number in found]
    for rows, counts in found.values():
        assert counts.feasible == (rows["reject"] == 0).sum()


SAME_BYTES = """
import sys
from search.test_sweep_parts import assert_identical, sizes, studies, sweep_parts, swept
sweep_parts._POINTS = 3
whole, *others = (swept(studies(), "feasible", sys.argv[1], sizes()[size]) for size in (0, 3))
for rows, counts in others:
    assert counts == whole[1]
    assert_identical(rows, whole[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", pytest.param("float64", marks=pytest.mark.fuzz)])
def test_rows_are_the_same_bytes_in_parts_of_any_size(precision):
    """As it is compiled for users: the code of other tests, optimised little, rounds one or three points apart."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | OPTIMISED | {"PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", SAME_BYTES, precision], env=environment, check=True)


@pytest.mark.parametrize("precision", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_rows_that_fit_are_those_of_each_point_alone(precision):
    whole, counts = swept(studies(), "feasible", precision, sizes()[0])
    expected = where(all_rows(), all_rows()["reject"] == 0)
    assert counts.candidates == len(all_rows()["tp"])
    if precision == "float64":
        assert_rows_equal(whole, expected, 1e-13)
    else:
        np.testing.assert_array_equal(whole["candidate"], expected["candidate"])
        np.testing.assert_allclose(whole["step_time_s"], expected["step_time_s"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "precision", "size"),
    [
        pytest.param("top", "float32", 0, marks=pytest.mark.fuzz),
        ("groups", "float32", 1),
        pytest.param("groups", "float64", 2, marks=pytest.mark.fuzz),
        ("front", "float32", 1),
        pytest.param("whole numbers", "float32", 2, marks=pytest.mark.fuzz),
        pytest.param("top", "float64", 2, marks=pytest.mark.fuzz),
        pytest.param("front", "float64", 0, marks=pytest.mark.fuzz),
    ],
)
def test_merged_parts_are_one_part(keep, precision, size):
    """Parts of a few blocks at three points, or of all of them, merge to the result of a single part."""
    whole, counts = swept(studies(), KEEPS[keep], precision)
    rows, made = swept(studies(), KEEPS[keep], precision, sizes()[size])
    assert made == counts
    assert_identical(rows, whole)
    assert counts.candidates == len(all_rows()["tp"])
    assert counts.feasible == (all_rows()["reject"] == 0).sum()
    points = list(zip(*(whole[name].tolist() for name in ("cluster", *HARDWARE.fields)), strict=True))
    assert points == sorted(points)
    assert len(set(points)) == 24
    assert len(whole["tp"]) == number_kept(KEEPS[keep])


def number_kept(keep):
    """The number of rows that `keep` should leave."""
    rows = where(all_rows(), all_rows()["reject"] == 0)
    hardware = ("cluster", *HARDWARE.fields)
    groups = dict.fromkeys((*hardware, *keep.per) if isinstance(keep, KeepTop) else hardware)
    code = np.unique(np.stack([rows[name] for name in groups]), axis=1, return_inverse=True)[1].ravel()
    if isinstance(keep, KeepTop):
        return np.minimum(np.bincount(code), keep.top).sum()
    points = objective_points(rows, keep.pareto)
    return sum(front(points[code == one]).sum() for one in np.unique(code))


@pytest.mark.parametrize(("batch", "top"), [(128, 1), (320, 2), (512, 1)])
def test_merged_parts_are_one_part_with_many_ties(batch, top):
    """On one tier shares of a fast domain have no effect: seven plans tie, more than are kept."""
    system = SYSTEM | {"fast_bandwidth": 5e10, "fast_latency": 5e-6, "fast_size": 64, "hbm_capacity": 1e12}
    problem = problem_for({"l": 2048, "e": 8192, "h": 64, "f": 32768, "depth": 12}, system, "1d")
    made = make_studies([problem], WhatIf(), [4096], [batch], fix={"tp": [64], "dp": [64], "microbatch_size": [1]})
    assert made[0].size == 7
    assert len(set(everything(made)["step_time_s"].tolist())) == 1
    whole, _ = swept(made, KeepTop(top=top), "float64")
    for size in (1, 3):
        assert_identical(swept(made, KeepTop(top=top), "float64", size)[0], whole)


@pytest.mark.sampled(0, 2)
@pytest.mark.parametrize("keep", [KeepTop(top=3), "all", KeepPareto(pareto=["step_time_s", "peak_bytes"])], ids=str)
def test_a_part_is_a_function_of_its_number(monkeypatch, keep):
    """It has the same bytes when priced once more: alone, in another order, by more workers, or in another sweep."""
    size = studies()[0].space.size
    sweep = Sweep(studies(), keep, "float32", size)
    first = run(sweep)
    chosen = [len(sweep.parts) - 1, 0, 7, len(sweep.parts) // 2]
    repeated = run(sweep, chosen)
    set_workers(monkeypatch, 4)
    monkeypatch.setattr(tiles, "_CHUNK", 100)
    fresh = run(Sweep(studies(), keep, "float32", size), chosen)
    for number in chosen:
        for rows, counts in (repeated[number], fresh[number]):
            assert counts == first[number][1]
            assert_identical(rows, first[number][0])
