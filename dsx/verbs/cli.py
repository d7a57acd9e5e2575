"""The commands of the shell: each calls functions of the API with its options, and prints the answer.

Options are the arguments of these functions, and help texts their docstrings (`dsx.verbs.command`). The commands of a
job stand in `dsx.verbs.job_commands`; here are those of result sets, measured runs, files, operators and traces.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

import dsx
from dsx.errors import InputError, NothingFeasible, TraceError
from dsx.text import versioned
from dsx.verbs import job_commands
from dsx.verbs.command import (
    ABSENT,
    KINDS,
    OF_JOB,
    OPTIONS,
    OUTPUT,
    CommandOption,
    Values,
    app,
    command,
    one_of,
    print_answer,
    print_json,
)

if TYPE_CHECKING:
    from dsx.verbs.arguments import Answer

__all__ = ["app", "job_commands"]

_clusters = typer.Typer(name="clusters", help="Look at a cluster.", no_args_is_help=True, rich_markup_mode=None)
_trace = typer.Typer(
    name="trace",
    help="Write, check and replay execution traces (MLCommons Chakra).",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@command("layer", "layer.layer")
def layer(values: Values) -> "Answer":
    """The output has its options and block parameters, operators with their local shapes, FLOPs and bytes of each
    kernel, collectives, saved tensors, weights and the rules of the strategy. A quantity is a number if all its
    dimensions have a size, else a formula.
    """
    settings = values.pop("settings") or ()
    return dsx.layer(values["name"], *settings, **{k: v for k, v in values.of("layer.layer").items() if k != "name"})


@command("show", "show.show", optional="per")
def show(values: Values) -> "Answer":
    """The launch settings of the first plan follow, in the words of its framework.

    With --candidate, rows are shown whether they fit or not.
    """
    return dsx.show(**values.of("show.show"))


@command("compare", "compare.compare_sets", optional="per")
def compare(values: Values) -> "Answer":
    """Rows are joined on the candidate, which stands for the same choices on every cluster."""
    return dsx.compare_sets(**values.of("compare.compare_sets"))


@command(
    "place",
    "place.Placer.__call__",
    emit=CommandOption("Write commands that give servers their bandwidths: Open vSwitch.", type=Literal["ovs"]),
    out=CommandOption("Folder of --emit.", "DIR", ("-o", "--out"), Path),
    plot=CommandOption("Draw devices and transfers (such as .png, .svg).", type=Path),
)
def place(values: Values) -> None:
    """Operators that do not need each other then run at once.

    Prints the step time, a bound that no placement of the graph goes below, and what HEFT and one device give. Ctrl-C
    ends the search and prints the best so far.
    """
    out, plot = values["out"], values["plot"]
    if (values["emit"] is None) != (out is None):
        raise InputError("--emit and -o belong together: what is written, and the folder")
    if values["emit"] is not None and values["nics"] is None:
        raise InputError("--emit ovs needs --nics, the network cards whose bandwidth is shared out")
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"-o {str(out)!r} is a file: name a folder for the scripts")
    if plot is not None:
        dsx.image_format(plot)
    dsx.keep_compiled()
    answer = dsx.place(**values.of("place.Placer.__call__"))
    print_answer(answer, values["json"])
    if plot is not None:
        answer.plot(plot)
    if out is not None:
        answer.write_ovs(out)


@command("pareto", "pareto.front", optional="objectives")
def pareto(values: Values) -> "Answer":
    """The objectives are step time and memory unless others are given."""
    return dsx.front(**values.of("pareto.front"))


@command("plot", "plot.draw", json=ABSENT)
def plot(values: Values) -> None:
    """breakdown: the parts of their time and memory. scaling: the best y along x, one line each. heatmap: by how much
    the best value for each x and y differs from today's machine. front: the plans of one job by two objectives, and
    those that none beats.
    """
    dsx.draw(**values.of("plot.draw"))


@command(
    "report",
    "report.report",
    required="output",
    optional="hardware",
    hardware=CommandOption(metavar="COLUMN=VALUE", type=list[str]),
)
def report(values: Values) -> "Answer":
    """It has the question and the answer, pictures, the explanation of the best plan, a table of the 20,000 best rows
    that can be filtered, rejected candidates, assumptions with sources, and what runs it again. It needs plotly: pip
    install 'dsx-explorer[report]'.
    """
    return dsx.report(**values.of("report.report"))


@command("validate", "validate.validate", out=OUTPUT.at("ROWS.csv"))
def validate(values: Values) -> "Answer":
    """Rows that cannot be modelled are counted by reason; missing values have documented defaults. Errors are relative;
    in the last line every source of the table has the same weight.
    """
    return dsx.validate(**values.of("validate.validate"))


@command("calibrate", "calibrate.calibrate", out=OUTPUT.at("SET.yaml"), assumptions=CommandOption(type=str))
def calibrate(values: Values) -> "Answer":
    """The fit changes the numbers that state `between`; every source of the table has the same weight. --specialise
    adapts a few numbers to one cluster and framework, for which a single run is enough. Outliers, whose times no
    cluster explains together with the other rows, are named and left out. A file that a fit wrote is replaced, any
    other kept.
    """
    dsx.keep_compiled()
    return dsx.calibrate(**values.of("calibrate.calibrate"))


@command(
    "list",
    "list.names",
    kind=CommandOption(f"What to list: {', '.join(KINDS)}.", "KIND", parser=one_of(KINDS), is_argument=True),
)
def list_names(values: Values) -> None:
    """The user's files on DSX_PATH are included."""
    listed = dsx.names(values["kind"])
    if values["json"]:
        print_json(versioned({values["kind"]: listed}))
    else:
        for name in listed:
            print(name)


