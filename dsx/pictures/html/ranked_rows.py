"""The rows that a report shows, the best first, and the table of them as plain data for the script of the page.

Feasible rows come before rejected ones, then rows are ordered by tokens per second and GPU. Rows of one job have that
order by step time. Jobs of several sizes are compared by what a GPU does in them, since more GPUs always make a shorter
step. In the table numbers are base64 of little-endian arrays in the type that the set has, so a page shows the numbers
of the set and no rounding of them; names are codes of a list. A column that is the same in all rows is stated once,
beside the table.
"""

import base64
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.pictures.breakdown import STACKS
from dsx.pictures.shown_rows import Numbers, Value, of_job, settings
from dsx.plans.choices import PLAN_COLUMNS
from dsx.results.frames import Frame, as_plans, load_chosen, load_small
from dsx.results.manifest import Manifest
from dsx.results.set_columns import Column
from dsx.text import Data, DataFrame

if TYPE_CHECKING:
    import pandas as pd


MOST_ROWS = 20_000  # of the table
_COSTS = ("step_time_s", "step_time_s_low", "step_time_s_high", "peak_bytes", "tokens_per_s_per_gpu", "reject")
# JavaScript's name of each type of number.
_ARRAYS = {"i1": "Int8", "i2": "Int16", "i4": "Int32", "i8": "BigInt64", "f4": "Float32", "f8": "Float64"}
_PARTS = {name: f"parts of the {of}" for of, stack in STACKS.items() for name in stack.parts}
_SCALES = {"bytes": (1e9, "GB"), "": (1.0, "")}
_PERCENT = (0.01, "%")

Script = Data  # plain data for a script of the page


@dataclass(frozen=True)
class RankedRows:
    """The rows of a set that a report shows. Frames are without `attrs`, which pandas copies with every operation."""

    folder: Path
    manifest: Manifest
    every: DataFrame  # all rows: choices, hardware and the costs that pictures need, in the order of the set
    best: DataFrame  # the best `MOST_ROWS` of them, with all columns, the best first
    attrs: Mapping[Hashable, object]  # of the set (`dsx.results.frames.load`)

    @property
    def settings(self) -> list[str]:
        """The columns of the job and the hardware."""
        return settings(self.every.columns)

    @property
    def varied(self) -> list[str]:
        """Those of them that have several values."""
        return [name for name in self.settings if distinct(self.every, name) > 1]

    @property
    def feasible(self) -> DataFrame:
        """The feasible ones of all rows."""
        return self._feasible({})

    def alike(self, row: Frame, columns: Sequence[str]) -> DataFrame:
        """Return the feasible rows that have the values of `row` in some columns."""
        return self._feasible({name: row[name] for name in columns})

    def _feasible(self, values: Mapping[str, Value]) -> DataFrame:
        """Return the feasible rows with these values, without a copy if those are all."""
        rows = of_job(self.every, values) & (self.every["reject"] == 0).to_numpy()
        return self.every if rows.all() else self.every.loc[rows]

    def at(self, candidate: int, hardware: Mapping[str, Value]) -> "pd.Series":
        """Return the row of a candidate at some hardware, which the set has."""
        return self.every.loc[of_job(self.every, {"candidate": candidate, **hardware})].iloc[0]

    def whole(self, rows: DataFrame) -> DataFrame:
        """Return some of the rows of `every` with all columns, in their order."""
        keys = ["candidate", *self.settings]
        place = {key: at for at, key in enumerate(_keys(rows, keys))}

        def choose(frame: DataFrame) -> DataFrame:
            near = frame.loc[frame["candidate"].isin(rows["candidate"])]
            return near.loc[[key in place for key in _keys(near, keys)]]

        loaded = load_chosen(self.folder, keys, choose)
        loaded.attrs = {}
        at = [place[key] for key in _keys(loaded, keys)]
        return loaded.iloc[np.argsort(at)].reset_index(drop=True)

    def with_attrs(self, rows: DataFrame) -> DataFrame:
        """Return rows with the `attrs` of the set."""
        described = rows.copy(deep=False)
        described.attrs = dict(self.attrs)
        return described

    def plans(self, rows: DataFrame) -> list[Data]:
        """Return rows with all columns as plain data."""
        return as_plans(self.with_attrs(rows)) if len(rows) else []


def distinct(rows: Frame, column: str) -> int:
    """Return how many values a column has."""
    return int(rows[column].nunique(dropna=False))


