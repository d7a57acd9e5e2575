"""``dsx clusters show``: the tiers of a cluster's network, and the times of collectives on them."""

from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options, output

app = typer.Typer(name="clusters", help="Look at a cluster.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def clusters() -> None:
    """Look at a cluster."""


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Cluster: a name (dsx list clusters) or a YAML file.")],
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw the times; the suffix decides the format.")
    ] = None,
    sets: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Print the tiers of a cluster, and the times of an all-reduce and an all-to-all on them.

    A group fills the tiers from the innermost one outwards. Sizes are those of the tensor on each GPU.
    """
    if plot is not None:
        dsx.image_format(plot)
    found = dsx.cluster_times(name, assumptions, set=sets or ())
    if plot is not None:
        found.plot(plot)
    output.show(found, as_json)
