"""``dsx import-hf``: a model file from the config.json of a Hugging Face checkpoint."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.output import print_json


def import_hf(
    config_file: Annotated[
        str, typer.Argument(metavar="CONFIG", help="The config.json of a checkpoint for the transformers library.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Model file to write [default: print it].")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
    as_json: options.Json = False,
) -> None:
    """Make a model file from a Hugging Face config.json.

    The command lists the keys that it did not use, those that would change the cost first. It counts the parameters of
    the model, and compares them with the published total if that is known.
    """
    found = dsx.import_hf(config_file, output, overwrite=overwrite)
    if as_json:
        print_json(found.to_data())
        return
    print(found)
    if output is None:
        # stdout holds the model file alone, so the report goes to stderr.
        for line in found.report:
            print(f"dsx: {line}", file=sys.stderr)
