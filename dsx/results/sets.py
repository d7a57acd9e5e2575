"""Result sets on disk: runs of a sweep write them part by part, and readers load them.

Read a result set, or the parts so far of an unfinished run, as a pandas DataFrame.

Write a result set part by part, and publish the parts as the set.

A sweep is divided into numbered parts; a part depends only on the sweep and its number. The finished parts are those in
the folder of the unfinished run (folder.py). So an interruption loses only the parts that are being written, and a run
that is interrupted a hundred times writes the same files as one that is not.

Runs of a sweep into a folder: whether a run is finished, which process may begin one, and how it continues one.

    if store.finished(folder, manifest) is None:
        with store.create(folder, manifest, num_parts) as writer:
            for number in writer.missing():
                writer.write(number, *priced(number))
            writer.finish()

A folder belongs to one sweep. Until a new set is complete, a run only adds files; it refuses a folder with files that
do not belong to its sweep.

Result sets on disk: the interface for the rest of dsx.

    if store.finished("results/a", manifest) is None:
        with store.create("results/a", manifest, num_parts) as writer:    # begins or continues a run
            for number in writer.missing():
                writer.write(number, rows, counts)    # {column: [n] array}, and the counts of the part
            writer.finish()                           # only now does `load` see the set
    df = store.load("results/a")

A set is a folder with Parquet parts and a manifest (schema.py has the columns, folder.py the layout on disk). For sets
that do not fit in memory use other tools: DuckDB and Polars read `<folder>/*.parquet` directly.

The fastest rows of a result set, and rows as plain data in the form that ``evaluate --json`` prints.
"""

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.errors import IncompleteSweep, StoreError, UnknownNameError, file_path, texts
from dsx.plans.choices import PLAN_COLUMNS
from dsx.plans.plan import Plan
from dsx.plans.violations import HOST_MEMORY, MEMORY, VANISHES
from dsx.results import folder as disk
from dsx.results import manifest as manifests
from dsx.results import parts as parts_on_disk
from dsx.results.folder import MANIFEST, MERGED, UNFINISHED, Hold, Shard, part_name, part_number
from dsx.results.manifest import Counts, Manifest, StoredPart, differences
from dsx.results.schema import CUT, Column

if TYPE_CHECKING:
    import pandas as pd


def read_manifest(folder: str | Path) -> Manifest:
    """Return the manifest of the result set in `folder`.

    For an unfinished run, `<folder>/.unfinished`, it lists the parts so far and the sum of their counts.
    Raises StoreError if there is no manifest, or if it is broken or has another schema version.
    """
    folder = file_path("folder", folder)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise StoreError(f"no result set at {folder}, which {what}; give the folder of a sweep's -o")
    with disk.os_errors(f"cannot read {folder}"):
        if (found := stated(folder)) is not None:
            return found if found.complete else _so_far(folder, found)
        unfinished = folder / UNFINISHED
        if (begun := stated(unfinished)) is not None:
            there = len(_so_far(unfinished, begun).parts)
            raise StoreError(
                f"the sweep into {folder} has not finished: it has {there} of {begun.num_parts} parts; run the same "
                f"command again to continue it (the parts so far can be loaded from {unfinished})"
            )
    raise StoreError(f"no result set at {folder}: it has no {MANIFEST}; give the folder of a sweep's -o")


def stated(folder: Path) -> Manifest | None:
    """Return the manifest in `folder` as written; None if there is none.

    Raises StoreError if it is broken or has another schema version, OSError if it cannot be read.
    """
    path = folder / MANIFEST
    try:
        with disk.open_file(path) as file:
            text = file.read()
    except FileNotFoundError:
        return None
    return manifests.from_json(text, str(path))


def _so_far(folder: Path, begun: Manifest) -> Manifest:
    there = parts_on_disk.footers(folder, begun)
    return dataclasses.replace(
        begun,
        parts=tuple(StoredPart(part_name(number), part.rows) for number, part in there.items()),
        counts=manifests.total(begun, [part.counts for part in there.values()]),
    )


