"""``dsx why``: what speaks against a plan, or what it spends its time on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.compiled import keep_compiled
from dsx.cli.evaluate import print_costs, print_plan
from dsx.cli.inputs import load_inputs, split_overrides
from dsx.cli.output import counted, print_json
from dsx.cli.placement import print_filled, print_placement
from dsx.cli.result_row import row_of
from dsx.cli.stages import print_stages, stages_data
from dsx.errors import InputError
from dsx.units import format_quantity

if TYPE_CHECKING:
    from dsx.pricing.evaluate import Evaluation
    from dsx.pricing.problem import Problem


def why(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COLUMN=VALUE... | DIR CANDIDATE [COLUMN=VALUE...]",
            help="The plan, as in tp=8 pp=64 dp=32; or a result folder and a candidate id of it, and, where the sweep "
            "varies the hardware, which, as in device.hbm_capacity='80 GB'.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model, unless DIR is given.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Cluster, likewise.")] = None,
    num_gpus: Annotated[
        int | None, typer.Option("--num-gpus", parser=options.count, metavar="N", help="GPUs of the job.")
    ] = None,
    global_batch_size: Annotated[
        int | None,
        typer.Option("--global-batch-size", parser=options.count, metavar="N", help="Sequences of one step."),
    ] = None,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    partition: options.PartitionOption = options.Partition.even,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Explain a plan: the rules that it breaks, its time, its memory.

    The plan is written out, with model, cluster, GPUs and batch as options, or is a row of a result set.
    """
    from dsx.pricing.evaluate import evaluate_plan, price_plan

    given = list(settings or [])
    if model is None and given and "=" not in given[0]:
        if len(given) < 2 or "=" in given[1] or not all("=" in choice for choice in given[2:]):
            raise InputError(
                f"{' '.join(given)!r}: give a result folder and one candidate id, or a plan as in tp=8 pp=64"
            )
        row = row_of(Path(given[0]), given[1], given[2:])
        length = row.plan["sequence_length"]
        problem = row.inputs.problem([row.strategy], length, row.train_tokens, row.partition).opening(row.opened)
        keep_compiled()
        _explain(problem, price_plan(problem, row.plan), as_json)
    else:
        missing = [
            name
            for name, value in (
                ("--model", model),
                ("--cluster", cluster),
                ("--num-gpus", num_gpus),
                ("--global-batch-size", global_batch_size),
            )
            if value is None
        ]
        if model is None or cluster is None or num_gpus is None or global_batch_size is None:
            raise InputError(
                f"missing: {', '.join(missing)}; a plan needs them, a row of a result set is DIR CANDIDATE alone"
            )
        inputs = load_inputs(model, cluster, assumptions, split_overrides(assignments, states_plan=True))
        problem = inputs.problem([strategy] if strategy else [], sequence_length, partition=partition.value)
        keep_compiled()
        _explain(problem, evaluate_plan(problem, given, num_gpus, global_batch_size), as_json)


def _explain(problem: "Problem", result: "Evaluation", as_json: bool) -> None:
    from dsx.pricing.evaluate import priced_plans
    from dsx.pricing.layers import price_keys
    from dsx.search.search import search_of
    from dsx.search.space import Space

    space = Space(problem, [result.plan["num_gpus"]], [result.plan["global_batch_size"]])
    rows, counts = search_of(problem, space, price_keys(problem, space.keys)).best(1)
    fastest = next(iter(priced_plans(problem, rows)), None)
    if as_json:
        violations = [{"reason": v.reason.name, "detail": v.detail} for v in result.broken]
        data: dict[str, Any] = {"plan": result.plan} | result.costs
        data |= {"fits": result.fits, "reject": [v.reason.name for v in result.broken]}
        data |= {"stages": stages_data(result.plan, result.stages)} if result.stages else {}
        print_json(data | {"why": violations, "best": fastest, "candidates": counts.candidates})
        return
    print_plan(problem, result.plan)
    print_filled(result)
    if result.broken:
        print(f"is rejected, for {len(result.broken)} reason{'s' if len(result.broken) > 1 else ''}:")
        for violation in result.broken:
            print(f"  {violation.reason.name}: {violation.detail}")
    else:
        print("fits, and breaks no rule.")
    print()
    print_placement(result.plan, problem)
    print_costs(result.costs)
    print()
    if result.stages:
        print_stages(result.plan, result.stages)
        print()
    if fastest is None:
        print(f"Of {counted(counts.candidates, 'candidate')} of this strategy none fits.")
    elif fastest["plan"]["candidate"] == result.plan["candidate"]:
        print(f"It is the fastest of {counted(counts.candidates, 'candidate')}, {counts.feasible:,} of them feasible.")
    else:
        ratio = result.costs["step_time_s"] / fastest["step_time_s"]
        print(
            f"The fastest of {counted(counts.feasible, 'feasible candidate')} of this job and strategy takes "
            f"{format_quantity(fastest['step_time_s'], 's')} ({fastest['plan'].text}); "
            f"this plan takes {ratio:.3g} times as long."
        )
