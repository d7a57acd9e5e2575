"""``dsx evaluate``: the cost of one plan."""

from typing import Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.compiled import keep_compiled
from dsx.cli.inputs import load_inputs, split_overrides
from dsx.cli.operator_times import coverage_data, print_coverage, print_shapes, shapes_data
from dsx.cli.output import plan_text, print_json, print_table, quantity, share
from dsx.cli.placement import print_placement
from dsx.units import format_quantity


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
    operator_times: options.OperatorTimes = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price one plan, also one that breaks rules or does not fit."""
    inputs = load_inputs(model, cluster, assumptions, split_overrides(assignments), operator_times=operator_times)
    keep_compiled()
    from dsx.search.evaluate import evaluate_plan, operator_costs
    from dsx.search.measured_kernels import coverage, kernels_to_measure

    problem = inputs.problem([strategy] if strategy else [], sequence_length)
    result = evaluate_plan(problem, settings or [], num_gpus, global_batch_size)
    kernels = operator_costs(problem, result.plan) if operators else []
    shapes = shapes_data(kernels_to_measure(problem, result.plan)) if operators else []
    covered = coverage(problem, result.plan)
    if as_json:
        data: dict[str, Any] = {"plan": result.plan} | result.costs
        data |= {"fits": result.fits, "reject": [violation.reason.name for violation in result.broken]}
        data |= {"operators": kernels, "shapes": shapes} if operators else {}
        print_json(data | ({"operator_times": coverage_data(covered)} if covered else {}))
        return
    print(
        f"{inputs.model.name} on {num_gpus} x {inputs.cluster.name}, {problem.strategies[0]}: {plan_text(result.plan)}"
    )
    print()
    print_placement(result.plan, problem)
    print_costs(result.costs)
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
    if operators:
        print()
        print_operators(kernels)
        print()
        print_shapes(shapes)


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
