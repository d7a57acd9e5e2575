"""``dsx layer``: everything that is derived from a layer definition."""

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
            help="Options, as in gated, and block parameters, as in ffn=experts [default: what --model sets for the "
            "first such layers].",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Strategy that fills in the roles [default, if there are any: what the assumption set says].",
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
    """Show what follows from a layer: work, collectives, memory.

    That is: its options and block parameters, operators with their local shapes, FLOPs and bytes of each kernel,
    collectives, saved tensors, weights and the rules of the strategy. Quantities whose names all have a size are
    numbers; the others stay formulas.
    """
    given = {"strategy": strategy, "sizes": assignments, "model": model, "assumptions": assumptions}
    show(dsx.layer(name, *(settings or ()), **given), as_json)
