"""Options that several verbs share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.errors import SpecError
from dsx.units import parse_count

DEFAULT_ASSUMPTIONS = "default"


class Partition(StrEnum):
    """How layers are cut into the stages of a pipeline."""

    even = "even"
    optimal = "optimal"


def count(text: str) -> int:
    """Return an option's value as a whole number of at least 1."""
    try:
        return parse_count(text)
    except SpecError as error:
        raise typer.BadParameter(str(error)) from error


Model = Annotated[str, typer.Option("--model", metavar="NAME", help="Model: a name (dsx list models) or a YAML file.")]
Cluster = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="Cluster: a name (dsx list clusters) or a YAML file.")
]
NumGpus = Annotated[int, typer.Option("--num-gpus", parser=count, metavar="N", help="GPUs of the job.")]
GlobalBatchSize = Annotated[
    int, typer.Option("--global-batch-size", parser=count, metavar="N", help="Sequences of one step.")
]
SequenceLength = Annotated[
    int | None,
    typer.Option(
        "--sequence-length", parser=count, metavar="N", help="Tokens of a sequence [default: what the model says]."
    ),
]
AssumptionSet = Annotated[
    str, typer.Option("--assumptions", metavar="NAME", help="Assumption set: a name or a YAML file.")
]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy", metavar="NAME", help="Strategy: a name or a .layer file [default: what the assumption set says]."
    ),
]
OperatorTimes = Annotated[
    str | None,
    typer.Option(
        "--operator-times",
        metavar="FILE",
        help="Measured times of kernels by operator and local shape (CSV), in place of the roofline.",
    ),
]
PartitionOption = Annotated[
    Partition,
    typer.Option("--partition", help="How layers are cut into stages: evenly, or as is best for each plan."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Override a field, as in cluster.device.hbm_capacity='141 GB' or model.dimensions.e=8192.",
    ),
]


def job(
    model: str,
    cluster: str,
    num_gpus: int,
    global_batch_size: int,
    sequence_length: int | None,
    assumptions: str,
    assignments: list[str] | None,
    operator_times: str | None = None,
) -> "dsx.Job":
    """Return the job that the options of a verb state."""
    sizes = (num_gpus, global_batch_size, sequence_length)
    return dsx.Job(model, cluster, *sizes, assumptions, set=assignments, operator_times=operator_times)


ResultFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a result set.")]
