"""``dsx best``: the fastest plans of a model on a cluster."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.compiled import keep_compiled
from dsx.cli.inputs import load_inputs, split_overrides
from dsx.cli.launch import launch_data, launch_of, print_launch
from dsx.cli.operator_times import coverage_data, idle_data, print_coverage, print_idle, print_shares
from dsx.cli.output import counted, plan_text, print_json, print_table, quantity, share
from dsx.cli.placement import print_placement
from dsx.cli.progress import progress
from dsx.errors import NothingFeasible
from dsx.units import format_quantity

if TYPE_CHECKING:
    from dsx.search.study import Study


def best(
    model: options.Model,
    cluster: options.Cluster,
    num_gpus: options.NumGpus,
    global_batch_size: options.GlobalBatchSize,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    top: Annotated[int, typer.Option("--top", parser=options.count, metavar="N", help="How many plans to show.")] = 5,
    operator_times: options.OperatorTimes = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price every plan of one strategy; print the fastest.

    The launch flags of the first one follow, for Megatron-LM. To compare strategies, sweep them: `dsx sweep` of a
    file with `strategy: [1d, 2d]`.
    """
    inputs = load_inputs(model, cluster, assumptions, split_overrides(assignments), operator_times=operator_times)
    from dsx.search.best import best as search
    from dsx.search.evaluate import priced_plans
    from dsx.search.measured_kernels import coverage, idle_rows, shapes_of
    from dsx.search.pricing import price_keys
    from dsx.search.space import Space
    from dsx.search.study import Study

    keep_compiled()
    problem = inputs.problem([strategy] if strategy else [], sequence_length)
    space = Space(problem, [num_gpus], [global_batch_size])
    table = price_keys(problem, space.keys)
    rows, counts = search(problem, space, table, top)
    plans = priced_plans(problem, rows)
    times = problem.operator_times
    idle = idle_rows(times, shapes_of(problem, space.keys)) if times else ()
    covered = [found for plan in plans if (found := coverage(problem, plan["plan"]))]
    if as_json:
        described = [plan | {"launch": launch_data(launch_of(plan["plan"], problem))} for plan in plans]
        for plan, found in zip(described, covered, strict=False):
            plan["operator_times"] = coverage_data(found)
        print_json(
            {
                "candidates": counts.candidates,
                "feasible": counts.feasible,
                "told_apart": inputs.assumptions.told_apart,
                "not_told_apart": not_told_apart(plans, inputs.assumptions.told_apart),
                **({"idle_operator_times": idle_data(idle)} if times else {}),
                "plans": described,
            }
        )
    if not plans:
        raise NothingFeasible(why_nothing([Study(problem, space, 0, {})]))
    if not as_json:
        print(
            f"{inputs.model.name} on {num_gpus} x {inputs.cluster.name}: "
            f"{counted(counts.candidates, 'candidate')} of one strategy, {problem.strategies[0]}; "
            f"{counts.feasible:,} feasible"
        )
        print_plans(plans)
        print()
        if remark := told_apart_text(plans, inputs.assumptions.told_apart):
            print(remark)
            print()
        if times:
            print_shares(covered)
            print_coverage(covered[0], "plan 1", with_idle=False)
            print_idle(times.file, idle, "any plan")
            print()
        if problem.cluster.network.middle:
            print("plan 1:", end=" ")
        print_placement(plans[0]["plan"], problem)
        print_launch(launch_of(plans[0]["plan"], problem), "plan 1")


def not_told_apart(plans: Sequence[dict[str, Any]], told_apart: float | None) -> list[int]:
    """Return which of some plans of one job, fastest first and counted from 1, measurements do not tell from the first.

    `told_apart` is the assumption set's bound on the difference, as a share of the step time; None tells nothing.
    """
    if told_apart is None or not plans:
        return []
    most = plans[0]["step_time_s"] * (1 + told_apart)
    return [number for number, plan in enumerate(plans[1:], 2) if plan["step_time_s"] <= most]


