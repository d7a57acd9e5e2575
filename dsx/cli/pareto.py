"""``dsx pareto``: the Pareto front of a result set."""

from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.output import print_json
from dsx.errors import NothingFeasible

_OBJECTIVES = ["step_time_s", "peak_bytes"]


def pareto(
    folder: options.ResultFolder,
    objectives: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            metavar="COLUMN",
            help="Column to minimise, or -COLUMN to maximise; give one or more [default: step_time_s, peak_bytes].",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Also draw the first two objectives (such as .png, .pdf, .svg)."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print the plans that no other plan beats in every objective."""
    found = dsx.front(folder, objectives or _OBJECTIVES, plot)
    if as_json:
        print_json(found.to_data())
    if found.infeasible:
        raise NothingFeasible(found.infeasible)
    if not as_json:
        print(found)
