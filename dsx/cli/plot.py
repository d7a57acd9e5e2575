"""``dsx plot``: a picture of a result set, as the sweep asks for it or as the options say."""

from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options


def plot(
    folder: options.ResultFolder,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The picture (such as .png, .pdf, .svg).")
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", metavar="KIND", help="front, breakdown, scaling, heatmap [default: that of the sweep file]."
        ),
    ] = None,
    x: Annotated[
        list[str] | None,
        typer.Option("--x", metavar="COLUMN", help="Column along x; for a breakdown, may be repeated."),
    ] = None,
    y: Annotated[str | None, typer.Option("--y", metavar="COLUMN", help="Column along y.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="COLUMN", help="Column shown in the cells [default: step_time_s].")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="Draw one line, or marker, for each value of a column.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="VALUE", help="Show the speed-up over the line of this value.")
    ] = None,
) -> None:
    """Draw the fastest plans of a result set.

    breakdown: the parts of their time and memory. scaling: the best y along x, one line each. heatmap: the best value
    for each x and y. front: all plans by two objectives, and their Pareto front.
    """
    dsx.draw(folder, output, kind, x=x, y=y, value=value, by=by, baseline=baseline)
