"""The table of rows as plain data: numbers as base64 of little-endian arrays, names as codes of a list.

Numbers keep the type that the set has, so a page shows the numbers of the set and no rounding of them. A column that is
the same in all rows is stated once, beside the table.
"""

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.cost.columns import StepCosts
from dsx.cost.interval import StepInterval
from dsx.reporting.ranked_rows import RankedRows, distinct
from dsx.results.plot.stacks import STACKS
from dsx.results.schema import Column

if TYPE_CHECKING:
    import pandas as pd

# JavaScript's name of each type of number.
_ARRAYS = {"i1": "Int8", "i2": "Int16", "i4": "Int32", "i8": "BigInt64", "f4": "Float32", "f8": "Float64"}
_PARTS = {name: f"parts of the {of}" for of, stack in STACKS.items() for name in stack.parts}
_SCALES = {"bytes": (1e9, "GB"), "": (1.0, "")}
_PERCENT = (0.01, "%")


@dataclass(frozen=True)
class TableData:
    """The table of a page."""

    columns: list[dict[str, Any]]  # plain data for the script of the page, in order
    constant: list[tuple[str, str]]  # columns with one value, and the value as text
    rows: int
    left_out: int  # rows of the set that the table does not have

    def to_data(self) -> dict[str, Any]:
        """Return what the script of the page reads."""
        return {"rows": self.rows, "columns": self.columns, "constant": dict(self.constant)}


def table_data(ranked: RankedRows) -> TableData:
    """Return the best rows of a set as a table."""
    rows = ranked.best
    columns: list[dict[str, Any]] = []
    constant: list[tuple[str, str]] = []
    for column in ranked.manifest.columns:
        values: Any = rows[column.name]
        single = len(rows) > 1 and distinct(rows, column.name) == 1
        if column.name == "reject":
            columns += [] if single and values[0] == 0 else [_reject(ranked)]
        elif single and column.kind != "id":
            constant += [(column.name, str(values[0]))] if values[0] == values[0] else []
        else:
            columns.append(_column(column, values))
    order = ["costs", "choices", *dict.fromkeys(_PARTS.values()), "interval", "id"]
    columns.sort(key=lambda one: order.index(one["group"]))
    return TableData(columns, constant, len(rows), len(ranked.every) - len(rows))


def _column(column: Column, values: "pd.Series") -> dict[str, Any]:
    size, unit = _PERCENT if column.name == "mfu" else _SCALES.get(column.unit, (1.0, column.unit))
    data: dict[str, Any] = {"name": column.name, "about": column.description, "group": _group(column), "unit": unit}
    if column.kind in ("name", "text"):
        names = [*dict.fromkeys(values.astype(str))]
        codes = values.astype(str).map({name: code for code, name in enumerate(names)}).to_numpy(np.int32)
        return data | {"names": names} | _encoded(_narrow(codes))
    numbers = values.to_numpy()
    return data | {"scale": size} | _encoded(numbers if numbers.dtype.kind == "f" else _narrow(numbers))


def _group(column: Column) -> str:
    if column.kind == "id":
        return "id"
    if column.name in StepInterval.__dataclass_fields__:
        return "interval"
    return _PARTS.get(column.name, "costs" if column.name in StepCosts.__dataclass_fields__ else "choices")


def _reject(ranked: RankedRows) -> dict[str, Any]:
    """Return the column of the reasons against each row, as names."""
    reasons = [reason.name for reason in ranked.manifest.reject_reasons]
    bits = ranked.best["reject"].to_numpy(np.int64)
    distinct, codes = np.unique(bits, return_inverse=True)
    names = [
        ", ".join(name for bit, name in enumerate(reasons) if value >> bit & 1) or "feasible" for value in distinct
    ]
    about = "the reasons against the candidate"
    head: dict[str, Any] = {"name": "reject", "about": about, "group": "costs", "unit": "", "names": names}
    return head | _encoded(_narrow(codes))


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in the narrowest type that holds them."""
    least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
            return values.astype(kind)
    return values.astype(np.int64)


def _encoded(values: NDArray[Any]) -> dict[str, str]:
    kind = values.dtype.str[1:]
    plain = np.ascontiguousarray(values, dtype=f"<{kind}")
    return {"array": _ARRAYS[kind], "data": base64.b64encode(plain.tobytes()).decode("ascii")}
