"""Reading a result set, or the parts so far of an unfinished run: as a pandas DataFrame, or rows as plain data.

    df = load("results/a")

A set is a folder with Parquet parts and a manifest (set_columns.py has the columns, folder.py the layout on disk,
writer.py writes them). For sets that do not fit in memory use other tools: DuckDB and Polars read
`<folder>/*.parquet` directly.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import pandas as pd
import pyarrow as pa

from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.errors import StoreError, UnknownNameError, file_path, texts
from dsx.files import MANIFEST
from dsx.plans.choices import PLAN_COLUMNS
from dsx.plans.plan import Plan
from dsx.plans.violations import HOST_MEMORY, MEMORY, VANISHES
from dsx.results import folder as disk
from dsx.results import manifest as manifests
from dsx.results import parts as parts_on_disk
from dsx.results.folder import UNFINISHED, part_name
from dsx.results.frames import Frame
from dsx.results.manifest import Manifest, StoredPart
from dsx.results.set_columns import CUT
from dsx.text import Data


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
        if (manifest := stated(folder)) is not None:
            return manifest if manifest.complete else _so_far(folder, manifest)
        unfinished = folder / UNFINISHED
        if (begun := stated(unfinished)) is not None:
            number = len(_so_far(unfinished, begun).parts)
            raise StoreError(
                f"the sweep into {folder} has not finished: it has {number} of {begun.num_parts} parts; run the same "
                f"command again to continue it (the parts so far can be loaded from {unfinished})"
            )
    raise StoreError(f"no result set at {folder}: it has no {MANIFEST}; give the folder of a sweep's -o")


def stated(folder: Path) -> Manifest | None:
    """Return the manifest in `folder`, None if there is none; StoreError if it is broken, OSError if unreadable."""
    path = folder / MANIFEST
    try:
        with disk.open_file(path) as file:
            text = file.read()
    except FileNotFoundError:
        return None
    return manifests.from_json(text, str(path))


def _so_far(folder: Path, begun: Manifest) -> Manifest:
    footers = parts_on_disk.footers(folder, begun)
    return dataclasses.replace(
        begun,
        parts=tuple(StoredPart(part_name(number), part.rows) for number, part in footers.items()),
        counts=manifests.total(begun, [part.counts for part in footers.values()]),
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
    names = [column.name for column in manifest.columns] if columns is None else _checked(columns, manifest)
    return frame(manifest, [parts_on_disk.read(folder, part, manifest, names) for part in manifest.parts], names)


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
    every, names = [column.name for column in manifest.columns], _checked(columns, manifest)
    tables: list[pa.Table] = []
    for part, group in _groups(folder, manifest):
        light = _rows(manifest, [parts_on_disk.read(folder, part, manifest, names, group)], names)
        chosen = choose(light).index.to_numpy()
        if len(chosen):
            tables.append(parts_on_disk.read(folder, part, manifest, every, group).take(chosen))
    return choose(frame(manifest, tables, every))


def load_small(folder: str | Path, columns: Iterable[str]) -> pd.DataFrame:
    """Return columns of a set without `attrs`, whole numbers in the fewest bytes; raises what `load` raises."""
    folder = file_path("folder", folder)
    manifest = read_manifest(folder)
    names = _checked(columns, manifest)

    def small(values: Frame) -> Frame:
        return pd.to_numeric(values, downcast="integer") if pd.api.types.is_integer_dtype(values) else values.copy()

    pieces: list[dict[str, Frame]] = []
    tables = ([parts_on_disk.read(folder, part, manifest, names, group)] for part, group in _groups(folder, manifest))
    for rows in (_rows(manifest, table, names) for table in chain([[]], tables)):
        pieces.append({name: small(rows[name]) for name in names})
    # Column by column, so that no column is there twice but the one that is joined.
    pieces = [piece for piece in pieces if len(piece[names[0]])] or pieces
    return pd.DataFrame({name: pd.concat([piece.pop(name) for piece in pieces], ignore_index=True) for name in names})


def _groups(folder: Path, manifest: Manifest) -> Iterator[tuple[StoredPart, int]]:
    """Yield the groups of rows of a set, each of which fits in memory."""
    for part in manifest.parts:
        for group in range(parts_on_disk.num_groups(folder, part)):
            yield part, group


def frame(manifest: Manifest, tables: Sequence[pa.Table], names: Sequence[str]) -> pd.DataFrame:
    """Return tables of the columns `names`, from `parts_on_disk.read`, as one frame with its `attrs`."""
    df = _rows(manifest, tables, names)
    columns = {column.name: column for column in manifest.columns}
    df.attrs = {
        "units": {name: columns[name].unit for name in names},
        "descriptions": {name: columns[name].description for name in names},
        "reject_reasons": [dataclasses.asdict(reason) for reason in manifest.reject_reasons],
        "spec": manifest.spec,
        "clusters": list(manifest.names["cluster"]),
        "what_if": [extra.name for extra in manifest.what_if],
        "complete": manifest.complete,
    }
    return df


def _rows(manifest: Manifest, tables: Sequence[pa.Table], names: Sequence[str]) -> pd.DataFrame:
    """Return the rows without `attrs`, which pandas copies with every operation."""
    schema = parts_on_disk.part_schema(manifest)
    empty = pa.schema([schema.field(name) for name in names]).empty_table()
    df = (pa.concat_tables(tables) if tables else empty).to_pandas()
    for column in manifest.columns:
        if column.name in names and column.kind == "name":
            # A part has only the names that occur in it.
            df[column.name] = df[column.name].cat.set_categories(list(manifest.names[column.name]))
    return df


def _checked(columns: Iterable[str], manifest: Manifest) -> list[str]:
    stored = {column.name for column in manifest.columns}
    names = list(dict.fromkeys(texts("columns", columns, "step_time_s")))
    for name in names:
        if name not in stored:
            raise UnknownNameError("column", name, stored)
    return names


def fastest(folder: Path, count: int | None, per: Sequence[str] = (), of_each: int = 1) -> list[Data]:
    """Return the `count` fastest feasible rows as plans; all of them if `count` is None.

    With `per`, the rows are the `of_each` fastest of each group of equal `per` columns, group by group. Raises
    StoreError if the set cannot be read, UnknownNameError for a column that it does not have.
    """

    def choose(frame: Frame) -> Frame:
        ordered = frame.loc[frame["reject"] == 0].sort_values(["step_time_s", "candidate"])
        if per:
            leading = ordered.loc[ordered.groupby(list(per), observed=True).cumcount() < of_each]
            ordered = leading.sort_values([*per, "step_time_s", "candidate"])
        return ordered.iloc[:count]

    return as_plans(load_chosen(folder, ["reject", "step_time_s", "candidate", *per], choose))


def as_plans(rows: pd.DataFrame) -> list[Data]:
    """Return one dict for each row of a result set.

    `plan` holds the choices, `hardware` the cluster and what-if values, then come the costs by name, `fits`, and under
    `reject` the names of the broken rules.
    """
    choices = ("candidate", *PLAN_COLUMNS, *({CUT.name} & {*rows.columns}))
    hardware = ("cluster", *rows.attrs["what_if"])
    costs = (*StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__)
    unfitting = {MEMORY.name, HOST_MEMORY.name, VANISHES.name}
    reasons = [reason["name"] for reason in rows.attrs["reject_reasons"]]
    plans: list[Data] = []
    plain = rows.copy(deep=False)
    plain.attrs = {}  # pandas would copy them for every row
    for row in plain.to_dict(orient="records"):
        broken = [name for bit, name in enumerate(reasons) if row["reject"] >> bit & 1]
        plan: Data = {"plan": Plan({name: row[name] for name in choices})}
        plan |= {"hardware": {name: row[name] for name in hardware}} | {name: row[name] for name in costs}
        plans.append(plan | {"fits": not unfitting & {*broken}, "reject": broken})
    return plans