def told_apart_text(plans: Sequence[dict[str, Any]], told_apart: float | None) -> str:
    """Return what measurements do not tell apart, in words; empty if there is nothing to say."""
    close = not_told_apart(plans, told_apart)
    if told_apart is None or not close:
        return ""
    which, them = ("plan 2 is", "the two") if len(close) == 1 else (f"plans 2 to {close[-1]} are", "them")
    return f"{which} within {100 * told_apart:.2g} % of plan 1: the measurements do not tell {them} apart"


def print_plans(plans: list[dict[str, Any]], with_settings: bool = False, hardware: Collection[str] = ()) -> None:
    """Print plans with their time, memory and what dominates.

    The settings are shown on demand; of the hardware what varies from plan to plan, and the columns `hardware`.
    """
    settings = ("num_gpus", "global_batch_size", "strategy") if with_settings else ()
    shown = [*(name for name in plans[0].get("hardware", ()) if name in hardware or _varies(plans, name))]
    titles = [*map(hardware_title, shown), *(["GPUs", "batch", "strategy"] if settings else [])]
    header = ["", *titles, "step", "MFU", "memory", "compute", "communication", "bubble", "plan"]
    rows = []
    for number, plan in enumerate(plans, 1):
        step = plan["step_time_s"]
        comm = sum(plan[name] for name in ("tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s"))
        rows.append(
            [
                f"{number}",
                *(hardware_text(name, plan["hardware"][name]) for name in shown),
                *(str(plan["plan"][name]) for name in settings),
                format_quantity(step, "s"),
                quantity("mfu", plan["mfu"]),
                format_quantity(plan["peak_bytes"], "bytes"),
                share(plan["compute_s"] + plan["memory_s"], step),
                share(comm, step),
                share(plan["bubble_s"], step),
                plan_text(plan["plan"]),
            ]
        )
    text = ("cluster", "strategy", "plan")
    print_table(header, rows, text=[header.index(name) for name in text if name in header])


def _varies(plans: list[dict[str, Any]], name: str) -> bool:
    return any(plan["hardware"][name] != plans[0]["hardware"][name] for plan in plans)


def hardware_title(name: str) -> str:
    """Return the title of a hardware column, a path over two lines: "network.nvs." above "bandwidth"."""
    section, dot, field = name.rpartition(".")
    return f"{section}.\n{field}" if dot else name


def hardware_text(name: str, value: Any) -> str:
    """Return a cluster's name, or a what-if value with its unit, for people."""
    from dsx.spec.what_if import field

    return value if isinstance(value, str) else format_quantity(value, field(name).unit)


def why_nothing(studies: "Sequence[Study]") -> str:
    """Return why no plan of any study is left, and what comes nearest."""
    from dsx.search.evaluate import priced_plans
    from dsx.search.sweep import smallest

    problem, bounds = studies[0].problem, studies[0].space.bounds
    searched = [study for study in studies if study.space.size]
    if not searched:
        gpus, batches = (" or ".join(map(str, numbers)) for numbers in (bounds.num_gpus, bounds.global_batch_size))
        return (
            f"no candidate: the rules of {' and '.join(problem.strategies)}, with what is fixed or limited, leave no "
            f"combination of degrees for {gpus} GPUs and global_batch_size={batches} (pp must divide the "
            f"{problem.num_layers} layers, dp the batch)"
        )
    with progress(sum(study.space.size for study in searched), "looking for the smallest") as advance:
        nearest, rows = smallest(searched, advance)
    plan = priced_plans(nearest.problem, rows)[0]
    capacities = [study.problem.hardware.device.hbm_capacity for study in searched]
    largest = max(float(capacity.max()) for capacity in capacities)
    varied = any(capacity.min() < largest for capacity in capacities)
    capacity = f"{'at most ' if varied else ''}{format_quantity(largest, 'bytes')}"
    return (
        f"none of {counted(sum(study.size for study in searched), 'candidate')} fits: the one that needs least memory "
        f"needs {format_quantity(plan['peak_bytes'], 'bytes')}, and a GPU has {capacity} "
        f"({plan['plan']['num_gpus']} GPUs, {plan_text(plan['plan'])}); "
        "try more GPUs, or what more memory would change: --set cluster.device.hbm_capacity='...'"
    )
