"""The optimal cut of a plan against all its cuts; limits of memory; rows of a sweep against single plans."""

import itertools
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import SYSTEM, USUAL, hardware, on
from priced import evaluate_plan
from search.sweeps import study_of, swept
from validation.cases import cluster_spec
from verbs.small import model_of

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import ModelSpec
from dsx.config.sweep_file import KeepPareto, KeepTop
from dsx.plans.choices import CODES
from dsx.pricing.cuts import (
    CandidateCounts,
    cost_columns,
    price_best_cuts,
    price_cuts,
    priced_rows,
)
from dsx.pricing.optimal_cut import chain_contents
from dsx.pricing.problem import ProblemOptions, make_problem
from dsx.pricing.row_costs import Rows, price_rows
from dsx.search.spaces import Space
from dsx.search.sweep import search_of, smallest

EXACT = 1e-9
ENDS = [{"kind": "embedding", "count": 1}, {"kind": "transformer", "count": 6}, {"kind": "head", "count": 1}]
OPENED = {
    "schedule": ["1f1b"],
    "recompute": ["none", "full"],
    "zero_stage": [0, 1, 3],
    "offload": ["none", "both"],
    "stored_layers": [0, 1],
}


@cache
def problem_of(layers=None, partition="optimal", assumptions="default"):
    """A model with a heavy head, with optimal cuts unless `partition` says otherwise."""
    spec = ModelSpec.model_validate(
        model_of(
            list(map(dict, layers)) if layers else ENDS, {"e": 3072, "h": 24, "g": 12, "k": 128, "f": 9216, "v": 100000}
        )
    )
    sets = load_assumptions(assumptions, [("memory_margin", "0")])  # a search keeps what fits exactly
    made = make_problem(spec, cluster_spec(SYSTEM), sets, ("1d",), ProblemOptions(partition=partition))
    return made.searching(USUAL)


MODELS = {"ends": None, "body": (tuple({"kind": "transformer", "count": 7}.items()),)}


def rows_of(problem, num_gpus=(12, 24), batches=(24,), **fix):
    """All candidates of a space: the problem, the space, and its (layer costs, rows)."""
    problem = problem.searching(fix)
    space = Space(problem, num_gpus, batches, fix)
    positions, choices = space.blocks.rows(0, space.size)
    return problem, space, (space.table(problem), Rows(np.zeros_like(positions), positions, choices))


def some(where, rows):
    """Some of the rows of `rows_of`."""
    table, candidates = where
    return table, candidates.take(rows)


def every_cut(num_layers, num_stages):
    """The boundaries of all cuts of a chain, [C, L + 1]."""
    inner = itertools.combinations(range(1, num_layers), num_stages - 1)
    return np.array([[0, *cut, *[num_layers] * (num_layers - num_stages + 1)] for cut in inner])


def by_brute_force(problem, where):
    """Price all cuts of each row; return by row the cuts and their costs as columns."""
    num_layers = int(problem.workload.stack.num_layers)
    cuts = [every_cut(num_layers, int(pp)) for pp in where[1].choices["pp"]]
    ends = np.cumsum([0, *map(len, cuts)])
    every = some(where, np.repeat(np.arange(len(cuts)), np.diff(ends)))
    costs = cost_columns(price_cuts(problem, *every, np.concatenate(cuts)).costs)
    for row, (start, end) in enumerate(itertools.pairwise(ends)):
        yield cuts[row], {name: column[start:end] for name, column in costs.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=4)
