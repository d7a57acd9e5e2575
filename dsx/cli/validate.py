"""``dsx validate``: the errors of the predictions for a table of measured runs."""

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
    """Compare measured runs with the predictions of dsx.

    Rows that cannot be modelled are counted by reason; missing values have documented defaults. Errors are relative; in
    the last line every source of the table has the same weight.
    """
    show(dsx.validate(runs, assumptions, output), as_json)
