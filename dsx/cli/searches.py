"""``dsx best`` and ``dsx sweep``: price every plan of one job, or every candidate of a sweep file.

A sweep is divided into parts. Parts from an earlier run are not priced again, so the same command continues after an
interruption, and several processes can share the parts of one sweep.
"""

import re
import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

import dsx
from dsx.cli import options
from dsx.cli.launching import launcher_of
from dsx.cli.printing import print_json
from dsx.errors import InputError, NothingFeasible


class Question(Enum):
    """What ``dsx best`` is asked, by its options: the value says which ones they are."""

    of_one = "one job: give one of --num-gpus, of --global-batch-size and of --cluster, without --train-tokens"
    of_several = "several jobs: give several --num-gpus, --global-batch-size or --cluster, without --train-tokens"
    of_run = "a training run: give its tokens too, as in --train-tokens 15T"


def best(
    context: typer.Context,
    model: options.Model,
    cluster: options.SeveralClusters,
    global_batch_size: options.SeveralBatches,
    num_gpus: options.SeveralNumGpus = None,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategies = None,
    framework: options.Framework = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            "--fix",
            metavar="COLUMN=VALUES",
            help="Values that a choice may have, as in tp=8 or vpp=1,2,4; give the option again for another choice.",
        ),
    ] = None,
    limit: options.Limits = None,
    memory_margin: options.MemoryMargin = None,
    partition: Annotated[
        options.Cut,
        typer.Option(
            "--partition",
            help="Divide layers into stages evenly; by the best known cut of each plan, the optimal one for vpp=1; or "
            "any: by that cut, and evenly for schedules without it.",
        ),
    ] = options.Cut.any,
    launch_to: Annotated[
        str | None,
        typer.Option("--launch", metavar="DIR", help="Also write the launch files of the fastest plan to this folder."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            parser=options.count,
            metavar="N",
            help="List the N fastest plans, in place of the three to choose from.",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="NAME",
            help="What the jobs of several GPUs or batches are ranked by [default: tokens_per_s_per_gpu].",
        ),
    ] = None,
    train_tokens: options.TrainTokens = None,
    deadline: options.Deadline = None,
    budget: options.Budget = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="With --train-tokens: draw cost against days.")
    ] = None,
    operator_times: options.OperatorTimes = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price every plan that a framework runs; print the fastest.

    Three plans: the fastest, the simplest that measurements do not tell from it, and the leanest nearly as fast.

    The launch settings of the fastest plan follow, in the words of its framework. A line says what the limits of the
    framework cost.

    Of zero_stage, zero_replicas, recompute, stored_layers, schedule, vpp and offload, the assumption set fixes some,
    which the output names. --fix offload=none,optimizer searches other values of them, and --fix vpp=1 fewer of a
    choice that is searched. The order of ranks is searched if the network has tiers beyond the fast domain and the
    cluster.

    Several values of --num-gpus, --global-batch-size or --cluster give the fastest plan of each job, ranked by tokens a
    second and GPU or another --objective (tokens_per_s, step_time_s, mfu, peak_bytes).

    --train-tokens 15T compares numbers of GPUs: the cheapest plan within --deadline 60d, or the fastest within
    --budget 5M (USD), at the price of the cluster (--set cluster.price='2.5 USD/h').
    """
    _check_options_alone(context.args)
    several = max(len(num_gpus or ()), len(global_batch_size), len(cluster)) > 1
    question = Question.of_run if train_tokens is not None else Question.of_several if several else Question.of_one
    of_run = {"--deadline": deadline, "--budget": budget, "--plot": plot}
    _check_of(question, Question.of_run, of_run)
    _check_of(question, Question.of_several, {"--objective": objective})
    _check_of(question, Question.of_one, {"--top": top})
    _check_sizes(question, num_gpus, global_batch_size, cluster)
    launcher = None if launch_to is None else launcher_of(framework)
    sizes = (num_gpus[0] if num_gpus else 1, global_batch_size[0], sequence_length)
    jobs = [dsx.Job(model, one, *sizes, assumptions, set=assignments, operator_times=operator_times) for one in cluster]
    job = jobs[0]
    if launch_to is not None and launcher is not None:
        for one in jobs:
            dsx.check_launch(one, launcher, launch_to)
    if plot:
        dsx.image_format(plot)  # a wrong suffix is said before the searches
    dsx.keep_compiled()
    restricted: dict[str, Any] = {
        "fix": fix,
        "limit": limit,
        "strategy": strategy,
        "framework": framework,
        "partition": partition.value,
        "memory_margin": memory_margin,
    }
    if train_tokens is not None:
        found = dsx.training_run(job, train_tokens, num_gpus, deadline=deadline, budget=budget, **restricted)
        _print_training_run(found, plot, as_json)
    elif question is Question.of_several:
        by = {} if objective is None else {"objective": objective}
        on = [one.cluster for one in jobs]
        found = dsx.several_jobs(job, num_gpus, global_batch_size, cluster=on, **by, **restricted)
        _print_found(found, as_json)
    else:
        found = dsx.best(job, top, **restricted)
        _print_found(found, as_json)
    if launcher is not None:
        print(dsx.launch(found.job, found.plan, framework=launcher, out=launch_to), file=sys.stderr)


def _check_options_alone(words: list[str]) -> None:
    """Raise InputError for words outside of options, with the option that takes settings of a plan."""
    if not words:
        return
    if not all("=" in word for word in words):
        raise InputError(f"{' '.join(words)!r}: best takes options alone; dsx best --help lists them")
    choices = [word.partition("=") for word in words]
    fixed = [f"--fix {shlex.quote(f'{name.lower()}={values}')}" for name, _, values in choices]
    raise InputError(f"{' '.join(words)!r}: a search takes choices as options: {' '.join(fixed)}")


def _check_of(asked: Question, question: Question, options: dict[str, object]) -> None:
    """Raise InputError for options of another question than the one that is asked."""
    for option, value in options.items():
        if value is not None and asked is not question:
            raise InputError(f"{option} is about {question.value}")


def _check_sizes(asked: Question, num_gpus: list[int] | None, batches: list[int], clusters: list[str]) -> None:
    """Raise InputError for sizes that the question does not have."""
    if asked is Question.of_run and len(clusters) > 1:
        raise InputError("--cluster: one cluster is wanted with --train-tokens, which compares numbers of GPUs")
    if asked is Question.of_run and len(batches) > 1:
        raise InputError("--global-batch-size: one batch is wanted with --train-tokens, which compares numbers of GPUs")
    if asked is not Question.of_run and num_gpus is None:
        raise InputError("--num-gpus: a number of GPUs is wanted, as in 512; --train-tokens alone chooses some")


def _print_found(found: "dsx.BestPlans | dsx.SeveralJobs", as_json: bool) -> None:
    """Print an answer; raises NothingFeasible, after its JSON, if no plan fits."""
    if as_json:
        print_json(found.to_data())
    if not found.plans:
        raise NothingFeasible("\n".join(filter(None, (found.infeasible, found.would_fit))))
    if not as_json:
        print(found)


def _print_training_run(run: "dsx.TrainingRun", plot: Path | None, as_json: bool) -> None:
    """Print a training run, and draw it; raises NothingFeasible, after that, if no plan meets its goal."""
    if as_json:
        print_json(run.to_data())
    elif run.priced:
        print(run)
    if plot and run.priced:
        run.draw(plot)
        print(f"dsx: wrote {plot}", file=sys.stderr)
    if run.infeasible:
        sys.stdout.flush()
        is_said = run.priced and not as_json
        raise NothingFeasible("no plan meets the goal" if is_said else run.infeasible)


def _shard(text: str) -> tuple[int, int]:
    """Return "2/8" as (2, 8)."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"{text!r} is not a shard: write the second of eight as 2/8")
    return int(match[1]), int(match[2])


