"""Cuts of plans with several chunks per stage: the least largest chunk, balance, and what is priced of them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import hardware, on
from priced import evaluate_plan
from pricing.test_optimal_cut import ENDS, EXACT, OPENED, problem_of, rows_of, some

import dsx
from dsx.pricing.cuts import (
    RunChains,
    balanced_cuts,
    least_largest_chunk_s,
    price_best_cuts,
    price_cuts,
)
from dsx.pricing.row_costs import price_rows


@st.composite
def chains(draw):
    """Chains of some plans with equal runs of layers, and their stages and chunks per stage."""
    counts = [1, *draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)), 1]
    plans = draw(st.integers(1, 4))
    of_run = st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.5]), min_size=plans, max_size=plans)
    seconds = draw(st.lists(of_run, min_size=len(counts), max_size=len(counts)))
    shapes = [(pp, vpp) for pp in range(1, 5) for vpp in range(1, 4) if pp * vpp <= sum(counts)]
    pp, vpp = np.array([draw(st.sampled_from(shapes)) for _ in range(plans)]).T
    return RunChains(np.array(counts, dtype=float), np.array(seconds)), pp, vpp


def chunk_seconds(chain, plan, cut):
    single = np.repeat(chain.seconds[:, plan], chain.counts.astype(int))
    return np.diff(np.concatenate([[0.0], np.cumsum(single)])[cut])


@settings(max_examples=60)
@given(chains())
def test_every_chunk_has_a_layer_and_no_cut_has_a_smaller_largest_one(case):
    chain, pp, vpp = case
    least = least_largest_chunk_s(chain, (pp * vpp).astype(float))
    cuts = balanced_cuts(chain, pp, vpp, least)
    for plan, chunks in enumerate((pp * vpp).tolist()):
        inner = combinations(range(1, int(chain.num_layers)), chunks - 1)
        largest = min(chunk_seconds(chain, plan, [0, *cut, int(chain.num_layers)]).max() for cut in inner)
        assert least[plan] == pytest.approx(largest, rel=1e-12)
        assert chunk_seconds(chain, plan, cuts[plan]).max() == pytest.approx(largest, rel=1e-12)
    # Every chunk has a layer.
    for largest in (least_largest_chunk_s(chain, (pp * vpp).astype(float)), np.full(len(pp), np.inf)):
        sizes = np.diff(balanced_cuts(chain, pp, vpp, largest), axis=1)
        there = np.arange(sizes.shape[1]) < (pp * vpp)[:, None]
        assert (sizes[there] > 0).all()
        assert (sizes[~there] == 0).all()
        assert (sizes.sum(axis=1) == chain.num_layers).all()


def test_equal_chunks_are_equal_stages():
    """Ten equal layers in four chunks of two stages: three and two in either stage."""
    chain = RunChains(np.array([10.0]), np.array([[1.0]]))
    (cut,) = balanced_cuts(chain, np.array([2]), np.array([2]), least_largest_chunk_s(chain, np.array([4.0])))
    sizes = np.diff(cut)[:4]
    assert sizes.max() == 3
    assert sizes[0::2].sum() == sizes[1::2].sum() == 5


def chunked(**changes):
    """Plans with several chunks per stage, of 22 layers between embedding and head."""
    layers = tuple(tuple(entry.items()) for entry in (ENDS[0], ENDS[1] | {"count": 22}, ENDS[2]))
    problem = on(problem_of(layers), hardware(**changes))
    return rows_of(problem, (12, 24), (48,), **OPENED | {"vpp": [2, 3, 4]})


@pytest.mark.sampled(0)
@pytest.mark.parametrize("capacity", [2e10, 1e12])
def test_an_even_cut_with_several_chunks_is_never_better(capacity):
    problem, _, (table, rows) = chunked(hbm_capacity=capacity)
    even = np.flatnonzero(problem.with_partition("even").limits().divides(rows.choices["pp"] * rows.choices["vpp"]))
    where = table, rows.take(even)
    costs, found = price_rows(problem, *where), price_best_cuts(problem, *where).costs
    fits = costs.peak_bytes <= capacity
    assert fits.any()
    assert (found.step_time_s[fits] <= costs.step_time_s[fits] * (1 + EXACT)).all()
    assert (found.step_time_s[fits] < costs.step_time_s[fits] * 0.99).any()  # the head is heavy
    assert (found.peak_bytes[fits] <= capacity).all()
    assert (found.peak_bytes[~fits] <= costs.peak_bytes[~fits] * (1 + EXACT)).all()


def test_rows_with_any_number_of_chunks_are_priced_side_by_side():
    problem, _, where = chunked(hbm_capacity=1e12)
    where = some(where, np.random.default_rng(1).permutation(len(where[1].positions))[:200])
    found = price_best_cuts(problem, *where)
    layers = np.diff(found.cuts, axis=1)
    again = price_cuts(problem, *where, found.cuts).costs
    np.testing.assert_allclose(again.step_time_s, found.costs.step_time_s, rtol=EXACT)
    for row in (0, 50, 199):
        alone = price_best_cuts(problem, *some(where, np.array([row])))
        assert alone.costs.step_time_s[0] == pytest.approx(found.costs.step_time_s[row], rel=EXACT)
        assert np.diff(alone.cuts[0]).tolist() == layers[row].tolist()
        assert np.count_nonzero(layers[row]) == where[1].choices["pp"][row] * where[1].choices["vpp"][row]


def test_cuts_of_plans_and_of_published_layers():
    problem = on(problem_of(), hardware(hbm_capacity=1e12))
    plan = ["pp=3", "dp=4", "microbatch_size=2", "nvs.dp=2", "nvs.pp=3"]
    found = evaluate_plan(problem, [*plan, "vpp=2"], 12, 24)
    assert [len(stage.chunks) for stage in found.stages] == [2, 2, 2]
    assert not found.broken
    stated = evaluate_plan(problem, [*plan, f"stage_layers={found.plan.data['stage_layers']}"], 12, 24)
    assert stated.plan["vpp"] == 2
    assert stated.costs == pytest.approx(found.costs, nan_ok=True, rel=EXACT)
    # 126 layers, embedding and head alone are 128 chunks of a layer (arXiv 2407.21783, section 3.3.2).
    job = dsx.Job("llama-3-405b", "h100-nvs8", 16384, 2048)
    found = dsx.evaluate(job, "tp=8 pp=16 dp=128 vpp=8", partition="optimal")
    assert found.plan["stage_layers"] == (1,) * 128
    assert "--pipeline-model-parallel-layout" in found.launch.arguments
