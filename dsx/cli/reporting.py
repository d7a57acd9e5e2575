"""``dsx report``: a result set as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.printing import print_answer
from dsx.errors import NothingFeasible


def report(
    folder: options.ResultFolder,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The HTML file.")],
    candidate: Annotated[
        str | None,
        typer.Option("--candidate", metavar="ID", help="Explain the plan of this id [default: the best one]."),
    ] = None,
    hardware: Annotated[
        list[str] | None,
        typer.Option(
            "--hardware",
            metavar="COLUMN=VALUE",
            help="Hardware of its row if the sweep varies it, as in device.hbm_capacity='80 GB'; may be repeated.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write a result set as one HTML file that opens offline.

    It has the question and the answer, pictures, the explanation of the best plan, a table of the 20,000 best rows that
    can be filtered, rejected candidates, assumptions with sources, and what runs it again. It needs plotly: pip install
    'dsx-explorer[report]'.
    """
    found = dsx.report(folder, output, candidate, hardware or ())
    print_answer(found, as_json)
    if found.infeasible:
        raise NothingFeasible(found.infeasible)
