"""``dsx calibrate``: an assumption set fitted to measured runs."""

from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.output import show


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
    show(dsx.calibrate(runs, output, assumptions=assumptions, specialise=specialise), as_json)
