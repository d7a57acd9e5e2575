"""The commands of a job or a sweep: how each chooses between functions, and which of its options belong together."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import dsx
from dsx.errors import InputError, NothingFeasible
from dsx.launching import LAUNCHED
from dsx.verbs.command import (
    ABSENT,
    DEFAULT_ASSUMPTIONS,
    NEEDED,
    OF_JOB,
    OPTIONS,
    OUTPUT,
    CommandOption,
    Values,
    command,
    counts,
    names,
    print_answer,
    print_json,
    signature_of,
)

if TYPE_CHECKING:
    from dsx.verbs.arguments import Answer


@command(
    "sweep",
    "sweep.sweep_shard",
    "sweep.sweep",
    optional="out shard",
    out=replace(OUTPUT.at("DIR", "Result folder [default: results/<name of SPEC>]."), type=str),
    finish=CommandOption(
        "Price nothing: check that no part is missing, and make them the set.", type=bool, default=False
    ),
    plot=CommandOption("Also draw the picture of 'plot' in the sweep file, by default a front."),
)
def sweep(values: Values) -> "Answer | None":
    """The set is a folder of Parquet files, which `dsx show`, `dsx plot`, `dsx pareto` and `dsx.load` read. To continue
    an interrupted sweep, give the same command again. Exit codes: 3 if no candidate fits, 4 if the sweep was
    interrupted or parts are missing.
    """
    finish, shard = values["finish"], values["shard"]
    if finish and shard:
        raise InputError("--finish prices nothing, but --shard says what to price: give one of them")
    if shard and values["plot"]:
        raise InputError("--plot draws the whole set, but --shard prices a share of it: give --plot with --finish")
    if values["out"] == "":
        raise InputError("-o '' is empty: give the folder of the result set, or leave out -o")
    values["out"] = Path(values["out"]) if values["out"] else Path("results") / values["spec"].stem
    dsx.keep_compiled()
    if finish:
        return dsx.finish_sweep(**values.of("sweep.finish_sweep"))
    if not shard:
        return dsx.sweep(**values.of("sweep.sweep"))
    priced = dsx.sweep_shard(**values.of("sweep.sweep_shard"))
    if isinstance(priced, dsx.Swept):
        return priced
    if values["json"]:
        print_json(priced.to_data())
    print(f"dsx: {priced}", file=sys.stderr)
    return None


_ONE_JOB = "one job: give one of --num-gpus, of --global-batch-size and of --cluster, without --train-tokens"
_SEVERAL_JOBS = "several jobs: give several --num-gpus, --global-batch-size or --cluster, without --train-tokens"
_TRAINING_RUN = "a training run: give its tokens too, as in --train-tokens 15T"


@command(
    "best",
    OF_JOB,
    "training_run.training_run",
    "several_jobs.several_jobs",
    "best.best",
    optional="num_gpus objective train_tokens",
    cluster=replace(OPTIONS["cluster"].at("NAME,NAME"), parser=names),
    num_gpus=CommandOption(
        "GPUs of the job; several are ranked. With --train-tokens it may be left out, for powers of two.",
        "N,N",
        parser=counts,
    ),
    global_batch_size=CommandOption("Sequences of one step; several are ranked.", "N,N", parser=counts),
    launch=CommandOption("Also write the launch files of the fastest plan to this folder.", "DIR"),
    plot=CommandOption("With --train-tokens: draw cost against days.", type=Path),
)
def best(values: Values) -> None:
    """Three plans: the fastest, the simplest that measurements do not tell from it, and the leanest nearly as fast.

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
    _check_options_alone(values["words"])
    num_gpus, batches, clusters, plot = (values[name] for name in ("num_gpus", "global_batch_size", "cluster", "plot"))
    question = _ONE_JOB if max(len(num_gpus or ()), len(batches), len(clusters)) == 1 else _SEVERAL_JOBS
    question = _TRAINING_RUN if values["train_tokens"] is not None else question
    belongs = {
        **dict.fromkeys(("deadline", "budget", "plot"), _TRAINING_RUN),
        "objective": _SEVERAL_JOBS,
        **dict.fromkeys(("top", "time_limit"), _ONE_JOB),
    }
    for name, about in belongs.items():
        if values[name] is not None and question != about:
            raise InputError(f"--{name.replace('_', '-')} is about {about}")
    if question == _TRAINING_RUN and len(clusters) > 1:
        raise InputError("--cluster: one cluster is wanted with --train-tokens, which compares numbers of GPUs")
    if question == _TRAINING_RUN and len(batches) > 1:
        raise InputError("--global-batch-size: one batch is wanted with --train-tokens, which compares numbers of GPUs")
    if question != _TRAINING_RUN and num_gpus is None:
        raise InputError("--num-gpus: a number of GPUs is wanted, as in 512; --train-tokens alone chooses some")
    launcher, framework = None, values["framework"]
    if values["launch"] is not None:
        launcher = LAUNCHED[0] if framework is None else framework
        if launcher not in LAUNCHED:
            raise InputError(
                f"--launch: framework {framework!r} has no launch files; leave out --launch, or --framework for "
                f"Megatron-LM's plans; dsx launch writes a plan for {', '.join(LAUNCHED)}"
            )
    sizes = {"num_gpus": num_gpus[0] if num_gpus else 1, "global_batch_size": batches[0]}
    jobs = [values.job(cluster=cluster, **sizes) for cluster in clusters]
    if launcher is not None:
        for job in jobs:
            dsx.check_launch(job, launcher, values["launch"])
    if plot:
        dsx.image_format(plot)  # a wrong suffix is an error before the searches
    dsx.keep_compiled()
    if question == _TRAINING_RUN:
        answer = dsx.training_run(jobs[0], **{**values.of("training_run.training_run"), "num_gpus": num_gpus})
        infeasible = "no plan meets the goal" if answer.priced and not values["json"] else answer.infeasible
    else:
        if question == _ONE_JOB:
            answer = dsx.best(jobs[0], **values.of("best.best"))
        else:
            on = [job.cluster for job in jobs]
            answer = dsx.several_jobs(jobs[0], **{**values.of("several_jobs.several_jobs"), "cluster": on})
        infeasible = "" if answer.plans else "\n".join(filter(None, (answer.infeasible, answer.would_fit)))
    if answer.priced or values["json"]:
        print_answer(answer, values["json"])
    if plot and isinstance(answer, dsx.TrainingRun) and answer.priced:
        answer.draw(plot)
        print(f"dsx: wrote {plot}", file=sys.stderr)
    if answer.infeasible:
        sys.stdout.flush()
        raise NothingFeasible(infeasible)
    if launcher is not None:
        print(dsx.launch(answer.job, answer.plan, framework=launcher, out=values["launch"]), file=sys.stderr)


