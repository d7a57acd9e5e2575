"""Of a model: a plan made for another network is never better than one made for this, nor an even cut than the best."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import SYSTEM, on
from validation.cases import cluster_spec

from dsx.search.optimal_rows import price_best_cuts, price_cuts
from dsx.search.pricing import price_keys, price_rows
from dsx.search.problem import make_problem
from dsx.search.space import Space
from dsx.spec.assumptions import load_assumptions
from dsx.spec.cluster import ClusterSpec
from dsx.spec.model import ModelSpec

GPUS, BATCH, LAYERS = 16, 16, 6
EXACT = 1 + 1e-9
DIMENSIONS = {"e": 2048, "h": 16, "g": 8, "k": 128, "f": 8192}
EXPERTS = {"fx": 2048, "x": 8, "topk": 2, "capacity_percent": 100}
# Uneven by a vocabulary, and by experts behind dense layers.
BODIES = {"dense": [("gated-transformer", 6)], "experts": [("gated-transformer", 2), ("moe-transformer", 4)]}
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
vocabularies = st.sampled_from([1_000, 50_000, 400_000])
capacities = st.sampled_from([6e9, 1.2e10, 1e12])
cases = pytest.mark.parametrize(("body", "tiers"), [("dense", 2), ("experts", 3)])


def machine(tiers, capacity):
    spec = cluster_spec(SYSTEM | {"fast_size": 4, "hbm_capacity": capacity}).model_dump(mode="json")
    if tiers == 3:
        spec["network"]["topology"] = SPINE
    return ClusterSpec.model_validate(spec)


@cache
def problem_of(body, vocabulary, tiers, capacity):
    """A model of six layers between a table and a head, cut anyhow."""
    kinds = [("embedding", 1), *BODIES[body], ("head", 1)]
    dimensions = DIMENSIONS | {"v": vocabulary} | (EXPERTS if body == "experts" else {})
    spec = ModelSpec.model_validate(
        {
            "name": "small",
            "source": "a test",
            "default_sequence_length": 2048,
            "dimensions": dimensions,
            "layers": [{"kind": kind, "count": count} for kind, count in kinds],
        }
    )
    return make_problem(spec, machine(tiers, capacity), load_assumptions("default"), ("1d",), partition="optimal")


def with_network(problem, facts):
    """The problem on tiers of other bandwidths and latencies."""
    cluster = problem.cluster
    tiers = zip(cluster.network.tiers, facts, strict=False)
    changed = tuple(replace(tier, bandwidth=bandwidth, latency=latency) for tier, (bandwidth, latency) in tiers)
    return on(problem, replace(cluster, network=replace(cluster.network, tiers=changed)))


def where_of(problem):
    """The layer costs of a space, and points, positions and choices of all of its candidates."""
    space = Space(problem, [GPUS], [BATCH])
    positions, choices = space.blocks.rows(0, space.size)
    return price_keys(problem, space.keys), np.zeros_like(positions), positions, choices


def rows(where, wanted):
    """Some of the candidates of `where_of`."""
    table, points, positions, choices = where
    return table, points[wanted], positions[wanted], {name: column[wanted] for name, column in choices.items()}


def found(problem, where):
    """The best cut of every candidate; the costs of those that no cut makes fit are infinite."""
    return price_best_cuts(problem, *where, least_memory=False)


@cases
@settings(max_examples=8)
@given(truth=networks, belief=networks, vocabulary=vocabularies, capacity=capacities)
def test_neither_another_network_nor_an_even_cut_makes_a_better_plan(body, tiers, truth, belief, vocabulary, capacity):
    problem = problem_of(body, vocabulary, tiers, capacity)
    true, blind = with_network(problem, truth), with_network(problem, belief)
    where = where_of(true)
    aware, made = found(true, where), found(blind, where_of(blind))
    fits = np.isfinite(aware.costs.step_time_s)
    np.testing.assert_array_equal(fits, np.isfinite(made.costs.step_time_s))
    if not fits.any():
        return
    # Of every plan with the cut made for the other network, and so of the one that was thought the best.
    paid = price_cuts(true, *rows(where, fits), made.cuts[fits]).costs.step_time_s
    assert (aware.costs.step_time_s[fits] <= paid * EXACT).all()
    best = aware.costs.step_time_s.min()
    assert best <= paid[np.argmin(made.costs.step_time_s[fits])] * EXACT
    # Of every plan whose layers can be cut evenly; the best of them may be another plan.
    even = price_rows(replace(true, partition="even"), *rows(where, LAYERS % where[-1]["pp"] == 0))
    held = even.peak_bytes <= capacity
    assert not held.any() or best <= even.step_time_s[held].min() * EXACT


@pytest.mark.parametrize("vocabulary", [50_000, 400_000])
def test_a_network_that_is_not_known_costs_time(vocabulary):
    """The law is no equality."""
    problem = problem_of("experts", vocabulary, 3, 1e12)
    slow = with_network(problem, [(4.5e11, 2.5e-6), (2e9, 1e-4), (1e9, 1e-4)])
    flat = with_network(problem, [(4.5e11, 2.5e-6)] * 3)
    where, made = where_of(slow), found(flat, where_of(flat))
    paid = price_cuts(slow, *where, made.cuts).costs.step_time_s[np.argmin(made.costs.step_time_s)]
    assert paid > 1.05 * found(slow, where).costs.step_time_s.min()
