"""One run of a sweep: read its file, say its size, find the missing parts, price and write them."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.load import Given, split
from dsx.config.model_file import load_model
from dsx.config.operator_files import OperatorTime
from dsx.config.schema import Spec
from dsx.config.sweep_file import (
    Keep,
    KeepPareto,
    SweepSpec,
    load_sweep,
    missing_of_cluster,
    objectives,
    sweep_from_data,
)
from dsx.config.what_if import varied_field
from dsx.errors import IncompleteSweep, InputError, SpecError
from dsx.plans.frameworks import read_framework
from dsx.plans.violations import MEMORY
from dsx.pricing.cuts import column_names
from dsx.pricing.measured_share import idle_rows
from dsx.pricing.problem import Problem
from dsx.progress import Watch, progress, remark, warn, working
from dsx.results import manifest as manifests
from dsx.results import writer as store
from dsx.results.manifest import Counts, Manifest
from dsx.results.set_columns import MENTIONED, ROW_BYTES, ExtraColumn
from dsx.results.writer import Writer
from dsx.search.spaces import Study, fault_of_fix, fault_of_limit, make_studies
from dsx.search.sweep import Part, Sweep, fault_of_groups, most_rows, reduces
from dsx.text import Data
from dsx.units import counted, format_quantity
from dsx.verbs.alternatives import why_infeasible
from dsx.verbs.job import cluster_remarks, load_inputs, of_its_framework
from dsx.verbs.plan import check_words
from dsx.verbs.searched import SearchRequest, check_fixed, searched

_LARGE = 1_000_000  # candidates; fewer are priced in a second and take 50 MB at most


def say_size(studies: Sequence[Study], parts: Sequence[Part], keep: Keep, precision: str, folder: Path) -> None:
    """Remark how much the parts of a large sweep price and write into `folder`; warn if the disk has not the room.

    How many candidates fit, or are on a front, is not known before: then the rows are the most that there can be.
    """
    candidates = sum(part.size for part in parts)
    if candidates < _LARGE:
        return
    begins = f"{counted(candidates, 'candidate')} to price"
    if isinstance(keep, KeepPareto):
        remark(f"{begins}; the rows of each front go into {folder}")
        return
    rows = most_rows(studies, parts, keep)
    size = rows * ROW_BYTES[precision]
    most = "" if keep == "all" else "at most "
    remark(f"{begins}; {most}{counted(rows, 'row')}, about {format_quantity(size, 'B')}, go into {folder}")
    free = shutil.disk_usage(_existing(folder)).free
    if size > free:
        warn(f"{folder} has {format_quantity(free, 'B')} free; keep: {{top: 10}} or limits of columns need less")


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one around it that exists."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())


Shard = tuple[int, int]


class SweepRun:
    """A sweep file, a folder for its result set, and the candidates to price."""

    def __init__(
        self, spec: str | Path | Mapping[str, object], folder: Path, assignments: Sequence[str], watch: Watch | None
    ) -> None:
        overrides = split(assignments)
        contents: Contents = {}
        if isinstance(spec, Mapping):
            named, contents = by_name(spec)
            self.spec = sweep_from_data(named, MENTIONED, overrides["sweep"])
        elif isinstance(spec, str | Path):
            self.spec: SweepSpec = load_sweep(spec, MENTIONED, overrides["sweep"])
        else:
            raise InputError(f"spec: {type(spec).__name__} is not a sweep file or its content")
        self._watch = watch
        self._check_values()
        self.folder = folder
        self.priced = 0  # candidates, over all hardware points, in this run
        first, *other_clusters = self.spec.cluster

        def given(key: str, name: str) -> Given:
            return contents.get((key, name), name)

        files = (given("model", self.spec.model), given("cluster", first), given("assumptions", self.spec.assumptions))
        inputs = load_inputs(*files, overrides, self.spec.file, self.spec.operator_times)
        if self.spec.framework is not None:
            inputs = inputs.run_by(read_framework(self.spec.framework, self.spec.file))
        clusters = [
            load_cluster(given("cluster", name), overrides["cluster"], self.spec.file) for name in other_clusters
        ]
        check_words({name: ",".join(map(str, values)) for name, values in self.spec.fix.items()}, inputs.assumptions)
        assumed = [
            of_its_framework(inputs.assumptions, on_cluster.device.family, inputs.near) for on_cluster in clusters
        ]
        others_on = [
            replace(inputs, cluster=on_cluster, assumptions=assumed_there)
            for on_cluster, assumed_there in zip(clusters, assumed, strict=True)
        ]
        self.inputs = [inputs, *others_on]
        remarks = cluster_remarks(inputs.cluster, inputs.assumptions)
        further = [line for other in others_on for line in cluster_remarks(other.cluster, other.assumptions)]
        for line in dict.fromkeys(further):
            if line not in remarks:
                warn(line)
        self._check_names()
        self._check_objectives()

    def _check_values(self) -> None:
        checked = [("fix", column, fault_of_fix(column, values)) for column, values in self.spec.fix.items()]
        checked += [("limit", column, fault_of_limit(column)) for column in self.spec.limit]
        faults = [
            f"{self.spec.place(section, column)}: {section}: {fault}" for section, column, fault in checked if fault
        ]
        if faults:
            raise SpecError("\n".join(faults))

    def _check_names(self) -> None:
        names = [inputs.cluster.name for inputs in self.inputs]
        for name, path in zip(names, self.spec.cluster, strict=True):
            if names.count(name) > 1:
                raise InputError(
                    f"two clusters of the sweep are called {name!r}, {path} among them: the rows of both would look "
                    "alike; give one of the files another 'name'"
                )

    def _check_objectives(self) -> None:
        drawn = self.spec.plot.columns if self.spec.plot else ()
        for section, columns in (("keep", objectives(self.spec.keep)), ("plot", drawn)):
            for inputs in self.inputs:
                if fault := missing_of_cluster(columns, inputs.cluster):
                    raise SpecError(f"{self.spec.place(section)}: {section}: {fault}")

    @cached_property
    def problems(self) -> list[Problem]:
        """The problem on each cluster."""
        return [request.problem.with_partition(self.spec.partition) for request in self.searched]

    @cached_property
    def searched(self) -> list[SearchRequest]:
        """What the sweep searches on each cluster."""
        spec = self.spec
        place = f"{spec.place('strategy')}: strategy"
        requests = [
            searched(
                inputs,
                spec.strategy,
                spec.framework,
                spec.sequence_length,
                spec.train_tokens,
                merged=not spec.strategy,
                place=place,
            )
            for inputs in self.inputs
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
    def left_out(self) -> dict[str, str]:
        """The strategies that a sweep without named ones leaves out, and why."""
        return self.searched[0].left_out([study.space for study in self.sweep.studies])

    @cached_property
    def sweep(self) -> Sweep:
        """The sweep and its parts; SpecError if it keeps more rows than may be kept."""
        spec = self.spec
        sizes = (spec.num_gpus, spec.global_batch_size)
        with working("enumerating", self._watch):
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
        resolved: dict[str, object] = self.inputs[0].to_data()
        del resolved["cluster"]
        files = [inputs.to_data() for inputs in self.inputs]
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

    def why_infeasible(self) -> str:
        """Return why no candidate of the sweep fits, and the nearest change that helps."""
        return why_infeasible(self.sweep.studies, self.problems[0], self.spec, watch=self._watch)

    def idle_rows(self) -> Sequence[OperatorTime]:
        """Return the rows of the operator times that are of no kernel of any plan."""
        return idle_rows(self.problems[0])

    def finished(self) -> Manifest | None:
        """Return the manifest of the whole set, if an earlier run has finished it."""
        return store.finished(self.folder, self.manifest)

    def price(self) -> Manifest:
        """Price and write the missing parts, and make all parts the result set.

        Raises IncompleteSweep if it was interrupted.
        """
        with self._priced(None) as writer:
            return writer.finish(self._merge)

    def price_shard(self, shard: Shard) -> None:
        """Price and write the missing parts of a shard; raises IncompleteSweep if it was interrupted."""
        with self._priced(shard):
            pass

    def finish(self) -> Manifest:
        """Make the parts the result set; raises IncompleteSweep if some are missing."""
        with store.create(self.folder, self.manifest, len(self.sweep.parts)) as writer:
            return writer.finish(self._merge)

    @contextmanager
    def _priced(self, shard: Shard | None) -> Iterator[Writer]:
        """Yield the writer of a shard, or of the sweep, once the missing parts are written."""
        with store.create(self.folder, self.manifest, len(self.sweep.parts), shard) as writer:
            missing = writer.missing()
            self._remark_on_earlier_parts(missing, shard)
            try:
                self._price(writer, missing)
                yield writer
            except KeyboardInterrupt:
                finished = len(self.sweep.parts) - len(writer.unfinished())
                raise IncompleteSweep(
                    f"interrupted, with {finished} of {counted(len(self.sweep.parts), 'part')} in {self.folder}; "
                    "the same command continues from there"
                ) from None

    def _remark_on_earlier_parts(self, missing: list[int], shard: Shard | None) -> None:
        i, n = shard or (1, 1)
        share = len(range(i - 1, len(self.sweep.parts), n))
        if len(missing) < share:
            remark(f"{share - len(missing)} of {counted(share, 'part')} are there already; continuing with the others")

    def _price(self, writer: Writer, missing: list[int]) -> None:
        parts = [self.sweep.parts[number] for number in missing]
        self.priced = sum(part.size for part in parts)
        say_size(self.sweep.studies, parts, self.spec.keep, self.spec.precision, self.folder)
        with progress(self.priced, "pricing", self._watch) as advance:

            def write(number: int, rows: Any, counts: Any) -> None:
                # Enumerated candidates obey all rules except those of memory, of GPU and host, which count together.
                rejected = {MEMORY.name: counts.infeasible}
                left_out = (counts.skipped, counts.bounded, counts.cut)
                writer.write(number, rows, Counts(counts.candidates, counts.feasible, rejected, *left_out))

            self.sweep.run(missing, write, advance)

    @property
    def _merge(self) -> Any:
        return self.sweep.merged if reduces(self.spec.keep) else None


_LOADERS = {"model": load_model, "cluster": load_cluster, "assumptions": load_assumptions}


Contents = dict[tuple[str, str], Given]  # by key of the sweep, and name


def by_name(content: Mapping[str, object]) -> tuple[Data, Contents]:
    """Return a sweep in which names replace content, and the content by name.

    Raises SpecError for invalid content, or if two entries have the same name.
    """
    contents: Contents = {}

    def named(key: str, entry: object) -> Any:
        if key not in _LOADERS or not isinstance(entry, Mapping | Spec):
            return entry
        name = _LOADERS[key](entry).name
        contents[key, name] = entry
        return name

    def all_named(key: str, several: Sequence[object]) -> list[Any]:
        names = [named(key, entry) for entry in several]
        for name in names:
            if (key, name) in contents and names.count(name) > 1:
                raise SpecError(f"sweep: {key}: two entries are called {name!r}: give one of them another 'name'")
        return names

    sweep = {
        key: all_named(key, entry) if isinstance(entry, list | tuple) and key in _LOADERS else named(key, entry)
        for key, entry in content.items()
    }
    return sweep, contents
