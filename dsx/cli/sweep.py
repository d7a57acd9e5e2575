"""``dsx sweep``: price every configuration of a sweep file and write a result set.

A sweep is cut into parts. Those that an earlier run has left are not priced again, so the same command goes on
after an interruption, and several processes can share the parts of one sweep.
"""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.best import print_plans
from dsx.cli.compiled import keep_compiled
from dsx.cli.job import steps_text
from dsx.cli.nothing import why_nothing
from dsx.cli.output import counted, note, print_json
from dsx.cli.pipelines import say_few_pipelines
from dsx.cli.plot import check, draw
from dsx.cli.progress import rate_text
from dsx.cli.sweep_run import Shard, SweepRun
from dsx.errors import IncompleteSweep, InputError, NothingFeasible
from dsx.spec.keep import KeepTop

if TYPE_CHECKING:
    from dsx.results.manifest import Manifest

_SHOWN = 10  # plans printed after a sweep
_GROUPS_SHOWN = 40


def _shard(text: str) -> Shard:
    """Return "2/8" as (2, 8)."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"{text!r} is no shard: the second of eight is 2/8")
    return int(match[1]), int(match[2])


def sweep(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="A sweep file (YAML).")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Result folder [default: results/<name of SPEC>]."),
    ] = None,
    shard: Annotated[
        Any,
        typer.Option(
            "--shard",
            parser=_shard,
            metavar="I/N",
            help="Price the I-th of N shares of the parts; all may run at once.",
        ),
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Price nothing: check that all parts are there and make them the set.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw what the sweep file's 'plot' asks for.")
    ] = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price every candidate of a sweep file and write a result set.

    The set is a folder of Parquet files, which `dsx show`, `dsx plot`, `dsx pareto` and `dsx.load` read. A run
    that was interrupted goes on when the same command is given again. Exit codes: 3 if no candidate fits, 4 if
    the sweep was interrupted or parts are missing.
    """
    if finish and shard:
        raise InputError("--finish prices nothing, and --shard says what to price: give one of them")
    if shard and plot:
        raise InputError("--plot draws the whole set, of which --shard prices a share: give --plot with --finish")
    started = time.monotonic()
    try:
        run = SweepRun(spec_file, output or Path("results") / spec_file.stem, assignments or [])
        picture = _picture(run, plot)
        say_few_pipelines(run.problems[0])
        keep_compiled()
        manifest = _manifest(run, shard, finish, as_json)
        if manifest is not None:
            _report(run, manifest, time.monotonic() - started, as_json)
            if plot and picture:
                draw(run.folder, picture, plot)
    except KeyboardInterrupt:
        raise IncompleteSweep("interrupted; nothing is lost, the same command goes on") from None


def _picture(run: SweepRun, plot: Path | None) -> dict[str, Any] | None:
    """Return the picture that the sweep asks for, if it is wanted and can be drawn."""
    if plot is None:
        return None
    if run.spec.plot is None:
        raise InputError(f"--plot {plot}: the sweep asks for no picture; add for example 'plot: {{kind: front}}' to it")
    picture = run.spec.plot.model_dump()
    check(picture, plot)
    return picture


def _manifest(run: SweepRun, shard: Shard | None, finish: bool, as_json: bool) -> "Manifest | None":
    """Return the manifest of the set, priced as far as that is missing; None after a shard."""
    if not run.sweep.size:
        # Nothing is written without a candidate, so the corrected sweep can use the folder.
        if as_json:
            print_json({"folder": None, "candidates": 0, "feasible": 0, "rows": 0, "plans": []})
        raise NothingFeasible(why_nothing(run.sweep.studies, run.problems[0], run.spec))
    done = run.finished()
    if done is not None:
        note(f"{run.folder} is complete since {done.finished}")
        return done
    if finish:
        return run.finish()
    if shard and len(run.sweep.parts) < shard[1]:
        _say_few_parts(run, shard[1])
    manifest = run.price(shard)
    if shard:
        _report_shard(run, shard, as_json)
    return manifest


def _say_few_parts(run: SweepRun, shards: int) -> None:
    """Say that some of the shards have nothing to do, and which part_size would give all of them a part."""
    from dsx.search.parts import size_for

    size = size_for(run.sweep.studies, run.spec.keep, shards)
    there = len(run.sweep.parts)
    advice = f"; give part_size: {size} in it to share it among {shards} shards" if size else ""
    note(f"the sweep has {counted(there, 'part')}, and {shards - there} of {shards} shards have nothing to do{advice}")


def _report_shard(run: SweepRun, shard: Shard, as_json: bool) -> None:
    i, n = shard
    own = range(i - 1, len(run.sweep.parts), n)
    if as_json:
        print_json({"folder": str(run.folder), "shard": [i, n], "parts": len(own), "of": len(run.sweep.parts)})
    note(
        f"shard {i}/{n} is done: {len(own)} of {counted(len(run.sweep.parts), 'part')} in {run.folder}; when all "
        "shards are, the same command with --finish instead of --shard makes them the result set"
    )


def _say_idle(run: SweepRun) -> None:
    """Say how many rows of the operator times changed nothing."""
    times, idle = run.spec.operator_times, len(run.idle_rows())
    rows = len(run.inputs[0].operator_times.rows) if run.inputs[0].operator_times else 0
    note(f"{rows - idle} of {counted(rows, 'row')} of {times} are times of kernels of these plans")


def _report(run: SweepRun, manifest: "Manifest", seconds: float, as_json: bool) -> None:
    """Say what was found: the fastest plans (or the fastest of each group) on stdout, the rest on stderr."""
    from dsx.results.best import fastest

    counts = manifest.counts
    candidates, feasible = (counts.candidates, counts.feasible) if counts else (0, 0)
    num_rows = sum(part.rows for part in manifest.parts)
    length = run.problems[0].sequence_length
    rate = f" in {seconds:.1f} s ({rate_text(run.priced / max(seconds, 1e-9))})" if run.priced else ""
    note(
        f"{counted(candidates, 'candidate')}, {feasible:,} feasible; {run.priced:,} priced now{rate}; "
        f"{steps_text(run.spec.global_batch_size, length)}; {counted(num_rows, 'row')} in {run.folder}"
    )
    if run.spec.operator_times:
        _say_idle(run)
    varied = [*(["cluster"] if len(run.inputs) > 1 else []), *run.spec.what_if.fields]
    per = [*varied, *(run.spec.keep.per if isinstance(run.spec.keep, KeepTop) else [])]
    plans = fastest(run.folder, _GROUPS_SHOWN if per else _SHOWN, list(dict.fromkeys(per)))
    if as_json:
        data: dict[str, Any] = {"folder": str(run.folder), "candidates": candidates, "feasible": feasible}
        print_json(data | {"rows": num_rows, "plans": plans})
    elif plans:
        print_plans(plans, with_settings=True, hardware=varied)
        if len(plans) == _GROUPS_SHOWN:
            note(f"the first {_GROUPS_SHOWN} groups are shown; dsx show {run.folder} shows others")
    if not feasible:
        sys.stdout.flush()
        raise NothingFeasible(why_nothing(run.sweep.studies, run.problems[0], run.spec))