@given(capacity=st.sampled_from([2e9, 4e9, 8e9, 1e12]), seed=st.integers(0, 2**32 - 1))
def test_no_cut_is_better_than_the_optimal_one(model, capacity, seed):
    """Under memory limits, recomputation, ZeRO and offload; if no cut fits, none needs less memory."""
    problem, _, where = rows_of(on(problem_of(MODELS[model]), hardware(hbm_capacity=capacity)), **OPENED)
    where = some(where, np.random.default_rng(seed).permutation(len(where[1].positions))[:8])
    found = price_best_cuts(problem, *where)
    for row, (cuts, costs) in enumerate(by_brute_force(problem, where)):
        fits = costs["peak_bytes"] <= capacity
        wanted = np.where(fits, costs["step_time_s"], np.inf) if fits.any() else costs["peak_bytes"]
        name = "step_time_s" if fits.any() else "peak_bytes"
        assert getattr(found.costs, name)[row] == pytest.approx(wanted.min(), rel=EXACT)
        assert (found.costs.peak_bytes[row] <= capacity) == fits.any()
        assert found.cuts[row].tolist() in cuts.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "float64"), [(3e9, False), (3e9, True), (1e12, False)])
def test_every_stage_has_a_layer(capacity, float64):
    """Even where rounding makes a later stage look slower than the slowest."""
    layers = tuple(tuple(entry.items()) for entry in (ENDS[0], ENDS[1] | {"count": 22}, ENDS[2]))
    problem, _, where = rows_of(on(problem_of(layers), hardware(hbm_capacity=capacity)), (24, 48), (48,), **OPENED)
    where = some(where, np.arange(0, len(where[1].positions), 7))
    cuts = price_best_cuts(problem, *where, float64=float64).cuts
    sizes = np.diff(cuts, axis=1)
    there = np.arange(sizes.shape[1]) < where[1].choices["pp"][:, None]
    assert (sizes[there] > 0).all()
    assert (sizes[~there] == 0).all()
    assert (sizes.sum(axis=1) == 24).all()


def test_of_equal_layers_no_stage_has_two_more_than_another():
    """Seven layers in three stages are 3, 2 and 2; with 3, 3 and 1 the slowest stage takes no longer."""
    problem, _, where = rows_of(on(problem_of(MODELS["body"]), hardware(hbm_capacity=1e12)))
    found = price_best_cuts(problem, *where)
    several = 0
    for row in range(len(where[1].positions)):
        num_stages = int(where[1].choices["pp"][row])
        if where[1].choices["num_microbatches"][row] <= num_stages:
            continue  # the first stages run all forwards before their first backward, and may be larger
        sizes = np.diff(found.cuts[row][: num_stages + 1])
        assert sizes.max() - sizes.min() <= 1
        several += len(sizes) > 1
    assert several


def test_stages_without_a_bubble():
    problem, _, where = rows_of(problem_of(), pp=[1])
    assert (price_best_cuts(problem, *where).costs.bubble_s == 0).all()
    assert (price_rows(problem, *where).bubble_s == 0).all()
    # The stages of a single microbatch are balanced too.
    problem, _, where = rows_of(on(problem_of(), hardware(hbm_capacity=1e12)), num_microbatches=[1], pp=[2, 3])
    found = price_best_cuts(problem, *where)
    for row, (_, costs) in enumerate(by_brute_force(problem, where)):
        assert found.costs.bubble_s[row] == pytest.approx(costs["bubble_s"].min(), rel=EXACT)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("capacity", [2e9, 5e9, 1e12])
def test_an_even_cut_is_never_better(model, capacity):
    """And a plan that fits with an even cut fits with the optimal one."""
    machine = hardware(hbm_capacity=capacity)
    even, _, where = rows_of(on(problem_of(MODELS[model], "even"), machine), num_gpus=(6, 7, 12, 24), **OPENED)
    where = some(where, np.arange(0, len(where[1].positions), 11))
    costs = price_rows(even, *where)
    found = price_best_cuts(replace(even, partition="optimal"), *where).costs
    fits = costs.peak_bytes <= capacity
    assert (found.step_time_s[fits] <= costs.step_time_s[fits] * (1 + EXACT)).all()
    assert (found.peak_bytes[fits] <= capacity).all()
    assert fits.any() or capacity < 1e12
    if model == "ends" and fits.any():
        assert (found.step_time_s[fits] < costs.step_time_s[fits] * 0.99).any()  # the head is heavy