def _check_options_alone(words: Sequence[str]) -> None:
    """Raise InputError for words outside of options, with the option that takes settings of a plan."""
    if words and not all("=" in word for word in words):
        raise InputError(f"{' '.join(words)!r}: best takes options alone; dsx best --help lists them")
    if words:
        settings = [word.partition("=") for word in words]
        fixed = [f"--fix {shlex.quote(f'{name.lower()}={values}')}" for name, _, values in settings]
        raise InputError(f"{' '.join(words)!r}: a search takes choices as options: {' '.join(fixed)}")


@command("evaluate", OF_JOB, "evaluate.evaluate")
def evaluate(values: Values) -> None:
    """The exit code of such a plan is 3.

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
    job = values.job()
    dsx.keep_compiled()
    answer = dsx.evaluate(job, **values.of("evaluate.evaluate"))
    rejected = f"the plan is rejected: {', '.join(answer.reject)}"
    print_answer(answer, values["json"], NothingFeasible(rejected) if answer.reject else None)


def _is_row(values: Values) -> bool:
    """Return whether the words begin with a result folder, and no option states a job."""
    words = values["plan"]
    return values["model"] is None and bool(words) and "=" not in words[0]


_OF_SWEEP = "{first}: a row of a result set has that of its sweep; leave it out"
_ROW_HELP = "if the sweep varies the hardware, its values, as in device.hbm_capacity='80 GB'."


@command(
    "why",
    OF_JOB,
    "why.why",
    optional="model cluster num_gpus global_batch_size",
    plan=OPTIONS["plan"].at(
        "COLUMN=VALUE... | DIR CANDIDATE [COLUMN=VALUE...]",
        "The plan, as in tp=8 pp=64 dp=32; or a result folder and one of its candidate ids, and, " + _ROW_HELP,
    ),
    operator_times=ABSENT,
)
def why(values: Values) -> "Answer":
    """Give the plan as settings, with model, cluster, GPUs and batch as options, or as a row of a result set."""
    if _is_row(values):
        folder, *words = values["plan"]
        if not words or "=" in words[0] or not all("=" in word for word in words[1:]):
            raise InputError(
                f"{' '.join([folder, *words])!r}: give a result folder and one candidate id, or a plan as in tp=8 pp=64"
            )
        sizes = ("num_gpus", "global_batch_size", "sequence_length", "set")
        values.refuse(_OF_SWEEP, "cluster", *sizes, "strategy", "partition", "framework", "assumptions")
        dsx.keep_compiled()
        return dsx.why_row(folder, words[0], words[1:])
    job = values.job("only DIR CANDIDATE")
    dsx.keep_compiled()
    return dsx.why(job, **values.of("why.why"))


@command(
    "launch",
    OF_JOB,
    "launch.launch",
    optional="model cluster num_gpus global_batch_size",
    plan=OPTIONS["plan"].at(
        "COLUMN=VALUE... | DIR [COLUMN=VALUE...]",
        "The plan, as in tp=8 pp=64 dp=32; or a result folder with --candidate, and, " + _ROW_HELP,
    ),
    candidate=CommandOption("A candidate id of DIR.", "ID"),
    framework=CommandOption(f"What runs the plan: {', '.join(LAUNCHED)}.", default=LAUNCHED[0]),
    out=replace(OUTPUT.at("DIR", "Folder for the files [default: they are printed]."), type=str),
    operator_times=ABSENT,
    hardware=ABSENT,
)
def launch(values: Values) -> "Answer":
    """A shell script, and what the framework reads.

    At their head is what the framework does not express of the plan, and what is assumed of its software. A plan that
    the framework cannot run is an error, which names the parts and the nearest that it can.

    Give the plan as settings, with model, cluster, GPUs and batch as options, as evaluate takes them, or as a row of a
    result set. The files train on made-up tokens until they are told where yours are.
    """
    words, candidate = values["plan"] or [], values["candidate"]
    if candidate is not None or _is_row(values):
        if not words or "=" in words[0] or candidate is None or not all("=" in choice for choice in words[1:]):
            raise InputError(
                f"{' '.join(words)!r}: give a result folder and --candidate ID, or a plan as in tp=8 pp=64; 'dsx show "
                "DIR --json' prints the ids of the fastest"
            )
        values.refuse(_OF_SWEEP, *NEEDED, "sequence_length", "strategy", "partition", "set", "assumptions")
        dsx.keep_compiled()
        where = {"framework": values["framework"], "out": values["out"]}
        return dsx.launch(words[0], candidate, hardware=words[1:], **where)
    job = values.job("DIR --candidate ID")
    dsx.keep_compiled()
    return dsx.launch(job, **values.of("launch.launch"))


_OF_A_MODEL = ("strategy", "sequence_length", "plot", "set", "assumptions", "framework", "limit", "memory_margin")
_OF_A_TABLE = ("width", "zero_stages", "recompute", "optimizer")
# With --model, the replacement for an option of --instance.
_WITH_MODEL = {
    "--width": "; write the width as a setting, as in tp=8",
    "--zero": "; write the ZeRO stage as a setting, as in zero_stage=3",
    "--recompute": "; write the recomputation as a setting, as in recompute=full",
    "--optimizer": "; the assumption set states the optimizer",
}


@command(
    "partition",
    OF_JOB,
    "partition.partition_table",
    "partition.partition",
    optional="model cluster num_gpus global_batch_size assumptions instance network num_devices recompute optimizer",
    fix=OPTIONS["plan"].at(
        "[COLUMN=VALUE...]", "With --model: columns that are fixed to these values, as in tp=8 cp=2 zero_stage=1,3."
    ),
    plot=CommandOption("With --model: draw the stages (such as .png, .pdf, .svg).", type=Path),
    zero_stages=CommandOption(
        "With --instance: only this ZeRO stage [default: the best].",
        flags=("--zero",),
        type=Literal["0", "1", "2", "3"],
    ),
    assumptions=CommandOption(f"Assumption set, with --model: a name or a YAML file [default: {DEFAULT_ASSUMPTIONS}]."),
    operator_times=ABSENT,
)
def partition(values: Values) -> "Answer":
    """With --model, print the plan with the least step time stage by stage. All widths, replicas and pipelines that
    the framework runs are searched, each with its optimal cut.

    With --instance, print the plan of a table of layers with the least step time. All cuts, numbers of stages and
    replicas, widths and ZeRO stages are searched, with and without recomputation. Among equally fast plans the one with
    the fewest stages wins, then the one with the most replicas.
    """
    model, instance, settings = values["model"], values["instance"], values["fix"]
    if (model is None) == (instance is None):
        what = "neither is given" if model is None else "both are given"
        raise InputError(f"--model cuts a model, --instance a table of layers; {what}, give one of them")
    needed, foreign = NEEDED, ("network", "num_devices", *_OF_A_TABLE)
    if model is None:
        needed, foreign = ("instance", "network", "num_devices"), (*NEEDED, *_OF_A_MODEL)
    for flag in values.stated(*foreign):
        raise InputError(f"{flag} does not go with {values.flags[needed[0]]}{_WITH_MODEL.get(flag, '')}")
    if settings and model is None:
        raise InputError(f"{settings[0]!r}: settings fix columns of a --model; for a table use --width and --zero")
    values.need(needed, f"{values.flags[needed[0]]} needs them")
    if model is None:
        dsx.keep_compiled()
        zero = None if values["zero_stages"] is None else (int(values["zero_stages"]),)
        return dsx.partition_table(**{**values.of("partition.partition_table"), "zero_stages": zero})
    if values["plot"] is not None:
        dsx.image_format(values["plot"])
    job = values.job()
    dsx.keep_compiled()
    answer = dsx.partition(job, **values.of("partition.partition"))
    if values["plot"] is not None:
        answer.plot(values["plot"])
    return answer


@command(
    "measure",
    OF_JOB,
    "measure.measure",
    required="out",
    optional="model cluster num_gpus global_batch_size",
    out=OUTPUT.at("TIMES.csv"),
    library=CommandOption(flags=("--with",), type=Literal["jax", "torch"]),
    device=CommandOption(metavar="FILE.yaml"),
    operator_times=ABSENT,
    what=ABSENT,
)
def measure(values: Values) -> "Answer":
    """The shapes are those of the best plans of a job (--cluster, --num-gpus, --global-batch-size), of the fastest
    plans of a result set (--for), or of tensor-parallel degrees and microbatch sizes of a model. --operator-times takes
    the file. Shapes that it has already are kept, so the same command continues after an interruption.
    """
    of_job = values.stated(*NEEDED[1:])
    if values["results"] is not None:
        values.refuse("{first}: the result set of --for has that of its sweep; leave it out", *NEEDED)
    if values["results"] is None and values["model"] is None and not of_job:
        raise InputError("missing: --model, whose kernels are measured; or --for, a result set")
    arguments = values.of("measure.measure")
    what: dsx.Job | str | None = values["model"]
    if of_job:
        values.need(NEEDED, f"a job needs them besides {of_job[0]}")
        what = values.job()
        arguments = {name: value for name, value in arguments.items() if name not in signature_of(OF_JOB).arguments}
    dsx.keep_compiled()
    return dsx.measure(what, **arguments)
