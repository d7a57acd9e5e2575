"""Searches on networks of more than two tiers."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from laws.spaces import USUAL
from priced import evaluate_plan

from dsx.config.what_if import WhatIf
from dsx.errors import SpecError
from dsx.plans.placement import shares_on_tiers
from dsx.pricing.cuts import candidate_columns
from dsx.pricing.one_plan import operator_costs
from dsx.pricing.row_costs import Rows, price_plans, price_rows
from dsx.search.spaces import Space, at_points, make_studies
from dsx.search.sweep import search_of
from dsx.verbs.job import load_inputs, split_overrides

NAME = "h100-nvs8"
TREE = (
    "{kind: fat_tree, gpus: 512, levels: [{name: leaf, units: 2, oversubscription: 4, latency: 5 us}, "
    "{name: pod, units: 4, oversubscription: 2, latency: 8 us}, {name: core, units: 8}]}"
)
EQUAL = "{kind: fat_tree, levels: [{name: leaf, units: 2}, {name: pod, units: 4}, {name: core}]}"
GPUS, BATCH = 128, 128


@cache
def problem_on(topology, model="gpt3-20b", assumptions="paper-2410.00273", strategy="1d"):
    stated = [f"cluster.network.topology={topology}"] if topology else []
    return load_inputs(model, NAME, assumptions, split_overrides(stated)).problem([strategy], 2048)


@cache
def priced(topology):
    """All candidates of a problem: keys, positions, choices, costs."""
    problem = problem_on(topology)
    space = Space(problem, [GPUS], [BATCH])
    positions, choices = space.blocks.rows(0, space.size)
    table = space.table(problem)
    return (
        space,
        table,
        positions,
        choices,
        price_rows(problem, table, Rows(np.zeros_like(positions), positions, choices)),
    )


def columns(topology):
    space, _, positions, choices, _ = priced(topology)
    return candidate_columns(problem_on(topology), space.keys, positions, choices)


def test_equal_tiers_change_no_ring():
    """With ring algorithms only, each candidate costs the same as on two tiers, in either order."""
    flat, split = columns(None), columns(EQUAL)
    seconds = dict(zip(flat["candidate"].tolist(), priced(None)[-1].step_time_s.tolist(), strict=True))
    plain = split["order"] == 0
    found = priced(EQUAL)[-1].step_time_s
    assert plain.sum() == len(seconds) < len(plain)
    expected = [seconds[candidate] for candidate in split["candidate"][plain].tolist()]
    np.testing.assert_allclose(found[plain], expected, rtol=1e-12)
    without = [name for name in flat if name not in ("candidate", "order")]
    by_plan = {row[:-1]: row[-1] for row in zip(*(split[name][plain] for name in without), found[plain], strict=True)}
    for *plan, time in zip(*(split[name][~plain] for name in without), found[~plain], strict=True):
        assert time == pytest.approx(by_plan[tuple(plan)], rel=1e-12)


def test_oversubscription_costs_time_and_orders_differ():
    found, alike = priced(TREE)[-1].step_time_s, priced(EQUAL)[-1].step_time_s
    assert len(found) == len(alike)
    assert (found >= alike * (1 - 1e-12)).all()
    assert (found > alike * 1.01).sum() > len(found) / 4
    made = columns(TREE)
    assert len(np.unique(made["candidate"])) == len(found)
    without = [name for name in made if name not in ("candidate", "order")]
    times: dict[tuple, set] = {}
    for *plan, time in zip(*(made[name] for name in without), found, strict=True):
        times.setdefault(tuple(plan), set()).add(time)
    assert any(len(both) == 2 for both in times.values())


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_the_best_of_the_search_is_the_best_of_all(precision):
    space, table, _, _, costs = priced(TREE)
    problem = problem_on(TREE)
    rows, counts = search_of(problem, space, table, precision).best(5)
    fits = costs.peak_bytes <= problem.cluster.device.hbm_capacity
    assert (counts.candidates, counts.feasible) == (space.size, fits.sum())
    np.testing.assert_allclose(rows["step_time_s"], np.sort(costs.step_time_s[fits])[:5], rtol=1e-12)


def test_orders_and_placements_on_tiers():
    problem = problem_on(TREE)
    made, costs = columns(TREE), priced(TREE)[-1]
    some = {name: column[::97] for name, column in made.items()}
    np.testing.assert_allclose(price_plans(problem, some).step_time_s, costs.step_time_s[::97], rtol=1e-12)
    # An order may be fixed.
    problem = problem_on(TREE).searching({"order": ["tp-cp-ep-pp-dp"]})
    space = Space(problem, [GPUS], [BATCH], {"order": ["tp-cp-ep-pp-dp"]})
    assert space.size == priced(None)[0].size
    _, choices = space.blocks.rows(0, space.size)
    assert set(choices["order"].tolist()) == {1}
    # Two tiers have one order.
    assert set(columns(None)["order"].tolist()) == {0}
    assert not any(name.endswith(("_leaf", "_pod")) for name in priced(None)[3])
    # The placement of a plan.
    settings = ["tp=8", "pp=4", "dp=4", "nvs.tp=8", "microbatch_size=1"]
    first = evaluate_plan(problem_on(TREE), settings, GPUS, BATCH)
    assert first.plan | {"dp_leaf": 2, "pp_leaf": 1, "tp_leaf": 8, "dp_pod": 4, "pp_pod": 2} == first.plan
    other = evaluate_plan(problem_on(TREE), [*settings, "order=tp-cp-ep-pp-dp"], GPUS, BATCH)
    assert other.plan | {"dp_leaf": 1, "pp_leaf": 2, "pp_pod": 4, "dp_pod": 2} == other.plan
    assert not first.broken and not other.broken
    assert first.costs["dp_comm_s"] < other.costs["dp_comm_s"]
    assert first.costs["pp_comm_s"] > other.costs["pp_comm_s"]
    kernels = operator_costs(problem_on(TREE), first.plan)
    assert sum(kernel["forward"]["tp_comm_s"] for kernel in kernels) > 0


def test_collectives_and_shares_of_rows_on_tiers():
    """Without overlap, that is all communication of groups that span more domains than a leaf joins."""
    space, (costs, *_), *_ = priced(TREE)
    over = space.keys["tp"] > 2 * space.keys["tp_nvs"]
    taken = costs.contended_s[0] + costs.contended_s[1]
    assert over.any() and not over.all()
    np.testing.assert_allclose(taken[0, over], costs.tp_comm_s[0, over], rtol=1e-12)
    assert (taken[0, ~over] == 0).all()
    assert (priced(EQUAL)[1][0].contended_s[1] == 0).all()
    assert priced(None)[1][0].contended_s == ()
    # Shares of rows follow from their plans.
    problem = problem_on(TREE)
    made, choices = columns(TREE), priced(TREE)[3]
    for row in range(0, len(made["tp"]), 211):
        plan = {name: int(column[row]) for name, column in made.items()}
        shares = shares_on_tiers(plan, problem.cluster.network, ())
        for axis in ("pp", "dp"):
            for tier in ("leaf", "pod"):
                assert shares[f"{axis}_{tier}"] == choices[f"{axis}_{tier}"][row]


@pytest.mark.slow
def test_experts_that_span_replicas_need_them_in_order():
    problem = problem_on(TREE, "mixtral-8x7b", "default", "2d").searching(USUAL)
    space = Space(problem, [32], [32])
    _, choices = space.blocks.rows(0, space.size)
    positions = space.blocks.rows(0, space.size)[0]
    keys = {name: column[positions] for name, column in space.keys.items()}
    spans = keys["ep"] > keys["tp"] * keys["cp"]
    assert spans.any() and (choices["order"][spans] == 0).all() and (choices["order"] == 1).any()
    settings = ["ep=8", "dp=8", "pp=4", "nvs.dp=2", "nvs.pp=4", "order=tp-cp-ep-pp-dp"]
    (broken,) = evaluate_plan(problem, settings, 32, 32).broken
    assert broken.reason.name == "experts_not_in_order"
    said = "ep=8 spans 8 replicas, which order=tp-cp-ep-pp-dp does not number consecutively"
    assert broken.detail == f"{said}; nearest: order=tp-cp-ep-dp-pp"


def test_a_what_if_of_the_nics_reaches_the_outer_tiers():
    faster = at_points(problem_on(TREE), {"network.net.bandwidth": np.array([5e10, 1e11])})
    bandwidths = [tier.bandwidth.tolist() for tier in faster.hardware.network.tiers]
    assert bandwidths[1:] == [[5e10, 1e11], [1.25e10, 2.5e10], [6.25e9, 1.25e10]]
    domains = WhatIf(("network.nvs.size",), ((4,), (8,)))
    studies = make_studies([problem_on(EQUAL)], domains, [64], [64])
    sizes = [[tier.size for tier in study.problem.cluster.network.tiers] for study in studies]
    assert sizes == [[4, 8, 32, 0], [8, 16, 64, 0]]
    with pytest.raises(
        SpecError, match=r"network\.nvs\.size = 4: gpus: nvs=4 .* = 256 GPUs, 256 short of the stated 512"
    ):
        make_studies([problem_on(TREE)], domains, [64], [64])


def test_jobs_and_hardware_of_several_tiers():
    problem = problem_on(TREE)
    says = r"num_gpus = 1024: cluster 'h100-nvs8' has nvs=8 \* leaf=2 \* pod=4 \* core=8 = 512 GPUs, 512 too few"
    with pytest.raises(SpecError, match=says):
        Space(problem, [64, 1024], [64])
    with pytest.raises(SpecError, match=says):
        evaluate_plan(problem, ["tp=8", "dp=128"], 1024, 1024)
    # Hardware of several tiers has no names.
    leaves, structure = jax.tree.flatten(problem_on(TREE).hardware)
    assert all(len(leaf) == 1 for leaf in leaves)
    network = problem_on(EQUAL).hardware.network
    named = replace(problem_on(TREE).hardware.network, tiers=network.tiers)
    assert jax.tree.structure(named) == jax.tree.structure(network)
    assert "leaf" not in str(structure)