def sweep(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="A sweep file (YAML).")],
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="DIR", help="Result folder [default: results/<name of SPEC>]."),
    ] = None,
    shard: Annotated[
        Any,
        typer.Option(
            "--shard",
            parser=_shard,
            metavar="I/N",
            help="Price the I-th of N shares of the parts; shards may run at the same time.",
        ),
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Price nothing: check that no part is missing, and make them the set.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Also draw the picture of 'plot' in the sweep file, by default a front."
        ),
    ] = None,
    memory_margin: options.MemoryMargin = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price every candidate of a sweep file and write a result set.

    The set is a folder of Parquet files, which `dsx show`, `dsx plot`, `dsx pareto` and `dsx.load` read. To continue
    an interrupted sweep, give the same command again. Exit codes: 3 if no candidate fits, 4 if the sweep was
    interrupted or parts are missing.
    """
    if finish and shard:
        raise InputError("--finish prices nothing, but --shard says what to price: give one of them")
    if shard and plot:
        raise InputError("--plot draws the whole set, but --shard prices a share of it: give --plot with --finish")
    if output == "":
        raise InputError("-o '' is empty: give the folder of the result set, or leave out -o")
    folder = Path(output) if output else Path("results") / spec_file.stem
    dsx.keep_compiled()
    if shard:
        found = dsx.sweep_shard(spec_file, folder, shard, set=assignments, memory_margin=memory_margin)
    elif finish:
        found = dsx.finish_sweep(spec_file, folder, set=assignments, memory_margin=memory_margin, plot=plot)
    else:
        found = dsx.sweep(spec_file, folder, set=assignments, memory_margin=memory_margin, plot=plot)
    if isinstance(found, dsx.SweptShard):
        if as_json:
            print_json(found.to_data())
        print(f"dsx: {found}", file=sys.stderr)
        return
    if as_json:
        print_json(found.to_data())
    elif found.plans:
        print(found)
    if found.infeasible:
        sys.stdout.flush()
        raise NothingFeasible(found.infeasible)
