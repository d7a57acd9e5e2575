"""``dsx best``: the fastest plans of a model on a cluster."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.compiled import keep_compiled
from dsx.cli.inputs import load_inputs, split_overrides
from dsx.cli.job import job_text, step_text
from dsx.cli.launch import launch_data, launch_of, print_launch
from dsx.cli.nothing import why_nothing
from dsx.cli.operator_times import coverage_data, idle_data, print_coverage, print_idle, print_shares
from dsx.cli.output import counted, cut_text, print_json, print_table, quantity, shares
from dsx.cli.pipelines import say_few_pipelines
from dsx.cli.placement import print_placement
from dsx.errors import NothingFeasible
from dsx.printable import printable
from dsx.units import format_quantity

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem
    from dsx.pricing.rows import Counts


def best(
    model: options.Model,
    cluster: options.Cluster,
    num_gpus: options.NumGpus,
    global_batch_size: options.GlobalBatchSize,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    partition: options.PartitionOption = options.Partition.even,
    top: Annotated[int, typer.Option("--top", parser=options.count, metavar="N", help="How many plans to show.")] = 5,
    operator_times: options.OperatorTimes = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price every plan of one strategy; print the fastest.

    The launch flags of the first one follow, for Megatron-LM. To compare strategies, sweep them: `dsx sweep` of a
    file with `strategy: [1d, 2d]`.

    Some choices are not searched but held fixed, as in --set assumptions.fixed.offload=optimizer: zero_stage,
    zero_replicas, recompute, stored_layers, schedule, vpp and offload. A sweep searches those that its `fix` lists.
    The order of ranks is searched where the network has tiers beyond fast domain and cluster.
    """
    inputs = load_inputs(model, cluster, assumptions, split_overrides(assignments), operator_times=operator_times)
    from dsx.pricing.evaluate import priced_plans
    from dsx.pricing.layers import price_keys
    from dsx.pricing.measured_kernels import coverage, idle_rows, shapes_of
    from dsx.search.search import search_of
    from dsx.search.space import Space
    from dsx.search.study import Study

    keep_compiled()
    problem = inputs.problem([strategy] if strategy else [], sequence_length, partition=partition.value)
    say_few_pipelines(problem)
    space = Space(problem, [num_gpus], [global_batch_size])
    table = price_keys(problem, space.keys)
    rows, counts = search_of(problem, space, table).best(top)
    plans = priced_plans(problem, rows)
    times = problem.operator_times
    idle = idle_rows(times, shapes_of(problem, space.keys)) if times else ()
    covered = [found for plan in plans if (found := coverage(problem, plan["plan"]))]
    if as_json:
        described = [
            plan | {"launch": launch_data(launch_of(plan["plan"], problem, inputs.cluster.device))} for plan in plans
        ]
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
        raise NothingFeasible(why_nothing([Study(problem, space, 0, {})], problem))
    if not as_json:
        print_searched(problem, num_gpus, global_batch_size, counts)
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
        print_placement(plans[0]["plan"], problem, "plan 1: ")
        print_launch(launch_of(plans[0]["plan"], problem, inputs.cluster.device), "plan 1")


def print_searched(problem: "Problem", num_gpus: int, global_batch_size: int, counts: "Counts") -> None:
    """Print what a search was asked, and how many plans it priced."""
    print(
        f"{job_text(problem, num_gpus)}: {counted(counts.candidates, 'candidate')} of one strategy, "
        f"{printable(problem.strategies[0])}; {counts.feasible:,} feasible"
    )
    print(step_text(global_batch_size, problem.sequence_length))


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
    more = "; plans that are not shown may be as near (--top)" if close[-1] == len(plans) else ""
    return f"{which} within {100 * told_apart:.2g} % of plan 1: the measurements do not tell {them} apart{more}"


# The parts of a step that a table of plans shows, and the columns that each adds up; all parts are in one of them.
SHARES = {
    "compute": ("compute_s", "memory_s"),
    "recompute": ("recompute_s",),
    "communication": ("tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s"),
    "bubble": ("bubble_s",),
    "optimizer": ("optimizer_s",),
}
_WHERE_THERE = ("recompute", "optimizer")


def print_plans(plans: list[dict[str, Any]], with_settings: bool = False, hardware: Collection[str] = ()) -> None:
    """Print plans with their time, memory and what dominates.

    The settings are shown on demand; of the hardware what varies from plan to plan, and the columns `hardware`. The
    shares of a step add up to 100 %; recomputation and optimizer have a column where some plan has such a share.
    """
    settings = ("num_gpus", "global_batch_size", "strategy") if with_settings else ()
    shown = [*(name for name in plans[0].get("hardware", ()) if name in hardware or _varies(plans, name))]
    titles = [*map(hardware_title, shown), *(["GPUs", "batch", "strategy"] if settings else [])]
    parts = [
        shares([sum(plan[name] for name in names) for names in SHARES.values()], plan["step_time_s"]) for plan in plans
    ]
    named = [
        (at, title)
        for at, title in enumerate(SHARES)
        if title not in _WHERE_THERE or any(part[at] not in ("0 %", "-") for part in parts)
    ]
    cut = any("stage_layers" in plan["plan"] for plan in plans)
    stages = ["layers of stages"] if cut else []
    header = ["", *titles, "step", "MFU", "memory", *(title for _, title in named), *stages, "plan"]
    rows = []
    for number, (plan, part) in enumerate(zip(plans, parts, strict=True), 1):
        rows.append(
            [
                f"{number}",
                *(hardware_text(name, plan["hardware"][name]) for name in shown),
                *(str(plan["plan"][name]) for name in settings),
                format_quantity(plan["step_time_s"], "s"),
                quantity("mfu", plan["mfu"]),
                format_quantity(plan["peak_bytes"], "bytes"),
                *(part[at] for at, _ in named),
                *([cut_text(plan["plan"]["stage_layers"])] if cut else []),
                plan["plan"].text,
            ]
        )
    text = ("cluster", "strategy", *stages, "plan")
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
