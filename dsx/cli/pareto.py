"""``dsx pareto``: the Pareto front of a result set."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.output import note, print_json, print_table, quantity
from dsx.units import format_quantity


def pareto(
    folder: options.ResultFolder,
    objectives: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            metavar="COLUMN",
            help="Column to minimise, or -COLUMN to maximise; give two or more [default: step_time_s, peak_bytes].",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw the front (.png, .pdf, .svg).")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print the plans that no other plan beats in every objective."""
    from dsx.results import plot as pictures
    from dsx.results.pareto import column_of
    from dsx.results.pareto import pareto as front_of
    from dsx.results.store import load

    chosen = objectives or ["step_time_s", "peak_bytes"]
    frame: Any = load(folder)
    front = front_of(frame, *chosen)
    if plot is not None:
        several = int(frame["strategy"].nunique()) > 1
        axes = pictures.front(frame, x=chosen[0], y=chosen[1], by="strategy" if several else None)
        pictures.save(axes, plot)
        note(f"wrote {plot}")
    records = front.to_dict(orient="records")
    if as_json:
        print_json({"objectives": chosen, "plans": records})
        return
    shown = [column_of(objective) for objective in chosen]
    from dsx.cli.output import plan_text

    header = [*shown, "GPUs", "batch", "strategy", "plan"]
    rows = [
        [
            *(_value(name, record[name]) for name in shown),
            str(record["num_gpus"]),
            str(record["global_batch_size"]),
            str(record["strategy"]),
            plan_text(record),
        ]
        for record in records
    ]
    print_table(header, rows)


def _value(name: str, value: float) -> str:
    from dsx.cost.columns import StepCosts

    return quantity(name, value) if name in StepCosts.__dataclass_fields__ else format_quantity(value, "")
