"""``dsx sweep``: price every candidate of a sweep file, and write a result set.

A sweep is divided into parts. Parts from an earlier run are not priced again, so the same call continues after an
interruption, and several processes can share the parts of one sweep.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dsx.config.sweep_file import KeepTop
from dsx.errors import IncompleteSweep, InputError, NothingFeasible, file_path
from dsx.pricing.measured_share import coverage
from dsx.progress import Watch, rate_text, remark
from dsx.results.manifest import Counts, Manifest
from dsx.results.sets import fastest, load
from dsx.search.sweep import size_for
from dsx.tables.format import wrapped
from dsx.tables.job import counts_text, steps_text
from dsx.tables.plans import plans_text
from dsx.tables.terms import known_text
from dsx.text import Data, DataView
from dsx.units import counted
from dsx.verbs.answer import Answer, PricedPlans, paragraphs
from dsx.verbs.arguments import Fields, assignments, margin_setting, watcher
from dsx.verbs.plot import check_picture, draw_picture
from dsx.verbs.searched import left_out_text, run_by_none, say_few_pipelines, say_inexact_schedules
from dsx.verbs.sweep import Shard, SweepRun

if TYPE_CHECKING:
    import pandas as pd


_SHOWN = 10  # plans of an answer
_GROUPS_SHOWN = 40  # groups of an answer, each with its fastest plan


@dataclass(frozen=True, eq=False, repr=False)
class SweptShard(Answer):
    """A priced share of the parts of a sweep: the i-th of n, counted from 1."""

    folder: Path  # of the result set
    shard: Shard  # (i, n)
    parts: int  # number of parts of the share
    of: int  # number of parts of the sweep

    def _data(self) -> Data:
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

    folder: Path | None  # None if none was given, or nothing was written
    candidates: int  # number of candidates
    feasible: int  # number of those that were priced and fit
    rows: int  # number of rows that were kept
    priced: Sequence[Data]
    varied: Sequence[str]  # hardware columns that the sweep varies
    infeasible: str = ""  # why no candidate fits; empty if one does
    left_out: Mapping[str, str] = field(default_factory=dict)  # strategies that the sweep left out, and why
    loaded: "pd.DataFrame | None" = None  # the rows, if there is no folder
    skipped: int = 0  # number of those that a bound of many candidates left out
    bounded: int = 0  # number of those that their own bound left out
    cut: int = 0  # number of those that got their best cut

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

    def _data(self) -> Data:
        names = ("candidates", "skipped", "bounded", "cut", "feasible", "rows")
        counts = {name: getattr(self, name) for name in names}
        folder, left_out = self.folder and str(self.folder), dict(self.left_out)
        return {"folder": folder, **counts, "left_out": left_out, "plans": self._plans_data()}

    def __str__(self) -> str:
        if not self.priced:
            return ""
        table = plans_text(self.priced, with_settings=True, hardware=self.varied)
        return paragraphs([table, wrapped(run_by_none(self.plans))])


def sweep(
    spec: str | Path | Mapping[str, object],
    out: str | Path | None = None,
    *,
    set: Fields | None = None,
    memory_margin: float | None = None,
    plot: str | Path | None = None,
    watch: Watch | None = None,
) -> Swept:
    """Price every candidate of a sweep, and write a result set.

        swept = dsx.sweep("sweep.yaml", out="results/sweep")
        df = dsx.sweep({"model": "llama-3-8b", "cluster": "h100-nvs8", "num_gpus": [64, 128],
                        "global_batch_size": 512}).frame

    Args:
        spec: a sweep file, or its content.
        out: folder of the result set, for `dsx.load`. Parts from an earlier run are not priced again. Without a folder,
            the rows are kept in memory only.
        set: overridden fields of the sweep or of the files that it names, as in {"sweep.num_gpus": [64, 128],
            "cluster.device.hbm_capacity": "141 GB"}, or a list such as ["sweep.num_gpus=[64, 128]"].
        memory_margin: count only plans as feasible that would fit if they needed this share more memory; by default
            that of the assumption set.
        plot: also draw the picture of the sweep's `plot`, by default a front, into this file.
        watch: called with the candidates done, their total and the kind of work; by default a bar is shown.

    It is no error if no candidate fits: `infeasible` says why. Raises SpecError, which lists the faults of the sweep,
    StoreError if `out` cannot be written, IncompleteSweep if the sweep is interrupted.
    """
    overrides, image = _stated(set, memory_margin), None if plot is None else file_path("plot", plot)
    watch = watcher(watch)
    if out is not None:
        return _swept(spec, file_path("out", out), overrides, image, watch)
    with tempfile.TemporaryDirectory() as folder:
        try:
            answer = _swept(spec, Path(folder) / "set", overrides, image, watch)
        except IncompleteSweep:
            raise IncompleteSweep("interrupted; with a folder as `out` the same call would continue") from None
        rows = None if answer.folder is None else load(answer.folder)
    return replace(answer, folder=None, loaded=rows)


def _stated(fields: Fields | None, memory_margin: float | None) -> list[str]:
    """Return the overridden fields of a sweep, that of its memory margin included."""
    return assignments("set", fields) + assignments("set", margin_setting(memory_margin))


def _swept(
    spec: str | Path | Mapping[str, object],
    folder: Path,
    overrides: Sequence[str],
    plot: Path | None,
    watch: Watch | None,
) -> Swept:
    started = time.monotonic()
    with _interruptible():
        run = SweepRun(spec, folder, overrides, watch)
        picture = None if plot is None else _picture(run, plot)
        answer = _complete(run, started) or _answer(run, run.price(), started)
        if answer.folder is not None and plot is not None and picture is not None:
            draw_picture(run.folder, picture, plot)
        return answer


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise IncompleteSweep("interrupted; nothing is lost, the same command continues") from None


def _complete(run: SweepRun, started: float) -> Swept | None:
    """Return the answer of a sweep without a candidate, or of a finished one; None if there is something to price."""
    say_few_pipelines(run.problems[0])
    say_inexact_schedules(run.sweep.studies[0].problem)
    if not run.sweep.size:
        return _without_candidate(run)
    if (done := run.finished()) is None:
        return None
    remark(f"{run.folder} is complete since {done.finished}")
    return _answer(run, done, started)


def _without_candidate(run: SweepRun) -> Swept:
    """Return the answer; nothing is written, so the corrected sweep can use the folder."""
    return Swept(None, 0, 0, 0, (), (), run.why_infeasible())


def sweep_shard(
    spec: str | Path | Mapping[str, object],
    out: str | Path,
    shard: Shard,
    *,
    set: Fields | None = None,
    memory_margin: float | None = None,
    watch: Watch | None = None,
) -> Swept | SweptShard:
    """Price the i-th of n shares of the parts of a sweep; shards may run at the same time, `finish_sweep` ends it.

        dsx.sweep_shard("sweep.yaml", "results/sweep", (2, 8))

    `shard` is (i, n); the other arguments are those of `sweep`. If there is no candidate, or the set is finished, the
    answer is that of `sweep`. Raises InputError for an invalid shard.
    """
    started = time.monotonic()
    i, n = _checked(shard)
    folder, overrides, watch = file_path("out", out), _stated(set, memory_margin), watcher(watch)
    with _interruptible():
        run = SweepRun(spec, folder, overrides, watch)
        if (answer := _complete(run, started)) is not None:
            return answer
        if len(run.sweep.parts) < n:
            _say_few_parts(run, n)
        run.price_shard((i, n))
        return SweptShard(run.folder, (i, n), len(range(i - 1, len(run.sweep.parts), n)), len(run.sweep.parts))


def _checked(shard: Shard) -> Shard:
    match shard:
        case (int(i), int(n)) if 1 <= i <= n and not any(isinstance(number, bool) for number in shard):
            return i, n
        case _:
            raise InputError(f"{shard!r:.60} is not a shard: the second of eight is (2, 8)")


def finish_sweep(
    spec: str | Path | Mapping[str, object],
    out: str | Path,
    *,
    set: Fields | None = None,
    memory_margin: float | None = None,
    plot: str | Path | None = None,
) -> Swept:
    """Price nothing: check that no part of a sweep is missing, and make the parts the result set.

    The arguments are those of `sweep`. Raises IncompleteSweep if parts are missing.
    """
    started = time.monotonic()
    image = None if plot is None else file_path("plot", plot)
    run = SweepRun(spec, file_path("out", out), _stated(set, memory_margin), None)
    picture = None if image is None else _picture(run, image)
    if not run.sweep.size:
        return _without_candidate(run)
    answer = _answer(run, run.finished() or run.finish(), started)
    if image is not None and picture is not None:
        draw_picture(run.folder, picture, image)
    return answer


def _picture(run: SweepRun, plot: Path) -> Data:
    """Return the sweep's `plot`, by default a front, if it can be drawn into the file `plot`."""
    if run.spec.plot is None:
        remark(f"--plot {plot}: the sweep states no plot; drawn is 'plot: {{kind: front}}'")
    picture = {"kind": "front"} if run.spec.plot is None else run.spec.plot.model_dump()
    check_picture(picture, plot)
    return picture


