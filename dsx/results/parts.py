"""A part of a result set: one Parquet file of rows, with the counts of the candidates priced for it.

The bytes of a part depend only on its rows, its counts and the sweep: not on the time, the place or the process. So
every process writes the same file, and an existing part need not be priced again.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from dsx.errors import StoreError
from dsx.plans.choices import BY_NAME, PLAN_COLUMNS
from dsx.plans.enumerate import distinct_rows
from dsx.plans.layer_layout import LAYOUT, text_of
from dsx.results import folder as disk
from dsx.results.folder import parse_json, part_number, read_json
from dsx.results.manifest import Counts, Manifest, StoredPart
from dsx.results.set_columns import GROUP_ROWS, arrow_schema, write_options

_STAGES = re.compile(r"[1-9][0-9]{0,6}(,[1-9][0-9]{0,6})*")
_SET, _COUNTS = b"dsx", b"dsx.counts"
_COUNTS_ADAPTER = TypeAdapter(Counts)
_UNREADABLE = (pa.ArrowException, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class Footer:
    """The number of rows and the counts that a part states."""

    rows: int
    counts: Counts


def part_files(folder: Path) -> dict[int, Path]:
    """Return all files in `folder` with the name of a part, by number, ascending."""
    with disk.open_folder(folder) as opened:
        paths = {number: folder / name for name in opened.names() if (number := part_number(name)) is not None}
    return dict(sorted(paths.items()))


def part_schema(manifest: Manifest) -> pa.Schema:
    """Return the Parquet schema of a set's parts; it identifies the set, so that a single part can be recognised."""
    about = {
        "schema_version": manifest.schema_version,
        "dsx_version": manifest.dsx_version,
        "spec_hash": manifest.spec_hash,
        "reject_reasons": [dataclasses.asdict(reason) for reason in manifest.reject_reasons],
    }
    return arrow_schema(manifest.columns, manifest.names, manifest.precision, about)


def encode(rows: Mapping[str, np.ndarray], counts: Counts, manifest: Manifest) -> pa.Buffer:
    """Return the bytes of a part of [n] columns, names as codes; StoreError where a column does not fit."""
    schema = part_schema(manifest)
    if wrong := sorted(set(schema.names).symmetric_difference(rows)):
        raise StoreError(f"rows and schema differ in the columns {', '.join(wrong)}")
    arrays: list[pa.Array] = []
    for field in schema:
        values, names = np.asarray(rows[field.name]), manifest.names.get(field.name)
        try:
            if names is not None:
                codes = pa.array(values, type=pa.int8())
                array = pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string()))
            elif field.name == LAYOUT and values.ndim > 1:  # read from other parts they are texts
                first, which = distinct_rows(values)
                texts = [text_of([*filter(None, layers)]) for layers in values[first].tolist()]
                array = pa.array(np.array(texts, dtype=object)[which], type=field.type)
            elif pa.types.is_floating(field.type):
                array = pa.array(values.astype(field.type.to_pandas_dtype(), copy=False))
            else:
                array = pa.array(values, type=field.type)
        except (pa.ArrowException, IndexError, ValueError, TypeError) as error:
            raise StoreError(f"column {field.name} does not fit {field.type}: {error}") from error
        if array.null_count:
            raise StoreError(f"column {field.name} does not fit {field.type}: {array.null_count} values are missing")
        arrays.append(array)
    if len({len(array) for array in arrays}) > 1:
        lengths = {name: len(array) for name, array in zip(schema.names, arrays, strict=True)}
        raise StoreError(f"columns of different lengths: {lengths}")
    about = schema.metadata | {_COUNTS: json.dumps(dataclasses.asdict(counts), sort_keys=True).encode()}
    buffer = pa.BufferOutputStream()
    rows_table = pa.Table.from_arrays(arrays, schema=schema.with_metadata(about))
    pq.write_table(rows_table, buffer, **write_options(manifest.columns))
    return buffer.getvalue()


def footer(path: Path, schema: pa.Schema) -> Footer | None:
    """Return the footer of the part at `path`; None if it is damaged, or not a part of the set with this schema."""
    try:
        with disk.open_file(path) as file, pq.ParquetFile(file) as part:
            about, rows = part.metadata.metadata or {}, part.metadata.num_rows
            if about.get(_SET) != (schema.metadata or {})[_SET] or _types(part.schema_arrow) != _types(schema):
                return None
        return Footer(rows, read_json(about.get(_COUNTS, b""), _COUNTS_ADAPTER, str(path)))
    except (*_UNREADABLE, StoreError):
        return None


