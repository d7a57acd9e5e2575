"""The verbs of a job: ``dsx best``, ``sweep``, ``evaluate``, ``why``, ``launch`` and ``measure``.

``dsx evaluate`` and ``dsx why``: the cost of one plan, and the rules that it breaks.

``dsx launch``: the files that start a plan with a framework.

``dsx best`` and ``dsx sweep``: price every plan of one job, or every candidate of a sweep file.

A sweep is divided into parts. Parts from an earlier run are not priced again, so the same command continues after an
interruption, and several processes can share the parts of one sweep.

``dsx measure``: times of kernels on the device at hand.
"""

import re
import shlex
import sys
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import dsx
from dsx.cli import options
from dsx.cli.options import MaybeCluster, MaybeModel, check_no_plan, is_row, job_of_plan, print_answer, print_json
from dsx.errors import InputError, NothingFeasible


def evaluate(
    model: options.Model,
    cluster: options.Cluster,
    num_gpus: options.NumGpus,
    global_batch_size: options.GlobalBatchSize,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="COLUMN=VALUE", help="The plan, as in tp=8 pp=64 dp=32 nvs.tp=8."),
    ] = None,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    operators: Annotated[bool, typer.Option("--operators", help="Show every operator of a layer.")] = False,
    partition: options.PartitionOption = None,
    framework: options.FrameworkOfPlan = None,
    operator_times: options.OperatorTimes = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price one plan, even if it breaks rules or does not fit.

    The exit code of such a plan is 3.

    A plan has degrees (tp, tp2, cp, ep, pp, dp), microbatch_size and panels, 1 by default, and the share of each degree
    in a fast domain (nvs.tp). By default the shares are filled in rank order, tp innermost, as far as the domain has
    room, unless the assumption set says otherwise. For the other choices the assumption set has the defaults: vpp,
    zero_stage (0 to 3), zero_replicas (replicas of what ZeRO divides), recompute (none, selective, full, or regions
    joined with +: core-attention, norms, latent-up-projection, expert-activation, shared-experts, feed-forward,
    experts), stored_layers (layers of a stage that are not recomputed), schedule (1f1b, gpipe, zb-h1, zb-h2,
    dualpipe, zb-v), offload (none, optimizer, activations, both) and the order of ranks, order (tp-cp-ep-dp-pp,
    tp-cp-ep-pp-dp).

    stage_layers states the layers of each stage, embedding and head included (stage_layers=21,20,20,21), or is
    Megatron-LM's layout, quoted ('stage_layers=Et*20|t*20|t*20|t*20L'). With vpp chunks per stage, it has pp * vpp
    entries, those of the first chunks of all stages first.
    """
    sizes = (num_gpus, global_batch_size, sequence_length)
    job = dsx.Job(model, cluster, *sizes, assumptions, set=assignments, operator_times=operator_times)
    dsx.keep_compiled()
    cut = None if partition is None else partition.value
    found = dsx.evaluate(job, settings, strategy=strategy, partition=cut, operators=operators, framework=framework)
    print_answer(found, as_json)
    if found.reject:
        sys.stdout.flush()
        raise NothingFeasible(f"the plan is rejected: {', '.join(found.reject)}")


def why(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COLUMN=VALUE... | DIR CANDIDATE [COLUMN=VALUE...]",
            help="The plan, as in tp=8 pp=64 dp=32; or a result folder and one of its candidate ids, and, if the sweep "
            "varies the hardware, its values, as in device.hbm_capacity='80 GB'.",
        ),
    ] = None,
    model: MaybeModel = None,
    cluster: MaybeCluster = None,
    num_gpus: options.MaybeNumGpus = None,
    global_batch_size: options.MaybeGlobalBatchSize = None,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    partition: options.PartitionOption = None,
    framework: options.Framework = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Explain a plan: the rules that it breaks, its time, its memory.

    Give the plan as settings, with model, cluster, GPUs and batch as options, or as a row of a result set.
    """
    given = list(settings or [])
    if is_row(given, model):
        if len(given) < 2 or "=" in given[1] or not all("=" in choice for choice in given[2:]):
            raise InputError(
                f"{' '.join(given)!r}: give a result folder and one candidate id, or a plan as in tp=8 pp=64"
            )
        of_a_job = {"--cluster": cluster, "--num-gpus": num_gpus, "--global-batch-size": global_batch_size}
        of_a_job |= {"--sequence-length": sequence_length, "--set": assignments}
        of_a_plan = {"--strategy": strategy, "--partition": partition, "--framework": framework}
        check_no_plan(of_a_job | of_a_plan, assumptions)
        dsx.keep_compiled()
        print_answer(dsx.why_row(given[0], given[1], given[2:]), as_json)
        return
    sizes = (num_gpus, global_batch_size, sequence_length)
    job = job_of_plan(model, cluster, *sizes, assumptions, assignments, row="only DIR CANDIDATE")
    dsx.keep_compiled()
    cut = None if partition is None else partition.value
    print_answer(dsx.why(job, given, strategy=strategy, partition=cut, framework=framework), as_json)


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


class BestQuestion(Enum):
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
        options.CutOption,
        typer.Option(
            "--partition",
            help="Divide layers into stages evenly; by the best known cut of each plan, the optimal one for vpp=1; or "
            "any: by that cut, and evenly for schedules without it.",
        ),
    ] = options.CutOption.any,
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
    question = (
        BestQuestion.of_run if train_tokens is not None else BestQuestion.of_several if several else BestQuestion.of_one
    )
    of_run = {"--deadline": deadline, "--budget": budget, "--plot": plot}
    _check_of(question, BestQuestion.of_run, of_run)
    _check_of(question, BestQuestion.of_several, {"--objective": objective})
    _check_of(question, BestQuestion.of_one, {"--top": top})
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
    elif question is BestQuestion.of_several:
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


def _check_of(asked: BestQuestion, question: BestQuestion, options: dict[str, object]) -> None:
    """Raise InputError for options of another question than the one that is asked."""
    for option, value in options.items():
        if value is not None and asked is not question:
            raise InputError(f"{option} is about {question.value}")


def _check_sizes(asked: BestQuestion, num_gpus: list[int] | None, batches: list[int], clusters: list[str]) -> None:
    """Raise InputError for sizes that the question does not have."""
    if asked is BestQuestion.of_run and len(clusters) > 1:
        raise InputError("--cluster: one cluster is wanted with --train-tokens, which compares numbers of GPUs")
    if asked is BestQuestion.of_run and len(batches) > 1:
        raise InputError("--global-batch-size: one batch is wanted with --train-tokens, which compares numbers of GPUs")
    if asked is not BestQuestion.of_run and num_gpus is None:
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


class LibraryOption(StrEnum):
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
        LibraryOption | None,
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
