"""Limits leave out no plan within them, and a search with limits finds what one without them finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import problem_with
from search.sweeps import feasible_rows, searched

from dsx.pricing.row_costs import Rows
from dsx.search.spaces import PricedSpace, Space
from dsx.search.sweep import search_of
from dsx.search.tiles import hot, tiles, top_plans
from dsx.search.tiles.hot import SegmentLimits
from dsx.search.tiles.tiles import Groups

PER = [(), ("num_gpus",), ("tp",), ("pp", "strategy"), ("global_batch_size",), ("num_microbatches", "tp")]


def every_candidate(blocks, segments):
    """The candidates of some segments, as tuples."""
    choices = segments.per_choice()
    batch = blocks.batches[choices.first].tolist()
    return {
        (key, placement, size)
        for block, placement, size in zip(choices.block.tolist(), choices.placement.tolist(), batch, strict=True)
        for key in blocks.keys[blocks.first_key[block] : blocks.first_key[block + 1]].tolist()
    }


@pytest.mark.parametrize("per", PER, ids="-".join)
def test_every_plan_within_the_limits_is_left(per):
    problem, space, table = searched()
    blocks, rows = space.blocks, feasible_rows()
    groups = Groups(space.keys, blocks, per)
    limits = SegmentLimits(PricedSpace(problem, space, table, "float64"), groups)
    places = blocks.places_of(np.arange(space.size))
    code = groups.of_key[places.key] + groups.of_choices(
        blocks, places.placement, places.global_batch_size, places.block
    )
    step_s = {}
    for point in range(problem.num_points):
        here = rows["point"] == point
        step_s[point] = dict(zip(rows["candidate"][here].tolist(), rows["step_time_s"][here].tolist(), strict=True))
    ids = search_of(problem, space, table).rows(None, at_point_0(space), feasible=False)["candidate"].tolist()
    # The limit of a group is the median of its feasible plans at each point, so about half of them must be left.
    most = np.full((problem.num_points, groups.span), -np.inf)
    wanted = set()
    for point, known in step_s.items():
        times = np.array([known.get(one, np.inf) for one in ids])
        for group in np.unique(code).tolist():
            own = times[(code == group) & np.isfinite(times)]
            most[point, group] = np.median(own) if len(own) else -np.inf
        inside = times <= most[point, code]
        columns = (places.key[inside], places.placement[inside], places.global_batch_size[inside])
        wanted |= set(zip(*(column.tolist() for column in columns), strict=True))
    limits.lower(most.ravel())
    left = every_candidate(blocks, limits.segments(0, len(blocks)))
    assert wanted <= left
    assert 0 < len(left) < space.size


def at_point_0(space):
    positions, choices = space.blocks.rows(0, space.size)
    return Rows(np.zeros_like(positions), positions, choices)


LAYERS = [{"kind": "embedding"}, {"kind": "transformer", "options": ["gated"], "count": 12}, {"kind": "head"}]
DIMENSIONS = {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 4096, "v": 50000}
OPENED = {"recompute": ["none", "full"], "vpp": [1, 2, 3], "schedule": ["1f1b", "gpipe"], "zero_stage": [1]}


def problem_of(capacity, layers):
    made = problem_with(layers, DIMENSIONS, ["1d", "2d"], options={"merged": True}, hbm_capacity=capacity)
    return made.searching(OPENED)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("per", PER, ids="-".join)
def test_a_search_of_many_plans_has_limits(monkeypatch, per):
    monkeypatch.setattr(tiles, "_CHUNK", 1000)
    problem, space, table = searched()
    expected, _ = search_of(problem, space, table).best(3, per)
    monkeypatch.setattr(top_plans, "MANY", 0)
    found, counts = search_of(problem, space, table).best(3, per)
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)
    assert counts.candidates == problem.num_points * space.size


@pytest.mark.slow
@settings(max_examples=5)
@given(
    capacity=st.sampled_from([2e8, 1.5e9, 3e9, 20e9]),
    layers=st.sampled_from([LAYERS, LAYERS[1:2]]),
    batches=st.lists(st.sampled_from([8, 16, 32, 64]), min_size=1, max_size=3, unique=True).map(sorted),
    per=st.sampled_from(PER),
    top=st.sampled_from([1, 5]),
    precision=st.sampled_from(["float32", "float64"]),
)
def test_a_search_with_limits_finds_the_same(capacity, layers, batches, per, top, precision):
    problem = problem_of(capacity, layers)
    space = Space(problem, [8, 16], batches, OPENED)
    table = space.table(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "_CHUNK", 300)
        patch.setattr(hot, "_CHOICES", 1024)
        patch.setattr(hot, "TILES", 16)  # a call of a few choices has one bundle
        expected, of_all = search_of(problem, space, table, precision).best(top, per)
        patch.setattr(top_plans, "MANY", 0)
        told = []
        found, counts = search_of(problem, space, table, precision).best(top, per, progress=told.append)
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)
    assert counts.candidates == of_all.candidates == space.size == sum(told)
    assert (of_all.skipped, of_all.priced) == (0, space.size)
    assert counts.feasible + counts.infeasible + counts.skipped == space.size
    if not len(expected["tp"]):
        assert counts.skipped == counts.feasible == 0
