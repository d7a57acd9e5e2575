"""``dsx show``: what a result set is, and its fastest plans."""

from typing import Annotated

import typer

import dsx
from dsx.cli import options, output
from dsx.errors import NothingFeasible


def show(
    folder: options.ResultFolder,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", parser=options.count, metavar="N", help="Plans to show [default: 10; with --per 1 of each]."
        ),
    ] = None,
    per: Annotated[
        list[str] | None,
        typer.Option("--per", metavar="COLUMN", help="Show the fastest of each value of a column; may be repeated."),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option("--candidate", metavar="ID", help="Show the rows of one candidate instead.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print what a result set is, and its fastest plans.

    The launch flags of the first plan follow, for Megatron-LM.

    A row that is looked up with --candidate is shown whether it fits or not.
    """
    found = dsx.show(folder, top, per=per or (), candidate=candidate)
    output.show(found, as_json)
    if found.infeasible:
        raise NothingFeasible(found.infeasible)