@pytest.mark.sampled(0)
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=4)
@given(bandwidth=st.floats(1e8, 1e12), latency=st.sampled_from([0.0, 5e-6, 1e-3]))
def test_a_cut_for_another_network_is_never_better(model, bandwidth, latency):
    given = {"slow_bandwidth": bandwidth, "slow_latency": latency, "hbm_capacity": 1e12}
    true, flat = (
        rows_of(on(problem_of(MODELS[model]), hardware(**facts)), num_gpus=(12,))
        for facts in (given, {"slow_bandwidth": 4.5e11, "slow_latency": 2.5e-6, "hbm_capacity": 1e12})
    )
    best, agnostic = (price_best_cuts(problem, *where) for problem, _, where in (true, flat))
    paid = price_cuts(true[0], *true[2], agnostic.cuts).costs.step_time_s
    assert (best.costs.step_time_s <= paid * (1 + EXACT)).all()
    assert best.costs.step_time_s.min() <= paid[np.argmin(agnostic.costs.step_time_s)] * (1 + EXACT)


@pytest.mark.parametrize("model", MODELS)
def test_an_even_cut_costs_the_same_however_it_was_found(model):
    even, _, where = rows_of(problem_of(MODELS[model], "even"), num_gpus=(6, 7, 12, 24), **OPENED)
    where = some(where, np.arange(0, len(where[1].positions), 5))
    costs = cost_columns(price_rows(even, *where))
    end = even.num_end_layers // 2
    cuts = np.full((len(where[1].positions), even.num_layers + 2 * end + 1), even.num_layers + 2 * end)
    for row, pp in enumerate(where[1].choices["pp"].tolist()):
        # Where the body does not divide, embedding and head count as a layer each.
        counted = even.num_layers % pp != 0
        ends = (even.num_layers + 2 * counted) // pp * np.arange(1, pp) + end * (not counted)
        cuts[row, :pp] = [0, *ends]
    given = cost_columns(price_cuts(even, *where, cuts).costs)
    for name, column in costs.items():
        np.testing.assert_allclose(given[name], column, rtol=EXACT, atol=1e-15, err_msg=name)


@pytest.mark.slow
def test_parts_memory_and_segments_of_cuts():
    _, space, where = rows_of(problem_of(), **OPENED)
    rows = priced_rows(problem_of().searching(OPENED), space.keys, *where)
    time = ("compute_s", "memory_s", "tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s", "bubble_s")
    assert sum(rows[name] for name in (*time, "recompute_s", "optimizer_s")) == pytest.approx(rows["step_time_s"])
    # The smallest candidate needs no more memory than any cut.
    problem = on(problem_of(), hardware(hbm_capacity=1e8))
    space = Space(problem, (24,), (24,))
    _, row = smallest([study_of(problem, space)], lambda count: None)
    _, _, where = rows_of(problem, num_gpus=(24,))
    least = min(costs["peak_bytes"].min() for _, costs in by_brute_force(problem, where))
    assert row["peak_bytes"][0] == pytest.approx(least, rel=EXACT)
    # Segments of the same layers are one.
    contents = chain_contents(problem_of().workload.stack)
    assert contents.of_segment.shape == (8, 8)
    # None to six body layers: alone, after the embedding, before the head, and all layers.
    assert contents.layers.shape == (3, 6 + 7 + 7 + 1)
    assert contents.of_segment[1, 2] == contents.of_segment[4, 5]
    assert contents.of_segment[0, 1] != contents.of_segment[1, 2]


