"""Measured operator times in a plan, and rows without use."""

from dataclasses import replace

import numpy as np
import pytest
from laws.spaces import problem_of, space_of

from dsx.cost.operator_times import NONE, Measurable, times_table
from dsx.graph.library import load_operators
from dsx.pricing.evaluate import evaluate_plan, operator_costs
from dsx.pricing.layers import price_keys
from dsx.pricing.measured_kernels import _number, coverage, idle_rows, kernels_to_measure, shapes_of
from dsx.spec.operator_times import OperatorTime, OperatorTimes


def without_host_delays(problem):
    """Return the problem with a host that issues all kernels without delay."""
    at_once = replace(problem.assumptions, dispatch_latency=0.0 * problem.assumptions.dispatch_latency)
    return replace(problem, assumptions=at_once)


PROBLEM = without_host_delays(problem_of("default", ("1d",)))
PLAN = ("tp=2", "dp=12", "nvs.tp=2", "nvs.dp=4")


def with_rows(*rows):
    listed = [
        OperatorTime(line, operator, (0, 1) if direction is None else (direction,), shape, dtype, time_s)
        for line, (operator, direction, shape, dtype, time_s) in enumerate(rows, 2)
    ]
    operators = load_operators(PROBLEM.assumptions_spec.operators)
    table = times_table(OperatorTimes("times.csv", tuple(listed)), operators, {"attention"})
    return replace(PROBLEM, operator_times=table)


def evaluate(problem):
    return evaluate_plan(problem, PLAN, 24, 24)


def test_no_coverage_without_times():
    assert coverage(PROBLEM, evaluate(PROBLEM).plan) is None


def test_a_plan_with_only_measured_kernels_takes_their_time():
    plan = evaluate(PROBLEM).plan
    listed = kernels_to_measure(PROBLEM, plan)
    problem = with_rows(*((operator, direction, shape, "", 1e-3) for operator, direction, shape in listed))
    evaluation = evaluate(problem)
    covered = coverage(problem, evaluation.plan)
    assert (len(covered.kernels), covered.share, covered.idle) == (covered.num_kernels, pytest.approx(1), ())
    # Twelve multiplies and ten other kernels of either direction, in each layer for each microbatch.
    assert covered.num_kernels == 22
    times = 12 * evaluation.plan["num_microbatches"]
    assert evaluation.costs["compute_s"] == pytest.approx(times * 22e-3)
    parts = [kernel[name] for kernel in operator_costs(problem, plan) for name in ("forward", "backward")]
    assert sum(part["compute_s"] for part in parts) == pytest.approx(22e-3)
    assert sum(part["memory_s"] for part in parts) == 0


def test_the_step_changes_as_much_as_its_kernels():
    problem = with_rows(("einsum", None, (2048, 4608, 3072, 1), "bf16", 5e-3), ("norm", 0, (7, 7, 0, 0), "", 1.0))
    plain, changed = evaluate(PROBLEM), evaluate(problem)
    covered = coverage(problem, changed.plan)
    assert [(one.kernel, one.direction, one.row.line) for one in covered.kernels] == [
        ("feed-forward.z", 0, 2),
        ("feed-forward.output", 1, 2),
    ]
    grown = sum(one.row.time_s - one.roofline_s for one in covered.kernels)
    busy = [run.costs["compute_s"] + run.costs["memory_s"] for run in (plain, changed)]
    assert busy[1] - busy[0] == pytest.approx(12 * plain.plan["num_microbatches"] * grown, rel=1e-9)
    assert changed.plan == plain.plan
    assert 0 < covered.share < 1


def test_a_row_without_a_match_has_the_nearest_shape():
    problem = with_rows(
        ("einsum", None, (2048, 4608, 3072, 1), "fp8", 1e-3),
        ("einsum", None, (4608, 2048, 3072, 1), "", 1e-3),
        ("einsum", None, (2048, 4608, 3000, 1), "", 1e-3),
        ("norm", 0, (1000, 3072, 0, 0), "", 1e-3),
        ("attention", 0, (8, 8, 0, 0), "", 1e-3),
        ("layernorm", 0, (1024, 3072, 0, 0), "", 1e-3),
        ("norm", 0, (1024, 3072, 0, 0), "", 1e-3),
    )
    idle = coverage(problem, evaluate(problem).plan).idle
    assert [one.row.line for one in idle] == [2, 3, 4, 5, 6, 7]
    mlp, norm = (2048, 4608, 3072, 1), (1024, 3072, 0, 0)
    assert [one.nearest for one in idle] == [mlp, mlp, mlp, norm, None, None]


def test_shapes_of_a_space_are_those_of_its_plans():
    problem, space = problem_of("default"), space_of("default")
    shapes = shapes_of(problem, space.keys)
    assert ("norm", 1, 2) in shapes
    assert (2048 // 8, 3072, 0, 0) in shapes[("norm", 0, 2)]
    (row,) = with_rows(("norm", 0, (2048 // 8, 3072, 0, 0), "", 1e-3)).operator_times.rows
    assert idle_rows(with_rows(("norm", 0, row.shape, "", 1e-3)).operator_times, shapes) == ()


def test_a_table_of_keys_is_priced_with_them():
    space = space_of("default", strategies=("1d",))
    rows = (("norm", 0, (tokens, 3072, 0, 0), "", 1e-2) for tokens in (256, 512, 1024, 2048))
    plain, changed = (price_keys(problem, space.keys)[0].forward_s for problem in (PROBLEM, with_rows(*rows)))
    grown = changed - plain
    some = np.isin(space.keys["microbatch_size"] * (2048 // space.keys["tp"]), (256, 512, 1024, 2048))
    assert 0 < some.sum() < some.size
    assert (grown[:, some] > 0.019).all()
    assert (grown[:, ~some] == 0).all()


def test_a_kernel_is_counted_as_itself_or_as_its_multiplies():
    shape = np.zeros((4, 1))
    kernel, *multiplies = (Measurable("x", 0, 1, multiply, 2, shape) for multiply in (None, 0, 1))
    other = Measurable("y", 1, 1, None, 2, shape)
    assert _number([(kernel, 5), (other, NONE), *((one, NONE) for one in multiplies)]) == 2
    assert _number([(kernel, NONE), (other, NONE), (multiplies[0], 5), (multiplies[1], NONE)]) == 3
