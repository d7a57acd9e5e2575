"""``dsx launch``: the files that start a plan with a framework."""

from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.plan_or_row import MaybeCluster, MaybeModel, check_no_plan, is_row, job_of_plan
from dsx.cli.printing import print_answer
from dsx.errors import InputError

FRAMEWORKS = ("megatron", "megatron-bridge", "torchtitan", "deepspeed")  # the first one by default
FrameworkName = Annotated[
    str, typer.Option("--framework", metavar="NAME", help=f"What runs the plan: {', '.join(FRAMEWORKS)}.")
]


def launcher_of(framework: str | None) -> str:
    """Return the framework whose launch files a search writes: that whose plans it searches, else the first.

    Raises InputError for a framework without launch files.
    """
    if framework is not None and framework not in FRAMEWORKS:
        raise InputError(
            f"--launch: framework {framework!r} has no launch files; leave out --launch, or --framework for "
            f"Megatron-LM's plans; dsx launch writes a plan for {', '.join(FRAMEWORKS)}"
        )
    return framework or FRAMEWORKS[0]


def launch(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COLUMN=VALUE... | DIR [COLUMN=VALUE...]",
            help="The plan, as in tp=8 pp=64 dp=32; or a result folder with --candidate, and, if the sweep varies the "
            "hardware, its values, as in device.hbm_capacity='80 GB'.",
        ),
    ] = None,
    framework: FrameworkName = FRAMEWORKS[0],
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="DIR", help="Folder for the files [default: they are printed]."),
    ] = None,
    candidate: Annotated[str | None, typer.Option("--candidate", metavar="ID", help="A candidate id of DIR.")] = None,
    model: MaybeModel = None,
    cluster: MaybeCluster = None,
    num_gpus: options.MaybeNumGpus = None,
    global_batch_size: options.MaybeGlobalBatchSize = None,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    partition: options.PartitionOption = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Write the files that start a plan as it was priced.

    A shell script, and what the framework reads.

    At their head is what the framework does not express of the plan, and what is assumed of its software. A plan that
    the framework cannot run is an error, which names the parts and the nearest that it can.

    Give the plan as settings, with model, cluster, GPUs and batch as options, as evaluate takes them, or as a row of a
    result set. The files train on made-up tokens until they are told where yours are.
    """
    given = list(settings or [])
    if candidate is not None or is_row(given, model):
        _check_row(given, candidate)
        of_a_job = {"--model": model, "--cluster": cluster, "--num-gpus": num_gpus}
        of_a_job |= {"--global-batch-size": global_batch_size, "--sequence-length": sequence_length}
        of_a_plan = {"--strategy": strategy, "--partition": partition, "--set": assignments}
        check_no_plan(of_a_job | of_a_plan, assumptions)
        dsx.keep_compiled()
        found = dsx.launch(given[0], candidate, hardware=given[1:], framework=framework, out=output)
    else:
        sizes = (num_gpus, global_batch_size, sequence_length)
        job = job_of_plan(model, cluster, *sizes, assumptions, assignments, row="DIR --candidate ID")
        dsx.keep_compiled()
        cut = None if partition is None else partition.value
        found = dsx.launch(job, given, framework=framework, out=output, strategy=strategy, partition=cut)
    print_answer(found, as_json)


def _check_row(given: list[str], candidate: str | None) -> None:
    """Raise InputError unless a result folder and one of its candidates are given."""
    if not given or "=" in given[0] or candidate is None or not all("=" in choice for choice in given[1:]):
        raise InputError(
            f"{' '.join(given)!r}: give a result folder and --candidate ID, or a plan as in tp=8 pp=64; 'dsx show DIR "
            "--json' prints the ids of the fastest"
        )
