"""``dsx validate``: how far the predictions are from a table of measured runs."""

from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.output import show


def validate(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Table of measured runs.")],
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    as_json: options.Json = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="ROWS.csv", help="Write the times of all rows to this file (replaced)."),
    ] = None,
) -> None:
    """Compare measured runs with what dsx predicts for them.

    A row that cannot be modelled is counted with its reason, a blank cell filled by a documented default. Errors are
    relative; the sources of the table weigh the same in the last line.
    """
    show(dsx.validate(runs, assumptions, output), as_json)
