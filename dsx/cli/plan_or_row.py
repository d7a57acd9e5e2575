"""What ``dsx why`` and ``dsx launch`` are about: a plan of a job, stated with options, or a row of a result set."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.errors import InputError

MaybeModel = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model, unless DIR is given.")]
MaybeCluster = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Cluster, unless DIR is given.")]


def is_row(given: Sequence[str], model: str | None) -> bool:
    """Return whether the arguments begin with a result folder, and no option states a job."""
    return model is None and bool(given) and "=" not in given[0]


def check_no_plan(options_given: Mapping[str, object], assumptions: str) -> None:
    """Raise InputError for an option that a row of a result set has from its sweep."""
    given = {**options_given, "--assumptions": None if assumptions == options.DEFAULT_ASSUMPTIONS else assumptions}
    if named := [option for option, value in given.items() if value not in (None, [])]:
        raise InputError(f"{named[0]}: a row of a result set has that of its sweep; leave it out")


def job_of_plan(
    model: str | None,
    cluster: str | None,
    num_gpus: int | None,
    global_batch_size: int | None,
    sequence_length: int | None,
    assumptions: str,
    assignments: list[str] | None,
    row: str,
) -> "dsx.Job":
    """Return the job of a plan; InputError, with how a `row` is given instead, if options that it needs are missing."""
    if model is None or cluster is None or num_gpus is None or global_batch_size is None:
        needed = {"--model": model, "--cluster": cluster, "--num-gpus": num_gpus}
        needed |= {"--global-batch-size": global_batch_size}
        missing = [name for name, value in needed.items() if value is None]
        raise InputError(f"missing: {', '.join(missing)}; a plan needs them; for a row of a result set give {row}")
    return dsx.Job(model, cluster, num_gpus, global_batch_size, sequence_length, assumptions, set=assignments)
