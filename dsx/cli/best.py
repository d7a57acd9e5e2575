"""``dsx best``: the fastest plans of a model on a cluster."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.inputs import load_inputs, split_overrides
from dsx.cli.output import counted, plan_text, print_json, print_table, quantity, share
from dsx.cli.progress import progress
from dsx.errors import NothingFeasible
from dsx.units import format_quantity

if TYPE_CHECKING:
    from dsx.search.problem import Problem
    from dsx.search.space import Space


def best(
    model: options.Model,
    cluster: options.Cluster,
    num_gpus: options.NumGpus,
    global_batch_size: options.GlobalBatchSize,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    top: Annotated[int, typer.Option("--top", parser=options.count, metavar="N", help="How many plans to show.")] = 5,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price every plan and print the fastest ones that fit."""
    inputs = load_inputs(model, cluster, assumptions, split_overrides(assignments))
    from dsx.search.best import best as search
    from dsx.search.devices import use_all_cores
    from dsx.search.evaluate import priced_plans
    from dsx.search.pricing import price_keys
    from dsx.search.space import Space

    use_all_cores()
    problem = inputs.problem([strategy] if strategy else [], sequence_length)
    space = Space(problem, [num_gpus], [global_batch_size])
    table = price_keys(problem, space.keys)
    rows, counts = search(problem, space.keys, table, space.blocks(), top)
    plans = priced_plans(problem, rows)
    if as_json:
        print_json({"candidates": counts.candidates, "feasible": counts.feasible, "plans": plans})
    if not plans:
        raise NothingFeasible(why_nothing(problem, space, counts.candidates))
    if not as_json:
        print(
            f"{inputs.model.name} on {num_gpus} x {inputs.cluster.name}, {problem.strategies[0]}: "
            f"{counted(counts.candidates, 'candidate')}, {counts.feasible:,} feasible"
        )
        print_plans(plans)


def print_plans(plans: list[dict[str, Any]], with_settings: bool = False) -> None:
    """Print plans with their time, memory and what dominates; `with_settings` where those differ."""
    settings = ["GPUs", "batch", "strategy"] if with_settings else []
    header = ["", *settings, "step", "MFU", "memory", "compute", "communication", "bubble", "plan"]
    rows = []
    for number, plan in enumerate(plans, 1):
        step = plan["step_time_s"]
        comm = sum(plan[name] for name in ("tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s"))
        rows.append(
            [
                f"{number}",
                *([str(plan["plan"][n]) for n in ("num_gpus", "global_batch_size", "strategy")] if settings else []),
                format_quantity(step, "s"),
                quantity("mfu", plan["mfu"]),
                format_quantity(plan["peak_bytes"], "bytes"),
                share(plan["compute_s"] + plan["memory_s"], step),
                share(comm, step),
                share(plan["bubble_s"], step),
                plan_text(plan["plan"]),
            ]
        )
    print_table(header, rows, text=[header.index(name) for name in ("strategy", "plan") if name in header])


def why_nothing(problem: "Problem", space: "Space", candidates: int) -> str:
    """Return why no plan is left, and what comes nearest."""
    from dsx.search.evaluate import priced_plans
    from dsx.search.sweep import smallest

    gpus = " or ".join(map(str, space.bounds.num_gpus))
    if not candidates:
        batches = " or ".join(map(str, space.bounds.global_batch_size))
        return (
            f"no candidate: the rules of {' and '.join(problem.strategies)}, with what is fixed or limited, leave no "
            f"combination of degrees for {gpus} GPUs and global_batch_size={batches} (pp must divide the "
            f"{problem.num_layers} layers, dp the batch)"
        )
    with progress(candidates, "looking for the smallest") as advance:
        plan = priced_plans(problem, smallest(problem, space, advance))[0]
    capacity = problem.cluster.device.hbm_capacity
    return (
        f"none of {counted(candidates, 'candidate')} fits: the one that needs least memory needs "
        f"{format_quantity(plan['peak_bytes'], 'bytes')}, and a GPU has {format_quantity(capacity, 'bytes')} "
        f"({plan['plan']['num_gpus']} GPUs, {plan_text(plan['plan'])}); "
        "try more GPUs, or what more memory would change: --set cluster.device.hbm_capacity='...'"
    )
