"""``dsx compare``: where the best plan differs between two result sets, and by how much."""

from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.output import show


def compare(
    folder_a: Annotated[Path, typer.Argument(metavar="DIR_A", help="Folder of a result set, A.")],
    folder_b: Annotated[Path, typer.Argument(metavar="DIR_B", help="Folder of another, B.")],
    per: Annotated[
        list[str] | None,
        typer.Option(
            "--per",
            metavar="COLUMN",
            help="Compare the best for each value of a column; may be repeated "
            "[default: num_gpus, global_batch_size, and the hardware that a set varies].",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print the best plans of two result sets side by side.

    Rows are joined on the candidate, which stands for the same choices on every cluster.
    """
    show(dsx.compare_sets(folder_a, folder_b, per or ()), as_json)