def load(folder: str | Path, columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Return a result set, or the given columns of it in the given order.

    Name columns are categories. `df.attrs` holds `units` and `descriptions` by column, `reject_reasons` (entry i
    explains bit i of `reject`), the `spec`, `clusters` (all clusters of the sweep), `what_if` (the columns that it
    varies), and whether the set is `complete`.
    Raises StoreError if the set is missing or broken, UnknownNameError for a column that it does not have.
    """
    folder = file_path("folder", folder)
    manifest = read_manifest(folder)
    wanted = [column.name for column in manifest.columns] if columns is None else _known(columns, manifest)
    return frame(manifest, [parts_on_disk.read(folder, part, manifest, wanted) for part in manifest.parts], wanted)


def load_chosen(
    folder: str | Path, columns: Iterable[str], choose: Callable[[pd.DataFrame], pd.DataFrame]
) -> pd.DataFrame:
    """Return all columns of the rows that `choose` keeps, in its order, with one group of rows in memory at a time.

    `choose` gets a frame with at least `columns` and returns some of its rows. The rows that it keeps of the whole set
    must be among those that it keeps of each group, as with the fastest rows or a Pareto front. Raises what `load`
    raises.
    """
    folder = file_path("folder", folder)
    manifest = read_manifest(folder)
    every, few = [column.name for column in manifest.columns], _known(columns, manifest)
    tables: list[pa.Table] = []
    groups = ((part, group) for part in manifest.parts for group in range(parts_on_disk.num_groups(folder, part)))
    for part, group in groups:
        light = _rows(manifest, [parts_on_disk.read(folder, part, manifest, few, group)], few)
        chosen = choose(light).index.to_numpy()
        if len(chosen):
            tables.append(parts_on_disk.read(folder, part, manifest, every, group).take(chosen))
    return choose(frame(manifest, tables, every))


def load_small(folder: str | Path, columns: Iterable[str]) -> pd.DataFrame:
    """Return columns of a result set in the least memory: whole numbers in as few bytes as they need, without `attrs`.

    Each group of rows is read and made small in turn. Raises what `load` raises.
    """
    folder = file_path("folder", folder)
    manifest = read_manifest(folder)
    wanted = _known(columns, manifest)
    pieces: list[dict[str, pd.Series]] = [_small(_rows(manifest, [], wanted))]
    for part in manifest.parts:
        for group in range(parts_on_disk.num_groups(folder, part)):
            pieces.append(_small(_rows(manifest, [parts_on_disk.read(folder, part, manifest, wanted, group)], wanted)))
    # Column by column, so that no column is there twice but the one that is joined.
    pieces = [piece for piece in pieces if len(piece[wanted[0]])] or pieces
    return pd.DataFrame({name: pd.concat([piece.pop(name) for piece in pieces], ignore_index=True) for name in wanted})


def _small(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the columns of rows, whole numbers in as few bytes as they need."""
    found: dict[str, pd.Series] = {}
    for name in rows.columns:
        whole = pd.api.types.is_integer_dtype(rows[name])
        column = pd.to_numeric(rows[name], downcast="integer") if whole else rows[name].copy()
        found[str(name)] = pd.Series(column)
    return found


def frame(manifest: Manifest, tables: Sequence[pa.Table], wanted: Sequence[str]) -> pd.DataFrame:
    """Return tables of the columns `wanted`, from `parts_on_disk.read`, as one frame with its `attrs`."""
    df = _rows(manifest, tables, wanted)
    known: dict[str, Column] = {column.name: column for column in manifest.columns}
    df.attrs = {
        "units": {name: known[name].unit for name in wanted},
        "descriptions": {name: known[name].description for name in wanted},
        "reject_reasons": [dataclasses.asdict(reason) for reason in manifest.reject_reasons],
        "spec": manifest.spec,
        "clusters": list(manifest.names["cluster"]),
        "what_if": [extra.name for extra in manifest.what_if],
        "complete": manifest.complete,
    }
    return df


def _rows(manifest: Manifest, tables: Sequence[pa.Table], wanted: Sequence[str]) -> pd.DataFrame:
    """Return the rows without `attrs`, which pandas copies with every operation."""
    schema = parts_on_disk.part_schema(manifest)
    empty = pa.schema([schema.field(name) for name in wanted]).empty_table()
    df = (pa.concat_tables(tables) if tables else empty).to_pandas()
    for column in manifest.columns:
        if column.name in wanted and column.kind == "name":
            # A part has only the names that occur in it.
            df[column.name] = df[column.name].cat.set_categories(list(manifest.names[column.name]))
    return df


def _known(columns: Iterable[str], manifest: Manifest) -> list[str]:
    known = {column.name for column in manifest.columns}
    wanted = list(dict.fromkeys(texts("columns", columns, "step_time_s")))
    for name in wanted:
        if name not in known:
            raise UnknownNameError("column", name, known)
    return wanted


Rows = Mapping[str, np.ndarray]

_SHOWN = 5  # numbers of missing parts in an error


class Writer:
    """Writes the parts of one result set; made by `runs.create`."""

    def __init__(self, folder: Path, manifest: Manifest, shard: Shard | None, hold: Hold) -> None:
        self._folder, self._manifest, self._shard, self._hold = folder, manifest, shard, hold
        self._run = folder / UNFINISHED

    def unfinished(self) -> list[int]:
        """Return the numbers of all missing or damaged parts, including those of other shards."""
        with disk.os_errors(f"cannot read {self._run}"):
            there = parts_on_disk.footers(self._run, self._manifest)
        return [number for number in range(self._manifest.num_parts) if number not in there]

    def missing(self) -> list[int]:
        """Return the numbers of the parts that this process has to write: of its shard, or of the whole run."""
        i, n = self._shard or (1, 1)
        return [number for number in self.unfinished() if number % n == i - 1]

    def write(self, number: int, rows: Rows, counts: Counts) -> None:
        """Write a part of n rows, whole or not at all; several threads may call this at once.

        Args:
            number: of the part.
            rows: every column of the set as an [n] array; name columns as codes, costs in the units of the schema.
            counts: of the candidates priced for the part, kept or not.

        Raises StoreError if the rows do not fit the schema, or cannot be written.
        """
        if not 0 <= number < self._manifest.num_parts:
            raise ValueError(f"part {number} of {self._manifest.num_parts}")
        content = memoryview(parts_on_disk.encode(rows, counts, self._manifest))
        try:
            with disk.os_errors(f"cannot write part {number} of {self._folder}"):
                disk.write_whole(self._run / part_name(number), content)
        except StoreError as error:
            if not self._run.is_dir():
                raise StoreError(f"{self._run} was removed meanwhile; run the same command again") from error
            raise

    def finish(self, merge: Callable[[dict[str, np.ndarray]], Rows] | None = None) -> Manifest:
        """Make the parts the folder's result set, in place of an earlier one; return its manifest.

        Parts without rows are left out. With `merge`, the set has a single part: what `merge` returns for the rows of
        all parts, in order, with codes for names.
        Raises IncompleteSweep if parts are missing, StoreError if other processes work on them or the set cannot be
        written; this or a later run can then call `finish` again.
        """
        with disk.os_errors(f"cannot finish {self._folder}"), disk.entry(self._run):
            there = parts_on_disk.footers(self._run, self._manifest)
            if len(there) < self._manifest.num_parts:
                raise IncompleteSweep(self._gaps(there))
            self._hold.take_all()
            counts = manifests.total(self._manifest, [part.counts for part in there.values()])
            if merge is None:
                files = {number: (part_name(number), part.rows) for number, part in there.items() if part.rows}
            else:
                files = {0: (MERGED, self._write_merged(merge, counts, there))}
            return self._publish(files, counts)

    def _gaps(self, there: Collection[int]) -> str:
        missing = [number for number in range(self._manifest.num_parts) if number not in there]
        more = ", ..." if len(missing) > _SHOWN else ""
        return (
            f"{len(missing)} of {self._manifest.num_parts} parts of {self._folder} are missing "
            f"(number {', '.join(map(str, missing[:_SHOWN]))}{more}); run the same command again, or the shards "
            "that write them"
        )

    def _write_merged(
        self, merge: Callable[[dict[str, np.ndarray]], Rows], counts: Counts, there: Mapping[int, parts_on_disk.Footer]
    ) -> int:
        """Write all parts as one file; return its number of rows."""
        columns = [column.name for column in self._manifest.columns]
        filled = [StoredPart(part_name(number), part.rows) for number, part in there.items() if part.rows]
        tables = [parts_on_disk.read(self._run, part, self._manifest, columns) for part in filled]
        df = frame(self._manifest, tables, columns)
        codes = {name: df[name].cat.codes for name in self._manifest.names}
        rows = merge({name: codes.get(name, df[name]).to_numpy() for name in columns})
        disk.write_whole(self._run / MERGED, memoryview(parts_on_disk.encode(rows, counts, self._manifest)))
        return len(rows[columns[0]])

    def _publish(self, by_number: Mapping[int, tuple[str, int]], counts: Counts) -> Manifest:
        """Publish files of the run; `by_number` maps the number of a part in the set to its file and rows."""
        earlier = stated(self._folder)
        named = {part.file for part in earlier.parts} if earlier else set()
        own = {path.name for path in parts_on_disk.part_files(self._folder).values() if self._is_own(path, named)}
        taken = {number for file in named if (number := part_number(file)) is not None}
        # New numbers, so that the earlier set can be read until the new one replaces it.
        first = max(taken) + 1 if taken & by_number.keys() else 0
        files = {part_name(first + number): file for number, (file, _) in by_number.items()}
        for name in files:
            if name not in own and os.path.lexists(self._folder / name):
                raise StoreError(
                    f"{self._folder / name} already exists and is not of this sweep; move it elsewhere and run the "
                    "same command again"
                )
        rows = [rows for _, rows in by_number.values()]
        done = dataclasses.replace(
            self._manifest,
            parts=tuple(StoredPart(name, count) for name, count in zip(files, rows, strict=True)),
            counts=counts,
            complete=True,
            finished=manifests.now(),
        )
        disk.publish(self._folder, files, own, manifests.to_json(done))
        return done

    def _is_own(self, path: Path, named: Collection[str]) -> bool:
        """Return whether a file is a part of the earlier set, or is left from a run of this sweep that died."""
        return path.name in named or parts_on_disk.spec_hash_of(path) == self._manifest.spec_hash


def finished(folder: str | Path, manifest: Manifest) -> Manifest | None:
    """Return the manifest of the set in `folder` if it is complete and of the sweep of `manifest`.

    None if there is no set, if another version of dsx wrote it, or if a part is missing or damaged. Files that a run
    left when it died while finishing are removed.
    Raises StoreError if the manifest in `folder` is broken or has another schema version, or if the folder of the
    unfinished run is not of dsx.
    """
    folder = Path(folder)
    with disk.os_errors(f"cannot read {folder}"):
        if not folder.is_dir():
            return None
        disk.refuse_foreign_entries(folder)
        there = _whole(folder, manifest)
    if there is not None:
        _remove_leftovers(folder, there)
    return there


@contextmanager
def create(folder: str | Path, manifest: Manifest, num_parts: int, shard: Shard | None = None) -> Iterator[Writer]:
    """Yield a writer that begins or continues the result set of `manifest`; makes `folder` if needed.

    Args:
        folder: of the set; the unfinished run is in its `.unfinished`.
        manifest: of the sweep.
        num_parts: the number of parts of the sweep.
        shard: (i, n) if this process writes the i-th of n shares of the parts, counted from 1. Shards may run at the
            same time; a run without a shard must be the only one.

    If no part was written, the folder is left as it was.
    Raises StoreError, without any change, if the folder cannot be written; if it holds the results or an unfinished run
    of another sweep, version or number of parts, or files or links that are not of dsx; or if other processes work in
    it.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, not a folder; choose another folder with -o")
    run = folder / UNFINISHED
    with ExitStack() as stack:
        with disk.os_errors(f"cannot write to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            disk.refuse_foreign_entries(folder)
            _refuse_other_results(folder, manifest)
            if foreign := _foreign_parts(run, manifest):
                raise StoreError(
                    f"{run} holds parts of another sweep ({', '.join(foreign[:3])}) and no manifest; move it "
                    "elsewhere, or choose another folder with -o"
                )
            stack.callback(_remove_if_empty, run)
            with disk.entry(run):
                hold = stack.enter_context(closing(Hold(run, shard)))
                begun = _begin(folder, dataclasses.replace(manifest, num_parts=num_parts), hold.alone)
                if shard is None:
                    disk.remove_partial(run)
                hold.share()
        yield Writer(folder, begun, shard, hold)


def _refuse_other_results(folder: Path, manifest: Manifest) -> None:
    there = stated(folder)
    if there is not None and not there.complete:
        raise StoreError(f"{folder} is an unfinished run; give the folder that contains it, {folder.parent}")
    if there is not None and there.spec_hash != manifest.spec_hash:
        keys = differences(there.spec, manifest.spec)
        raise StoreError(
            f"{folder} holds the results of another sweep ({there.spec_hash[:12]}; this one is "
            f"{manifest.spec_hash[:12]}, they differ in {', '.join(keys[:4])}); choose another folder with -o"
        )
    # Parts of this sweep without a manifest are from a run that died and whose `.unfinished` was then deleted.
    foreign = [n for n in disk.foreign_files(folder) if parts_on_disk.spec_hash_of(folder / n) != manifest.spec_hash]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise StoreError(
            f"{folder} holds files that are not a result set ({', '.join(foreign[:3])}{more}); "
            "choose another folder with -o"
        )


def _foreign_parts(run: Path, manifest: Manifest) -> list[str]:
    """Return the names of the parts in a run without a manifest that are not of the sweep of `manifest`.

    Parts of the sweep itself remain if a run dies while it is being removed, its manifest first.
    """
    if not run.is_dir() or stated(run) is not None:
        return []
    there = [*parts_on_disk.part_files(run).values(), *(path for path in (run / MERGED,) if path.exists())]
    return [path.name for path in there if parts_on_disk.spec_hash_of(path) != manifest.spec_hash]


def _begin(folder: Path, manifest: Manifest, alone: bool) -> Manifest:
    """Return the manifest of the unfinished run in `folder`; begin a run if there is none to continue."""
    run = folder / UNFINISHED
    if _whole(folder, manifest) is not None:
        raise StoreError(f"another process has just finished {folder}; run the same command again to see it")
    begun = stated(run)
    why = _difference(begun, manifest) if begun is not None else ""
    # A run without parts can be replaced: nothing is lost.
    if why and (parts_on_disk.part_files(run) or not alone):
        raise StoreError(
            f"{folder} holds an unfinished run of {why}; continue that run, delete {run}, or choose another folder "
            "with -o"
        )
    if begun is not None and not why:
        return dataclasses.replace(manifest, started=begun.started)
    if alone:
        disk.empty(run)
    disk.write_whole(run / MANIFEST, manifests.to_json(manifest))
    return manifest


def _difference(begun: Manifest, manifest: Manifest) -> str:
    """Return how an unfinished run differs from the run of `manifest`; "" if it does not."""
    if begun.spec_hash != manifest.spec_hash:
        keys = differences(begun.spec, manifest.spec)
        return f"another sweep (they differ in {', '.join(keys[:4])})"
    if begun.dsx_version != manifest.dsx_version:
        return f"dsx {begun.dsx_version} (this is {manifest.dsx_version})"
    if begun.num_parts != manifest.num_parts:
        return f"{begun.num_parts} parts (this one has {manifest.num_parts})"
    return ""


def _whole(folder: Path, manifest: Manifest) -> Manifest | None:
    there = stated(folder)
    if there is None or not there.complete or not _is_same_sweep(there, manifest):
        return None
    schema = parts_on_disk.part_schema(there)
    return there if all(parts_on_disk.is_intact(folder, part, schema) for part in there.parts) else None


def _is_same_sweep(a: Manifest, b: Manifest) -> bool:
    return (a.spec_hash, a.dsx_version) == (b.spec_hash, b.dsx_version)


def _remove_leftovers(folder: Path, done: Manifest) -> None:
    """Remove the files that remain of the run that made the set `done`."""
    run = folder / UNFINISHED

    def remove() -> None:
        begun = stated(run)
        if _foreign_parts(run, done):
            return
        if begun is None or _is_same_sweep(begun, done):
            files = parts_on_disk.part_files(folder).values()
            left = [path.name for path in files if parts_on_disk.spec_hash_of(path) == done.spec_hash]
            disk.clean(folder, {part.file for part in done.parts}, left)

    _while_alone(run, remove)


def _remove_if_empty(run: Path) -> None:
    """Remove a run without parts, so that the folder is left as it was."""

    def remove() -> None:
        if not parts_on_disk.part_files(run):
            disk.discard(run)

    _while_alone(run, remove)


def _while_alone(run: Path, tidy: Callable[[], None]) -> None:
    """Tidy a run if no process works on it; do nothing if one does, or if the run may not be changed."""
    with suppress(OSError, StoreError):
        if run.is_dir():
            with disk.entry(run), closing(Hold(run, None)):
                tidy()


__all__ = ["Writer", "create", "finished", "load", "load_chosen", "load_small", "read_manifest"]


def fastest(folder: Path, count: int | None, per: Sequence[str] = (), of_each: int = 1) -> list[dict[str, Any]]:
    """Return the `count` fastest feasible rows as plans; all of them if `count` is None.

    With `per`, the rows are the `of_each` fastest of each group of equal `per` columns, group by group. Raises
    StoreError if the set cannot be read, UnknownNameError for a column that it does not have.
    """

    def choose(frame: Any) -> Any:
        ordered = frame.loc[frame["reject"] == 0].sort_values(["step_time_s", "candidate"])
        if per:
            leading = ordered.loc[ordered.groupby(list(per), observed=True).cumcount() < of_each]
            ordered = leading.sort_values([*per, "step_time_s", "candidate"])
        return ordered.iloc[:count]

    return as_plans(load_chosen(folder, ["reject", "step_time_s", "candidate", *per], choose))


def as_plans(rows: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return one dict for each row of a result set.

    `plan` holds the choices, `hardware` the cluster and what-if values, then come the costs by name, `fits`, and under
    `reject` the names of the broken rules.
    """
    choices = ("candidate", *PLAN_COLUMNS, *({CUT.name} & {*rows.columns}))
    hardware = ("cluster", *rows.attrs["what_if"])
    reasons = [reason["name"] for reason in rows.attrs["reject_reasons"]]
    plans: list[dict[str, object]] = []
    plain = rows.copy(deep=False)
    plain.attrs = {}  # pandas would copy them for every row
    for row in plain.to_dict(orient="records"):
        broken = [name for bit, name in enumerate(reasons) if row["reject"] >> bit & 1]
        plans.append(
            {"plan": Plan({name: row[name] for name in choices}), "hardware": {name: row[name] for name in hardware}}
            | {name: row[name] for name in (*StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__)}
            | {"fits": not {MEMORY.name, HOST_MEMORY.name, VANISHES.name} & set(broken), "reject": broken}
        )
    return plans
