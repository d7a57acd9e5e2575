"""``dsx show``: a summary of a result set, and its fastest plans."""

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
            "--top", parser=options.count, metavar="N", help="Plans to show [default: 10; with --per, 1 of each]."
        ),
    ] = None,
    per: Annotated[
        list[str] | None,
        typer.Option("--per", metavar="COLUMN", help="Show the fastest for each value of a column; may be repeated."),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option("--candidate", metavar="ID", help="Show the rows of one candidate instead.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print a summary of a result set, and its fastest plans.

    The Megatron-LM launch flags of the first plan follow.

    With --candidate, rows are shown whether they fit or not.
    """
    found = dsx.show(folder, top, per=per or (), candidate=candidate)
    output.show(found, as_json)
    if found.infeasible:
        raise NothingFeasible(found.infeasible)