def test_the_space_has_every_pipeline_that_leaves_no_stage_empty():
    _, _, where = rows_of(problem_of(), num_gpus=(7, 8, 9))
    assert {*where[1].choices["pp"].tolist()} == {
        1,
        2,
        3,
        4,
        7,
        8,
    }  # of 8 layers with embedding and head; 9 would leave one empty
    _, _, where = rows_of(problem_of(), num_gpus=(8,), vpp=[1, 3], schedule=["1f1b", "zb-h1", "gpipe"])
    chunks = {*zip(where[1].choices["pp"].tolist(), where[1].choices["vpp"].tolist(), strict=True)}
    assert chunks == {(1, 1), (2, 1), (4, 1), (8, 1), (2, 3)}  # six chunks need not divide six layers and two ends
    assert {*where[1].choices["schedule"].tolist()} == {0}


def test_stages_of_a_plan_make_up_its_step():
    problem = on(problem_of(), hardware(hbm_capacity=1e12))
    found = evaluate_plan(problem, ["pp=4", "tp=2", "dp=3", "microbatch_size=2", "nvs.tp=2", "nvs.dp=3"], 24, 24)
    assert not [broken for broken in found.broken if broken.reason.name == "layers_not_divisible"]
    assert sum(stage.num_layers for stage in found.stages) == 8
    assert tuple(stage.num_layers for stage in found.stages) == found.plan["stage_layers"]
    slowest = max(stage.load_s for stage in found.stages)
    total = sum(stage.load_s for stage in found.stages)
    assert (found.plan["num_microbatches"] - 1) * slowest + total < found.costs["step_time_s"]
    assert max(stage.peak_bytes for stage in found.stages) == pytest.approx(found.costs["peak_bytes"], rel=EXACT)
    for stage in found.stages:
        assert stage.compute_s + stage.comm_s + stage.recompute_s == pytest.approx(stage.load_s, rel=EXACT)
    assert [stage.in_flight for stage in found.stages] == [4, 3, 2, 1]
    assert [stage.link for stage in found.stages] == [None, "net", "net", "net"]


@pytest.mark.parametrize("setting", ["schedule=gpipe", "schedule=zb-h1"])
def test_plans_without_an_optimal_cut_are_rejected_by_name(setting):
    plan = ["pp=2", "dp=6", "nvs.dp=6", setting]
    found = evaluate_plan(problem_of(), plan, 12, 24)
    assert "cut_not_covered" in [broken.reason.name for broken in found.broken]
    assert found.stages == ()
    even = evaluate_plan(problem_of(partition="even"), plan, 12, 24)
    assert found.costs == pytest.approx(even.costs, nan_ok=True)
    assert "cut_not_covered" not in [broken.reason.name for broken in even.broken]


# Small spaces at two hardware points; one has little memory.


@cache
def searched():
    problem = problem_of().searching({"recompute": ["none", "full"]})
    points = on(problem, hardware(hbm_capacity=6e9))
    space = Space(points, (12, 24), (24, 48))
    rows = priced_rows(points, space.keys, *rows_at(points, space))
    return points, space, rows


def rows_at(problem, space):
    positions, choices = space.blocks.rows(0, space.size)
    return space.table(problem), Rows(np.zeros_like(positions), positions, choices)


def by_candidate(rows):
    return {name: column[np.argsort(rows["candidate"])] for name, column in rows.items()}


