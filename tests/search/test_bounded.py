"""Plans by bounds are those of a search that cuts every plan; no cut beats a bound."""

import jax
import numpy as np
import pytest
from laws.spaces import USUAL, problem_with
from search.test_experts import problem as problem_of_experts

from dsx.cost.cut_bounds import least_passes_s
from dsx.pricing.cuts import price_best_cuts
from dsx.search import bounds as bounded
from dsx.search.bounds import best_cuts
from dsx.search.fastest import ANY, fastest, problems_of, spaces_of
from dsx.search.ranking import leading_rows
from dsx.search.spaces import PricedSpace, Space
from dsx.search.sweep import search_of
from dsx.search.variants import Storing

DIMENSIONS = {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 4096, "v": 50000}
DENSE = {"kind": "transformer", "options": ["rotary", "gated"]}
LAYERS = {
    "alike": [{**DENSE, "count": 9}],
    "ends": [{"kind": "embedding"}, {**DENSE, "count": 6}, {"kind": "head"}],
    "two kinds": [{"kind": "embedding"}, {**DENSE, "count": 3}, {"kind": "transformer", "count": 3}, {"kind": "head"}],
}
OPENED = {
    "zero_replicas": [1], "stored_layers": [0], "offload": ["none"], "zero_stage": [0, 1, 3],
    "recompute": ["none", "full"], "vpp": [1], "schedule": ["1f1b", "gpipe"],
}  # fmt: skip


def problem_of(layers, partition="optimal", capacity=5e9, optimizer="adam"):
    assumed, options = ("default", ("optimizer", optimizer)), {"partition": partition}
    return problem_with(LAYERS[layers], DIMENSIONS, ["1d"], assumed, options, hbm_capacity=capacity)


def source_of(layers, capacity=5e9, opened=OPENED, optimizer="adam"):
    problem = problem_of(layers, capacity=capacity, optimizer=optimizer).searching(opened)
    space = Space(problem, [24], [48], opened)
    return PricedSpace(problem, space, space.table(problem), "float64")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("offload", ["none", "activations"])
@pytest.mark.parametrize("layers", LAYERS)
def test_no_cut_beats_a_bound(layers, offload):
    source = source_of(layers, opened=OPENED | {"offload": [offload]})
    candidates = np.random.default_rng(0).permutation(source.space.size)[:300]
    some = bounded.rows_at(source, candidates)
    bounds = bounded.bounds_of(source, some)
    step_s, peak_bytes = bounds.step_s, bounds.peak_bytes
    assert (bounded.loose_bounds(source, least_passes_s)[candidates] <= step_s * (1 + 1e-12)).all()
    fast = price_best_cuts(source.problem, source.table, some, "fastest")
    small = price_best_cuts(source.problem, source.table, some, "least memory")
    assert (step_s <= fast.costs.step_time_s * (1 + 1e-12)).all()
    assert (peak_bytes <= small.costs.peak_bytes * (1 + 1e-12)).all()
    single = some.choices["pp"] == 1
    np.testing.assert_allclose(step_s[single], small.costs.step_time_s[single], rtol=1e-12)


@pytest.mark.parametrize("layers", LAYERS)
def test_a_chunk_of_offloaded_activations_keeps_a_layer(layers):
    opened = OPENED | {"pp": [2, 3, 4], "vpp": [1, 2, 3], "recompute": ["none"], "offload": ["activations"]}
    source = source_of(layers, opened=opened)
    some = bounded.rows_at(source, np.random.default_rng(0).permutation(source.space.size)[:150])
    bounds = np.asarray(bounded.bounds_of(source, some).peak_bytes)
    least = price_best_cuts(source.problem, source.table, some, "least memory").costs.peak_bytes
    assert (bounds <= least * (1 + 1e-12)).all()
    chunks = some.choices["pp"] * some.choices["vpp"]
    one_layer = chunks == source.problem.num_layers + source.problem.num_end_layers
    usual = some._replace(choices={**some.choices, "offload": np.zeros_like(chunks)})
    on_gpu = np.asarray(bounded.bounds_of(source_of(layers, opened=opened | {"offload": ["none"]}), usual).peak_bytes)
    assert one_layer.any()
    assert (bounds[one_layer] > 0.7 * on_gpu[one_layer]).all(), "all layers stay, so that offload saves nothing"


