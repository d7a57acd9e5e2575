"""Copies, stored layers and offload in a search: ids, parts, order of memory, and the best of all rows."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from laws.spaces import MEMORY_PARTS, TIME_PARTS, candidates_of, hardware, on, priced, problem_of

from dsx.plans.choices import CODES, SEARCHED_COLUMNS
from dsx.plans.rules import PLACED
from dsx.pricing.cuts import candidate_columns
from dsx.pricing.keys import price_keys
from dsx.pricing.one_plan import evaluate_plan
from dsx.search.spaces import Space
from dsx.search.sweep import search_of

FIX = {
    "zero_stage": [0, 1, 3], "zero_replicas": [1, 2, 4], "recompute": ["none", "full"], "stored_layers": [0, 1, 3],
    "offload": ["none", "optimizer", "activations", "both"], "schedule": ["1f1b", "zb-h2"], "pp": [1, 2, 4],
}  # fmt: skip
LATER = {"zero_replicas": 1, "stored_layers": 0, "offload": 0}


@cache
def searched():
    problem = on(problem_of("default", ("1d",)).searching(FIX), hardware(hbm_capacity=6e9))
    space = Space(problem, [16], [32], FIX)
    return problem, space, priced(problem, space)


def test_ids_are_unique_and_those_of_before_where_nothing_is_new():
    problem, _, rows = searched()
    assert len(np.unique(rows["candidate"])) == len(rows["candidate"])
    old = {name: values for name, values in FIX.items() if name not in LATER}
    space = Space(
        problem.searching({name: [CODES.get(name, (value,))[0]] for name, value in LATER.items()}), [16], [32], old
    )
    plain = candidate_columns(problem, space.keys, *candidates_of(space))["candidate"]
    same = np.logical_and.reduce([rows[name] == value for name, value in LATER.items()])
    assert 0 < same.sum() < len(same)
    assert set(plain.tolist()) == set(rows["candidate"][same].tolist())


def test_parts_add_up():
    _, _, rows = searched()
    np.testing.assert_allclose(sum(rows[name] for name in TIME_PARTS), rows["step_time_s"], rtol=1e-12)
    np.testing.assert_allclose(sum(rows[name] for name in MEMORY_PARTS), rows["peak_bytes"], rtol=1e-12)
    for name in (*TIME_PARTS, *MEMORY_PARTS):
        assert (rows[name] >= 0).all(), name
        assert np.isfinite(rows[name]).all(), name


def by_plan(rows, column, cost):
    """{the other choices: {value of a column: cost}}"""
    names = [name for name in rows if name not in (column, "candidate", *costs_of(rows))]
    found = {}
    for row in range(len(rows["tp"])):
        others = tuple(int(rows[name][row]) for name in names)
        found.setdefault(others, {})[int(rows[column][row])] = float(rows[cost][row])
    return found


def costs_of(rows):
    return {name for name in rows if rows[name].dtype.kind == "f"}


@pytest.mark.parametrize(
    ("column", "cost", "falls"),
    [
        ("zero_stage", "optimizer_bytes", True),
        ("zero_stage", "gradient_bytes", True),
        ("zero_replicas", "peak_bytes", False),
        ("zero_replicas", "optimizer_s", False),
        ("stored_layers", "activation_bytes", False),
        ("stored_layers", "recompute_s", True),
    ],
)
def test_costs_follow_a_choice(column, cost, falls):
    _, _, rows = searched()
    if cost == "activation_bytes":
        # One that makes nothing again needs nothing beside what it keeps, and two layers on the GPU are two layers.
        plain = (rows["offload"] < 2) & (rows["pp"] < 4)
        rows = {name: values[plain] for name, values in rows.items()}
    compared = 0
    for values in by_plan(rows, column, cost).values():
        ordered = [values[value] for value in sorted(values, reverse=falls)]
        compared += len(ordered) > 1
        for sooner, later in pairwise(ordered):
            assert later >= sooner * (1 - 1e-12)
    assert compared > 100


def test_offload_leaves_less_on_the_gpu():
    _, _, rows = searched()
    for values in by_plan(rows, "offload", "peak_bytes").values():
        none, optimizer, activations, both = (values[code] for code in range(4))
        assert both <= min(optimizer, activations) <= max(optimizer, activations) <= none


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_best_are_those_of_all_rows(precision):
    problem, space, rows = searched()
    fits = rows["peak_bytes"] <= problem.cluster.device.hbm_capacity
    assert 0 < fits.sum() < len(fits)
    per = ["offload", "zero_replicas"]
    found, counts = search_of(problem, space, price_keys(problem, space.keys), precision).best(2, per)
    assert counts.candidates == len(fits)
    groups = {}
    for row in np.flatnonzero(fits).tolist():
        groups.setdefault(tuple(int(rows[name][row]) for name in per), []).append(rows["step_time_s"][row])
    expected = [time for group in sorted(groups) for time in sorted(groups[group])[:2]]
    np.testing.assert_allclose(found["step_time_s"], expected, rtol=1e-12)


def test_a_row_is_an_evaluation():
    problem, _, rows = searched()
    random = np.random.default_rng(1)
    for row in random.choice(len(rows["tp"]), 6, replace=False).tolist():
        plan = {name: int(rows[name][row]) for name in (*PLACED, "microbatch_size", *SEARCHED_COLUMNS)}
        plan |= {name: CODES[name][plan[name]] for name in CODES}
        plan |= {f"nvs.{axis}": int(rows[f"{axis}_nvs"][row]) for axis in PLACED}
        found = evaluate_plan(problem, [f"{name}={value}" for name, value in plan.items()], 16, 32)
        assert [one.reason.name for one in found.broken] in ([], ["memory"])
        assert found.plan["candidate"] == rows["candidate"][row]
        for name in ("step_time_s", "peak_bytes", "optimizer_s"):
            assert found.costs[name] == pytest.approx(float(rows[name][row]), rel=1e-12)
