"""``dsx partition``: the best cut of a model, or of a table of layers, into pipeline stages."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import dsx
from dsx.cli import options
from dsx.cli.output import show
from dsx.errors import InputError


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
        if plot is not None:
            dsx.image_format(plot)
        beliefs = options.DEFAULT_ASSUMPTIONS if assumptions is None else assumptions
        job = options.job(model, cluster, num_gpus, global_batch_size, sequence_length, beliefs, assignments)
        dsx.keep_compiled()
        found = dsx.partition(job, settings, strategy=strategy)
        if plot is not None:
            found.plot(plot)
        show(found, as_json)
    elif not (instance is None or network is None or devices is None):
        dsx.keep_compiled()
        stages = None if zero is None else (int(zero),)
        states: dict[str, Any] = {
            "recompute": (recompute or Recompute.best).value,
            "optimizer": (optimizer or Optimizer.adam).value,
        }
        cut = dsx.partition_table(instance, network, devices, width=width, zero_stages=stages, **states)
        # The form is one that other tools read too, and has no schema version.
        print(json.dumps(cut.to_data(), indent=2) if as_json else cut)
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
