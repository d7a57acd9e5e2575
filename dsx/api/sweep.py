"""A sweep: every candidate of a sweep file priced, and a result set written.

A sweep is cut into parts. Those that an earlier run has left are not priced again, so the same call goes on after an
interruption, and several processes can share the parts of one sweep.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.api.answer import Answer, PricedPlans
from dsx.api.arguments import Fields, assignments
from dsx.api.infeasible import why_infeasible
from dsx.api.picture import check_picture, draw_picture
from dsx.api.pipelines import say_few_pipelines
from dsx.api.sweep_run import Shard, SweepRun
from dsx.display.job import steps_text
from dsx.display.plans import plans_text
from dsx.display.quantities import counted
from dsx.errors import IncompleteSweep, InputError, NothingFeasible
from dsx.progress import Watch, rate_text
from dsx.remarks import remark
from dsx.results.manifest import Manifest
from dsx.results.plan_rows import fastest
from dsx.results.store import load
from dsx.search.sweep_parts import size_for
from dsx.spec.keep import KeepTop

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 10  # plans that are shown of a sweep
_GROUPS_SHOWN = 40


@dataclass(frozen=True, eq=False, repr=False)
class SweptShard(Answer):
    """A share of the parts of a sweep that is priced: the i-th of n, counted from 1."""

    folder: Path  # of the result set
    shard: Shard  # which share this is
    parts: int  # how many parts the share has
    of: int  # how many the sweep has

    def to_data(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return {"folder": str(self.folder), "shard": list(self.shard), "parts": self.parts, "of": self.of}

    def __str__(self) -> str:
        i, n = self.shard
        return (
            f"shard {i}/{n} is done: {self.parts} of {counted(self.of, 'part')} in {self.folder}; when all "
            "shards are, the same command with --finish instead of --shard makes them the result set"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Swept(PricedPlans):
    """A result set: how many candidates were priced, and the fastest plans (or the fastest of each group)."""

    folder: Path | None  # None where none was given, or nothing was written
    candidates: int  # how many were priced
    feasible: int  # how many of these fit
    rows: int  # how many were kept
    priced: Sequence[dict[str, Any]]
    varied: Sequence[str]  # columns of the hardware that the sweep varies
    infeasible: str = ""  # why no candidate fits; empty if one does
    loaded: "pd.DataFrame | None" = None  # the rows, where there is no folder

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """The rows that were kept, as `dsx.load` gives them; units in `attrs`.

        Raises NothingFeasible if there was no candidate.
        """
        if self.loaded is not None:
            return self.loaded
        if self.folder is None:
            raise NothingFeasible(self.infeasible)
        return load(self.folder)

    def to_data(self) -> dict[str, Any]:
        """Return the answer as plain data; times in seconds, sizes in bytes."""
        plans = [plan | {"plan": dict(plan["plan"])} for plan in self.priced]
        counts = {"candidates": self.candidates, "feasible": self.feasible, "rows": self.rows}
        return {"folder": self.folder and str(self.folder), **counts, "plans": plans}

    def __str__(self) -> str:
        return plans_text(self.priced, with_settings=True, hardware=self.varied) if self.priced else ""


def sweep(
    spec: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    set: Fields | None = None,
    plot: str | Path | None = None,
    watch: Watch | None = None,
) -> Swept:
    """Price every candidate of a sweep.

        swept = dsx.sweep("sweep.yaml", out="results/sweep")
        df = dsx.sweep({"model": "llama-3-8b", "cluster": "h100-nvs8", "num_gpus": [64, 128],
                        "global_batch_size": 512}).frame

    Args:
        spec: a sweep file, or its content.
        out: folder of the result set, which `dsx.load` reads again. What an earlier run left there is not priced
            again. Without it the rows are kept in memory alone.
        set: fields of the sweep or of what it names that are changed, as in {"sweep.num_gpus": [64, 128],
            "cluster.device.hbm_capacity": "141 GB"}, or texts such as "sweep.num_gpus=[64, 128]".
        plot: also draw what the sweep's `plot` asks for into this file.
        watch: told how many candidates are done, of how many, and of what; a bar is shown without.

    A sweep of which no candidate fits is no error: `infeasible` says why. Raises SpecError that lists the faults of the
    sweep, StoreError if `out` cannot be written, IncompleteSweep if it is interrupted.
    """
    if out is not None:
        return _swept(spec, Path(out), assignments(set), plot, watch)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = _swept(spec, Path(folder) / "set", assignments(set), plot, watch)
        except IncompleteSweep:
            raise IncompleteSweep("interrupted; with a folder as `out` the same call would go on") from None
        rows = None if found.folder is None else load(found.folder)
    counts = (found.candidates, found.feasible, found.rows)
    return Swept(None, *counts, found.priced, found.varied, found.infeasible, rows)


def _swept(
    spec: str | Path | Mapping[str, Any],
    folder: Path,
    stated: Sequence[str],
    plot: str | Path | None,
    watch: Watch | None,
) -> Swept:
    started = time.monotonic()
    try:
        run = SweepRun(spec, folder, stated, watch)
        picture = None if plot is None else _picture(run, Path(plot))
        say_few_pipelines(run.problems[0])
        if not run.sweep.size:
            # Nothing is written without a candidate, so the corrected sweep can use the folder.
            why = why_infeasible(run.sweep.studies, run.problems[0], run.spec, watch=watch)
            return Swept(None, 0, 0, 0, (), (), why)
        manifest = run.finished()
        if manifest is not None:
            remark(f"{run.folder} is complete since {manifest.finished}")
        found = _answer(run, manifest or run.price(None), started)
        if plot is not None and picture is not None:
            draw_picture(run.folder, picture, Path(plot))
        return found
    except KeyboardInterrupt:
        raise IncompleteSweep("interrupted; nothing is lost, the same command goes on") from None


def sweep_shard(
    spec: str | Path | Mapping[str, Any],
    out: str | Path,
    shard: Shard,
    *,
    set: Fields | None = None,
    watch: Watch | None = None,
) -> Swept | SweptShard:
    """Price a share of the parts of a sweep, (i, n) for the i-th of n; all may run at once, and `finish_sweep` ends it.

        dsx.sweep_shard("sweep.yaml", "results/sweep", (2, 8))

    The other arguments are those of `sweep`. Its answer is returned where there is no candidate, or all is finished.
    Raises InputError for a share that there is not.
    """
    started = time.monotonic()
    i, n = _checked(shard)
    try:
        run = SweepRun(spec, Path(out), assignments(set), watch)
        say_few_pipelines(run.problems[0])
        if not run.sweep.size:
            return Swept(None, 0, 0, 0, (), (), why_infeasible(run.sweep.studies, run.problems[0], run.spec))
        if (done := run.finished()) is not None:
            remark(f"{run.folder} is complete since {done.finished}")
            return _answer(run, done, started)
        if len(run.sweep.parts) < n:
            _say_few_parts(run, n)
        run.price((i, n))
        return SweptShard(run.folder, (i, n), len(range(i - 1, len(run.sweep.parts), n)), len(run.sweep.parts))
    except KeyboardInterrupt:
        raise IncompleteSweep("interrupted; nothing is lost, the same command goes on") from None


def _checked(shard: Shard) -> Shard:
    match shard:
        case (int(i), int(n)) if 1 <= i <= n:
            return i, n
        case _:
            raise InputError(f"{shard!r} is no shard: the second of eight is (2, 8)")


def finish_sweep(
    spec: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    set: Fields | None = None,
    plot: str | Path | None = None,
) -> Swept:
    """Price nothing: check that all parts of a sweep are there, and make them the result set.

    Arguments are those of `sweep`. Raises IncompleteSweep if some are missing.
    """
    started = time.monotonic()
    run = SweepRun(spec, Path(out), assignments(set), None)
    picture = None if plot is None else _picture(run, Path(plot))
    if not run.sweep.size:
        return Swept(None, 0, 0, 0, (), (), why_infeasible(run.sweep.studies, run.problems[0], run.spec))
    found = _answer(run, run.finished() or run.finish(), started)
    if plot is not None and picture is not None:
        draw_picture(run.folder, picture, Path(plot))
    return found


def _picture(run: SweepRun, plot: Path) -> dict[str, Any]:
    """Return the picture that the sweep asks for, if it can be drawn."""
    if run.spec.plot is None:
        raise InputError(f"--plot {plot}: the sweep asks for no picture; add for example 'plot: {{kind: front}}' to it")
    picture = run.spec.plot.model_dump()
    check_picture(picture, plot)
    return picture


def _say_few_parts(run: SweepRun, shards: int) -> None:
    """Say that some of the shards have nothing to do, and which part_size would give all of them a part."""
    size = size_for(run.sweep.studies, run.spec.keep, shards)
    there = len(run.sweep.parts)
    advice = f"; give part_size: {size} in it to share it among {shards} shards" if size else ""
    remark(
        f"the sweep has {counted(there, 'part')}, and {shards - there} of {shards} shards have nothing to do{advice}"
    )


def _say_idle(run: SweepRun) -> None:
    """Say how many rows of the operator times changed nothing."""
    times, idle = run.spec.operator_times, len(run.idle_rows())
    rows = len(run.inputs[0].operator_times.rows) if run.inputs[0].operator_times else 0
    remark(f"{rows - idle} of {counted(rows, 'row')} of {times} are times of kernels of these plans")


def _answer(run: SweepRun, manifest: Manifest | None, started: float) -> Swept:
    """Return what was found, and say how much was priced."""
    assert manifest is not None  # without a shard there is one
    counts, seconds = manifest.counts, time.monotonic() - started
    candidates, feasible = (counts.candidates, counts.feasible) if counts else (0, 0)
    num_rows = sum(part.rows for part in manifest.parts)
    length = run.problems[0].sequence_length
    rate = f" in {seconds:.1f} s ({rate_text(run.priced / max(seconds, 1e-9))})" if run.priced else ""
    remark(
        f"{counted(candidates, 'candidate')}, {feasible:,} feasible; {run.priced:,} priced now{rate}; "
        f"{steps_text(run.spec.global_batch_size, length)}; {counted(num_rows, 'row')} in {run.folder}"
    )
    if run.spec.operator_times:
        _say_idle(run)
    varied = [*(["cluster"] if len(run.inputs) > 1 else []), *run.spec.what_if.fields]
    per = [*varied, *(run.spec.keep.per if isinstance(run.spec.keep, KeepTop) else [])]
    plans = fastest(run.folder, _GROUPS_SHOWN if per else _SHOWN, list(dict.fromkeys(per)))
    if len(plans) == _GROUPS_SHOWN:
        remark(f"the first {_GROUPS_SHOWN} groups are shown; dsx show {run.folder} shows others")
    why = "" if feasible else why_infeasible(run.sweep.studies, run.problems[0], run.spec)
    return Swept(run.folder, candidates, feasible, num_rows, plans, varied, why)
