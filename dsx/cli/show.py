"""``dsx show``: what a result set is, and its fastest plans."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.best import hardware_text, print_plans
from dsx.cli.evaluate import print_costs
from dsx.cli.launch import launch_data, print_launch
from dsx.cli.output import counted, note, print_json, print_table, share
from dsx.cli.result_row import inputs_of
from dsx.cli.result_set import (
    hardware_of,
    kept_text,
    model_of,
    rows_text,
    title_of,
    what_if_values,
)
from dsx.errors import InputError, NothingFeasible

if TYPE_CHECKING:
    from dsx.graph.model import Model
    from dsx.results.launch import Launch
    from dsx.results.manifest import Manifest

_TOP = 10


def show(
    folder: options.ResultFolder,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", parser=options.count, metavar="N", help=f"Plans to show [default: {_TOP}; with --per 1 of each]."
        ),
    ] = None,
    per: Annotated[
        list[str] | None,
        typer.Option("--per", metavar="COLUMN", help="Show the fastest of each value of a column; may be repeated."),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option("--candidate", metavar="ID", help="Show the rows of one candidate instead.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print what a result set is, and its fastest plans.

    The launch flags of the first plan follow, for Megatron-LM.

    A row that is looked up with --candidate is shown whether it fits or not.
    """
    from dsx.results.best import fastest
    from dsx.results.store import read_manifest

    manifest = read_manifest(folder)
    columns = list(dict.fromkeys(per or ()))
    if candidate is not None:
        if top is not None or columns:
            raise InputError(f"--candidate {candidate} shows that candidate alone: leave out --top and --per")
        plans = _rows_of(folder, candidate, sum(part.rows for part in manifest.parts))
    elif columns:
        plans = fastest(folder, None, columns, top or 1)
    else:
        plans = fastest(folder, top or _TOP)
    launches = _launches(folder, plans if as_json else plans[:1], manifest)
    if as_json:
        described = [
            plan | {"launch": launch and launch_data(launch)} for plan, launch in zip(plans, launches, strict=True)
        ]
        print_json({"folder": str(folder)} | _as_data(manifest) | {"plans": described})
    else:
        _print_set(manifest)
        if plans:
            print()
            _print(plans, hardware_of(manifest), single=candidate is not None)
            if launches[0]:
                print()
                print_launch(launches[0], "plan 1")
    if not plans:
        rows = sum(part.rows for part in manifest.parts)
        raise NothingFeasible(f"no plan to show: none of the {counted(rows, 'row')} of {folder} is feasible")


def _rows_of(folder: Any, candidate: str, count: int) -> list[dict[str, Any]]:
    from dsx.results.best import as_plans
    from dsx.results.store import load_chosen

    wanted = int(candidate) if candidate.isdecimal() and len(candidate) < 20 else None

    def choose(frame: Any) -> Any:
        return frame[frame["candidate"] == wanted]

    rows = load_chosen(folder, ["candidate"], choose)
    if rows.empty:
        raise InputError(
            f"no candidate {candidate!r} among the {counted(count, 'row')} of {folder}: an id is a number of its "
            f"column 'candidate'; 'dsx show {folder} --json' prints those of the fastest"
        )
    return as_plans(rows)


def _launches(folder: Any, plans: list[dict[str, Any]], manifest: "Manifest") -> "list[Launch | None]":
    """Return the launch flags of rows; None, with a note, where the layer texts are gone."""
    from dsx.results.launch import megatron_lm

    models: dict[str, Model | None] = {}
    for strategy in dict.fromkeys(plan["plan"]["strategy"] for plan in plans):
        try:
            models[strategy] = model_of(folder, manifest, strategy)
        except InputError as error:
            note(f"no launch flags under {strategy}: {error}")
            models[strategy] = None
    launches: list[Launch | None] = []
    for plan in plans:
        model = models[plan["plan"]["strategy"]]
        inputs = inputs_of(folder, manifest, plan["hardware"]) if model else None
        launches.append(
            megatron_lm(plan["plan"], model, inputs.assumptions, inputs.cluster.device) if model and inputs else None
        )
    return launches


def _as_data(manifest: "Manifest") -> dict[str, Any]:
    counts, sweep = manifest.counts, manifest.sweep
    return {
        "model": sweep.resolved.model.name,
        "clusters": list(manifest.names["cluster"]),
        "strategies": list(manifest.names["strategy"]),
        "assumptions": sweep.resolved.assumptions.name,
        "num_gpus": sweep.num_gpus,
        "global_batch_size": sweep.global_batch_size,
        "sequence_length": sweep.tokens,
        "what_if": what_if_values(manifest),
        "keep": manifest.spec["keep"],
        "precision": manifest.precision,
        "spec_file": manifest.spec_file or None,
        "complete": manifest.complete,
        "started": manifest.started,
        "finished": manifest.finished or None,
        "dsx_version": manifest.dsx_version,
        "candidates": counts.candidates if counts else None,
        "feasible": counts.feasible if counts else None,
        "rejected": counts.rejected if counts else None,
        "rows": sum(part.rows for part in manifest.parts),
        "parts": len(manifest.parts),
    }


def _print_set(manifest: "Manifest") -> None:
    sweep, counts = manifest.sweep, manifest.counts
    state = f"finished {manifest.finished}"
    if not manifest.complete:
        state = f"incomplete, {len(manifest.parts)} of {counted(manifest.num_parts, 'part')}; begun {manifest.started}"
    rows = [
        ["num_gpus", ", ".join(map(str, sweep.num_gpus))],
        ["global_batch_size", ", ".join(map(str, sweep.global_batch_size))],
        ["sequence_length", f"{sweep.tokens:,} tokens"],
        ["tokens a step", ", ".join(f"{size * sweep.tokens:,}" for size in sweep.global_batch_size)],
        ["strategy", ", ".join(manifest.names["strategy"])],
        *(
            [name, ", ".join(hardware_text(name, v) for v in values)]
            for name, values in what_if_values(manifest).items()
        ),
        ["assumptions", f"{sweep.resolved.assumptions.name}, in {manifest.precision}"],
        ["sweep file", manifest.spec_file or "-"],
        ["state", f"{state}, by dsx {manifest.dsx_version}"],
    ]
    if counts:
        part = share(counts.feasible, counts.candidates, 1)
        rows.append(["candidates", f"{counts.candidates:,}, {counts.feasible:,} of them feasible ({part})"])
    rows.append(["kept", f"{kept_text(manifest)}: {rows_text(manifest)}"])
    print(title_of(manifest))
    print_table(["", ""], [[f"  {name}", text] for name, text in rows], text=(0, 1))


def _print(plans: list[dict[str, Any]], hardware: list[str], single: bool) -> None:
    print_plans(plans, with_settings=True, hardware=hardware)
    if not single:
        return
    for number, plan in enumerate(plans, 1):
        if plan["reject"]:
            print(f"{number} is rejected: {', '.join(plan['reject'])}")
    if len(plans) == 1:
        print()
        print_costs(plans[0])
