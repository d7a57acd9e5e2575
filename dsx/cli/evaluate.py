"""``dsx evaluate``: the cost of one plan."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.compiled import keep_compiled
from dsx.cli.inputs import load_inputs, split_overrides
from dsx.cli.job import job_text, step_text
from dsx.cli.operator_times import coverage_data, print_coverage, print_shapes, shapes_data
from dsx.cli.output import print_json, print_table, quantity, share
from dsx.cli.placement import print_filled, print_placement
from dsx.cli.stages import print_stages, stages_data
from dsx.errors import NothingFeasible
from dsx.printable import printable
from dsx.units import format_quantity

if TYPE_CHECKING:
    from dsx.pricing.evaluate import Evaluation
    from dsx.pricing.measured_kernels import Coverage
    from dsx.pricing.problem import Problem
    from dsx.space.plan import Plan


def evaluate(
    model: options.Model,
    cluster: options.Cluster,
    num_gpus: options.NumGpus,
    global_batch_size: options.GlobalBatchSize,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="COLUMN=VALUE", help="The plan, as in tp=8 pp=64 dp=32 nvs.tp=8."),
    ] = None,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    operators: Annotated[bool, typer.Option("--operators", help="Show every operator of a layer.")] = False,
    partition: options.PartitionOption = options.Partition.even,
    operator_times: options.OperatorTimes = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price one plan, also one that breaks rules or does not fit.

    The exit code of such a plan is 3.

    A plan has degrees (tp, tp2, cp, ep, pp, dp), microbatch_size and panels, which are 1 where they are left out, and
    the share of each degree in a fast domain (nvs.tp). Shares that are left out are filled in rank order, tp innermost,
    as far as the domain has room, unless the assumption set says otherwise. Further choices, else as the assumption set
    has them: vpp, zero_stage (0 to 3), zero_replicas (copies of what ZeRO divides), recompute (none, selective, full),
    stored_layers (layers of a stage that recompute leaves out), schedule (1f1b, gpipe, zb-h1, zb-h2), offload (none,
    optimizer, activations, both), order (of ranks: tp-cp-ep-dp-pp, tp-cp-ep-pp-dp).
    """
    inputs = load_inputs(
        model, cluster, assumptions, split_overrides(assignments, states_plan=True), operator_times=operator_times
    )
    keep_compiled()
    from dsx.pricing.evaluate import evaluate_plan, operator_costs
    from dsx.pricing.measured_kernels import coverage, kernels_to_measure

    problem = inputs.problem([strategy] if strategy else [], sequence_length, partition=partition.value)
    result = evaluate_plan(problem, settings or [], num_gpus, global_batch_size)
    kernels = operator_costs(problem, result.plan) if operators else []
    shapes = shapes_data(kernels_to_measure(problem, result.plan)) if operators else []
    covered = coverage(problem, result.plan)
    if as_json:
        data: dict[str, Any] = {"plan": result.plan} | result.costs
        data |= {"fits": result.fits, "reject": [violation.reason.name for violation in result.broken]}
        data |= {"stages": stages_data(result.plan, result.stages)} if result.stages else {}
        data |= {"operators": kernels, "shapes": shapes} if operators else {}
        print_json(data | ({"operator_times": coverage_data(covered)} if covered else {}))
    else:
        _print(problem, result, covered)
        if operators:
            print()
            print_operators(kernels)
            print()
            print_shapes(shapes)
    if result.broken:
        sys.stdout.flush()
        raise NothingFeasible(f"the plan is rejected: {', '.join(one.reason.name for one in result.broken)}")


def _print(problem: "Problem", result: "Evaluation", covered: "Coverage | None") -> None:
    print_plan(problem, result.plan)
    print_filled(result)
    print()
    print_placement(result.plan, problem)
    print_costs(result.costs)
    print()
    if result.stages:
        print_stages(result.plan, result.stages)
        print()
    if result.broken:
        print("rejected:")
        for violation in result.broken:
            print(f"  {violation.reason.name}: {violation.detail}")
    else:
        print("fits, and breaks no rule")
    if covered:
        print()
        print_coverage(covered)


def print_plan(problem: "Problem", plan: "Plan") -> None:
    """Print a plan, and the job that it is of."""
    strategy = printable(problem.strategies[0])
    print(f"{job_text(problem, plan['num_gpus'])}, {strategy}: {plan.text}")
    print(step_text(plan["global_batch_size"], plan["sequence_length"]))


def print_costs(costs: dict[str, float]) -> None:
    """Print a step's time and memory, part by part."""
    for whole, unit in (("step_time_s", "_s"), ("peak_bytes", "_bytes")):
        total = costs[whole]
        parts = [n for n in costs if n.endswith(unit) and n != whole and not n.endswith("_per_s")]
        rows = [[name, quantity(name, costs[name]), share(costs[name], total, 1)] for name in parts]
        print_table(["", "", "share"], [*rows, [whole, quantity(whole, total), share(total, total, 1)]])
        print()
    if costs["step_time_s_low"] == costs["step_time_s_low"]:
        low, high = (quantity(name, costs[name]) for name in ("step_time_s_low", "step_time_s_high"))
        print(f"80 % interval of step_time_s: {low} to {high}")
        print()
    rest = [name for name in ("mfu", "tokens_per_s", "training_days") if costs[name] == costs[name]]
    print_table(["", ""], [[name, quantity(name, costs[name])] for name in rest])


def print_operators(kernels: list[dict[str, Any]]) -> None:
    """Print the kernels of one layer for one microbatch."""
    print("one layer, one microbatch:")
    figures = ("matrix FLOP", "vector FLOP", "HBM traffic", "compute", "memory", "communication", "saved")
    rows: list[list[str]] = []
    for kernel in kernels:
        for direction in ("forward", "backward"):
            part = kernel[direction]
            comm = part["tp_comm_s"] + part["cp_comm_s"] + part["ep_comm_s"]
            if not kernel["counted"] and not comm:
                continue
            rows.append(
                [
                    kernel["name"],
                    direction,
                    f"{part['matrix_flops']:.4g}",
                    f"{part['vector_flops']:.4g}",
                    format_quantity(part["bytes"], "bytes"),
                    format_quantity(part["compute_s"], "s"),
                    format_quantity(part["memory_s"], "s"),
                    format_quantity(comm, "s"),
                    format_quantity(kernel["saved_bytes"], "bytes") if direction == "forward" else "",
                ]
            )
    print_table(["", "", *figures], rows, text=(0, 1))
