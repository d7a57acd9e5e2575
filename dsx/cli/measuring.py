"""``dsx measure``: times of kernels on the device at hand."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import dsx
from dsx.cli import options
from dsx.cli.printing import print_answer
from dsx.errors import InputError


class Library(StrEnum):
    """What runs kernels."""

    jax = "jax"
    torch = "torch"


def measure(
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="TIMES.csv", help="File of operator times to write, or to go on with."),
    ],
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Model: a name (dsx list models) or a YAML file.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Cluster of a job whose best plans are measured.")
    ] = None,
    num_gpus: options.MaybeNumGpus = None,
    global_batch_size: options.MaybeGlobalBatchSize = None,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    results: Annotated[
        Path | None,
        typer.Option("--for", metavar="DIR", help="Measure the fastest plans of this result set, in place of a model."),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", parser=options.count, metavar="N", help="Plans of a job or a result set.")
    ] = 3,
    library: Annotated[
        Library | None,
        typer.Option("--with", help="What runs the kernels [default: the one that has an accelerator, else jax]."),
    ] = None,
    time_limit: Annotated[str, typer.Option("--time-limit", metavar="TIME", help="Of all measurements.")] = "5 min",
    collectives: Annotated[
        Path | None,
        typer.Option("--collectives", metavar="FILE", help="Also write the times of collectives over local devices."),
    ] = None,
    device: Annotated[
        Path | None,
        typer.Option("--device", metavar="FILE.yaml", help="Also write a cluster file with the rates of the device."),
    ] = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Time multiplies, attention and norms on the device at hand.

    The shapes are those of the best plans of a job (--cluster, --num-gpus, --global-batch-size), of the fastest plans
    of a result set (--for), or of tensor-parallel degrees and microbatch sizes of a model. --operator-times takes the
    file. Shapes that it has already are kept, so the same command continues after an interruption.
    """
    of_job = {"--cluster": cluster, "--num-gpus": num_gpus, "--global-batch-size": global_batch_size}
    given = [name for name, value in of_job.items() if value is not None]
    if results is not None and (model is not None or given):
        other = "--model" if model is not None else given[0]
        raise InputError(f"{other}: the result set of --for has that of its sweep; leave it out")
    if results is None and model is None:
        raise InputError("missing: --model, whose kernels are measured; or --for, a result set")
    what: dsx.Job | str | None = model
    rest: dict[str, Any] = {"sequence_length": sequence_length, "assumptions": assumptions, "set": assignments}
    if given:
        if model is None or cluster is None or num_gpus is None or global_batch_size is None:
            missing = ", ".join(name for name in of_job if name not in given)
            raise InputError(f"missing: {missing}; a job needs them besides {given[0]}")
        what = dsx.Job(model, cluster, num_gpus, global_batch_size, sequence_length, assumptions, set=assignments)
        rest = {}
    dsx.keep_compiled()
    print_answer(
        dsx.measure(
            what,
            output,
            results=results,
            **rest,
            top=top,
            library=None if library is None else library.value,
            time_limit=time_limit,
            collectives=collectives,
            device=device,
        ),
        as_json,
    )
