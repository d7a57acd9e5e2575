"""A part of a result set: one Parquet file of rows, with the counts of what was priced for it.

A part's bytes depend on its rows, its counts and the sweep, on nothing else: no time, no place, no process.
So whoever writes a part writes the same file, and a part that is there need not be made again.
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

from dsx.errors import StoreError
from dsx.results import folder as disk
from dsx.results.manifest import Counts, Manifest, Part
from dsx.results.schema import arrow_schema, write_options

_NAME = re.compile(r"part-(\d{5,})\.parquet")
_SET, _COUNTS = b"dsx", b"dsx.counts"


@dataclass(frozen=True, slots=True)
class Footer:
    """What a part says of itself."""

    rows: int
    counts: Counts


def part_name(number: int) -> str:
    """Return the file name of a part."""
    return f"part-{number:05d}.parquet"


def part_number(name: str) -> int | None:
    """Return the number of the part of that file name; None if it is no part's."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def part_files(folder: Path) -> dict[int, Path]:
    """Return all files in `folder` that are named as parts, by number, ascending."""
    found = {number: path for path in folder.iterdir() if (number := part_number(path.name)) is not None}
    return dict(sorted(found.items()))


def part_schema(manifest: Manifest) -> pa.Schema:
    """Return the Parquet schema of a set's parts; it says what set that is, so a part alone can be identified."""
    about = {
        "schema_version": manifest.schema_version,
        "dsx_version": manifest.dsx_version,
        "spec_hash": manifest.spec_hash,
        "reject_reasons": [dataclasses.asdict(reason) for reason in manifest.reject_reasons],
    }
    return arrow_schema(manifest.columns, manifest.names, manifest.precision, about)


def encode(rows: Mapping[str, np.ndarray], counts: Counts, manifest: Manifest) -> pa.Buffer:
    """Return the bytes of a part: every column of the set an [n] array, name columns as codes.

    Raises StoreError if a column is missing, extra, or does not fit its type.
    """
    schema = part_schema(manifest)
    if wrong := sorted(set(schema.names).symmetric_difference(rows)):
        raise StoreError(f"rows and schema differ in the columns {', '.join(wrong)}")
    arrays = [_array(field, np.asarray(rows[field.name]), manifest.names.get(field.name)) for field in schema]
    if len({len(array) for array in arrays}) > 1:
        lengths = {name: len(array) for name, array in zip(schema.names, arrays, strict=True)}
        raise StoreError(f"columns of different lengths: {lengths}")
    about = schema.metadata | {_COUNTS: json.dumps(dataclasses.asdict(counts), sort_keys=True).encode()}
    buffer = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema.with_metadata(about)), buffer, **write_options(manifest.columns)
    )
    return buffer.getvalue()


def _array(field: pa.Field, values: np.ndarray, names: Sequence[str] | None) -> pa.Array:
    try:
        if names is not None:
            codes = pa.array(values, type=pa.int8())
            array = pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string()))
        elif pa.types.is_floating(field.type):
            array = pa.array(values.astype(field.type.to_pandas_dtype(), copy=False))
        else:
            array = pa.array(values, type=field.type)
    except (pa.ArrowException, IndexError, ValueError, TypeError) as error:
        raise StoreError(f"column {field.name} does not fit {field.type}: {error}") from error
    if array.null_count:
        raise StoreError(f"column {field.name} does not fit {field.type}: {array.null_count} values are missing")
    return array


def footer(path: Path, schema: pa.Schema) -> Footer | None:
    """Return what the part at `path` says; None if it is damaged, or not a part of the set with that schema."""
    try:
        metadata = pq.read_metadata(path)
        about = metadata.metadata or {}
        if about.get(_SET) != (schema.metadata or {})[_SET]:
            return None
        return Footer(metadata.num_rows, Counts(**json.loads(about[_COUNTS])))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return None


def footers(folder: Path, manifest: Manifest) -> dict[int, Footer]:
    """Return what the whole parts of a set in `folder` say, by number, ascending."""
    schema = part_schema(manifest)
    found = {number: footer(path, schema) for number, path in part_files(folder).items() if number < manifest.num_parts}
    return {number: made for number, made in found.items() if made is not None}


def spec_hash_of(path: Path) -> str | None:
    """Return the hash of the spec that the part at `path` belongs to; None if it is no part, or damaged."""
    try:
        return json.loads((pq.read_metadata(path).metadata or {})[_SET])["spec_hash"]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return None


def is_intact(folder: Path, part: Part) -> bool:
    """Return whether the file of a part is there and has its rows."""
    try:
        return pq.read_metadata(folder / part.file).num_rows == part.rows
    except (pa.ArrowException, OSError):
        return False


def read(folder: Path, part: Part, wanted: Sequence[str]) -> pa.Table:
    """Return the columns `wanted` of a part, in that order.

    Raises StoreError if the file is missing, damaged, or not what its manifest says.
    """
    path = folder / part.file
    again = f"run the sweep again with -o {disk.home(folder)}"
    try:
        # Not `read_table`, which makes columns of folders named like `num_gpus=1024`.
        with pq.ParquetFile(path) as file:
            rows, present = file.metadata.num_rows, file.schema_arrow.names
            missing = [name for name in wanted if name not in present]
            table = file.read(columns=list(wanted))
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; {again}") from None
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"{path} cannot be read ({error}); {again}") from error
    if missing or rows != part.rows:
        what = f"has no column {missing[0]}" if missing else f"has {rows} rows, not {part.rows}"
        raise StoreError(f"{path} {what}, against its manifest; {again}")
    # Parts differ in the counts that their schema carries.
    return table.select(wanted).replace_schema_metadata()
