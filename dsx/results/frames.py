"""Rows of a result set as a DataFrame: read, conditions on them, their Pareto front and its knee, the plain plan.

    df = load("results/a")

The parts so far of an unfinished run are read too. A set is a folder with Parquet parts and a manifest (set_columns.py
has the columns, folder.py the layout on disk, writer.py writes them). For sets that do not fit in memory use other
tools: DuckDB and Polars read `<folder>/*.parquet` directly.

    parsed(["num_gpus=16384", "nvs.tp=8", "device.hbm_capacity=80 GB"])    # columns, and the value that each must have
    pareto(df, "step_time_s", "peak_bytes")    # the rows that no other feasible row beats in both; both minimised
    pareto(df, "num_gpus", "-tokens_per_s")    # a leading minus: as large as possible

`nvs.tp` is the column `tp_nvs`, as in a plan. A quantity has its unit, and equals what differs by rounding alone.
`dsx.search.ranking` has the algorithm of the front and its tie rule: rows that are equal in all objectives are all
kept. Rows with an objective that is NaN or infinite are left out.

The knee of a front is the row after which less of one objective costs most of the other. With both objectives scaled to
0 at their best and 1 at their worst on the front, it is the row that is farthest below the line between the ends: the
bulge of Das, "On characterizing the knee of the Pareto curve based on normal-boundary intersection" (Structural
Optimization 18, 1999). A front whose rows are all on that line, or above it, has none.

The plain plan is what one would run without a search, the baseline of what a search finds: tensor parallelism up to the
size of an NVLink domain, then pipeline stages until the model fits, the rule of thumb of Narayanan et al. (arXiv
2104.04473, takeaway 1). All else is as `dsx.plans.choices` has it by default: microbatches of one sequence, one chunk a
stage, no recomputation, no other parallelism.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from dsx.config.sweep_fields import check_direction
from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.errors import (
    InputError,
    SpecError,
    StoreError,
    UnknownNameError,
    did_you_mean,
    file_path,
    one_text,
    texts,
    wrong,
)
from dsx.files import MANIFEST
from dsx.plans.choices import BY_NAME, PLAN_COLUMNS, SEARCHED_COLUMNS
from dsx.plans.plan import Plan
from dsx.plans.violations import HOST_MEMORY, MEMORY, VANISHES
from dsx.results import folder as disk
from dsx.results import manifest as manifests
from dsx.results import parts as parts_on_disk
from dsx.results.folder import UNFINISHED, part_name
from dsx.results.manifest import Manifest, StoredPart
from dsx.results.set_columns import COLUMNS, CUT, LARGER_IS_BETTER
from dsx.search.ranking import front
from dsx.text import Data, DataFrame, printable
from dsx.units import Dimension, format_quantity, parse_number, parse_quantity


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


Frame = Any  # a DataFrame or a Series where the stubs of pandas do not know the types of columns


def check_frame(df: object) -> None:
    """Raise InputError for what is no DataFrame, such as a folder, or an answer that has one."""
    if not hasattr(df, "columns"):
        what = repr(df) if isinstance(df, str) else type(df).__name__
        raise InputError(f"{what} is no DataFrame: dsx.load reads that of a folder, and `frame` is that of an answer")


def require(df: DataFrame, column: str) -> np.ndarray:
    """Return the values of a column; UnknownNameError if there is none, InputError for no name or no DataFrame."""
    check_frame(df)
    one_text("column", column, "step_time_s")
    if column not in df.columns:
        hint = "; were only some columns loaded?" if column in (stored.name for stored in COLUMNS) else ""
        raise UnknownNameError("column", column, map(str, df.columns), hint)
    return df[column].to_numpy()


def taken(df: DataFrame, rows: np.ndarray) -> DataFrame:
    """Return some rows of a frame, as [n] positions or one bool for each row, with its `attrs`."""
    part: Frame = df.loc[rows] if rows.dtype == np.bool_ else df.iloc[rows]
    part.attrs = dict(df.attrs)
    return part


def column_list(name: str, columns: str | Sequence[str] | None) -> list[str]:
    """Return one column, several, or none as a list without repetitions; InputError for anything but names."""
    if columns is None or isinstance(columns, str):
        return [] if columns is None else [columns]
    return list(dict.fromkeys(texts(name, columns, "num_gpus")))


Conditions = Mapping[str, object]
_EXAMPLE = "COLUMN=VALUE, as in num_gpus=16384"


def parsed(name: str, conditions: Conditions | Sequence[str] | str | None) -> dict[str, object]:
    """Return conditions as a mapping; texts are "COLUMN=VALUE", and one text may have several, with blanks between.

    Raises InputError, which names the argument `name`, for a text without "=".
    """
    if conditions is None:
        return {}
    if isinstance(conditions, Mapping):
        return {column_name(str(column)): value for column, value in conditions.items()}
    if not isinstance(conditions, str | Sequence):
        raise wrong(name, conditions, f"{_EXAMPLE}, is wanted")
    by_column: dict[str, object] = {}
    for text in [conditions] if isinstance(conditions, str) else conditions:
        if not isinstance(text, str):
            raise wrong(name, text, f"{_EXAMPLE}, is wanted")
        for condition in re.split(r"\s+(?=[\w.]+=)", text.strip()):
            column, equals, value = condition.partition("=")
            if not (column.strip() and equals and value.strip()):
                raise InputError(f"{name} {printable(condition)!r} is no {_EXAMPLE}")
            by_column[column_name(column.strip())] = value.strip()
    return by_column


def column_name(text: str) -> str:
    """Return the column of a setting: "tp_nvs" of "nvs.tp"."""
    tier, dot, axis = text.partition(".")
    return f"{axis}_nvs" if dot and tier == "nvs" else text


def matching(df: DataFrame, conditions: Conditions, partial: bool = False) -> NDArray[np.bool_]:
    """Return which rows have all the values, [rows].

    Raises UnknownNameError for an unknown column, InputError if no row has all values; not if the rows are only a part
    of a set, `partial`.
    """
    same = np.ones(len(df), bool)
    for column, value in conditions.items():
        same &= _equal(df, column, require(df, column), value)
        if not (same.any() or partial) and len(df):
            unit = df.attrs.get("units", {}).get(column, "")
            stored = sorted(df[column].unique())[:12]
            choices = [text if isinstance(text, str) else format_quantity(text, unit) for text in stored]
            hint = f"{did_you_mean(str(value), choices)} (known: {', '.join(choices)})"
            raise InputError(f"no row has {text_of(conditions)}{hint}")
    return same


def text_of(conditions: Conditions) -> str:
    """Return conditions as they are written on a command line."""
    return " ".join(f"{column}={value}" for column, value in conditions.items())


def _equal(df: DataFrame, column: str, values: np.ndarray, value: object) -> NDArray[np.bool_]:
    if values.dtype.kind not in "iuf":
        return values.astype(str) == str(value)
    unit = df.attrs.get("units", {}).get(column, "")
    number: float | None = None
    with suppress(SpecError):
        quantity = unit in get_args(Dimension) and isinstance(value, str)
        number = float(parse_quantity(value, cast(Dimension, unit)) if quantity else parse_number(value))
    if number is None:
        return np.zeros(len(values), bool)
    return np.isclose(values.astype(np.float64), number, rtol=1e-6, atol=0.0)


def knee(x: NDArray[np.float64], y: NDArray[np.float64]) -> int | None:
    """Return the position of the knee of a front of two minimised objectives, [n] each; None if it has none."""
    if len(x) < 3:
        return None
    ranges = x.max() - x.min(), y.max() - y.min()
    if min(ranges) <= 0.0:
        return None
    below = 1.0 - (x - x.min()) / ranges[0] - (y - y.min()) / ranges[1]
    place = int(below.argmax())
    return place if below[place] > 1e-9 else None


_NO_QUANTITIES = frozenset(column.name for column in COLUMNS if column.kind not in ("integer", "real"))


def pareto(df: DataFrame, *objectives: str | Sequence[str]) -> DataFrame:
    """Return the rows of `df` on the front, the best by the first objective first.

    Each objective is a numeric column to be minimised, or, as "-mfu", maximised; a list of them may be given too.
    `df.attrs` are kept.
    Raises UnknownNameError for a column that `df` does not have, InputError for one without numbers, one to be
    minimised that is better when larger, or for what is no DataFrame.
    """
    names = [name for objective in objectives for name in column_list("objectives", objective)]
    if not names:
        raise InputError("a front needs an objective, for example 'step_time_s', or '-mfu' to maximise")
    check_frame(df)
    feasible = df.loc[require(df, "reject") == 0]
    points = np.column_stack([minimised(feasible, objective) for objective in names])
    on_front = front(points)
    # lexsort sorts by its last key first.
    result = feasible.loc[on_front].iloc[np.lexsort(points[on_front].T[::-1])]
    result.attrs = dict(df.attrs)
    return result


def column_of(objective: str) -> str:
    """Return the column of an objective."""
    return objective.removeprefix("-")


def minimised(df: DataFrame, objective: str) -> NDArray[np.float64]:
    """Return the values of an objective, negated if it is maximised; raises what `pareto` raises."""
    try:
        check_direction(objective, LARGER_IS_BETTER)
    except ValueError as error:
        raise InputError(str(error)) from error
    values = require(df, column_of(objective))
    if values.dtype.kind not in "iuf" or column_of(objective) in _NO_QUANTITIES:
        raise InputError(f"{column_of(objective)!r} cannot be an objective: it does not hold quantities")
    numbers = values.astype(np.float64)
    return -numbers if objective.startswith("-") else numbers


WORDS = "TP fills the NVLink domain, fewest stages"
_AXES = ("tp", "tp2", "cp", "ep", "pp", "dp")
# The order of ranks has an effect through the placement, which is compared itself.
_PLAIN = {name: BY_NAME[name].default for name in SEARCHED_COLUMNS if name not in (*_AXES, "order")}
_PLAIN |= dict.fromkeys(("tp2", "cp", "ep", "microbatch_size"), 1)
PLAIN_PLAN_COLUMNS = (*_PLAIN, "tp", "pp", "tp_nvs")


def plain_plan(df: DataFrame) -> int | None:
    """Return the position of the plain plan among the feasible rows, None if no row is one or a column is missing."""
    if not {*PLAIN_PLAN_COLUMNS} <= {*df.columns}:
        return None
    plain = (require(df, "reject") == 0) & (require(df, "tp_nvs") == require(df, "tp"))
    for name, value in _PLAIN.items():
        plain &= np.asarray(df[name].array == value)
    rows = np.flatnonzero(plain)
    # lexsort sorts by its last key first.
    keys = (require(df, "step_time_s")[rows], require(df, "pp")[rows], -require(df, "tp")[rows].astype(np.int64))
    return int(rows[np.lexsort(keys)[0]]) if len(rows) else None
