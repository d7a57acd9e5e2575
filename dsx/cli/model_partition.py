"""``dsx partition --model``: the best plan of all widths of a model on a cluster, stage by stage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.cli.best import print_searched
from dsx.cli.compiled import keep_compiled
from dsx.cli.inputs import Inputs
from dsx.cli.launch import launch_data, launch_of, print_launch
from dsx.cli.nothing import why_nothing
from dsx.cli.output import note, print_json, quantity
from dsx.cli.placement import print_placement
from dsx.cli.stages import bottleneck, print_stages, stages_data
from dsx.errors import NothingFeasible
from dsx.units import format_quantity

if TYPE_CHECKING:
    from dsx.pricing.plan_stages import PlanStage


def partition_model(
    inputs: Inputs,
    strategy: str | None,
    num_gpus: int,
    global_batch_size: int,
    sequence_length: int | None,
    settings: Sequence[str],
    picture: Path | None,
    as_json: bool,
) -> None:
    """Print the fastest plan with the cut that is best for it; `settings` hold columns fixed, as in tp=8.

    Raises PlanError for a setting that no plan can have, NothingFeasible if no plan fits.
    """
    keep_compiled()
    from dsx.pricing.cuts import cuts_of_text
    from dsx.pricing.evaluate import priced_plans
    from dsx.pricing.layers import price_keys
    from dsx.pricing.plan_stages import stages_of_plan
    from dsx.search.search import search_of
    from dsx.search.space import Space
    from dsx.search.study import Study
    from dsx.space.codes import OPTIMAL
    from dsx.space.plan_settings import fixed_settings

    if picture is not None:
        from dsx.results.plot.file import image_format

        image_format(picture)
    stated = inputs.problem([strategy] if strategy else [], sequence_length, partition=OPTIMAL)
    fix = fixed_settings(settings, num_gpus, stated.limits())
    problem = stated.opening(fix)
    space = Space(problem, [num_gpus], [global_batch_size], fix)
    if not space.size:
        raise NothingFeasible(why_nothing([Study(problem, space, 0, {})], stated, settings=fix))
    rows, counts = search_of(problem, space, price_keys(problem, space.keys)).best(1)
    if not counts.feasible:
        raise NothingFeasible(why_nothing([Study(problem, space, 0, {})], stated, settings=fix))
    (plan,) = priced_plans(problem, rows)
    (cut,) = cuts_of_text([plan["plan"]["stage_layers"]], int(problem.workload.stack.num_layers))
    found = stages_of_plan(problem, rows, cut)
    slowest = bottleneck(found)
    if picture is not None:
        _draw(inputs, plan, found, [tier.name for tier in problem.cluster.network.tiers], picture)
    if as_json:
        data: dict[str, Any] = plan | {"bottleneck_s": slowest.load_s, "candidates": counts.candidates}
        data |= {"feasible": counts.feasible, "stages": stages_data(plan["plan"], found)}
        print_json(data | {"launch": launch_data(launch_of(plan["plan"], problem, inputs.cluster.device))})
        return
    print_searched(problem, num_gpus, global_batch_size, counts)
    print(
        f"step {quantity('step_time_s', plan['step_time_s'])}, bottleneck {format_quantity(slowest.load_s, 's')} of a "
        f"microbatch, of which a replica has {plan['plan']['num_microbatches']}; bubble "
        f"{quantity('bubble_s', plan['bubble_s'])}, memory {quantity('peak_bytes', plan['peak_bytes'])}"
    )
    print(f"{plan['plan'].text} ({_held(plan['plan'])})")
    print()
    print_placement(plan["plan"], problem)
    print_stages(plan["plan"], found)
    print()
    print_launch(launch_of(plan["plan"], problem, inputs.cluster.device), "the plan")


def _held(plan: Mapping[str, Any]) -> str:
    """Return how the plan holds its state, and what it makes again."""
    return f"schedule={plan['schedule']} zero_stage={plan['zero_stage']} recompute={plan['recompute']}"


def _draw(inputs: Inputs, plan: dict[str, Any], found: "Sequence[PlanStage]", tiers: Sequence[str], path: Path) -> None:
    from dsx.results.plot.file import save
    from dsx.results.plot.stages import placement_of, stages

    made = plan["plan"]
    title = (
        f"{inputs.model.name} on {made['num_gpus']} x {inputs.cluster.name}: "
        f"step {format_quantity(plan['step_time_s'], 's')}\n{made.text}"
    )
    save(stages(found, placement_of(made, tiers), title), path)
    note(f"wrote {path}")
