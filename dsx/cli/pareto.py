"""``dsx pareto``: the Pareto front of a result set."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.best import hardware_text
from dsx.cli.output import note, print_json, print_table, quantity
from dsx.cli.plot import draw
from dsx.errors import InputError, NothingFeasible
from dsx.units import format_quantity


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
    from dsx.results.best import as_plans
    from dsx.results.pareto import column_of
    from dsx.results.pareto import pareto as front_of
    from dsx.results.store import load_chosen, read_manifest

    chosen = list(dict.fromkeys(objectives or ["step_time_s", "peak_bytes"]))
    if plot is not None and len(chosen) < 2:
        raise InputError(
            f"--plot {plot} draws two objectives, and {chosen[0]} is one: add another, as in --objective mfu"
        )
    names = [column_of(objective) for objective in chosen]
    plans = as_plans(load_chosen(folder, ["reject", *names], lambda frame: front_of(frame, *chosen)))
    if plot is not None:
        x, y, *more = chosen
        draw(folder, {"kind": "front", "x": [x], "y": y}, plot)
        if more:
            note(f"{plot} is the front of {x} and {y} alone")
    if as_json:
        print_json({"objectives": chosen, "plans": plans})
    if not plans:
        rows = sum(part.rows for part in read_manifest(folder).parts)
        raise NothingFeasible(
            f"no front: none of the {rows} rows of {folder} is feasible and has a number in {' and '.join(names)}"
        )
    if not as_json:
        _print(plans, names)


def _print(plans: list[dict[str, Any]], columns: list[str]) -> None:
    settings = [name for name in ("num_gpus", "global_batch_size", "strategy") if name not in columns]
    hardware = [name for name in plans[0]["hardware"] if any(_differs(plans, name))]
    header = [*columns, *hardware, *settings, "plan"]
    rows = [
        [
            *(_value(name, plan[name] if name in plan else plan["plan"][name]) for name in columns),
            *(hardware_text(name, plan["hardware"][name]) for name in hardware),
            *(str(plan["plan"][name]) for name in settings),
            plan["plan"].text,
        ]
        for plan in plans
    ]
    print_table(header, rows, text=[header.index(name) for name in ("cluster", "strategy", "plan") if name in header])


def _differs(plans: list[dict[str, Any]], name: str) -> list[bool]:
    return [plan["hardware"][name] != plans[0]["hardware"][name] for plan in plans]


def _value(name: str, value: float) -> str:
    from dsx.cost.columns import StepCosts
    from dsx.cost.interval import StepInterval

    costs = (*StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__)
    return quantity(name, value) if name in costs else format_quantity(value, "")
