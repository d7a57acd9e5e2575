"""The verbs of result sets and measured runs: ``dsx show``, ``compare``, ``pareto``, ``plot``, ``report``,
``validate``.

``dsx show``, ``compare``, ``pareto`` and ``plot``: the plans of result sets.

``dsx report``: a result set as one HTML file.

``dsx validate`` and ``dsx calibrate``: compare an assumption set with measured runs, or fit one to them.
"""

from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.options import print_answer, print_json
from dsx.errors import NothingFeasible

_OBJECTIVES = ["step_time_s", "peak_bytes"]  # of a Pareto front


def show(
    folder: options.ResultFolder,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", parser=options.count, metavar="N", help="Plans to show [default: 10; with --per, 1 of each]."
        ),
    ] = None,
    per: Annotated[
        list[str] | None,
        typer.Option("--per", metavar="COLUMN", help="Show the fastest for each value of a column; may be repeated."),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option("--candidate", metavar="ID", help="Show the rows of one candidate instead.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print a summary of a result set, and its fastest plans.

    The launch settings of the first plan follow, in the words of its framework.

    With --candidate, rows are shown whether they fit or not.
    """
    found = dsx.show(folder, top, per=per or (), candidate=candidate)
    print_answer(found, as_json)
    if found.infeasible:
        raise NothingFeasible(found.infeasible)


def compare(
    folder_a: Annotated[Path, typer.Argument(metavar="DIR_A", help="Folder of a result set, A.")],
    folder_b: Annotated[Path, typer.Argument(metavar="DIR_B", help="Folder of another, B.")],
    per: Annotated[
        list[str] | None,
        typer.Option(
            "--per",
            metavar="COLUMN",
            help="Compare the best for each value of a column; may be repeated "
            "[default: num_gpus, global_batch_size, and the hardware that a set varies].",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print the best plans of two result sets side by side.

    Rows are joined on the candidate, which stands for the same choices on every cluster.
    """
    print_answer(dsx.compare_sets(folder_a, folder_b, per or ()), as_json)


def pareto(
    folder: options.ResultFolder,
    objectives: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            metavar="COLUMN",
            help="Column to minimise, or -COLUMN to maximise; give one or more [default: step_time_s, peak_bytes].",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Also draw the first two objectives (such as .png, .pdf, .svg)."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print the plans that no other plan beats in every objective."""
    found = dsx.front(folder, objectives or _OBJECTIVES, plot)
    if as_json:
        print_json(found.to_data())
    if found.infeasible:
        raise NothingFeasible(found.infeasible)
    if not as_json:
        print(found)


def plot(
    folder: options.ResultFolder,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The picture (such as .png, .pdf, .svg).")
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", metavar="KIND", help="front, breakdown, scaling, heatmap [default: that of the sweep file]."
        ),
    ] = None,
    x: Annotated[
        list[str] | None,
        typer.Option("--x", metavar="COLUMN", help="Column along x; for a breakdown, may be repeated."),
    ] = None,
    y: Annotated[str | None, typer.Option("--y", metavar="COLUMN", help="Column along y.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="COLUMN", help="Column shown in the cells [default: step_time_s].")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="Draw one line, or marker, for each value of a column.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="VALUE",
            help="scaling: show the speed-up over the line of this value. front: mark this plan, as in 'tp=8 pp=16'.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="COLUMN=VALUE", help="Only rows with this value; may be repeated."),
    ] = None,
) -> None:
    """Draw the fastest plans of a result set.

    breakdown: the parts of their time and memory. scaling: the best y along x, one line each. heatmap: by how much the
    best value for each x and y differs from today's machine. front: the plans of one job by two objectives, and those
    that none beats.
    """
    dsx.draw(folder, output, kind, x=x, y=y, value=value, by=by, baseline=baseline, where=where)


def report(
    folder: options.ResultFolder,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The HTML file.")],
    candidate: Annotated[
        str | None,
        typer.Option("--candidate", metavar="ID", help="Explain the plan of this id [default: the best one]."),
    ] = None,
    hardware: Annotated[
        list[str] | None,
        typer.Option(
            "--hardware",
            metavar="COLUMN=VALUE",
            help="Hardware of its row if the sweep varies it, as in device.hbm_capacity='80 GB'; may be repeated.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write a result set as one HTML file that opens offline.

    It has the question and the answer, pictures, the explanation of the best plan, a table of the 20,000 best rows that
    can be filtered, rejected candidates, assumptions with sources, and what runs it again. It needs plotly: pip install
    'dsx-explorer[report]'.
    """
    found = dsx.report(folder, output, candidate, hardware or ())
    print_answer(found, as_json)
    if found.infeasible:
        raise NothingFeasible(found.infeasible)


def validate(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Table of measured runs.")],
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    as_json: options.Json = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="ROWS.csv", help="Write the times of all rows to this file (replaced)."),
    ] = None,
) -> None:
    """Compare measured runs with the predictions of dsx.

    Rows that cannot be modelled are counted by reason; missing values have documented defaults. Errors are relative; in
    the last line every source of the table has the same weight.
    """
    print_answer(dsx.validate(runs, assumptions, output), as_json)


def calibrate(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Table of measured runs.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="SET.yaml", help="Write the assumption set to this file.")
    ],
    assumptions: Annotated[
        str | None,
        typer.Option("--assumptions", metavar="NAME", help="Assumption set to begin with [default: default]."),
    ] = None,
    specialise: Annotated[
        str | None,
        typer.Option("--specialise", metavar="NAME", help="Adapt this set to a few runs, instead of fitting it."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fit an assumption set to measured runs.

    The fit changes the numbers that state `between`; every source of the table has the same weight. --specialise adapts
    a few numbers to one cluster and framework, for which a single run is enough. Outliers, whose times no cluster
    explains together with the other rows, are named and left out. A file that a fit wrote is replaced, any other kept.
    """
    dsx.keep_compiled()
    print_answer(dsx.calibrate(runs, output, assumptions=assumptions, specialise=specialise), as_json)
