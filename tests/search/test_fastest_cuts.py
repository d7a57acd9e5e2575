"""The fastest plans with optimal cuts, and their front, by bounds: those of a search that cuts every plan."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search.test_bounded import LAYERS, OPENED, problem_of

from dsx.pricing.row_costs import Rows
from dsx.search import cut_search as fastest_cuts
from dsx.search import cut_search as front_of_cuts
from dsx.search import sweep as partitioned
from dsx.search.ranking import front_of_groups, leading_rows
from dsx.search.spaces import Space, at_points
from dsx.search.sweep import search_of
from dsx.search.tiles import tiles

PER = [(), ("num_gpus",), ("tp",), ("pp",), ("global_batch_size", "zero_stage")]


FEWER = OPENED | {"zero_stage": [0, 3], "schedule": ["1f1b"]}


def everything(layers, capacities, opened):
    """A problem at some points, its search, and all of its rows that fit, each with its fastest cut."""
    problem = at_points(problem_of(layers).searching(opened), {"device.hbm_capacity": np.array(capacities)})
    space = Space(problem, [12, 24], [24, 48], opened)
    search = search_of(problem, space, space.table(problem))
    positions, choices = space.blocks.rows(0, space.size)
    points = np.repeat(np.arange(len(capacities)), space.size)
    tiled = {name: np.tile(column, len(capacities)) for name, column in choices.items()}
    rows = Rows(points, np.tile(positions, len(capacities)), tiled)
    return problem, space, search, search.rows(jax.local_devices()[0], rows, feasible=True)


def compare(layers, capacities, per, top, sample, opened=FEWER):
    problem, space, search, rows = everything(layers, capacities, opened)
    expected = leading_rows(rows, top, ["point", *per])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastest_cuts, "_SAMPLE", sample)
        patch.setattr(fastest_cuts, "_BOUNDED_CANDIDATES", 300)
        patch.setattr(tiles, "_CHUNK", 200)
        told = []
        found, counts = search.best(top, per, progress=told.append)
    assert found.keys() == expected.keys()
    for name in ("point", "candidate", "stage_layers", *per):
        assert found[name].tolist() == expected[name].tolist(), name
    np.testing.assert_allclose(found["step_time_s"], expected["step_time_s"], rtol=1e-12)
    assert counts.candidates == sum(told) == space.size * problem.num_points
    assert 0 < counts.feasible <= counts.cut < counts.candidates
    assert counts.infeasible >= counts.cut - counts.feasible
    return counts


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sample", [100, 1 << 16])
@pytest.mark.parametrize("per", [(), ("num_gpus",)], ids="-".join)
def test_the_fastest_are_those_of_all_cuts(per, sample):
    counts = compare("ends", [5e9, 3e9], per, 3, sample)
    assert counts.bounded > counts.cut


@pytest.mark.slow
@pytest.mark.parametrize("objectives", [["step_time_s", "peak_bytes"], ["peak_bytes"]], ids="-".join)
def test_the_front_is_that_of_all_cuts(monkeypatch, objectives):
    monkeypatch.setattr(partitioned, "_ROWS", 200)
    monkeypatch.setattr(front_of_cuts, "_CUTS", 128)
    problem, space, search, rows = everything("ends", [5e9, 3e9], FEWER)
    expected = front_of_groups(rows, ["point"], objectives)
    told = []
    found, counts = search.front(objectives, progress=told.append)
    for name in ("point", "candidate", "stage_layers"):
        assert found[name].tolist() == expected[name].tolist(), name
    for name in ("step_time_s", "peak_bytes"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)
    assert counts.candidates == sum(told) == space.size * problem.num_points
    assert 0 < counts.bounded <= counts.candidates - counts.cut


@pytest.mark.slow
@settings(max_examples=4)
@given(
    layers=st.sampled_from(sorted(LAYERS)),
    capacities=st.lists(st.sampled_from([2.5e9, 3e9, 5e9, 20e9]), min_size=1, max_size=2),
    per=st.sampled_from(PER),
    top=st.sampled_from([1, 4, 20]),
    sample=st.sampled_from([30, 1 << 16]),
)
def test_any_groups_have_the_fastest_of_all_cuts(layers, capacities, per, top, sample):
    compare(layers, capacities, per, top, sample, OPENED)
