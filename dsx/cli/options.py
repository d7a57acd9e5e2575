"""Options that several verbs share, plans or rows as arguments, and how answers are printed.

Options that several verbs share.

What ``dsx why`` and ``dsx launch`` are about: a plan of a job, stated with options, or a row of a result set.

Print an object of the API, as text or as one JSON object.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer

import dsx
from dsx.errors import InputError, SpecError
from dsx.units import parse_count, parse_share, parse_size

T = TypeVar("T")

DEFAULT_ASSUMPTIONS = "default"


class Partitioning(StrEnum):
    """How layers are divided into pipeline stages: evenly, or by the optimal cut of each plan."""

    even = "even"
    optimal = "optimal"


class CutOption(StrEnum):
    """How a search divides layers: by the optimal cut where it is known and evenly elsewhere, or only one of them."""

    any = "any"
    even = "even"
    optimal = "optimal"


def count(text: str) -> int:
    """Return an option's value, such as "512" or "1M", as a whole number of at least 1."""
    return _read(parse_size, text)


def length(text: str) -> int:
    """Return an option's value as a whole number of at least 1, written out: 8k tokens may be 8000 or 8192."""
    return _read(parse_count, text)


def _read(read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except SpecError as error:
        raise typer.BadParameter(str(error)) from error


def counts(text: str) -> list[int]:
    """Return an option's value, such as "512,1024", as whole numbers of at least 1."""
    # A zero after a comma is one of thousands, as in 1,024, which is refused as one number.
    return [count(part) for part in ([text] if re.search(",0[0-9]", text) else text.split(","))]


def names(text: str) -> list[str]:
    """Return an option's value, such as "h100-nvs8,b200-nvs8", as names or files."""
    found = [part.strip() for part in text.split(",")]
    if "" in found and (stated := ",".join(filter(None, found))):
        raise typer.BadParameter(f"{text!r} has no name beside a comma; did you mean {stated!r}?")
    return found


def share(text: str) -> float:
    """Return an option's value as a share from 0 to 1."""
    return _read(parse_share, text)


Model = Annotated[str, typer.Option("--model", metavar="NAME", help="Model: a name (dsx list models) or a YAML file.")]
Cluster = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="Cluster: a name (dsx list clusters) or a YAML file.")
]
SeveralClusters = Annotated[
    Any,
    typer.Option(
        "--cluster",
        parser=names,
        metavar="NAME,NAME",
        help="Cluster: a name (dsx list clusters) or a YAML file; several are ranked.",
    ),
]
_NUM_GPUS = typer.Option("--num-gpus", parser=count, metavar="N", help="GPUs of the job.")
_GLOBAL_BATCH_SIZE = typer.Option("--global-batch-size", parser=count, metavar="N", help="Sequences of one step.")
NumGpus = Annotated[int, _NUM_GPUS]
GlobalBatchSize = Annotated[int, _GLOBAL_BATCH_SIZE]
SeveralNumGpus = Annotated[
    Any,
    typer.Option(
        "--num-gpus",
        parser=counts,
        metavar="N,N",
        help="GPUs of the job; several are ranked. With --train-tokens it may be left out, for powers of two.",
    ),
]
SeveralBatches = Annotated[
    Any,
    typer.Option(
        "--global-batch-size", parser=counts, metavar="N,N", help="Sequences of one step; several are ranked."
    ),
]
TrainTokens = Annotated[
    str | None,
    typer.Option(
        "--train-tokens",
        metavar="N",
        help="Tokens of the whole training, as in 15T: compare numbers of GPUs by days and cost.",
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline", metavar="TIME", help="Choose the cheapest plan that trains --train-tokens in it, as in 60d."
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="USD",
        help="Choose a plan that costs at most this, as in 5e6 or 5M; without --deadline the fastest.",
    ),
]
# Of verbs that a result set can give the job too.
MaybeNumGpus = Annotated[int | None, _NUM_GPUS]
MaybeGlobalBatchSize = Annotated[int | None, _GLOBAL_BATCH_SIZE]
SequenceLength = Annotated[
    int | None,
    typer.Option(
        "--sequence-length", parser=length, metavar="N", help="Tokens of a sequence [default: that of the model]."
    ),
]
AssumptionSet = Annotated[
    str, typer.Option("--assumptions", metavar="NAME", help="Assumption set: a name or a YAML file.")
]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy", metavar="NAME", help="Strategy: a name or a .layer file [default: that of the assumption set]."
    ),
]
Strategies = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAMES",
        help="Strategy, or several with commas: names or .layer files [default: all that the framework runs].",
    ),
]
Framework = Annotated[
    str | None,
    typer.Option(
        "--framework",
        metavar="NAME",
        help="Framework whose plans are searched: a name (dsx list frameworks; any: all plans) or a YAML file "
        "[default: that of the assumption set].",
    ),
]
FrameworkOfPlan = Annotated[
    str | None,
    typer.Option(
        "--framework",
        metavar="NAME",
        help="Framework that runs the plan, with its software: a name (dsx list frameworks) or a YAML file "
        "[default: that of the assumption set].",
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="'COLUMN<=N'",
        help="Bound of a choice that is a number, as in 'tp<=8' or 'pp>=2', quoted; repeat it for another bound.",
    ),
]
MemoryMargin = Annotated[
    float | None,
    typer.Option(
        "--memory-margin",
        parser=share,
        metavar="SHARE",
        help="Keep only plans that would fit if they needed this share more memory, as in 0.1 [default: that of the "
        "assumption set, the 90 % quantile of its errors].",
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
    Partitioning | None,
    typer.Option(
        "--partition",
        help="Divide layers into stages evenly, or by the optimal cut of each plan [default: stage_layers, or even].",
    ),
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
ResultFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a result set.")]


MaybeModel = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model, unless DIR is given.")]
MaybeCluster = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Cluster, unless DIR is given.")]


def is_row(given: Sequence[str], model: str | None) -> bool:
    """Return whether the arguments begin with a result folder, and no option states a job."""
    return model is None and bool(given) and "=" not in given[0]


def check_no_plan(options_given: Mapping[str, object], assumptions: str) -> None:
    """Raise InputError for an option that a row of a result set has from its sweep."""
    given = {**options_given, "--assumptions": None if assumptions == DEFAULT_ASSUMPTIONS else assumptions}
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


def print_json(data: Mapping[str, object]) -> None:
    """Print one JSON object."""
    print(json.dumps(data, indent=2))


class _Answer(Protocol):
    def to_data(self) -> Mapping[str, object]: ...


def print_answer(answer: _Answer, as_json: bool) -> None:
    """Print an answer of the API as text or as JSON."""
    print_json(answer.to_data()) if as_json else print(answer)
