"""Descriptions, partitions and placements: ``dsx list``, ``layer``, ``clusters``, ``import-hf``, ``partition``,
``place``.

``dsx list``, ``layer``, ``clusters`` and ``import-hf``: descriptions of models, layers and clusters.

``dsx partition``: the optimal cut of a model, or of a table of layers, into pipeline stages.

``dsx place``: the operators of a training step on the GPUs of a small cluster.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import dsx
from dsx.cli import options
from dsx.cli.options import print_answer, print_json
from dsx.errors import InputError, did_you_mean
from dsx.text import versioned

clusters_app = typer.Typer(name="clusters", help="Look at a cluster.", no_args_is_help=True, rich_markup_mode=None)


class Kind(StrEnum):
    """The kinds of names that can be listed."""

    models = "models"
    clusters = "clusters"
    strategies = "strategies"
    layers = "layers"
    assumptions = "assumptions"
    stacks = "stacks"
    frameworks = "frameworks"


def _kind(text: str) -> Kind:
    known = [kind.value for kind in Kind]
    if text not in known:
        stated = ", ".join(map(repr, known))
        raise typer.BadParameter(f"{text!r} is not one of {stated}{did_you_mean(text, known)}")
    return Kind(text)


def list_names(
    kind: Annotated[Any, typer.Argument(parser=_kind, metavar="KIND", help=f"What to list: {', '.join(Kind)}.")],
    as_json: options.Json = False,
) -> None:
    """List models, clusters, layers, strategies or other files."""
    found = dsx.names(kind.value)
    if as_json:
        print_json(versioned({kind.value: found}))
    else:
        for name in found:
            print(name)


def layer(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A layer or block: a name (dsx list layers) or a .layer file.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SETTING",
            help="Options, as in gated, and block parameters, as in ffn=experts [default: those of the first such "
            "layers of --model].",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Strategy that fills in the roles [default, if there are roles: that of the assumption set].",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=NUMBER", help="Size of a dimension or degree, as in tp=8, s=2048, b=1."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Model that gives the dimensions.")
    ] = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    as_json: options.Json = False,
) -> None:
    """Show the work, collectives and memory that follow from a layer.

    The output has its options and block parameters, operators with their local shapes, FLOPs and bytes of each kernel,
    collectives, saved tensors, weights and the rules of the strategy. A quantity is a number if all its dimensions have
    a size, else a formula.
    """
    given = {"strategy": strategy, "sizes": assignments, "model": model, "assumptions": assumptions}
    print_answer(dsx.layer(name, *(settings or ()), **given), as_json)


@clusters_app.callback()
def clusters() -> None:
    """Look at a cluster."""


@clusters_app.command("show")
def show_cluster(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Cluster: a name (dsx list clusters) or a YAML file.")],
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw the times; the suffix decides the format.")
    ] = None,
    sets: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Print the tiers of a cluster, and the times of an all-reduce and an all-to-all on them.

    A group fills the tiers from the innermost one outwards. Sizes are those of the tensor on each GPU.
    """
    if plot is not None:
        dsx.image_format(plot)
    found = dsx.cluster_times(name, assumptions, set=sets or ())
    if plot is not None:
        found.plot(plot)
    print_answer(found, as_json)


