"""Result sets on disk: a folder of Parquet parts and a manifest, written whole and read as pandas.

    with store.create("results/a", manifest.begin(spec, names, reasons, "float32")) as writer:
        writer.write(rows)            # once per batch: {column: [n] array}; each makes one part
        writer.write(more_rows)
        writer.finish(counts)         # only now does `load` see the set
    df = store.load("results/a")

`create` refuses a folder that holds anything but an earlier run of the same spec, and that run is
readable until `finish` has replaced it (folder.py says how). An interrupted run keeps what it had
written in `<folder>/.writing-<pid>`, which loads as an incomplete set, until the next run there.

Not covered: resuming such a run (its parts are whole and its manifest lists them, so it can be done),
and reading a set that does not fit in memory: DuckDB and Polars read `<folder>/*.parquet` as it is.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dsx.errors import StoreError, UnknownNameError
from dsx.results import folder as disk
from dsx.results import manifest as manifests
from dsx.results.manifest import Counts, Manifest, Part
from dsx.results.schema import COLUMNS, arrow_schema, write_options
from dsx.space.candidates import NAMED


class Writer:
    """Writes one result set; made by `create`."""

    def __init__(self, folder: Path, temporary: Path, manifest: Manifest) -> None:
        self._folder, self._temporary, self._manifest = folder, temporary, manifest
        self._schema = arrow_schema(manifest.names, manifest.precision, manifests.file_metadata(manifest))
        self._save()

    def write(self, rows: Mapping[str, np.ndarray]) -> None:
        """Write a batch of n rows as one part: every column an [n] array; no part if n is 0.

        Name columns hold codes, costs are in the units of the schema.
        Raises StoreError if the rows do not fit the schema, or cannot be written.
        """
        table = _table(rows, self._schema, self._manifest.names)
        if self._manifest.complete:
            raise StoreError(f"{self._folder} is finished; nothing can be added to it")
        if not table.num_rows:
            return
        part = Part(disk.part_name(len(self._manifest.parts)), table.num_rows)
        with disk.os_errors(f"cannot write {part.file} of {self._folder}"):
            disk.write_whole(self._temporary / part.file, lambda file: pq.write_table(table, file, **write_options()))
        self._manifest = dataclasses.replace(self._manifest, parts=(*self._manifest.parts, part))
        self._save()

    def finish(self, counts: Counts) -> Manifest:
        """Make what was written the folder's result set, in place of an earlier one; return its manifest."""
        done = dataclasses.replace(self._manifest, counts=counts, complete=True, finished=manifests.now())

        def body(names: list[str]) -> bytes:
            parts = tuple(Part(name, part.rows) for name, part in zip(names, done.parts, strict=True))
            self._manifest = dataclasses.replace(done, parts=parts)
            return manifests.to_json(self._manifest)

        with disk.os_errors(f"cannot finish {self._folder}"):
            disk.publish(self._temporary, self._folder, body)
        return self._manifest

    def _save(self) -> None:
        with disk.os_errors(f"cannot write the manifest of {self._folder}"):
            disk.write_whole(
                self._temporary / manifests.FILE, lambda file: file.write(manifests.to_json(self._manifest))
            )


