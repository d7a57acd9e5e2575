"""One run of a sweep: read its file, find the missing parts, price and write them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dsx.api.device_remarks import cluster_remarks
from dsx.api.foreign_words import check_words
from dsx.api.inputs import load_inputs, of_its_framework
from dsx.api.searched import Searched, check_fixed, searched
from dsx.api.specs_by_name import Contents, by_name
from dsx.api.sweep_size import say_size
from dsx.errors import IncompleteSweep, InputError, SpecError
from dsx.pricing.measured_kernels import idle_rows
from dsx.pricing.problem import Problem
from dsx.pricing.rows import column_names
from dsx.progress import Watch, progress, working
from dsx.remarks import remark, warn
from dsx.results import manifest as manifests
from dsx.results import store
from dsx.results.manifest import Counts, Manifest
from dsx.results.schema import MENTIONED, ExtraColumn
from dsx.results.store import Writer
from dsx.search.max_groups import fault_of_groups
from dsx.search.space import fault_of_fix, fault_of_limit
from dsx.search.study import make_studies
from dsx.search.sweep import Sweep
from dsx.search.sweep_parts import reduces
from dsx.space.frameworks import read_framework
from dsx.space.strategy_rules import MEMORY
from dsx.spec.cluster import load_cluster
from dsx.spec.keep import objectives
from dsx.spec.load import Given
from dsx.spec.operator_times import OperatorTime
from dsx.spec.overrides import split
from dsx.spec.run_columns import missing_of_cluster
from dsx.spec.sweep import SweepSpec, load_sweep, sweep_from_data
from dsx.spec.what_if import field
from dsx.units import counted

Shard = tuple[int, int]


class SweepRun:
    """A sweep file, a folder for its result set, and the candidates to price."""

    def __init__(
        self, stated: str | Path | Mapping[str, object], folder: Path, assignments: Sequence[str], watch: Watch | None
    ) -> None:
        overrides = split(assignments)
        contents: Contents = {}
        if isinstance(stated, Mapping):
            named, contents = by_name(stated)
            self.spec = sweep_from_data(named, MENTIONED, overrides["sweep"])
        elif isinstance(stated, str | Path):
            self.spec: SweepSpec = load_sweep(stated, MENTIONED, overrides["sweep"])
        else:
            raise InputError(f"spec: {type(stated).__name__} is not a sweep file or its content")
        self._watch = watch
        self._check_values()
        self.folder = folder
        self.priced = 0  # candidates, over all hardware points, in this run
        first, *others = self.spec.cluster

        def given(key: str, name: str) -> Given:
            return contents.get((key, name), name)

        files = (given("model", self.spec.model), given("cluster", first), given("assumptions", self.spec.assumptions))
        inputs = load_inputs(*files, overrides, self.spec.file, self.spec.operator_times)
        if self.spec.framework is not None:
            inputs = inputs.run_by(read_framework(self.spec.framework, self.spec.file))
        clusters = [load_cluster(given("cluster", name), overrides["cluster"], self.spec.file) for name in others]
        check_words({name: ",".join(map(str, values)) for name, values in self.spec.fix.items()}, inputs.assumptions)
        assumed = [of_its_framework(inputs.assumptions, one.device.family, inputs.near) for one in clusters]
        others_on = [replace(inputs, cluster=one, assumptions=own) for one, own in zip(clusters, assumed, strict=True)]
        self.inputs = [inputs, *others_on]
        known = cluster_remarks(inputs.cluster, inputs.assumptions)
        further = [said for one in others_on for said in cluster_remarks(one.cluster, one.assumptions)]
        for said in dict.fromkeys(further):
            if said not in known:
                warn(said)
        self._check_names()
        self._check_objectives()

    def _check_values(self) -> None:
        stated = [("fix", column, fault_of_fix(column, values)) for column, values in self.spec.fix.items()]
        stated += [("limit", column, fault_of_limit(column)) for column in self.spec.limit]
        faults = [f"{self.spec.place(section, column)}: {section}: {said}" for section, column, said in stated if said]
        if faults:
            raise SpecError("\n".join(faults))

    def _check_names(self) -> None:
        names = [inputs.cluster.name for inputs in self.inputs]
        for name, given in zip(names, self.spec.cluster, strict=True):
            if names.count(name) > 1:
                raise InputError(
                    f"two clusters of the sweep are called {name!r}, {given} among them: the rows of both would look "
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
        return [found.problem.with_partition(self.spec.partition) for found in self.searched]

    @cached_property
    def searched(self) -> list[Searched]:
        """What the sweep searches on each cluster."""
        spec = self.spec
        place = f"{spec.place('strategy')}: strategy"
        found = [
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
        for one in found:  # on some clusters a framework may run what it does not on others
            try:
                check_fixed(one, spec.fix, lambda column: f"{spec.place('fix', column)}: fix")
            except SpecError as fault:
                faults.append(fault)
        if len(faults) == len(found):
            raise faults[0]
        return found

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
        own = {
            data["cluster"]["name"]: {"assumptions": data["assumptions"], "layers": on_it.fingerprint()}
            for data, on_it in zip(files, self.problems, strict=True)
            if data["assumptions"] != files[0]["assumptions"]
        }
        resolved |= {"on_cluster": own} if own else {}
        fields = [field(path) for path in spec.what_if.fields]
        return manifests.begin(
            spec.model_dump(mode="json") | {"resolved": resolved},
            column_names(problem) | {"cluster": [inputs.cluster.name for inputs in self.inputs]},
            [(reason.name, reason.description) for reason in problem.reasons],
            spec.precision,
            str(spec.file.resolve()) if spec.file else "",
            [ExtraColumn(f.path, f.unit, f.description, f.integer) for f in fields],
        )

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
                there = len(self.sweep.parts) - len(writer.unfinished())
                raise IncompleteSweep(
                    f"interrupted, with {there} of {counted(len(self.sweep.parts), 'part')} in {self.folder}; "
                    "the same command continues from there"
                ) from None

    def _remark_on_earlier_parts(self, missing: list[int], shard: Shard | None) -> None:
        i, n = shard or (1, 1)
        own = len(range(i - 1, len(self.sweep.parts), n))
        if len(missing) < own:
            remark(f"{own - len(missing)} of {counted(own, 'part')} are there already; continuing with the others")

    def _price(self, writer: Writer, missing: list[int]) -> None:
        parts = [self.sweep.parts[number] for number in missing]
        self.priced = sum(part.size for part in parts)
        say_size(self.sweep.studies, parts, self.spec.keep, self.spec.precision, self.folder)
        with progress(self.priced, "pricing", self._watch) as advance:

            def write(number: int, rows: Any, counts: Any) -> None:
                # Enumerated candidates obey all rules except those of memory, of GPU and host, which count together.
                rejected = {MEMORY.name: counts.infeasible}
                others = (counts.skipped, counts.bounded, counts.cut)
                writer.write(number, rows, Counts(counts.candidates, counts.feasible, rejected, *others))

            self.sweep.run(missing, write, advance)

    @property
    def _merge(self) -> Any:
        return self.sweep.merged if reduces(self.spec.keep) else None
