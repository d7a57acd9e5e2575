"""No plan of a shard key is faster than its bound, and a search that prices few of many keys misses none."""

import numpy as np
import pytest
from laws.spaces import problem_with

from dsx.plans.frameworks import read_framework
from dsx.pricing.row_costs import Rows, price_rows
from dsx.progress import unwatched
from dsx.search import bounds as bounds_of_keys
from dsx.search import fastest as searching
from dsx.search.bounds import key_bounds
from dsx.search.fastest import ANY, fastest, fastest_below, problems_of, spaces_of
from dsx.search.spaces import PricedSpace, Space

LAYERS = [{"kind": "embedding"}, {"kind": "transformer", "options": ["rotary", "gated"], "count": 8}, {"kind": "head"}]
DIMENSIONS = {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 4096, "v": 50000}


def problem_of(assumptions, capacity=80e9, framework=None):
    options = {"framework": framework and read_framework(framework), "merged": True}
    return problem_with(LAYERS, DIMENSIONS, ["1d", "2d"], assumptions, options, hbm_capacity=capacity)


@pytest.mark.parametrize("assumptions", ["default", "uncalibrated"])
def test_no_plan_beats_the_bound_of_its_key(assumptions):
    opened = {
        "schedule": ["1f1b", "gpipe", "zb-h1", "zb-h2", "dualpipe", "zb-v"],
        "zero_stage": [0, 3],
        "recompute": ["none", "full"],
        "offload": ["none", "both"],
    }
    problem = problem_of(assumptions).searching(opened)
    space = Space(problem, [8, 16], [16, 32], opened)
    table = space.table(problem)
    candidates = np.random.default_rng(0).permutation(space.size)[:20_000]
    positions, choices = space.blocks.rows_at(candidates)
    step_s = price_rows(problem, table, Rows(np.zeros_like(positions), positions, choices)).step_time_s
    bounds = key_bounds(PricedSpace(problem, space, table, "float64"))[positions]
    assert (bounds <= step_s * (1 + 1e-12)).all()
    assert (bounds > 0).all()


@pytest.mark.sampled(0)
@pytest.mark.parametrize("capacity", [80e9, 12e9])
def test_few_of_many_keys_have_the_fastest_plans(monkeypatch, capacity):
    usual = {"zero_replicas": [1], "stored_layers": [0], "offload": ["none"]}
    opened = usual | {"recompute": ["none", "full"]}
    problem = problem_of("default", capacity, "megatron").searching(opened)
    spaces = spaces_of(problems_of(ANY, problem), 16, 32, opened)
    expected = fastest(spaces, 5)
    monkeypatch.setattr(searching, "FEW_KEYS", 1)
    monkeypatch.setattr(bounds_of_keys, "_SCOUTS", 2)
    told = []
    keys, known, _ = searching._promising_keys(spaces, 5, np.inf, lambda *first: told.append(first), 1.0)
    assert len(keys) < spaces.num_keys
    found = fastest(spaces, 5)
    fastest_below(spaces, 5, np.inf, unwatched, lambda *first: told.append(first))
    (plan, least_s), (again, same_s) = told
    assert (again["plan"], same_s) == (plan["plan"], least_s)
    assert least_s <= found.plans[0]["step_time_s"] <= plan["step_time_s"] <= known[-1]["step_time_s"]
    assert [plan["plan"] for plan in found.plans] == [plan["plan"] for plan in expected.plans]
    assert found.plans[-1]["step_time_s"] <= known[-1]["step_time_s"]
    assert found.counts.candidates == expected.counts.candidates == spaces.counted.candidates


def test_a_first_share_and_scouts_of_keys(monkeypatch):
    sizes = np.array([1, 64, 64, 1, 64, 2, 64])
    bounds = np.array([9.0, 1.0, 2.0, 8.0, 3.0, 7.0, 4.0])
    shares = bounds_of_keys.shares_of({"microbatch_size": sizes}, bounds)
    assert {*sizes[shares[0]]} == {1, 2, 64}
    assert sorted(np.concatenate(shares)) == [*range(7)]
    # Scouts are the keys of least bound of their size.
    monkeypatch.setattr(bounds_of_keys, "_SCOUTS", 1)
    scouts, *others = bounds_of_keys.shares_of({"microbatch_size": sizes}, bounds)
    assert {*scouts} == {3, 1, 5}
    assert [*np.concatenate(others)] == [2, 4, 6, 0]