def _keys(rows: DataFrame, columns: Sequence[str]) -> list[tuple[object, ...]]:
    return [*zip(*(rows[name].tolist() for name in columns), strict=True)]


def rate(rows: DataFrame) -> Numbers:
    """Return tokens per second and GPU of rows, [N]."""
    return rows["tokens_per_s_per_gpu"].to_numpy(np.float64)


def ranked_rows(folder: Path, manifest: Manifest) -> RankedRows:
    """Read the rows that a report of the set in `folder` shows; raises StoreError if the set cannot be read."""
    light = ["candidate", "cluster", *PLAN_COLUMNS, *(extra.name for extra in manifest.what_if), *_COSTS]
    best = load_chosen(folder, light, lambda frame: ranked(frame, MOST_ROWS)).reset_index(drop=True)
    attrs = dict(best.attrs)
    best.attrs = {}
    return RankedRows(folder, manifest, load_small(folder, light), best, attrs)


def ranked(rows: DataFrame, most: int) -> DataFrame:
    """Return at most so many rows in their order, the best first."""
    # lexsort sorts by its last key first; a row without a time is last.
    slowness = np.nan_to_num(-rate(rows), nan=np.inf)
    return rows.iloc[np.lexsort((rows["candidate"].to_numpy(), slowness, rows["reject"].to_numpy() != 0))[:most]]


@dataclass(frozen=True)
class TableData:
    """The table of a page."""

    columns: list[Script]  # in order
    constant: list[tuple[str, str]]  # columns with one value, and the value as text
    rows: int
    left_out: int  # rows of the set that the table does not have

    def to_data(self) -> Script:
        """Return what the script of the page reads."""
        return {"rows": self.rows, "columns": self.columns, "constant": dict(self.constant)}


def table_data(ranked: RankedRows) -> TableData:
    """Return the best rows of a set as a table."""
    rows: Frame = ranked.best
    columns: list[Script] = []
    constant: list[tuple[str, str]] = []
    for column in ranked.manifest.columns:
        values = rows[column.name]
        single = len(rows) > 1 and distinct(rows, column.name) == 1
        if column.name == "reject":
            columns += [] if single and values[0] == 0 else [_reject(ranked)]
        elif single and column.kind != "id":
            constant += [(column.name, str(values[0]))] if values[0] == values[0] else []
        else:
            columns.append(_column(column, values))
    order = ["costs", "choices", *dict.fromkeys(_PARTS.values()), "interval", "id"]
    columns.sort(key=lambda data: order.index(data["group"]))
    return TableData(columns, constant, len(rows), len(ranked.every) - len(rows))


def _column(column: Column, values: "pd.Series") -> Script:
    size, unit = _PERCENT if column.name == "mfu" else _SCALES.get(column.unit, (1.0, column.unit))
    group = "id" if column.kind == "id" else _PARTS.get(column.name, "choices")
    for name, record in (("interval", StepInterval), ("costs", StepCosts)):
        if group == "choices" and column.name in record.__dataclass_fields__:
            group = name
    data: Script = {"name": column.name, "about": column.description, "group": group, "unit": unit}
    if column.kind in ("name", "text"):
        names = [*dict.fromkeys(values.astype(str))]
        codes = values.astype(str).map({name: code for code, name in enumerate(names)}).to_numpy(np.int32)
        return data | {"names": names} | _encoded(codes)
    return data | {"scale": size} | _encoded(values.to_numpy())


def _reject(ranked: RankedRows) -> Script:
    """Return the column of the reasons against each row, as names."""
    reasons = [reason.name for reason in ranked.manifest.reject_reasons]
    distinct, codes = np.unique(ranked.best["reject"].to_numpy(np.int64), return_inverse=True)
    names = [
        ", ".join(name for bit, name in enumerate(reasons) if value >> bit & 1) or "feasible" for value in distinct
    ]
    about = "the reasons against the candidate"
    return {"name": "reject", "about": about, "group": "costs", "unit": "", "names": names} | _encoded(codes)


def _encoded(values: np.ndarray) -> dict[str, str]:
    """Return an array as the script reads it; whole numbers in the narrowest type that holds them."""
    if values.dtype.kind != "f":
        least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        kinds = (np.int8, np.int16, np.int32, np.int64)
        values = values.astype(
            next(kind for kind in kinds if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max)
        )
    kind = values.dtype.str[1:]
    plain = np.ascontiguousarray(values, dtype=f"<{kind}")
    return {"array": _ARRAYS[kind], "data": base64.b64encode(plain.tobytes()).decode("ascii")}
