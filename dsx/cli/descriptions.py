"""``dsx list``, ``layer``, ``clusters`` and ``import-hf``: descriptions of models, layers and clusters."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import dsx
from dsx.cli import options
from dsx.cli.printing import print_answer, print_json
from dsx.errors import did_you_mean
from dsx.plain_data import versioned

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
