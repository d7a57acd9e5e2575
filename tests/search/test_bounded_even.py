"""Plans with even cuts by bounds are those of a compiled search that prices every plan."""

import numpy as np
import pytest
from search.test_bounded import LAYERS, problem_of

from dsx.cost.cut_bounds import least_even_s
from dsx.search import bounds as bounded_even
from dsx.search.bounds import best_even, loose_bounds
from dsx.search.spaces import PricedSpace, Space
from dsx.search.tiles.top_plans import Blockwise

OPENED = {
    "zero_stage": [0, 1, 3],
    "recompute": ["none", "full"],
    "vpp": [1, 2, 3],
    "schedule": ["1f1b", "gpipe", "zb-h1"],
    "offload": ["none", "both"],
}


def source_of(layers, capacity=5e9):
    problem = problem_of(layers, "even", capacity).searching(OPENED)
    space = Space(problem, [24], [48], OPENED)
    return PricedSpace(problem, space, space.table(problem), "float64")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layers", LAYERS)
def test_no_plan_beats_a_bound(layers):
    source = source_of(layers)
    bounds = loose_bounds(source, least_even_s)
    for start in range(0, source.space.size, 4096):
        here = np.arange(start, min(start + 4096, source.space.size))
        positions, choices = source.space.blocks.rows_at(here)
        rows = source.priced_rows(bounded_even.rows_at(source, here))
        assert (rows["pp"] == choices["pp"]).all() and len(positions) == len(here)
        assert (bounds[here] <= rows["step_time_s"] * (1 + 1e-12)).all()


@pytest.mark.sampled(0, 9)
# A model is compiled on its own: that of two kinds has what that of embedding and head has.
@pytest.mark.parametrize("capacity", [5e9, 2.5e9, 1e8])
@pytest.mark.parametrize("layers", ["alike", "two kinds", "ends"])
def test_the_best_are_those_of_all_plans(layers, capacity):
    source = source_of(layers, capacity)
    expected, of_all = Blockwise(source, 0).best(7)
    found, counts = best_even(source, 7, np.inf)
    np.testing.assert_allclose(found["step_time_s"], expected["step_time_s"], rtol=1e-12)
    assert counts.candidates <= of_all.candidates
    if len(found["point"]):
        assert best_even(source, 7, 0.01 * found["step_time_s"][0])[1].candidates == 0
    else:
        assert counts == of_all
    if capacity == 5e9:
        assert counts.candidates < of_all.candidates


def test_it_gives_up_where_bounds_leave_too_many(monkeypatch):
    source = source_of("alike")
    monkeypatch.setattr(bounded_even, "_UNCOMPILED_PLANS", 100)
    assert best_even(source, 7, np.inf) is None
