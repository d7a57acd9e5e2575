"""Of a model: a plan made for another network is never better than one made for this, nor an even cut than the best."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import SYSTEM, USUAL, on
from validation.cases import cluster_spec
from verbs.small import model_of

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import ClusterSpec
from dsx.config.model_file import ModelSpec
from dsx.pricing.cuts import price_best_cuts, price_cuts
from dsx.pricing.problem import ProblemOptions, make_problem
from dsx.pricing.row_costs import Rows, price_rows
from dsx.search.spaces import Space

GPUS, BATCH, LAYERS = 16, 16, 6
EXACT = 1 + 1e-9
DIMENSIONS = {"e": 2048, "h": 16, "g": 8, "k": 128, "fx": 2048, "x": 8, "topk": 2, "capacity_percent": 100}
# A leaf joins two fast domains of four; the spine joins leaves.
SPINE = {
    "kind": "levels",
    "levels": [
        {"name": "leaf", "units": 2, "bandwidth": "5e10 B/s", "latency": "5e-6 s"},
        {"name": "spine", "bandwidth": "5e10 B/s", "latency": "5e-6 s"},
    ],
}

bandwidths = st.floats(1e9, 1e12)
latencies = st.sampled_from([0.0, 1e-6, 1e-4])
networks = st.lists(st.tuples(bandwidths, latencies), min_size=3, max_size=3)
# Uneven by a vocabulary, and by experts behind dense layers of another width; all are compiled once.
models = st.fixed_dictionaries({"v": st.sampled_from([1_000, 50_000, 400_000]), "f": st.sampled_from([2048, 16384])})
capacities = st.sampled_from([6e9, 1.2e10, 1e12])


def problem_of(model, capacity):
    """A model of six layers and a head, with optimal cuts, on three tiers."""
    dense = {"kind": "transformer", "options": ["rotary", "gated"], "count": 2}
    mixture = {"kind": "transformer", "options": ["rotary"], "ffn": "experts", "count": LAYERS - 2}
    spec = ModelSpec.model_validate(model_of([dense, mixture, {"kind": "head"}], DIMENSIONS | model))
    machine = cluster_spec(SYSTEM | {"fast_size": 4, "hbm_capacity": capacity}).model_dump(mode="json")
    machine["network"]["topology"] = SPINE
    cluster = ClusterSpec.model_validate(machine)
    exact = load_assumptions("default", [("memory_margin", "0")])  # a plan fits that fills a GPU
    problem = make_problem(spec, cluster, exact, ("1d",), ProblemOptions(partition="optimal"))
    return problem.searching(USUAL | {"zero_stage": [1, 3], "recompute": ["none", "full"]})


def with_network(problem, facts):
    """The problem on tiers of other bandwidths and latencies."""
    cluster = problem.cluster
    tiers = zip(cluster.network.tiers, facts, strict=False)
    changed = tuple(replace(tier, bandwidth=bandwidth, latency=latency) for tier, (bandwidth, latency) in tiers)
    return on(problem, replace(cluster, network=replace(cluster.network, tiers=changed)))


def where_of(problem):
    """The layer costs of a space, and the rows of all its candidates."""
    space = Space(problem, [GPUS], [BATCH])
    positions, choices = space.blocks.rows(0, space.size)
    return space.table(problem), Rows(np.zeros_like(positions), positions, choices)


def found(problem, where):
    """The optimal cut of each candidate; costs are infinite if no cut fits."""
    return price_best_cuts(problem, *where, goal="fastest")


@pytest.mark.slow
@settings(max_examples=5)
@given(truth=networks, assumed=networks, model=models, capacity=capacities)
def test_neither_another_network_nor_an_even_cut_makes_a_better_plan(truth, assumed, model, capacity):
    problem = problem_of(model, capacity)
    true, agnostic = with_network(problem, truth), with_network(problem, assumed)
    where = where_of(true)
    aware, made = found(true, where), found(agnostic, where_of(agnostic))
    fits = np.isfinite(aware.costs.step_time_s)
    np.testing.assert_array_equal(fits, np.isfinite(made.costs.step_time_s))
    # Of every plan with the cut made for the other network, and so of the one that was thought the best.
    paid = np.where(fits, price_cuts(true, *where, made.cuts).costs.step_time_s, np.inf)
    assert (aware.costs.step_time_s <= paid * EXACT).all()
    best = aware.costs.step_time_s.min()
    assert best <= paid[np.argmin(made.costs.step_time_s)] * EXACT
    # Of every plan whose layers can be cut evenly; the best of them may be another plan.
    even = price_rows(replace(true, partition="even"), where[0], where[1].take(LAYERS % where[1].choices["pp"] == 0))
    assert best <= np.where(even.peak_bytes <= capacity, even.step_time_s, np.inf).min() * EXACT


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [50_000, 400_000])
def test_a_network_that_is_not_known_costs_time(vocabulary):
    """The law is no equality."""
    problem = problem_of({"v": vocabulary, "f": 8192}, 1e12)
    slow = with_network(problem, [(4.5e11, 2.5e-6), (2e9, 1e-4), (1e9, 1e-4)])
    flat = with_network(problem, [(4.5e11, 2.5e-6)] * 3)
    where, made = where_of(slow), found(flat, where_of(flat))
    paid = price_cuts(slow, *where, made.cuts).costs.step_time_s[np.argmin(made.costs.step_time_s)]
    assert paid > 1.05 * found(slow, where).costs.step_time_s.min()
