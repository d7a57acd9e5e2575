"""``dsx validate`` and ``dsx calibrate``: compare an assumption set with measured runs, or fit one to them."""

from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.printing import print_answer


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
    print_answer(dsx.validate(runs, assumptions, output), as_json)


def calibrate(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Table of measured runs.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="SET.yaml", help="Write the assumption set to this file.")
    ],
    assumptions: Annotated[
        str | None,
        typer.Option("--assumptions", metavar="NAME", help="Assumption set to begin with [default: default]."),
    ] = None,
    specialise: Annotated[
        str | None,
        typer.Option("--specialise", metavar="NAME", help="Adapt this set to a few runs, instead of fitting it."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fit an assumption set to measured runs.

    The fit changes the numbers that state `between`; every source of the table has the same weight. --specialise adapts
    a few numbers to one cluster and framework, for which a single run is enough. Outliers, whose times no cluster
    explains together with the other rows, are named and left out. A file that a fit wrote is replaced, any other kept.
    """
    dsx.keep_compiled()
    print_answer(dsx.calibrate(runs, output, assumptions=assumptions, specialise=specialise), as_json)