@pytest.mark.parametrize("offload", ["none", "activations", "none,activations"])
@pytest.mark.parametrize("layers", LAYERS)
def test_plans_that_store_activations_have_loose_bounds(layers, offload):
    opened = {
        "stored_layers": [1, 2, 3, 5, 9],
        "recompute": ["full", "selective"],
        "vpp": [1, 2, 3],
        "offload": offload.split(","),
    }
    source = source_of(layers, opened=OPENED | opened)
    some = bounded.rows_at(source, np.random.default_rng(0).permutation(source.space.size)[:1000])
    step_s = bounded.step_bounds(source, some) * (1 + 1e-12)
    variants = Storing(source)
    assert (variants.least_s(some) <= step_s).all()
    assert (variants.least_of_any_s(some) <= step_s).all()
    assert np.median(variants.least_s(some) / step_s) > 0.8


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("capacity", "optimizer"), [(5e9, "adam"), (2.5e9, "adam"), (3.5e9, "muon")])
@pytest.mark.parametrize("layers", LAYERS)
def test_the_best_are_those_of_all_cuts(monkeypatch, layers, capacity, optimizer):
    monkeypatch.setattr(bounded, "_ROWS", 1000)
    source = source_of(layers, capacity, optimizer=optimizer)
    search = search_of(source.problem, source.space, source.table)
    everything = bounded.rows_at(source, np.arange(source.space.size))
    rows = search.rows(jax.local_devices()[0], everything, feasible=True)
    expected = leading_rows(rows, 7, [])
    found, bounds = best_cuts(source, 7)
    assert found["candidate"].tolist() == expected["candidate"].tolist()
    np.testing.assert_allclose(found["step_time_s"], expected["step_time_s"], rtol=1e-12)
    assert found["stage_layers"].tolist() == expected["stage_layers"].tolist()
    assert source.space.size == bounds.candidates > 2 * bounds.cut > 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layers", LAYERS)
def test_the_smallest_is_that_of_all_cuts(monkeypatch, layers):
    monkeypatch.setattr(bounded, "_ROWS", 1000)
    source = source_of(layers, capacity=1e15)
    expected, _ = search_of(source.problem, source.space, source.table).best(1, objective="peak_bytes")
    found = bounded.smallest_cut(source)
    assert found["candidate"].tolist() == expected["candidate"].tolist()
    assert found["peak_bytes"] == pytest.approx(expected["peak_bytes"], rel=1e-12)


def test_nothing_that_takes_longer_needs_a_cut():
    source = source_of("ends")
    fastest_s = best_cuts(source, 1)[0]["step_time_s"][0]
    rows, counts = best_cuts(source, 1, below=0.5 * fastest_s)
    assert len(rows["point"]) == counts.cut == 0


@pytest.mark.sampled(8)
@pytest.mark.parametrize("schedules", [["1f1b"], ["1f1b", "zb-h1"]])
@pytest.mark.parametrize("layers", LAYERS)
def test_any_cut_is_the_best_of_even_and_optimal_ones(layers, schedules):
    usual = {name: values for name, values in OPENED.items() if name != "vpp"}
    usual |= {"zero_stage": [1], "recompute": ["none"], "schedule": schedules}

    def found(cut):
        problems = problems_of(cut, problem_of(layers, "even").searching(usual))
        plans = fastest(spaces_of(problems, 24, 48, usual), 20).plans
        return [(plan["step_time_s"], plan["plan"]["candidate"]) for plan in plans]

    both = {}
    for step_s, candidate in found("even") + found("optimal"):
        both[candidate] = min(both.get(candidate, np.inf), step_s)
    steps, candidates = zip(*found(ANY), strict=True)
    assert steps == pytest.approx(sorted(both.values())[:20], rel=1e-12)
    assert len({*candidates}) == len(steps) == 20


