"""``dsx partition``: the best cut of a model, or of a table of layers, into pipeline stages."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.compiled import keep_compiled
from dsx.cli.inputs import load_inputs, split_overrides
from dsx.cli.output import counted, print_table
from dsx.errors import InputError, NothingFeasible
from dsx.layer_table.instance import Instance, read_instance
from dsx.layer_table.network_levels import NetworkLevels, read_network
from dsx.units import format_quantity

if TYPE_CHECKING:
    from dsx.layer_table.partition import Partition
    from dsx.layer_table.problem import PartitionProblem


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
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COLUMN=VALUE...]",
            help="With --model: columns that have these values alone, as in tp=8 cp=2 zero_stage=1,3.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model: cut its best plan.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Cluster, with --model.")] = None,
    num_gpus: Annotated[
        int | None, typer.Option("--num-gpus", parser=options.count, metavar="N", help="GPUs, with --model.")
    ] = None,
    global_batch_size: Annotated[
        int | None,
        typer.Option("--global-batch-size", parser=options.count, metavar="N", help="Sequences of one step, likewise."),
    ] = None,
    sequence_length: options.SequenceLength = None,
    assumptions: Annotated[
        str | None,
        typer.Option(
            "--assumptions",
            metavar="NAME",
            help=f"Assumption set, with --model: a name or a YAML file [default: {options.DEFAULT_ASSUMPTIONS}].",
        ),
    ] = None,
    strategy: options.Strategy = None,
    assignments: options.Assignments = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="With --model: draw the stages (such as .png, .pdf, .svg)."),
    ] = None,
    instance: Annotated[
        str | None, typer.Option("--instance", metavar="FILE", help="Table of layers (JSON), in place of a model.")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", metavar="FILE:NAME", help="With --instance: network of that name in a file (JSON)."),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option("--devices", parser=options.count, metavar="N", help="Devices, as the network lists them."),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option("--width", parser=options.count, metavar="T", help="Only this width of the table [default: all]."),
    ] = None,
    zero: Annotated[
        ZeroStage | None, typer.Option("--zero", help="Of a table, only this stage of ZeRO [default: the best of all].")
    ] = None,
    recompute: Annotated[
        Recompute | None,
        typer.Option("--recompute", help="Whether layers of a table are recomputed [default: best]."),
    ] = None,
    optimizer: Annotated[
        Optimizer | None, typer.Option("--optimizer", help="Of a table: what keeps state [default: adam].")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Cut layers into pipeline stages, exactly.

    With --model: of all widths, replicas and pipelines of a model on a cluster, each cut as is best for it, the plan
    with the least step time is printed stage by stage.

    With --instance, of a table of layers: of all cuts, numbers of stages and replicas, widths, stages of ZeRO, with and
    without recomputation, the plan with the least step time is printed; of equals the one with the fewest stages, then
    with the most replicas.
    """
    of_model = {"--cluster": cluster, "--num-gpus": num_gpus, "--global-batch-size": global_batch_size}
    of_table = {"--network": network, "--devices": devices}
    with_model = {"--strategy": strategy, "--sequence-length": sequence_length, "--plot": plot, "--set": assignments}
    with_model |= {"--assumptions": assumptions}
    with_table = {"--width": width, "--zero": zero, "--recompute": recompute, "--optimizer": optimizer}
    _refuse_mixed(model, of_model | with_model, instance, of_table | with_table, settings)
    if not (model is None or cluster is None or num_gpus is None or global_batch_size is None):
        from dsx.cli.model_partition import partition_model

        beliefs = options.DEFAULT_ASSUMPTIONS if assumptions is None else assumptions
        inputs = load_inputs(model, cluster, beliefs, split_overrides(assignments))
        partition_model(inputs, strategy, num_gpus, global_batch_size, sequence_length, settings or [], plot, as_json)
    elif not (instance is None or network is None or devices is None):
        again, keeps = recompute or Recompute.best, optimizer or Optimizer.adam
        _partition_table(instance, network, devices, width, zero, again, keeps, as_json)
    else:
        given, needed = ("--instance", of_table) if model is None else ("--model", of_model)
        missing = [name for name, value in needed.items() if value is None]
        raise InputError(f"missing: {', '.join(missing)}; {given} needs them")


# What stands in place of an option of a table where a model is cut.
_OF_A_MODEL = {
    "--width": "; there a width is a setting, as in tp=8",
    "--zero": "; there the stage of ZeRO is a setting, as in zero_stage=3",
    "--recompute": "; there recomputation is a setting, as in recompute=full",
    "--optimizer": "; there the assumption set says what keeps state",
}


def _refuse_mixed(
    model: str | None,
    of_model: dict[str, Any],
    instance: str | None,
    of_table: dict[str, Any],
    settings: list[str] | None,
) -> None:
    """Raise InputError unless exactly one of a model and a table of layers is given, with options of its own."""
    if (model is None) == (instance is None):
        what = "neither is given" if model is None else "both are given"
        raise InputError(f"--model cuts a model, --instance a table of layers; {what}, and one is wanted")
    own, foreign = ("--instance", of_model) if model is None else ("--model", of_table)
    for name, value in foreign.items():
        if value is not None:
            raise InputError(f"{name} does not go with {own}{_OF_A_MODEL.get(name, '')}")
    if settings and model is None:
        raise InputError(f"{settings[0]!r}: columns are held fixed with --model; a table has --width and --zero")


def _partition_table(
    instance: str,
    network: str,
    devices: int,
    width: int | None,
    zero: ZeroStage | None,
    recompute: Recompute,
    optimizer: Optimizer,
    as_json: bool,
) -> None:
    table = read_instance(instance)
    levels = read_network(network, devices)
    table = table if width is None else table.only(width)
    keep_compiled()
    from dsx.layer_table.from_instance import problem_of
    from dsx.layer_table.partition import solve
    from dsx.layer_table.segments import OPTIMIZER_FACTORS, STAGES

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
        f"{table.file} on {counted(devices, 'device')} of {levels.name}: "
        f"step {format_quantity(found.step_time_s, 's')}, bottleneck {format_quantity(found.bottleneck_s, 's')}"
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
    from dsx.layer_table.partition import smallest

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
