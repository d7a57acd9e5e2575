"""``dsx trace write``, ``inspect`` and ``replay``: execution traces for simulators and people."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.options import print_answer
from dsx.errors import InputError, NothingFeasible, TraceError

app = typer.Typer(
    name="trace",
    help="Write, check and replay execution traces (MLCommons Chakra).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the trace files.")]
ElementBytes = Annotated[
    int | None,
    typer.Option(
        "--element-bytes",
        metavar="N",
        help="Bytes of an element, for traces that count elements (STAGE's); 2 by default.",
    ),
]
ChromeFile = Annotated[
    Path | None,
    typer.Option("--chrome", metavar="FILE", help="Also write a Chrome trace (chrome://tracing, Perfetto)."),
]


@app.command("write")
def write(
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the files; made if it is not there.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="COLUMN=VALUE", help="The plan, as of dsx evaluate; with --layer its options."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model: a name or a YAML file.")] = None,
    num_gpus: options.MaybeNumGpus = None,
    global_batch_size: options.MaybeGlobalBatchSize = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="NAME", help="Cluster: nodes then have their durations on it, and ranks its domains."
        ),
    ] = None,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    framework: options.FrameworkOfPlan = None,
    partition: options.PartitionOption = None,
    operator_times: options.OperatorTimes = None,
    results: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Result folder whose row --candidate is traced.")
    ] = None,
    candidate: Annotated[str | None, typer.Option("--candidate", metavar="ID", help="Row of --from.")] = None,
    layer: Annotated[
        str | None,
        typer.Option("--layer", metavar="FILE", help="One layer, a name or a file; sizes with --set."),
    ] = None,
    assignments: options.Assignments = None,
    ranks: Annotated[
        str, typer.Option("--ranks", metavar="all|stages|0,5,9", help="Ranks to write; stages: one of each stage.")
    ] = "all",
    forward_only: Annotated[
        bool, typer.Option("--forward-only", help="Only the forward, as a prefill runs it.")
    ] = False,
    portable: Annotated[
        bool,
        typer.Option(
            "--portable/--panels",
            help="Panels of a multiply as one gather or scatter, which simulators run, or as broadcasts, as priced.",
        ),
    ] = True,
    slow: Annotated[
        list[str] | None,
        typer.Option("--slow", metavar="RANKS=FACTOR", help="Slow ranks, as in 0-7=1.3; repeat it for others."),
    ] = None,
    no_tensors: Annotated[
        bool, typer.Option("--no-tensors", help="Leave out the tensors that nodes read and write.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Write the execution trace of a plan: a Chakra file for each rank.

    A plan that breaks rules or does not fit is written too; the exit code is then 3. The columns are those of dsx
    evaluate. Instead of a plan, --from and --candidate name a row of a result set, and --layer one layer with its sizes
    (--set tp=4 --set s=4096). The same command goes on where it was stopped.
    """
    given = list(settings or [])
    how = {"ranks": ranks, "tensors": not no_tensors, "forward_only": forward_only, "portable": portable, "out": out}
    of_plan = {"--model": model, "--num-gpus": num_gpus, "--global-batch-size": global_batch_size}
    if layer is not None:
        del of_plan["--model"]  # which gives the sizes of a layer
        of_plan |= {"--from": results, "--candidate": candidate, "--sequence-length": sequence_length}
        of_plan |= {"--partition": partition, "--operator-times": operator_times, "--slow": slow}
        of_plan |= {"--framework": framework}
        _refuse("--layer, whose sizes are those of --set and --model", of_plan)
        found = dsx.trace.write_layer(
            layer,
            *given,
            strategy=strategy,
            sizes=assignments,
            model=model,
            assumptions=assumptions,
            cluster=cluster,
            **how,
        )
    elif results is not None:
        of_plan |= {"--cluster": cluster, "--sequence-length": sequence_length, "--strategy": strategy}
        of_plan |= {"--assumptions": None if assumptions == options.DEFAULT_ASSUMPTIONS else assumptions}
        of_plan |= {"--partition": partition, "--operator-times": operator_times, "--set": assignments}
        of_plan |= {"--framework": framework}
        _refuse("--from, whose row has what is priced", of_plan)
        if candidate is None:
            raise InputError(f"--from needs --candidate, the id of a row; 'dsx show {results} --json' prints some")
        found = dsx.trace.write_row(results, candidate, given, slow=slow, **how)
    else:
        if candidate is not None:
            raise InputError("--candidate is the id of a row of --from, the folder of a sweep's results")
        missing = [name for name, value in of_plan.items() if value is None]
        if missing or model is None or num_gpus is None or global_batch_size is None:
            raise InputError(f"missing: {', '.join(missing)}; a plan needs them (or give --from, or --layer)")
        if operator_times is not None and cluster is None:
            raise InputError("--operator-times: without --cluster, on which they were measured, nodes have no times")
        job = dsx.Job(
            model,
            dsx.trace.ONE_DOMAIN if cluster is None else cluster,
            num_gpus,
            global_batch_size,
            sequence_length,
            assumptions,
            set=assignments,
            operator_times=operator_times,
        )
        found = dsx.trace.write(
            job,
            given,
            strategy=strategy,
            framework=framework,
            slow=slow,
            partition=None if partition is None else partition.value,
            durations=cluster is not None,
            **how,
        )
    print_answer(found, as_json)
    if found.reject:
        sys.stdout.flush()
        causes = "".join(f"\n  {name}: {cause}" for name, cause in found.reject.items())
        raise NothingFeasible(f"the trace is written, but the plan is rejected:{causes}")


def _refuse(option: str, others: dict[str, object]) -> None:
    named = [name for name, value in others.items() if value is not None]
    if named:
        raise InputError(f"{', '.join(named)}: cannot be given with {option}")


@app.command("inspect")
def inspect(
    folder: Folder, chrome: ChromeFile = None, element_bytes: ElementBytes = None, as_json: options.Json = False
) -> None:
    """Summarise and check the traces of a folder, of any writer.

    The exit code is 2 if the files have faults.
    """
    found = dsx.trace.inspect(folder, chrome=chrome, element_bytes=element_bytes)
    print_answer(found, as_json)
    if found.faults:
        sys.stdout.flush()
        raise TraceError(f"{folder} has faults: {found.num_faults:,}; the first is: {found.faults[0]['what']}")


@app.command("replay")
def replay(
    folder: Folder,
    cluster: options.Cluster,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    framework: options.FrameworkOfPlan = None,
    slow: Annotated[
        list[str] | None,
        typer.Option(
            "--slow",
            metavar="RANKS=FACTOR",
            help="Slow ranks, as in 0-7=1.3: what a straggler costs; repeat it for others.",
        ),
    ] = None,
    chrome: ChromeFile = None,
    element_bytes: ElementBytes = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Replay the traces of all ranks on a cluster, event by event."""
    found = dsx.trace.replay(
        folder,
        cluster=cluster,
        assumptions=assumptions,
        slow=slow,
        chrome=chrome,
        set=assignments,
        framework=framework,
        element_bytes=element_bytes,
    )
    print_answer(found, as_json)