@pytest.mark.slow
def test_rows_of_a_sweep_equal_their_evaluated_plans():
    problem, space, rows = searched()
    found, counts = swept([study_of(problem, space)], "all")
    assert counts == CandidateCounts(len(rows["tp"]), int((rows["reject"] == 0).sum()))
    expected, found = by_candidate(rows), by_candidate(found)
    np.testing.assert_allclose(found["step_time_s"], expected["step_time_s"], rtol=EXACT)
    assert found["stage_layers"].tolist() == expected["stage_layers"].tolist()
    for row in range(0, len(rows["tp"]), 37):
        names = ("tp", "cp", "pp", "dp", "microbatch_size")
        plan = [f"{name}={rows[name][row]}" for name in names]
        plan += [f"nvs.{name}={rows[f'{name}_nvs'][row]}" for name in names[:4]]
        plan += [f"recompute={CODES['recompute'][rows['recompute'][row]]}"]
        alone = evaluate_plan(problem, plan, int(rows["num_gpus"][row]), int(rows["global_batch_size"][row]))
        assert alone.plan["candidate"] == rows["candidate"][row]
        assert alone.costs["step_time_s"] == pytest.approx(rows["step_time_s"][row], rel=EXACT)
        assert alone.plan["stage_layers"] == tuple(filter(None, rows["stage_layers"][row]))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_best_and_the_front_are_those_of_all_rows(precision):
    problem, space, rows = searched()
    feasible = {name: column[rows["reject"] == 0] for name, column in rows.items()}
    table = space.table(problem)
    found, counts = search_of(problem, space, table, precision).best(3, ["num_gpus"])
    assert counts.candidates == len(rows["tp"])
    assert counts.feasible <= counts.cut < len(feasible["tp"])
    for num_gpus in (12, 24):
        here = feasible["step_time_s"][feasible["num_gpus"] == num_gpus]
        np.testing.assert_allclose(found["step_time_s"][found["num_gpus"] == num_gpus], np.sort(here)[:3], rtol=EXACT)
    front, _ = search_of(problem, space, table, precision).front(["step_time_s", "peak_bytes"])
    for row in range(len(front["tp"])):
        better = (feasible["step_time_s"] < front["step_time_s"][row] * (1 - EXACT)) & (
            feasible["peak_bytes"] < front["peak_bytes"][row] * (1 - EXACT)
        )
        assert not better.any()
    kept, _ = swept([study_of(problem, space)], KeepTop(top=3, per=["num_gpus"]), precision)
    assert kept["stage_layers"].tolist() == found["stage_layers"].tolist()
    kept, _ = swept([study_of(problem, space)], KeepPareto(pareto=["step_time_s", "peak_bytes"]))
    assert sorted(kept["candidate"]) == sorted(front["candidate"])


@pytest.mark.slow
def test_rows_of_optimal_cuts():
    problem, space, rows = searched()
    found, _ = swept([study_of(problem, space)], "feasible")
    assert sorted(found["candidate"]) == sorted(rows["candidate"][rows["reject"] == 0])
    # Float32 agrees with float64.
    problem, _, where = rows_of(problem_of(), batches=(24, 48))
    wide, narrow = (price_best_cuts(problem, *where, float64=float64).costs for float64 in (True, False))
    both = wide.peak_bytes <= SYSTEM["hbm_capacity"] * (1 - 1e-4)
    np.testing.assert_allclose(narrow.step_time_s[both], wide.step_time_s[both], rtol=1e-4)
    # No rows have no costs.
    problem, _, where = rows_of(problem_of())
    none = some(where, np.zeros(0, dtype=int))
    cuts = np.zeros((0, int(problem.workload.stack.num_layers) + 1), dtype=int)
    assert price_cuts(problem, *none, cuts).costs.step_time_s.shape == (0,)
    assert price_best_cuts(problem, *none).costs.step_time_s.shape == (0,)


def test_hardware_points_side_by_side():
    problem, space, _ = searched()
    leaves = [on(problem, hardware(hbm_capacity=size)) for size in (6e9, 1e12)]
    both = replace(
        problem,
        hardware=replace(
            problem.hardware,
            **{part: _joined(leaves, part) for part in ("device", "network", "node", "operation")},
            name="",
        ),
        assumptions=_repeated(problem.assumptions),
    )
    found, _ = search_of(both, space, space.table(both)).best(2)
    for point, alone in enumerate(leaves):
        expected, _ = search_of(alone, space, space.table(alone)).best(2)
        here = found["point"] == point
        assert found["candidate"][here].tolist() == expected["candidate"].tolist()
        assert found["stage_layers"][here].tolist() == expected["stage_layers"].tolist()


def _joined(problems, name):
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(getattr(p.hardware, name) for p in problems))


def _repeated(record):
    return jax.tree.map(lambda leaf: np.repeat(leaf, 2), record)
