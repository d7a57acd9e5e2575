"""Choices that are searched, and rows of sweeps, are those of each plan alone."""

from functools import cache
from itertools import pairwise
from textwrap import dedent

import numpy as np
import pytest
from laws.spaces import (
    MEMORY_PARTS,
    SETS,
    TIME_PARTS,
    assert_rows_equal,
    candidates_of,
    hardware,
    on,
    priced,
    problem_of,
    space_of,
)
from priced import evaluate_plan
from search.sweeps import run, study_of

from dsx.cost.context import StepCosts
from dsx.plans.choices import CODES, SEARCHED_COLUMNS
from dsx.plans.rules import PLACED
from dsx.pricing.cuts import candidate_columns, joined
from dsx.search.spaces import Space
from dsx.search.sweep import Sweep, search_of

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


def test_ids_parts_and_memory_of_searched_choices():
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
    # Parts add up.
    _, _, rows = searched()
    np.testing.assert_allclose(sum(rows[name] for name in TIME_PARTS), rows["step_time_s"], rtol=1e-12)
    np.testing.assert_allclose(sum(rows[name] for name in MEMORY_PARTS), rows["peak_bytes"], rtol=1e-12)
    for name in (*TIME_PARTS, *MEMORY_PARTS):
        assert (rows[name] >= 0).all(), name
        assert np.isfinite(rows[name]).all(), name
    # Offload leaves less on the gpu.
    for values in by_plan(rows, "offload", "peak_bytes").values():
        none, optimizer, activations, both = (values[code] for code in range(4))
        assert both <= min(optimizer, activations) <= max(optimizer, activations) <= none


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


@pytest.mark.sampled(0)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_best_are_those_of_all_rows(precision):
    problem, space, rows = searched()
    fits = rows["peak_bytes"] <= problem.cluster.device.hbm_capacity
    assert 0 < fits.sum() < len(fits)
    per = ["offload", "zero_replicas"]
    found, counts = search_of(problem, space, space.table(problem), precision).best(2, per)
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


AXES = ("tp", "tp2", "cp", "pp", "dp")


@pytest.mark.sampled(0)
@pytest.mark.parametrize("assumptions", SETS)
def test_rows_are_evaluations(assumptions):
    problem, space = problem_of(assumptions), space_of(assumptions)
    parts = run(Sweep([study_of(problem, space)], "all", "float64", 500))
    assert [len(parts[number][0]["tp"]) for number in range(len(parts) - 1)] == [500] * (len(parts) - 1)
    rows = joined([parts[number][0] for number in range(len(parts))])
    assert len(rows["tp"]) == space.size
    for row in range(0, len(rows["tp"]), len(rows["tp"]) // 40):
        plan = {name: int(column[row]) for name, column in rows.items() if column.dtype.kind == "i"}
        settings = [f"{name}={plan[name]}" for name in (*AXES, "microbatch_size", "panels")]
        settings += [f"nvs.{axis}={plan[f'{axis}_nvs']}" for axis in AXES]
        alone = problem_of(assumptions, (problem.strategies[plan["strategy"]],))
        evaluation = evaluate_plan(alone, settings, plan["num_gpus"], plan["global_batch_size"])
        assert evaluation.plan["candidate"] == plan["candidate"]
        assert evaluation.plan["num_microbatches"] == plan["num_microbatches"]
        names = StepCosts.__dataclass_fields__
        costs = {name: evaluation.costs[name] for name in names}
        assert costs == pytest.approx({name: float(rows[name][row]) for name in names}, rel=1e-12, nan_ok=True)
        assert evaluation.fits == (plan["reject"] == 0)
        # An enumerated candidate breaks no rule but that of memory.
        assert [violation.reason.name for violation in evaluation.broken] == ([] if evaluation.fits else ["memory"])


# The weights of the first multiplies are divided over cp and gathered where they are used, so their gradients are not
# reduced over it: two groups of weights.
TWO_GROUPS = """
    strategy two-groups
    role rs = s/cp/tp  role re = e      role is = s/cp    role ie = e
    role wi = e/cp     role wf = f/tp   role wc = c/tp    role hg = g/tp
    role uf = f/tp     role vf = f/tp   role ve = e       role oe = e
    role hm = m/tp     role um = m/tp   role vm = m/tp
    require h % tp == 0     heads_not_divisible
    require e % (cp*tp) == 0 hidden_size_not_divisible
    require s % (cp*tp) == 0 sequence_not_divisible
"""


def test_rows_do_not_depend_on_what_else_is_searched(tmp_path):
    file = tmp_path / "two-groups.layer"
    file.write_text(dedent(TWO_GROUPS))
    strategies = ("1d", str(file), "summa")
    problem = problem_of("default", strategies)
    rows = priced(problem, Space(problem, [24], [48]))
    assert Space(problem, [24], [48]).table(problem)[0].weight_bytes.shape[1] == 2
    for code, strategy in enumerate(strategies):
        alone = problem_of("default", (strategy,))
        expected = priced(alone, Space(alone, [24], [48]))
        found = {name: column[rows["strategy"] == code] for name, column in rows.items()}
        order, wanted = np.argsort(found["candidate"]), np.argsort(expected["candidate"])
        assert len(order) > 50
        assert_rows_equal(
            {name: column[order] for name, column in found.items() if name != "strategy"},
            {name: column[wanted] for name, column in expected.items() if name != "strategy"},
            1e-12,
        )
