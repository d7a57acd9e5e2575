"""Read a result set, or the parts so far of an unfinished run, as a pandas DataFrame."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from dsx.argument_types import file_path, texts
from dsx.errors import StoreError, UnknownNameError
from dsx.results import folder as disk
from dsx.results import manifest as manifests
from dsx.results import stored_parts
from dsx.results.file_names import MANIFEST, UNFINISHED, part_name
from dsx.results.manifest import Manifest, Part
from dsx.results.schema import Column


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
    there = stored_parts.footers(folder, begun)
    return dataclasses.replace(
        begun,
        parts=tuple(Part(part_name(number), part.rows) for number, part in there.items()),
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
    return frame(manifest, [stored_parts.read(folder, part, manifest, wanted) for part in manifest.parts], wanted)


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
    groups = ((part, group) for part in manifest.parts for group in range(stored_parts.num_groups(folder, part)))
    for part, group in groups:
        light = _rows(manifest, [stored_parts.read(folder, part, manifest, few, group)], few)
        chosen = choose(light).index.to_numpy()
        if len(chosen):
            tables.append(stored_parts.read(folder, part, manifest, every, group).take(chosen))
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
        for group in range(stored_parts.num_groups(folder, part)):
            pieces.append(_small(_rows(manifest, [stored_parts.read(folder, part, manifest, wanted, group)], wanted)))
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
    """Return tables of the columns `wanted`, from `stored_parts.read`, as one frame with its `attrs`."""
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
    schema = stored_parts.part_schema(manifest)
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
