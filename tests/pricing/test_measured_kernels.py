"""Measured operator times in a plan, and rows without use."""

from dataclasses import replace

import numpy as np
import pytest
from laws.spaces import problem_of, space_of
from priced import evaluate_plan

from dsx.config.operator_files import OperatorTime, OperatorTimes
from dsx.cost.measured_kernels import EXACT, EXTRAPOLATED, INTERPOLATED, UNKNOWN, Measurable, times_table
from dsx.notation.library import load_operators
from dsx.pricing.measured_share import _number, coverage, idle_rows, kernels_to_measure
from dsx.pricing.one_plan import operator_costs


def of_kernels_alone(problem):
    """Return the problem with a host that issues kernels without delay, and gradients that cost no accumulation."""
    nothing = 0.0 * problem.assumptions.dispatch_latency
    changed = {"dispatch_latency": nothing, "accumulation_traffic_per_parameter": nothing}
    return replace(problem, assumptions=replace(problem.assumptions, **changed))


PROBLEM = of_kernels_alone(problem_of("default", ("1d",)))
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


def test_rows_between_others_and_of_no_kernel():
    assert coverage(PROBLEM, evaluate(PROBLEM).plan) is None
    # A time between two rows is between their efficiencies.
    rows = [("gelu", 0, (tokens, 4608, 0, 0), "", seconds) for tokens, seconds in ((1024, 1e-3), (4096, 8e-3))]
    (one,) = coverage(with_rows(*rows), evaluate(PROBLEM).plan).kernels
    assert (one.kernel, one.how, one.row, one.shape) == ("feed-forward.u", INTERPOLATED, None, (2048, 4608, 0, 0))
    assert one.time_s == pytest.approx((1e-3 * 8e-3) ** 0.5)
    # A row of no kernel is idle.
    problem = with_rows(
        ("einsum", None, (2048, 4608, 3072, 1), "fp8", 1e-3),
        ("einsum", None, (2048, 4608, 3000, 1), "", 1e-3),
        ("attention", 0, (8, 8, 0, 0), "", 1e-3),
        ("layernorm", 0, (1024, 3072, 0, 0), "", 1e-3),
        ("norm", 0, (1024, 3072, 0, 0), "", 1e-3),
    )
    assert [row.line for row in idle_rows(problem)] == [2, 4, 5]
    assert coverage(problem, evaluate(problem).plan).idle == idle_rows(problem)
    assert idle_rows(PROBLEM) == ()


def test_a_plan_with_only_measured_kernels_takes_their_time():
    plan = evaluate(PROBLEM).plan
    listed = kernels_to_measure(PROBLEM, plan)
    problem = with_rows(*((operator, direction, shape, "", 1e-3) for operator, direction, shape in listed))
    evaluation = evaluate(problem)
    covered = coverage(problem, evaluation.plan)
    assert (covered.number(EXACT), covered.shares[EXACT], covered.idle) == (covered.num_kernels, pytest.approx(1), ())
    # Twelve multiplies and ten other kernels of either direction, in each layer for each microbatch.
    assert covered.num_kernels == 22
    times = 12 * evaluation.plan["num_microbatches"]
    assert evaluation.costs["compute_s"] == pytest.approx(times * 22e-3)
    parts = [kernel[name] for kernel in operator_costs(problem, plan) for name in ("forward", "backward")]
    assert sum(part["compute_s"] for part in parts) == pytest.approx(22e-3)
    assert sum(part["memory_s"] for part in parts) == 0


def test_the_step_changes_as_much_as_its_kernels():
    problem = with_rows(("einsum", None, (2048, 4608, 3072, 1), "bf16", 5e-3), ("norm", 0, (7, 7, 0, 0), "", 1e-6))
    plain, changed = evaluate(PROBLEM), evaluate(problem)
    covered = coverage(problem, changed.plan)
    assert [(one.kernel, one.direction, one.row.line) for one in covered.kernels if one.how == EXACT] == [
        ("feed-forward.z", 0, 2),
        ("feed-forward.output", 1, 2),
    ]
    # The other ten multiplies and both norms of the forward.
    assert (covered.number(EXTRAPOLATED), covered.number(INTERPOLATED)) == (12, 0)
    grown = sum(one.time_s - one.roofline_s for one in covered.kernels)
    busy = [run.costs["compute_s"] + run.costs["memory_s"] for run in (plain, changed)]
    assert busy[1] - busy[0] == pytest.approx(12 * plain.plan["num_microbatches"] * grown, rel=1e-9)
    assert changed.plan == plain.plan
    assert 0 < covered.shares[EXACT] < covered.shares[EXACT] + covered.shares[EXTRAPOLATED] < 1


def test_keys_and_kernels_of_tables():
    space = space_of("default", strategies=("1d",))
    rows = (("norm", 0, (tokens, 3072, 0, 0), "", 1e-2) for tokens in (256, 512, 1024, 2048))
    plain, changed = (space.table(problem)[0].forward_s for problem in (PROBLEM, with_rows(*rows)))
    grown = changed - plain
    tokens = space.keys["microbatch_size"] * (2048 // space.keys["tp"])
    some = np.isin(tokens, (256, 512, 1024, 2048))
    assert 0 < some.sum() < some.size
    assert np.allclose(grown[:, some], 0.02, rtol=0.05)
    assert (grown[:, ~some] > 0.01).all()
    # A kernel is counted as itself or as its multiplies.
    shape = np.zeros((4, 1))
    kernel, *multiplies = (Measurable("x", 0, 1, multiply, 2, shape) for multiply in (None, 0, 1))
    other = Measurable("y", 1, 1, None, 2, shape)
    assert _number([(kernel, EXACT), (other, UNKNOWN), *((one, UNKNOWN) for one in multiplies)]) == 2
    assert _number([(kernel, UNKNOWN), (other, UNKNOWN), (multiplies[0], EXACT), (multiplies[1], UNKNOWN)]) == 3
