"""A sweep: every candidate of a sweep file priced, and a result set written.

A sweep is cut into parts. Those that an earlier run has left are not priced again, so the same call goes on after an
interruption, and several processes can share the parts of one sweep.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.api.answer import Answer
from dsx.api.infeasible import why_infeasible
from dsx.api.picture import check_picture, draw_picture
from dsx.api.pipelines import say_few_pipelines
from dsx.api.sweep_run import Shard, SweepRun
from dsx.display.job import steps_text
from dsx.display.plans import plans_text
from dsx.display.quantities import counted
from dsx.errors import IncompleteSweep, InputError
from dsx.progress import Watch, rate_text
from dsx.remarks import remark
from dsx.results.best import fastest
from dsx.results.manifest import Manifest
from dsx.results.store import load
from dsx.search.sweep_parts import size_for
from dsx.spec.keep import KeepTop

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 10  # plans that are shown of a sweep
_GROUPS_SHOWN = 40


@dataclass(frozen=True)
class SweptShard(Answer):
    """A share of the parts of a sweep that is priced: the i-th of n, counted from 1."""

    folder: Path
    shard: Shard
    parts: int  # of this share
    of: int  # parts of the sweep

    def to_data(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return {"folder": str(self.folder), "shard": list(self.shard), "parts": self.parts, "of": self.of}

    def __str__(self) -> str:
        i, n = self.shard
        return (
            f"shard {i}/{n} is done: {self.parts} of {counted(self.of, 'part')} in {self.folder}; when all "
            "shards are, the same command with --finish instead of --shard makes them the result set"
        )


@dataclass(frozen=True)
class Swept(Answer):
    """A result set: how many candidates were priced, and the fastest plans (or the fastest of each group)."""

    folder: Path | None  # None where nothing was written
    candidates: int
    feasible: int
    rows: int
    plans: Sequence[dict[str, Any]] = field(repr=False)
    varied: Sequence[str] = field(repr=False)  # columns of the hardware that the sweep varies
    infeasible: str = ""  # why no candidate fits; empty if one does
    loaded: "pd.DataFrame | None" = field(default=None, repr=False, compare=False)

    @property
    def frame(self) -> "pd.DataFrame":
        """The rows as a DataFrame, as `dsx.load` gives them; units in `attrs`."""
        if self.loaded is not None:
            return self.loaded
        if self.folder is None:
            raise InputError(self.infeasible)
        return load(self.folder)

    def to_data(self) -> dict[str, Any]:
        """Return the answer as plain data; times in seconds, sizes in bytes."""
        plans = [plan | {"plan": dict(plan["plan"])} for plan in self.plans]
        counts = {"candidates": self.candidates, "feasible": self.feasible, "rows": self.rows}
        return {"folder": self.folder and str(self.folder), **counts, "plans": plans}

    def __str__(self) -> str:
        return plans_text(self.plans, with_settings=True, hardware=self.varied) if self.plans else ""


def sweep(
    spec: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    set: Sequence[str] = (),
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
        set: texts such as "sweep.num_gpus=[64, 128]" or "cluster.device.hbm_capacity=141 GB".
        plot: also draw what the sweep's `plot` asks for into this file.
        watch: told how many candidates are done, of how many; a bar is shown without.

    Raises SpecError that lists the faults of the sweep; IncompleteSweep if it is interrupted.
    """
    if out is not None:
        return _swept(spec, Path(out), set, plot, watch)
    with tempfile.TemporaryDirectory() as folder:
        found = _swept(spec, Path(folder) / "set", set, plot, watch)
        rows = None if found.folder is None else load(found.folder)
    counts = (found.candidates, found.feasible, found.rows)
    return Swept(None, *counts, found.plans, found.varied, found.infeasible, rows)


def _swept(
    spec: str | Path | Mapping[str, Any],
    folder: Path,
    assignments: Sequence[str],
    plot: str | Path | None,
    watch: Watch | None,
) -> Swept:
    started = time.monotonic()
    try:
        run = SweepRun(spec, folder, assignments, watch)
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
    set: Sequence[str] = (),
    watch: Watch | None = None,
) -> Swept | SweptShard:
    """Price a share of the parts of a sweep, (i, n) for the i-th of n; all may run at once, and `finish_sweep` ends it.

    A sweep without a candidate, and one that is finished, is answered as `sweep` does.
    """
    started = time.monotonic()
    try:
        run = SweepRun(spec, Path(out), set, watch)
        say_few_pipelines(run.problems[0])
        if not run.sweep.size:
            return Swept(None, 0, 0, 0, (), (), why_infeasible(run.sweep.studies, run.problems[0], run.spec))
        if (done := run.finished()) is not None:
            remark(f"{run.folder} is complete since {done.finished}")
            return _answer(run, done, started)
        i, n = shard
        if len(run.sweep.parts) < n:
            _say_few_parts(run, n)
        run.price(shard)
        return SweptShard(run.folder, shard, len(range(i - 1, len(run.sweep.parts), n)), len(run.sweep.parts))
    except KeyboardInterrupt:
        raise IncompleteSweep("interrupted; nothing is lost, the same command goes on") from None


def finish_sweep(
    spec: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    set: Sequence[str] = (),
    plot: str | Path | None = None,
) -> Swept:
    """Price nothing: check that all parts of a sweep are there, and make them the result set.

    Raises IncompleteSweep if some are missing.
    """
    started = time.monotonic()
    run = SweepRun(spec, Path(out), set, None)
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