def _types(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the columns of a schema with their types, without the width of codes, which the reader chooses."""
    types = [(field.name, field.type) for field in schema]
    return [(name, f"names as {t.value_type}" if pa.types.is_dictionary(t) else str(t)) for name, t in types]


def footers(folder: Path, manifest: Manifest) -> dict[int, Footer]:
    """Return the footers of the intact parts of a set in `folder`, by number, ascending."""
    schema = part_schema(manifest)
    paths = {number: path for number, path in part_files(folder).items() if number < manifest.num_parts}
    return {number: part for number, path in paths.items() if (part := footer(path, schema)) is not None}


def spec_hash_of(path: Path) -> str | None:
    """Return the hash of the spec of the part at `path`; None if the file is damaged or not a part."""
    try:
        with disk.open_file(path) as file:
            about = parse_json((pq.read_metadata(file).metadata or {}).get(_SET, b""), str(path))
    except (*_UNREADABLE, StoreError):
        return None
    spec_hash = about.get("spec_hash") if isinstance(about, dict) else None
    return spec_hash if isinstance(spec_hash, str) else None


def num_groups(folder: Path, part: StoredPart) -> int:
    """Return how many groups of rows a part has, each of at most `GROUP_ROWS`; 1 if it cannot be read."""
    try:
        with disk.open_file(folder / part.file) as file:
            return max(pq.read_metadata(file).num_row_groups, 1)
    except _UNREADABLE:
        return 1


def read(
    folder: Path, part: StoredPart, manifest: Manifest, names: Sequence[str], group: int | None = None
) -> pa.Table:
    """Return the columns `names` of a part, or of one `group`; StoreError if the file is not as in its manifest."""
    path = folder / part.file
    cure = f"run the sweep again with -o {disk.home(folder)}, which prices every candidate anew"
    try:
        # Not `read_table`: it turns folders named like `num_gpus=1024` into columns.
        with disk.open_file(path) as raw, pq.ParquetFile(raw) as file:
            if fault := _fault(file.schema_arrow, file.metadata, part_schema(manifest), part):
                raise StoreError(fault)
            groups = [at for at in range(file.num_row_groups) if group in (None, at)]
            table = file.read_row_groups(groups, columns=list(names)) if groups else file.read(columns=list(names))
        table.validate(full=True)
        if fault := _fault_of_values(table, manifest):
            raise StoreError(fault)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; {cure}") from None
    except StoreError as error:
        raise StoreError(f"{path} {error}, unlike its manifest; delete it and {cure}") from None
    except _UNREADABLE as error:
        raise StoreError(f"{path} cannot be read ({error}); delete it and {cure}") from error
    # Parts differ in the counts that their schema carries, foreign ones in whether a column may lack values.
    table = table.select(names)
    return pa.table(table.columns, schema=pa.schema([field.with_nullable(False) for field in table.schema]))


def _fault(stored: pa.Schema, about: pq.FileMetaData, schema: pa.Schema, part: StoredPart) -> str:
    """Return how a file differs from the part in its manifest; "" if it does not."""
    if missing := [name for name in schema.names if name not in stored.names]:
        return f"has no column {missing[0]}"
    if about.num_rows != part.rows:
        return f"has {about.num_rows} rows, not {part.rows}"
    for (name, kind), (name_of_set, kind_of_set) in zip(_types(stored), _types(schema), strict=False):
        if (name, kind) != (name_of_set, kind_of_set):
            return f"has a column {name} of {kind} where {name_of_set} of {kind_of_set} belongs"
    if len(stored) != len(schema):
        return f"has {len(stored)} columns, not {len(schema)}"
    # dsx writes no larger groups: few bytes may be endless equal rows.
    rows = max((about.row_group(at).num_rows for at in range(about.num_row_groups)), default=0)
    return f"has {rows:,} rows in a group, of at most {GROUP_ROWS:,}" if rows > GROUP_ROWS else ""


def _fault_of_values(table: pa.Table, manifest: Manifest) -> str:
    """Return an invalid value in the columns of a part; "" if there is none."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            return f"has {column.null_count} missing values in column {name}"
        if name in manifest.names:
            values = dict.fromkeys(value for chunk in column.chunks for value in chunk.dictionary.to_pylist())
            if unknown := [value for value in values if value not in manifest.names[name]]:
                return f"has {unknown[0]!r} in column {name}, which is not one of its names"
        elif name == LAYOUT:
            texts = [text for text in column.unique().to_pylist() if not _STAGES.fullmatch(text)]
            if texts:
                return f"has {texts[0]!r} in column {name}, which holds the layers of each stage, as in '20,21,20'"
        elif name in PLAN_COLUMNS and len(column):
            smallest = int(column.to_numpy().min())
            least = min(BY_NAME[name].codes, default=BY_NAME[name].least)
            if smallest < least:
                return f"has {smallest} in column {name}, where the smallest value is {least}"
    return ""