@contextmanager
def create(folder: str | Path, manifest: Manifest) -> Iterator[Writer]:
    """Give a writer of the result set that `manifest` begins; `folder` is made if need be.

    Raises StoreError, with nothing touched, if the folder cannot be written, holds the results of
    another spec or files that are not dsx's, or if another process is writing there.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, not a folder; choose another folder with -o")
    with disk.os_errors(f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_what_is_not_ours(folder, manifest)
    with disk.claimed(folder) as temporary:
        yield Writer(folder, temporary, manifest)


def _refuse_what_is_not_ours(folder: Path, manifest: Manifest) -> None:
    if (folder / manifests.FILE).exists():
        other = read_manifest(folder)
        if other.spec_hash != manifest.spec_hash:
            keys = _differing(other.spec, manifest.spec)
            raise StoreError(
                f"{folder} holds the results of another sweep ({other.spec_hash[:12]}; this one is "
                f"{manifest.spec_hash[:12]}, they differ in {', '.join(keys[:4])}); choose another folder with -o"
            )
    elif foreign := disk.foreign_files(folder):
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise StoreError(
            f"{folder} holds files that are not a result set ({', '.join(foreign[:3])}{more}); "
            "choose another folder with -o"
        )


def _differing(a: Any, b: Any, path: str = "") -> list[str]:
    """Return the dotted paths at which two specs differ."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return [] if a == b else [path]
    return [
        found
        for key in sorted({*a, *b})
        for found in _differing(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    ]


def read_manifest(folder: str | Path) -> Manifest:
    """Return the manifest of the result set in `folder`.

    Raises StoreError if there is none, or it is broken or newer than this dsx.
    """
    folder = Path(folder)
    path = folder / manifests.FILE
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise StoreError(f"no result set at {folder}, which {what}; give the folder of a sweep's -o")
    with disk.os_errors(f"cannot read {folder}"):
        if path.exists():
            return manifests.from_json(path.read_bytes(), str(path))
        unfinished = disk.temporaries(folder)
    if unfinished:
        raise StoreError(
            f"the sweep into {folder} has not finished; run it again with the same -o "
            f"(what was written so far can be loaded from {unfinished[-1]})"
        )
    raise StoreError(f"no result set at {folder}: it has no {manifests.FILE}; give the folder of a sweep's -o")


def load(folder: str | Path, columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Return a result set, or the given columns of it in the given order.

    Name columns are categories. `df.attrs` holds `units` and `descriptions` by column,
    `reject_reasons` (item i explains bit i of `reject`), the `spec`, and whether it is `complete`.
    Raises StoreError if the set is missing or broken, UnknownNameError for a column it does not have.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    wanted = [column.name for column in COLUMNS] if columns is None else _known(columns)
    return _frame(manifest, [_read(folder, part, wanted) for part in manifest.parts], wanted)


def load_chosen(
    folder: str | Path, columns: Iterable[str], choose: Callable[[pd.DataFrame], pd.DataFrame]
) -> pd.DataFrame:
    """Return all columns of the rows that `choose` keeps, in its order, with only a part in memory at a time.

    `choose` gets a frame with at least `columns` and returns some of its rows; what it keeps of everything
    must be among what it keeps of each part, as with the best few or a Pareto front. Raises as `load` does.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    every, few = [column.name for column in COLUMNS], _known(columns)
    tables: list[pa.Table] = []
    for part in manifest.parts:
        light = _frame(manifest, [_read(folder, part, few)], few)
        chosen = choose(light).index.to_numpy()
        if len(chosen):
            tables.append(_read(folder, part, every).take(chosen))
    return choose(_frame(manifest, tables, every))


def _known(columns: Iterable[str]) -> list[str]:
    known = {column.name for column in COLUMNS}
    wanted = list(dict.fromkeys(columns))
    for name in wanted:
        if name not in known:
            raise UnknownNameError("column", name, known)
    return wanted


def _frame(manifest: Manifest, tables: list[pa.Table], wanted: list[str]) -> pd.DataFrame:
    """Return tables of the columns `wanted` as one frame that describes itself."""
    known = {c.name: c for c in COLUMNS}
    schema = arrow_schema(manifest.names, manifest.precision, manifests.file_metadata(manifest))
    empty = pa.schema([schema.field(name) for name in wanted]).empty_table()
    df = (pa.concat_tables(tables) if tables else empty).to_pandas()
    for name in wanted:
        if known[name].kind == "name":
            # A part only knows the names that occur in it.
            df[name] = df[name].cat.set_categories(list(manifest.names[name]))
    df.attrs = {
        "units": {name: known[name].unit for name in wanted},
        "descriptions": {name: known[name].description for name in wanted},
        "reject_reasons": [dataclasses.asdict(reason) for reason in manifest.reject_reasons],
        "spec": manifest.spec,
        "complete": manifest.complete,
    }
    return df


def _read(folder: Path, part: Part, wanted: list[str]) -> pa.Table:
    path = folder / part.file
    try:
        # Not `read_table`, which makes columns of folders named like `num_gpus=1024`.
        with pq.ParquetFile(path) as file:
            rows, present = file.metadata.num_rows, file.schema_arrow.names
            missing = [name for name in wanted if name not in present]
            table = file.read(columns=wanted)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; run the sweep again with -o {folder}") from None
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"{path} cannot be read ({error}); run the sweep again with -o {folder}") from error
    if missing or rows != part.rows:
        what = f"has no column {missing[0]}" if missing else f"has {rows} rows, not {part.rows}"
        raise StoreError(f"{path} {what}, against its manifest; run the sweep again with -o {folder}")
    return table.select(wanted)


def _table(rows: Mapping[str, np.ndarray], schema: pa.Schema, names: Mapping[str, tuple[str, ...]]) -> pa.Table:
    """Return rows as an Arrow table of `schema`; StoreError if a column is missing, extra or does not fit."""
    if wrong := sorted(set(schema.names).symmetric_difference(rows)):
        raise StoreError(f"rows and schema differ in the columns {', '.join(wrong)}")
    arrays = []
    for field in schema:
        values = np.asarray(rows[field.name])
        try:
            if field.name in NAMED:
                codes = pa.array(values, type=pa.int8())
                arrays.append(pa.DictionaryArray.from_arrays(codes, pa.array(names[field.name], pa.string())))
            elif pa.types.is_floating(field.type):
                arrays.append(pa.array(values.astype(field.type.to_pandas_dtype(), copy=False)))
            else:
                arrays.append(pa.array(values, type=field.type))
        except (pa.ArrowException, IndexError, ValueError, TypeError) as error:
            raise StoreError(f"column {field.name} does not fit {field.type}: {error}") from error
    if len({len(array) for array in arrays}) > 1:
        lengths = {name: len(array) for name, array in zip(schema.names, arrays, strict=True)}
        raise StoreError(f"columns of different lengths: {lengths}")
    return pa.Table.from_arrays(arrays, schema=schema)