def _say_few_parts(run: SweepRun, shards: int) -> None:
    """Remark that some shards have no part, and which part_size would give every shard one."""
    size = size_for(run.sweep.studies, run.spec.keep, shards)
    parts = len(run.sweep.parts)
    advice = f"; give part_size: {size} in it to share it among {shards} shards" if size else ""
    remark(
        f"the sweep has {counted(parts, 'part')}, and {shards - parts} of {shards} shards have nothing to do{advice}"
    )


def _say_measured(run: SweepRun, plans: Sequence[DataView]) -> None:
    """Remark how many rows of the operator times are of a kernel, and how those of the fastest plan are known."""
    times, idle = run.spec.operator_times, len(run.idle_rows())
    rows = len(run.inputs[0].operator_times.rows) if run.inputs[0].operator_times else 0
    covered = coverage(run.problems[0], plans[0]["plan"]) if plans else None
    fastest_plan = f"; {known_text(covered, 'the fastest')}" if covered else ""
    remark(f"{rows - idle} of {counted(rows, 'row')} of {times} are of kernels of these plans{fastest_plan}")


def _answer(run: SweepRun, manifest: Manifest, started: float) -> Swept:
    """Return the answer, and remark how much was priced."""
    counts, seconds = manifest.counts or Counts(0, 0, {}), time.monotonic() - started
    num_rows = sum(part.rows for part in manifest.parts)
    length = run.problems[0].sequence_length
    rate = f" in {seconds:.1f} s ({rate_text(run.priced / max(seconds, 1e-9))})" if run.priced else ""
    remark(
        f"{counts_text(counts)}; {run.priced:,} priced now{rate}; "
        f"{steps_text(run.spec.global_batch_size, length)}; {counted(num_rows, 'row')} in {run.folder}"
    )
    varied = [*(["cluster"] if len(run.inputs) > 1 else []), *run.spec.what_if.fields]
    per = [*varied, *(run.spec.keep.per if isinstance(run.spec.keep, KeepTop) else [])]
    plans = fastest(run.folder, _GROUPS_SHOWN if per else _SHOWN, list(dict.fromkeys(per)))
    if run.spec.operator_times:
        _say_measured(run, plans)
    if len(plans) == _GROUPS_SHOWN:
        remark(f"the first {_GROUPS_SHOWN} groups are shown; dsx show {run.folder} shows others")
    why = "" if counts.feasible else run.why_infeasible()
    if run.left_out:
        remark(left_out_text(run.left_out))
    return Swept(
        run.folder,
        counts.candidates,
        counts.feasible,
        num_rows,
        plans,
        varied,
        why,
        run.left_out,
        skipped=counts.skipped,
        bounded=counts.bounded,
        cut=counts.cut,
    )
