"""``dsx partition``: the best cut of a table of layers into pipeline stages."""

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.compiled import keep_compiled
from dsx.cli.output import counted, print_table
from dsx.errors import NothingFeasible
from dsx.spec.instance import Instance, NetworkLevels, read_instance, read_network
from dsx.units import format_quantity

if TYPE_CHECKING:
    from dsx.search.partition import Partition
    from dsx.search.partition_problem import PartitionProblem


class Recompute(StrEnum):
    """Whether the forward of every layer is made again before its backward."""

    none = "none"
    full = "full"
    best = "best"


class Optimizer(StrEnum):
    """What keeps state beside the parameters."""

    none = "none"
    adam = "adam"


class ZeroStage(StrEnum):
    """The stages of ZeRO, as they are written."""

    zero = "0"
    one = "1"
    two = "2"
    three = "3"


def partition(
    instance: Annotated[str, typer.Option("--instance", metavar="FILE", help="Table of layers (JSON).")],
    network: Annotated[
        str, typer.Option("--network", metavar="FILE:NAME", help="Network of that name in a file of networks (JSON).")
    ],
    devices: Annotated[
        int, typer.Option("--devices", parser=options.count, metavar="N", help="Devices, as the network lists them.")
    ],
    width: Annotated[
        int | None,
        typer.Option("--width", parser=options.count, metavar="T", help="Only this width of the table [default: all]."),
    ] = None,
    zero: Annotated[
        ZeroStage | None, typer.Option("--zero", help="Only this stage of ZeRO [default: the best of all].")
    ] = None,
    recompute: Annotated[
        Recompute, typer.Option("--recompute", help="Whether layers are recomputed.")
    ] = Recompute.best,
    optimizer: Annotated[Optimizer, typer.Option("--optimizer", help="What keeps state.")] = Optimizer.adam,
    as_json: options.Json = False,
) -> None:
    """Cut layers into pipeline stages, exactly.

    Of all cuts, numbers of stages and replicas, widths, stages of ZeRO, with and without recomputation, the plan with
    the least step time is printed; of equals the one with the fewest stages, then with the most replicas.
    """
    table = read_instance(instance)
    levels = read_network(network, devices)
    table = table if width is None else table.only(width)
    keep_compiled()
    from dsx.cost.segments import OPTIMIZER_FACTORS, STAGES
    from dsx.search.instances import problem_of
    from dsx.search.partition import solve

    problem = problem_of(
        table,
        levels,
        optimizer_factor=OPTIMIZER_FACTORS[optimizer.value],
        zero_stages=STAGES if zero is None else (int(zero),),
        recompute=(False, True) if recompute is Recompute.best else (recompute is Recompute.full,),
    )
    found = solve(problem)
    if found is None:
        raise NothingFeasible(_why_nothing(problem, devices))
    if as_json:
        # The form is one that other tools read too, and has no schema version.
        print(json.dumps(_data(found, table), indent=2))
    else:
        _print(found, table, levels, devices)


def _data(found: "Partition", table: Instance) -> dict[str, Any]:
    return {
        "t_step_s": found.step_time_s,
        "bottleneck_s": found.bottleneck_s,
        "stages": [
            {
                "layers": stage.num_layers,
                "first_layer": table.layer_ids[stage.first_layer],
                "devices": found.devices_per_stage,
                "first_device": stage.first_device,
                "load_s": stage.load_s,
                "memory_bytes": stage.memory_bytes,
                "parameter_bytes": stage.parameter_bytes,
                "producer_level": stage.producer_level,
            }
            for stage in found.stages
        ],
        "replicas": found.num_replicas,
        "width": found.width,
        "zero_stage": found.zero_stage,
        "recompute": _recompute_text(found.recompute),
    }


def _print(found: "Partition", table: Instance, levels: NetworkLevels, devices: int) -> None:
    print(
        f"{table.file} on {devices} devices of {levels.name}: step {format_quantity(found.step_time_s, 's')}, "
        f"bottleneck {format_quantity(found.bottleneck_s, 's')}"
    )
    print(
        f"{counted(len(found.stages), 'stage')} x {counted(found.num_replicas, 'replica')}, width={found.width} "
        f"zero_stage={found.zero_stage} recompute={_recompute_text(found.recompute)}"
    )
    print()
    rows = [
        [
            f"{number}",
            f"{table.layer_ids[stage.first_layer]}",
            f"{stage.num_layers}",
            f"{stage.first_device}",
            f"{found.devices_per_stage}",
            format_quantity(stage.load_s, "s"),
            format_quantity(stage.memory_bytes, "bytes"),
            format_quantity(stage.parameter_bytes, "bytes"),
            "-" if stage.producer_level is None else f"{stage.producer_level}",
        ]
        for number, stage in enumerate(found.stages, 1)
    ]
    header = ["stage", "first\nlayer", "layers", "first\ndevice", "devices", "load", "memory", "parameters"]
    print_table([*header, "level of link\nto producer"], rows, text=())


def _why_nothing(problem: "PartitionProblem", devices: int) -> str:
    """Return what is short, and by how much."""
    from dsx.search.partition import smallest

    least = smallest(problem)
    if least is None:
        fewest = min(width.devices_per_stage for width in problem.widths)
        return f"no plan: a stage takes {counted(fewest, 'device')} at least, and there are {devices}"
    short = least.memory_bytes - problem.device_bytes
    return (
        f"no plan fits: the one that needs least memory needs {format_quantity(least.memory_bytes, 'bytes')} on a "
        f"device, which has {format_quantity(problem.device_bytes, 'bytes')}: {format_quantity(short, 'bytes')} short, "
        f"{least.memory_bytes:.0f} bytes against {problem.device_bytes:.0f} "
        f"({counted(least.num_stages, 'stage')} x {counted(least.num_replicas, 'replica')}, width={least.width} "
        f"zero_stage={least.zero_stage} recompute={_recompute_text(least.recompute)}); try more devices"
    )


def _recompute_text(recompute: bool) -> str:
    return (Recompute.full if recompute else Recompute.none).value
