"""``dsx sweep``: price every candidate of a sweep file, and write a result set.

A sweep is divided into parts. Parts from an earlier run are not priced again, so the same call continues after an
interruption, and several processes can share the parts of one sweep.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.load import Assignment, Given, split
from dsx.config.model_file import load_model
from dsx.config.schema import Spec
from dsx.config.sweep_file import KeepPareto, KeepTop, load_sweep, missing_of_cluster, objectives, sweep_from_data
from dsx.config.what_if import varied_field
from dsx.errors import IncompleteSweep, InputError, NothingFeasible, SpecError, file_path
from dsx.plans.enumerate import Arrays
from dsx.plans.frameworks import read_framework
from dsx.plans.plan import Setting
from dsx.plans.violations import MEMORY
from dsx.pricing.cuts import CandidateCounts, column_names
from dsx.pricing.measured_share import coverage, idle_rows
from dsx.pricing.problem import Problem
from dsx.progress import Watch, progress, rate_text, remark, warn, working
from dsx.results import manifest as manifests
from dsx.results import writer as store
from dsx.results.frames import fastest, load
from dsx.results.manifest import Counts, Manifest
from dsx.results.set_columns import MENTIONED, ROW_BYTES, ExtraColumn
from dsx.results.writer import Writer
from dsx.search.spaces import fault_of_fix, fault_of_limit, make_studies, strategies_of
from dsx.search.sweep import Sweep, fault_of_groups, most_rows, reduces, size_for
from dsx.tables.format import counts_text, steps_text
from dsx.tables.plans import plans_text
from dsx.tables.terms import known_text
from dsx.text import Data, DataFrame, wrapped
from dsx.units import counted, format_quantity
from dsx.verbs.alternatives import why_infeasible
from dsx.verbs.arguments import (
    Answer,
    Fields,
    PricedPlans,
    assignments,
    margin_setting,
    optional_path,
    paragraphs,
    watcher,
)
from dsx.verbs.job import cluster_remarks, load_inputs, of_its_framework
from dsx.verbs.plan import check_words
from dsx.verbs.plot import check_picture, draw_picture
from dsx.verbs.searched import (
    SearchedStrategies,
    SearchRequest,
    check_fixed,
    left_out_text,
    run_by_none,
    say_few_pipelines,
    say_inexact_schedules,
    searched,
)

_LARGE = 1_000_000  # candidates; fewer are priced in a second and take 50 MB at most
_SHOWN = 10  # plans of an answer
_GROUPS_SHOWN = 40  # groups of an answer, each with its fastest plan
_LOADERS = {"model": load_model, "cluster": load_cluster, "assumptions": load_assumptions}

Shard = tuple[int, int]
SweepLike = str | Path | Mapping[str, object]  # a sweep file, or its content


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
    loaded: DataFrame | None = None  # the rows, if there is no folder
    skipped: int = 0  # number of those that a bound of many candidates left out
    bounded: int = 0  # number of those that their own bound left out
    cut: int = 0  # number of those that got their best cut

    @cached_property
    def frame(self) -> DataFrame:
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
    overrides, image, watch = _overrides(set, memory_margin), optional_path("plot", plot), watcher(watch)
    if out is not None:
        return _whole_set(spec, file_path("out", out), overrides, image, watch)
    with tempfile.TemporaryDirectory() as folder:
        try:
            answer = _whole_set(spec, Path(folder) / "set", overrides, image, watch)
        except IncompleteSweep:
            raise IncompleteSweep("interrupted; with a folder as `out` the same call would continue") from None
        rows = None if answer.folder is None else load(answer.folder)
    return replace(answer, folder=None, loaded=rows)


def _overrides(fields: Fields | None, memory_margin: float | None) -> list[str | Assignment]:
    """Return the overridden fields of a sweep, that of its memory margin included."""
    return assignments("set", fields) + assignments("set", margin_setting(memory_margin))


def _whole_set(
    spec: SweepLike, folder: Path, overrides: Sequence[str | Assignment], plot: Path | None, watch: Watch | None
) -> Swept:
    with _interruptible():
        run = SweepRun(spec, folder, overrides, watch)
        picture = run.picture(plot)
        answer = run.complete() or run.answer(run.price())
        if answer.folder is not None and plot is not None and picture is not None:
            draw_picture(folder, picture, plot)
        return answer


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise IncompleteSweep("interrupted; nothing is lost, the same command continues") from None


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
    match shard:
        case (int(i), int(n)) if 1 <= i <= n and not any(isinstance(number, bool) for number in shard):
            pass
        case _:
            raise InputError(f"{shard!r:.60} is not a shard: the second of eight is (2, 8)")
    folder, overrides, watch = file_path("out", out), _overrides(set, memory_margin), watcher(watch)
    with _interruptible():
        run = SweepRun(spec, folder, overrides, watch)
        if (answer := run.complete()) is not None:
            return answer
        parts = len(run.sweep.parts)
        if parts < n:
            size = size_for(run.sweep.studies, run.spec.keep, n)
            advice = f"; give part_size: {size} in it to share it among {n} shards" if size else ""
            remark(f"the sweep has {counted(parts, 'part')}, and {n - parts} of {n} shards have nothing to do{advice}")
        with run.priced_parts((i, n)):
            return SweptShard(folder, (i, n), len(range(i - 1, parts, n)), parts)


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
    image = optional_path("plot", plot)
    run = SweepRun(spec, file_path("out", out), _overrides(set, memory_margin), None)
    picture = run.picture(image)
    if not run.sweep.size:
        return run.without_candidate()
    answer = run.answer(run.finished() or run.finish())
    if image is not None and picture is not None:
        draw_picture(run.folder, picture, image)
    return answer


class SweepRun:
    """A sweep file, a folder for its result set, and the candidates to price."""

    def __init__(
        self, sweep: SweepLike, folder: Path, assignments: Sequence[str | Assignment], watch: Watch | None
    ) -> None:
        self._started, self._watch, self.folder = time.monotonic(), watch, folder
        self._priced = 0  # candidates, over all hardware points, in this run
        overrides = split(assignments)
        contents: dict[tuple[str, str], Given] = {}  # by key of the sweep, and name
        if isinstance(sweep, Mapping):
            self.spec = spec = sweep_from_data(_by_name(sweep, contents), MENTIONED, overrides["sweep"])
        elif isinstance(sweep, str | Path):
            self.spec = spec = load_sweep(sweep, MENTIONED, overrides["sweep"])
        else:
            raise InputError(f"spec: {type(sweep).__name__} is not a sweep file or its content")
        checked = [("fix", column, fault_of_fix(column, values)) for column, values in spec.fix.items()]
        checked += [("limit", column, fault_of_limit(column)) for column in spec.limit]
        if faults := [f"{spec.place(part, column)}: {part}: {fault}" for part, column, fault in checked if fault]:
            raise SpecError("\n".join(faults))

        def reference(key: str, name: str) -> Given:
            return contents.get((key, name), name)

        first, *further = [reference("cluster", name) for name in spec.cluster]
        model, assumptions = reference("model", spec.model), reference("assumptions", spec.assumptions)
        inputs = load_inputs(model, first, assumptions, overrides, spec.file, spec.operator_times)
        if spec.framework is not None:
            inputs = inputs.run_by(read_framework(spec.framework, spec.file))
        other_clusters = [load_cluster(cluster, overrides["cluster"], spec.file) for cluster in further]
        check_words([Setting(name, tuple(values)) for name, values in spec.fix.items()], inputs.assumptions)
        self.inputs = [inputs]
        for cluster in other_clusters:
            assumed = of_its_framework(inputs.assumptions, cluster.device.family, inputs.near)
            self.inputs.append(replace(inputs, cluster=cluster, assumptions=assumed))
        remarks, *more_remarks = [cluster_remarks(on.cluster, on.assumptions) for on in self.inputs]
        for line in dict.fromkeys(line for lines in more_remarks for line in lines if line not in remarks):
            warn(line)
        names = [inputs.cluster.name for inputs in self.inputs]
        for name, path in zip(names, spec.cluster, strict=True):
            if names.count(name) > 1:
                raise InputError(
                    f"two clusters of the sweep are called {name!r}, {path} among them: the rows of both would look "
                    "alike; give one of the files another 'name'"
                )
        for section, columns in (("keep", objectives(spec.keep)), ("plot", spec.plot.columns if spec.plot else ())):
            for inputs in self.inputs:
                if fault := missing_of_cluster(columns, inputs.cluster, MENTIONED):
                    raise SpecError(f"{spec.place(section)}: {section}: {fault}")

    @cached_property
    def problems(self) -> list[Problem]:
        """The problem on each cluster."""
        return [request.problem.with_partition(self.spec.partition) for request in self.searched]

    @cached_property
    def searched(self) -> list[SearchRequest]:
        """What the sweep searches on each cluster."""
        spec = self.spec
        place = f"{spec.place('strategy')}: strategy"
        named = SearchedStrategies(spec.strategy, merged=not spec.strategy, place=place)
        requests = [
            searched(inputs, named, spec.framework, spec.sequence_length, spec.train_tokens) for inputs in self.inputs
        ]
        faults: list[SpecError] = []
        for request in requests:  # on some clusters a framework may run what it does not on others
            try:
                check_fixed(request, spec.fix, lambda column: f"{spec.place('fix', column)}: fix")
            except SpecError as fault:
                faults.append(fault)
        if len(faults) == len(requests):
            raise faults[0]
        return requests

    @cached_property
    def sweep(self) -> Sweep:
        """The sweep and its parts; SpecError if it keeps more rows than may be kept."""
        spec = self.spec
        with working("enumerating", self._watch):
            sizes = (spec.num_gpus, spec.global_batch_size)
            studies = make_studies(self.problems, spec.what_if, *sizes, spec.fix, spec.limit)
            sweep = Sweep(studies, spec.keep, spec.precision, spec.part_size)
            fault = fault_of_groups(studies, sweep.parts, spec.keep)
        if fault:
            raise SpecError(f"{spec.place('keep')}: keep: {fault}")
        return sweep

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest of the result set at its start."""
        problem, spec = self.problems[0], self.spec
        files = [inputs.to_data() for inputs in self.inputs]
        resolved: Data = {name: part for name, part in files[0].items() if name != "cluster"}
        resolved["clusters"] = [data["cluster"] for data in files]
        resolved["strategy"] = spec.strategy or list(problem.strategies)
        if not (framework := self.searched[0].framework).unlimited:
            resolved["framework"] = framework.model_dump(mode="json")
        resolved["layers"] = problem.fingerprint()
        differing = {
            data["cluster"]["name"]: {"assumptions": data["assumptions"], "layers": on_it.fingerprint()}
            for data, on_it in zip(files, self.problems, strict=True)
            if data["assumptions"] != files[0]["assumptions"]
        }
        resolved |= {"on_cluster": differing} if differing else {}
        fields = [varied_field(path) for path in spec.what_if.fields]
        return manifests.begin(
            spec.model_dump(mode="json") | {"resolved": resolved},
            column_names(problem) | {"cluster": [inputs.cluster.name for inputs in self.inputs]},
            [(reason.name, reason.description) for reason in problem.reasons],
            spec.precision,
            str(spec.file.resolve()) if spec.file else "",
            [ExtraColumn(f.path, f.unit, f.description, f.integer) for f in fields],
        )

    def picture(self, plot: Path | None) -> Data | None:
        """Return the sweep's `plot`, by default a front, if it can be drawn into the file `plot`; None without one."""
        if plot is None:
            return None
        if self.spec.plot is None:
            remark(f"--plot {plot}: the sweep states no plot; drawn is 'plot: {{kind: front}}'")
        picture = {"kind": "front"} if self.spec.plot is None else self.spec.plot.model_dump()
        check_picture(picture, plot)
        return picture

    def complete(self) -> Swept | None:
        """Return the answer of a finished sweep, or of one without a candidate; None if there is something to price."""
        say_few_pipelines(self.problems[0])
        say_inexact_schedules(self.sweep.studies[0].problem)
        if not self.sweep.size:
            return self.without_candidate()
        if (done := self.finished()) is None:
            return None
        remark(f"{self.folder} is complete since {done.finished}")
        return self.answer(done)

    def without_candidate(self) -> Swept:
        """Return the answer; nothing is written, so the corrected sweep can use the folder."""
        return Swept(None, 0, 0, 0, (), (), self._why_infeasible())

    def _why_infeasible(self) -> str:
        return why_infeasible(self.sweep.studies, self.problems[0], self.spec, watch=self._watch)

    def finished(self) -> Manifest | None:
        """Return the manifest of the whole set, if an earlier run has finished it."""
        return store.finished(self.folder, self.manifest)

    def price(self) -> Manifest:
        """Price and write the missing parts, and make all parts the result set.

        Raises IncompleteSweep if it was interrupted.
        """
        with self.priced_parts(None) as writer:
            return self._finished_by(writer)

    def finish(self) -> Manifest:
        """Make the parts the result set; raises IncompleteSweep if some are missing."""
        if not self.folder.is_dir():
            raise IncompleteSweep(f"{self.folder} has no part yet; the sweep itself prices them, or its shards")
        with store.create(self.folder, self.manifest, len(self.sweep.parts)) as writer:
            return self._finished_by(writer)

    def _finished_by(self, writer: Writer) -> Manifest:
        return writer.finish(self.sweep.merged if reduces(self.spec.keep) else None)

    @contextmanager
    def priced_parts(self, shard: Shard | None) -> Iterator[Writer]:
        """Yield the writer of a shard, or of the sweep, once the missing parts are written.

        Raises IncompleteSweep if it was interrupted.
        """
        parts, (i, n) = len(self.sweep.parts), shard or (1, 1)
        with store.create(self.folder, self.manifest, parts, shard) as writer:
            missing, share = writer.missing(), len(range(i - 1, parts, n))
            if present := share - len(missing):
                remark(f"{present} of {counted(share, 'part')} are there already; continuing with the others")
            try:
                self._priced = sum(self.sweep.parts[number].size for number in missing)
                if self._priced >= _LARGE:
                    self._say_size(missing)
                with progress(self._priced, "pricing", self._watch) as advance:

                    def write(number: int, rows: Arrays, counts: CandidateCounts) -> None:
                        # Enumerated candidates obey all rules but that of memory, of GPU and of host.
                        rejected = {MEMORY.name: counts.infeasible}
                        left_out = (counts.skipped, counts.bounded, counts.cut)
                        writer.write(number, rows, Counts(counts.candidates, counts.feasible, rejected, *left_out))

                    self.sweep.run(missing, write, advance)
                yield writer
            except KeyboardInterrupt:
                done = parts - len(writer.unfinished())
                then = "continues from there" if done else "begins again, and loses less with a smaller part_size"
                raise IncompleteSweep(
                    f"interrupted, with {done} of {counted(parts, 'part')} in {self.folder}; the same command {then}"
                ) from None

    def _say_size(self, missing: Sequence[int]) -> None:
        """Remark how much the parts price and write into the folder; warn if the disk has not the room.

        How many candidates fit, or are on a front, is not known before: then the rows are the most that there can be.
        """
        folder, keep = self.folder, self.spec.keep
        begins = f"{counted(self._priced, 'candidate')} to price"
        if isinstance(keep, KeepPareto):
            remark(f"{begins}; the rows of each front go into {folder}")
            return
        rows = most_rows(self.sweep.studies, [self.sweep.parts[number] for number in missing], keep)
        size, most = rows * ROW_BYTES[self.spec.precision], "" if keep == "all" else "at most "
        remark(f"{begins}; {most}{counted(rows, 'row')}, about {format_quantity(size, 'bytes')}, go into {folder}")
        existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())
        if size > (free := shutil.disk_usage(existing).free):
            room = format_quantity(free, "bytes")
            warn(f"{folder} has {room} free; keep: {{top: 10}} or limits of columns need less")

    def answer(self, manifest: Manifest) -> Swept:
        """Return the answer, and remark how much was priced."""
        spec, seconds = self.spec, time.monotonic() - self._started
        counts = manifest.counts or Counts(0, 0, {})
        rate = f" in {seconds:.1f} s ({rate_text(self._priced / max(seconds, 1e-9))})" if self._priced else ""
        steps = steps_text(spec.global_batch_size, self.problems[0].sequence_length)
        priced = f"{counts_text(counts)}; {self._priced:,} priced now{rate}"
        remark(f"{priced}; {steps}; {counted(manifest.num_rows, 'row')} in {self.folder}")
        varied = [*(["cluster"] if len(self.inputs) > 1 else []), *spec.what_if.fields]
        of_keep = spec.keep.per if isinstance(spec.keep, KeepTop) else []
        per = [*varied, *(name for name in dict.fromkeys(of_keep) if name not in varied)]
        plans = fastest(self.folder, _GROUPS_SHOWN if per else _SHOWN, per)
        if spec.operator_times and (times := self.inputs[0].operator_times):
            rows = len(times.rows)
            covered = coverage(self.problems[0], plans[0]["plan"]) if plans else None
            of_plan = f"; {known_text(covered, 'the fastest')}" if covered else ""
            used = f"{rows - len(idle_rows(self.problems[0]))} of {counted(rows, 'row')} of {spec.operator_times}"
            remark(f"{used} are of kernels of these plans{of_plan}")
        if len(plans) == _GROUPS_SHOWN:
            remark(f"the first {_GROUPS_SHOWN} groups are shown; dsx show {self.folder} shows others")
        why = "" if counts.feasible else self._why_infeasible()
        left_out = self.searched[0].left_out(strategies_of([study.space for study in self.sweep.studies]))
        if left_out:
            remark(left_out_text(left_out))
        of_bounds = {name: getattr(counts, name) for name in ("skipped", "bounded", "cut")}
        numbers = (counts.candidates, counts.feasible, manifest.num_rows)
        return Swept(self.folder, *numbers, plans, varied, why, left_out, **of_bounds)


def _by_name(content: Mapping[str, object], contents: dict[tuple[str, str], Given]) -> Data:
    """Return a sweep in which names replace content, which goes into `contents` by key and name.

    Raises SpecError for invalid content, or if two entries have the same name.
    """

    def name_of(key: str, entry: object) -> object:
        if not isinstance(entry, Mapping | Spec):
            return entry
        name = _LOADERS[key](entry).name
        contents[key, name] = entry
        return name

    sweep: Data = dict(content)
    for key in [key for key in sweep if key in _LOADERS]:
        entry = sweep[key]
        names = [name_of(key, item) for item in (entry if isinstance(entry, list | tuple) else [entry])]
        sweep[key] = names if isinstance(entry, list | tuple) else names[0]
        for name in names:
            if (key, name) in contents and names.count(name) > 1:
                raise SpecError(f"sweep: {key}: two entries are called {name!r}: give one of them another 'name'")
    return sweep