@command(
    "import-hf",
    "import_hf.import_hf",
    out=OUTPUT.at("FILE", "Model file to write [default: print it]."),
    overwrite=CommandOption("Replace FILE if it exists."),
)
def import_hf(values: Values) -> None:
    """The command lists the keys that it did not use, those that would change the cost first. It counts the parameters
    of the model, and compares them with the published total if that is known.
    """
    imported = dsx.import_hf(**values.of("import_hf.import_hf"))
    print_answer(imported, values["json"])
    if values["out"] is None and not values["json"]:
        # stdout holds the model file alone, so the report goes to stderr.
        for line in imported.report:
            print(f"dsx: {line}", file=sys.stderr)


app.add_typer(_clusters)


@_clusters.callback()
def _look() -> None:
    """Look at a cluster."""


@command(
    "show",
    "clusters.cluster_times",
    within=_clusters,
    cluster=replace(OPTIONS["cluster"], metavar="NAME", is_argument=True),
    plot=CommandOption("Also draw the times; the suffix decides the format.", type=Path),
)
def show_cluster(values: Values) -> "Answer":
    """A group fills the tiers from the innermost one outwards. Sizes are those of the tensor on each GPU."""
    if values["plot"] is not None:
        dsx.image_format(values["plot"])
    answer = dsx.cluster_times(**values.of("clusters.cluster_times"))
    if values["plot"] is not None:
        answer.plot(values["plot"])
    return answer


app.add_typer(_trace)
_OF_WRITE = ("num_gpus", "global_batch_size")


@command(
    "write",
    OF_JOB,
    "trace_write.write",
    within=_trace,
    optional="model cluster num_gpus global_batch_size",
    out=CommandOption("Folder of the files; made if it is not there.", "DIR", ("-o", "--out"), Path),
    plan=OPTIONS["plan"].at("COLUMN=VALUE", "The plan, as of dsx evaluate; with --layer its options."),
    cluster=CommandOption("Cluster: nodes then have their durations on it, and ranks its domains."),
    results=CommandOption("Result folder whose row --candidate is traced.", "DIR", ("--from",), Path),
    candidate=CommandOption("Row of --from.", "ID"),
    layer=CommandOption("One layer, a name or a file; sizes with --set.", "FILE"),
    tensors=CommandOption(
        "Leave out the tensors that nodes read and write.", flags=("--no-tensors",), type=bool, default=False
    ),
)
def write_trace(values: Values) -> None:
    """A plan that breaks rules or does not fit is written too; the exit code is then 3. The columns are those of dsx
    evaluate. Instead of a plan, --from and --candidate name a row of a result set, and --layer one layer with its sizes
    (--set tp=4 --set s=4096). The same command goes on where it was stopped.
    """
    values["tensors"] = not values["tensors"]
    if values["layer"] is not None:
        excluded = ("results", "candidate", "sequence_length", "partition", "operator_times", "slow", "framework")
        why = "{all}: cannot be given with --layer, whose sizes are those of --set and --model"
        values.refuse(why, *_OF_WRITE, *excluded)
        arguments = values.of("trace_write.write_layer") | {"sizes": values["set"]}
        answer = dsx.trace.write_layer(values["layer"], *(values["plan"] or ()), **arguments)
    elif values["results"] is not None:
        excluded = ("sequence_length", "strategy", "assumptions", "partition", "operator_times", "set", "framework")
        why = "{all}: cannot be given with --from, whose row has what is priced"
        values.refuse(why, "model", *_OF_WRITE, "cluster", *excluded)
        if values["candidate"] is None:
            folder = values["results"]
            raise InputError(f"--from needs --candidate, the id of a row; 'dsx show {folder} --json' prints some")
        values["hardware"] = values["plan"]
        answer = dsx.trace.write_row(values["results"], **values.of("trace_write.write_row"))
    else:
        if values["candidate"] is not None:
            raise InputError("--candidate is the id of a row of --from, the folder of a sweep's results")
        values.need(("model", *_OF_WRITE), "a plan needs them (or give --from, or --layer)")
        cluster = values["cluster"]
        if values["operator_times"] is not None and cluster is None:
            raise InputError("--operator-times: without --cluster, on which they were measured, nodes have no times")
        job = values.job(cluster=dsx.trace.ONE_DOMAIN if cluster is None else cluster)
        answer = dsx.trace.write(job, durations=cluster is not None, **values.of("trace_write.write"))
    causes = "".join(f"\n  {name}: {cause}" for name, cause in answer.reject.items())
    rejected = NothingFeasible(f"the trace is written, but the plan is rejected:{causes}")
    print_answer(answer, values["json"], rejected if answer.reject else None)


@command("inspect", "trace_inspect.inspect", within=_trace)
def inspect_trace(values: Values) -> None:
    """The exit code is 2 if the files have faults."""
    answer = dsx.trace.inspect(**values.of("trace_inspect.inspect"))
    error = None
    if answer.faults:
        first = answer.faults[0]["what"]
        error = TraceError(f"{values['folder']} has faults: {answer.num_faults:,}; the first is: {first}")
    print_answer(answer, values["json"], error)


@command("replay", "trace_replay.replay", within=_trace)
def replay_trace(values: Values) -> "Answer":
    """Each rank runs its nodes, and waits for others where it must."""
    return dsx.trace.replay(**values.of("trace_replay.replay"))