@pytest.mark.parametrize("layers", LAYERS)
def test_a_probe_leaves_no_row_out_that_is_as_fast_as_the_limit(layers):
    source = source_of(
        layers, opened=OPENED | {"offload": ["none", "activations"], "vpp": [1, 2], "schedule": ["1f1b"]}
    )
    rows = bounded.rows_at(source, np.random.default_rng(0).permutation(source.space.size)[:200])
    step_s = price_best_cuts(source.problem, source.table, rows, "fastest").costs.step_time_s
    fits = step_s < np.inf
    one_chunk = rows.choices["vpp"] == 1
    limit = np.where(fits, step_s, 1.0) * (1 + 1e-12)
    assert source.may_take(rows, limit)[fits].all()
    assert not source.may_take(rows, 0.99 * limit)[fits & one_chunk & (rows.choices["pp"] == 1)].any()
    bounds = bounded.fitting_bounds(source, rows, limit)
    here, tight = bounded.cuts_within(source, rows, bounds, limit)
    assert set(np.flatnonzero(fits)) <= set(here)
    within = fits[here]
    assert (tight[within] <= step_s[here][within] * (1 + 1e-12)).all()


def sources_with_many_memories():
    opened = {"zero_replicas": [1, 2], "stored_layers": [0, 1], "offload": ["none", "both"], "zero_stage": [1, 3]}
    opened |= {"vpp": [1, 2], "schedule": ["1f1b"]}
    yield source_of("ends", 4e9, opened | {"recompute": ["none", "full", "core-attention", "norms", "feed-forward"]})
    for fast_size, strategies in (8, ("1d", "2d")), (6, ("1d",)):
        mixture = problem_of_experts(*strategies, system=(("fast_size", fast_size),)).searching(opened)
        space = Space(mixture, [24], [48], opened)
        yield PricedSpace(mixture, space, space.table(mixture), "float64")


def test_memory_does_not_depend_on_where_ranks_are(monkeypatch):
    for source in sources_with_many_memories():
        rows = bounded.rows_at(source, np.random.default_rng(0).permutation(source.space.size)[:6000])
        bounds = bounded.bounds_of(source, rows)
        fits, peak_bytes = bounded.may_fit(source, rows, bounds), np.asarray(bounds.peak_bytes)
        np.testing.assert_array_equal(bounded.least_bytes(source, rows), peak_bytes)
        most = float(np.median(peak_bytes))
        for limit in (np.inf, most):
            found = bounded.memory_bounds(source, rows, limit)
            within = fits & (peak_bytes <= limit)
            np.testing.assert_array_equal(found.fits, within)
            np.testing.assert_array_equal(found.peak_bytes, np.where(within, peak_bytes, np.inf))
        first, _ = bounded._alike_in_memory(source, rows)
        assert len(first) < 0.9 * len(rows.positions)


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2", "zb-v"])
@pytest.mark.parametrize("layers", ["ends", "two kinds"])
def test_what_waits_for_gradients_of_weights_is_not_part_of_a_bound(schedule, layers):
    """It grows with the position of a stage; a bound of memory has the mean stage at the last position."""
    opened = {**USUAL, "recompute": ["full"], "vpp": [1, 2], "schedule": [schedule]}
    problem = problem_of(layers, "even", capacity=1e13).searching(opened)
    space = Space(problem, [16], [64], opened)
    source = PricedSpace(problem, space, space.table(problem), "float64")
    rows = bounded.rows_at(source, np.arange(space.size))
    rows = rows.take(np.flatnonzero(rows.choices["pp"] > 1))
    assert len(rows.positions) > 20
    least = np.asarray(bounded.bounds_of(source, rows).peak_bytes)
    assert (least <= source.priced_rows(rows)["peak_bytes"] * (1 + 1e-12)).all()
