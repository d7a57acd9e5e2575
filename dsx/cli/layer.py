"""``dsx layer``: everything that dsx derives from a layer definition."""

from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.output import show


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
    show(dsx.layer(name, *(settings or ()), **given), as_json)
