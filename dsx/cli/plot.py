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
            "--kind", metavar="KIND", help="front, breakdown, scaling, heatmap [default: what the sweep file says]."
        ),
    ] = None,
    x: Annotated[
        list[str] | None,
        typer.Option("--x", metavar="COLUMN", help="Column along x; of a breakdown several, each with its own --x."),
    ] = None,
    y: Annotated[str | None, typer.Option("--y", metavar="COLUMN", help="Column along y.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="COLUMN", help="What a cell shows [default: step_time_s].")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="One line, or marker, for each of its values.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="VALUE", help="Show how many times faster than this line.")
    ] = None,
) -> None:
    """Draw the fastest plans of a result set.

    breakdown: where their time and memory goes. scaling: the best y along x, one line each. heatmap: the best
    value for each x and y. front: all plans by two objectives, and those that none beats.
    """
    dsx.draw(folder, output, kind, x=x, y=y, value=value, by=by, baseline=baseline)