def import_hf(
    config_file: Annotated[
        str, typer.Argument(metavar="CONFIG", help="The config.json of a checkpoint for the transformers library.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Model file to write [default: print it].")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
    as_json: options.Json = False,
) -> None:
    """Make a model file from a Hugging Face config.json.

    The command lists the keys that it did not use, those that would change the cost first. It counts the parameters of
    the model, and compares them with the published total if that is known.
    """
    found = dsx.import_hf(config_file, output, overwrite=overwrite)
    if as_json:
        print_json(found.to_data())
        return
    print(found)
    if output is None:
        # stdout holds the model file alone, so the report goes to stderr.
        for line in found.report:
            print(f"dsx: {line}", file=sys.stderr)


class RecomputeOption(StrEnum):
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
        RecomputeOption | None,
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
            "recompute": (recompute or RecomputeOption.best).value,
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


class Bandwidth(StrEnum):
    """How servers share what their network cards send."""

    uniform = "uniform"
    joint = "joint"


class Emit(StrEnum):
    """What a bandwidth allocation is written for."""

    ovs = "ovs"


def place(
    graph: Annotated[
        str | None,
        typer.Argument(
            metavar="[GRAPH]",
            help="Graph of operators: a JSON file, or FILE.py:NAME, a function that returns (step, shapes) of JAX. "
            "FILE.py is run as it is: give only one that you trust.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="In place of a graph: the layers of one microbatch of a model."),
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", parser=options.count, metavar="N", help="GPUs to place operators on.")
    ] = None,
    inter: Annotated[
        str | None, typer.Option("--inter", metavar="BANDWIDTH", help="Between any two servers, as in 25GB/s.")
    ] = None,
    intra: Annotated[
        str | None, typer.Option("--intra", metavar="BANDWIDTH", help="Between the GPUs of a server, as in 50GB/s.")
    ] = None,
    gpus_per_server: Annotated[
        int | None,
        typer.Option("--gpus-per-server", parser=options.count, metavar="N", help="GPUs of a server [default: 1]."),
    ] = None,
    latency: Annotated[
        str | None, typer.Option("--latency", metavar="TIME", help="Of each transfer, as in 5us [default: none].")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Of a GPU, as in 16GB [default: no limit].")
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option("--speeds", metavar="LIST", help="Speed of each GPU, as in 1,1,0.5,0.5 [default: 1 each]."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME", help="Cluster that gives links, latency, memory and operator times."),
    ] = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    bandwidth: Annotated[
        Bandwidth | None,
        typer.Option("--bandwidth", help="Share what servers send uniformly, or as the placement needs."),
    ] = None,
    nics: Annotated[
        int | None, typer.Option("--nics", parser=options.count, metavar="N", help="Network cards of a server.")
    ] = None,
    nic_bandwidth: Annotated[
        str | None,
        typer.Option("--nic-bandwidth", metavar="BANDWIDTH", help="Of a card, as in 10Gb/s [default: --inter]."),
    ] = None,
    time_limit: Annotated[str, typer.Option("--time-limit", metavar="TIME", help="Of the search.")] = "60s",
    gap: Annotated[
        float,
        typer.Option(
            "--gap", parser=options.share, metavar="SHARE", help="Enough once within this share of the shortest step."
        ),
    ] = 0.05,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the search.")] = 0,
    emit: Annotated[
        Emit | None, typer.Option("--emit", help="Write commands that give servers their bandwidths: Open vSwitch.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR", help="Folder of --emit.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw devices and transfers (such as .png, .svg).")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Place the operators of a step on several GPUs.

    Operators that do not need each other then run at once.

    Prints the step time, a bound that no placement of the graph goes below, and what HEFT, METIS, MCMC and one device
    give. Ctrl-C ends the search and prints the best so far.
    """
    if (emit is None) != (out is None):
        raise InputError("--emit and -o belong together: what is written, and the folder")
    if emit is not None and nics is None:
        raise InputError("--emit ovs needs --nics, the network cards whose bandwidth is shared out")
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"-o {str(out)!r} is a file: name a folder for the scripts")
    if plot is not None:
        dsx.image_format(plot)
    dsx.keep_compiled()
    found = dsx.place(
        graph,
        devices,
        inter,
        intra=intra,
        gpus_per_server=gpus_per_server,
        latency=latency,
        memory=memory,
        speeds=speeds,
        model=model,
        cluster=cluster,
        assumptions=assumptions,
        bandwidth=None if bandwidth is None else bandwidth.value,
        nics=nics,
        nic_bandwidth=nic_bandwidth,
        time_limit=time_limit,
        gap=gap,
        seed=seed,
    )
    print_answer(found, as_json)
    if plot is not None:
        found.plot(plot)
    if out is not None:
        found.write_ovs(out)
