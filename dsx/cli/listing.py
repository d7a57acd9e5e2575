"""``dsx list``: the names that the other verbs know."""

from enum import StrEnum
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.output import print_json


class Kind(StrEnum):
    """The kinds of names that can be listed."""

    models = "models"
    clusters = "clusters"
    strategies = "strategies"
    layers = "layers"
    assumptions = "assumptions"


def list_names(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="What to list.")],
    as_json: options.Json = False,
) -> None:
    """List models, clusters, strategies, layers or assumption sets."""
    found = dsx.names(kind.value)
    if as_json:
        print_json({kind.value: found})
    else:
        for name in found:
            print(name)
