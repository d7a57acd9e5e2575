"""``dsx partition``: the optimal cut of a model, or of a table of layers, into pipeline stages."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import dsx
from dsx.cli import options
from dsx.cli.printing import print_answer
from dsx.errors import InputError


class Recompute(StrEnum):
    """Whether the forward of every layer is recomputed before its backward."""

    none = "none"
    full = "full"
    best = "best"


class Optimizer(StrEnum):
    """The optimizer, which keeps state in addition to the parameters."""

    none = "none"
    adam = "adam"


class ZeroStage(StrEnum):
    """The stages of ZeRO, as option values."""

    zero = "0"
    one = "1"
    two = "2"
    three = "3"


def partition(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COLUMN=VALUE...]",
            help="With --model: columns that are fixed to these values, as in tp=8 cp=2 zero_stage=1,3.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model: cut its best plan.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Cluster, with --model.")] = None,
    num_gpus: Annotated[
        int | None, typer.Option("--num-gpus", parser=options.count, metavar="N", help="GPUs, with --model.")
    ] = None,
    global_batch_size: Annotated[
        int | None,
        typer.Option(
            "--global-batch-size", parser=options.count, metavar="N", help="Sequences of one step, with --model."
        ),
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
    strategy: options.Strategies = None,
    framework: options.Framework = None,
    limit: options.Limits = None,
    memory_margin: options.MemoryMargin = None,
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
        typer.Option("--network", metavar="FILE:NAME", help="With --instance: the network NAME in a file (JSON)."),
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
        ZeroStage | None, typer.Option("--zero", help="With --instance: only this ZeRO stage [default: the best].")
    ] = None,
    recompute: Annotated[
        Recompute | None,
        typer.Option("--recompute", help="With --instance: recomputation of the layers [default: best]."),
    ] = None,
    optimizer: Annotated[
        Optimizer | None, typer.Option("--optimizer", help="With --instance: the optimizer [default: adam].")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Cut layers into pipeline stages, exactly.

    With --model, print the plan with the least step time stage by stage. All widths, replicas and pipelines that
    the framework runs are searched, each with its optimal cut.

    With --instance, print the plan of a table of layers with the least step time. All cuts, numbers of stages and
    replicas, widths and ZeRO stages are searched, with and without recomputation. Among equally fast plans the one with
    the fewest stages wins, then the one with the most replicas.
    """
    needed_by_model = {"--cluster": cluster, "--num-gpus": num_gpus, "--global-batch-size": global_batch_size}
    needed_by_table = {"--network": network, "--devices": devices}
    with_model = {"--strategy": strategy, "--sequence-length": sequence_length, "--plot": plot, "--set": assignments}
    with_model |= {"--assumptions": assumptions, "--framework": framework, "--limit": limit}
    with_model |= {"--memory-margin": memory_margin}
    with_table = {"--width": width, "--zero": zero, "--recompute": recompute, "--optimizer": optimizer}
    _refuse_mixed(model, needed_by_model | with_model, instance, needed_by_table | with_table, settings)
    if not (model is None or cluster is None or num_gpus is None or global_batch_size is None):
        if plot is not None:
            dsx.image_format(plot)
        assumption_set = options.DEFAULT_ASSUMPTIONS if assumptions is None else assumptions
        sizes = (num_gpus, global_batch_size, sequence_length)
        job = dsx.Job(model, cluster, *sizes, assumption_set, set=assignments)
        dsx.keep_compiled()
        found = dsx.partition(
            job, settings, limit=limit, strategy=strategy, framework=framework, memory_margin=memory_margin
        )
        if plot is not None:
            found.plot(plot)
        print_answer(found, as_json)
    elif not (instance is None or network is None or devices is None):
        dsx.keep_compiled()
        zero_stages = None if zero is None else (int(zero),)
        choices: dict[str, Any] = {
            "recompute": (recompute or Recompute.best).value,
            "optimizer": (optimizer or Optimizer.adam).value,
        }
        found = dsx.partition_table(instance, network, devices, width=width, zero_stages=zero_stages, **choices)
        print_answer(found, as_json)
    else:
        given, needed = ("--instance", needed_by_table) if model is None else ("--model", needed_by_model)
        missing = [name for name, value in needed.items() if value is None]
        raise InputError(f"missing: {', '.join(missing)}; {given} needs them")


# With --model, the replacement for an option of --instance.
_WITH_MODEL = {
    "--width": "; write the width as a setting, as in tp=8",
    "--zero": "; write the ZeRO stage as a setting, as in zero_stage=3",
    "--recompute": "; write the recomputation as a setting, as in recompute=full",
    "--optimizer": "; the assumption set states the optimizer",
}


def _refuse_mixed(
    model: str | None,
    of_model: dict[str, object],
    instance: str | None,
    of_table: dict[str, object],
    settings: list[str] | None,
) -> None:
    """Raise InputError unless either a model or a table of layers is given, and only with its own options."""
    if (model is None) == (instance is None):
        what = "neither is given" if model is None else "both are given"
        raise InputError(f"--model cuts a model, --instance a table of layers; {what}, give one of them")
    own, foreign = ("--instance", of_model) if model is None else ("--model", of_table)
    for name, value in foreign.items():
        if value is not None:
            raise InputError(f"{name} does not go with {own}{_WITH_MODEL.get(name, '')}")
    if settings and model is None:
        raise InputError(f"{settings[0]!r}: settings fix columns of a --model; for a table use --width and --zero")
