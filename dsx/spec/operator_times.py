"""Measured times of kernels, by operator and local shape: a CSV file with one kernel per row.

`operator` is the name of an operator (einsum, norm) or of a `fuse` block (attention). A matrix multiply is `batch`
times (m x k) by (k x n). A fused kernel with multiplies has the sizes of its first multiply. Any other kernel has m x n
elements, with n along the last dimension, and no k. `time` is a quantity with its unit. Lines that begin with # are
comments.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dsx.errors import OperatorTimesError, SpecError, UnitError, did_you_mean
from dsx.spec.csv_table import CsvFormat, CsvRow, read_csv, whole_number
from dsx.spec.locate import find_path
from dsx.units import format_quantity, parse_quantity

REQUIRED = ("operator", "m", "n", "time")
OPTIONAL = ("direction", "k", "batch", "dtype")
DIRECTIONS = ("forward", "backward")
FORMAT = CsvFormat(
    subject="operator times begin",
    error=OperatorTimesError,
    required=REQUIRED,
    optional=OPTIONAL,
    comment="#",
    hint=f" (columns: {', '.join((*REQUIRED, *OPTIONAL))})",
)

# Bytes per element, the only property of a type that the model uses.
# Bytes of an element. A measured row is matched by them: 4-bit numbers have a scale for each block, so count as one.
DTYPES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 1}

Shape = tuple[int, int, int, int]  # m, n, k, batch; k and batch are 0 for a kernel without multiplies


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One row: the time of a kernel."""

    line: int  # of the file, from 1; the header is line 1
    operator: str
    directions: tuple[int, ...]  # positions in `DIRECTIONS`; both for a blank cell
    shape: Shape
    dtype: str  # "" matches the type that the job computes in
    time_s: float


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """The rows of one file, in its order, and the name of the file in messages."""

    file: str
    rows: tuple[OperatorTime, ...]

    def to_data(self) -> dict[str, Any]:
        """Return the rows as plain data, with the name of the file without its folder."""
        return {
            "file": Path(self.file).name,
            "rows": [
                [row.line, row.operator, list(row.directions), list(row.shape), row.dtype, row.time_s]
                for row in self.rows
            ],
        }

    @classmethod
    def from_data(cls, data: dict[str, object]) -> "OperatorTimes":
        """Return the times from what `to_data` returns; raises pydantic.ValidationError for anything else."""
        stored = _STORED.validate_python(data)
        return cls(stored.file, tuple(OperatorTime(*row) for row in stored.rows))


@dataclass(frozen=True, slots=True)
class _Stored:
    """The data that `to_data` returns."""

    file: str
    rows: list[tuple[int, str, tuple[int, ...], Shape, str, float]]


_STORED = TypeAdapter(_Stored)


def shape_text(shape: Shape) -> str:
    """Return a shape for people: "4096 x 4096 x 1024" is m x n x k; a batch other than 1 is in front."""
    m, n, k, batch = shape
    return f"{m} x {n}" if not k else f"{f'{batch} of ' if batch != 1 else ''}{m} x {n} x {k}"


def read_operator_times(name: str, near: Path | None = None) -> OperatorTimes:
    """Return the rows of the file at the path `name`; `near` is the file that mentions it.

    Raises SpecError for a path that is not a file, OperatorTimesError with file, line and value for a missing column,
    an invalid cell, and two rows that give one kernel different times.
    """
    path = find_path("operator times", name, near)
    rows = tuple(map(_row, read_csv(path, str(path), FORMAT).rows))
    _refuse_contradictions(rows, str(path))
    return OperatorTimes(str(path), rows)


def _row(row: CsvRow) -> OperatorTime:
    given, place = row.cells, row.place
    for name in REQUIRED:
        if not given[name]:
            raise OperatorTimesError(f"{place}: {name}: is blank, but every row needs it")
    direction, dtype = given.get("direction", ""), given.get("dtype", "").lower()
    for name, value, known in (("direction", direction, DIRECTIONS), ("dtype", dtype, DTYPES)):
        if value and value not in known:
            raise OperatorTimesError(
                f"{place}: {name}: {value!r} is not one of {', '.join(known)}{did_you_mean(value, known)}"
            )
    k, batch = given.get("k", ""), given.get("batch", "")
    if batch and not k:
        raise OperatorTimesError(f"{place}: batch: counts matrix multiplies, so k is needed too")
    return OperatorTime(
        line=row.line,
        operator=given["operator"],
        directions=(DIRECTIONS.index(direction),) if direction else tuple(range(len(DIRECTIONS))),
        shape=(
            _size("m", given["m"], place),
            _size("n", given["n"], place),
            _size("k", k, place) if k else 0,
            _size("batch", batch or "1", place) if k else 0,
        ),
        dtype=dtype,
        time_s=_time(given["time"], place),
    )


def _size(name: str, text: str, place: str) -> int:
    try:
        return whole_number(text)
    except (ValueError, SpecError) as error:
        raise OperatorTimesError(f"{place}: {name}: {error}") from None


def _time(text: str, place: str) -> float:
    try:
        value = parse_quantity(text, "s")
    except UnitError as error:
        raise OperatorTimesError(f"{place}: time: {error}") from None
    if value <= 0:
        raise OperatorTimesError(f"{place}: time: {text!r} is not above 0")
    return value


def _refuse_contradictions(rows: tuple[OperatorTime, ...], path: str) -> None:
    """Raise OperatorTimesError for two rows that match the same kernel and have different times."""
    seen: dict[tuple[str, int, Shape], dict[int, OperatorTime]] = {}
    for row in rows:
        width = DTYPES.get(row.dtype, 0)
        for direction in row.directions:
            there = seen.setdefault((row.operator, direction, row.shape), {})
            # A row without a type matches all of them.
            for other in there.values() if not width else (there[key] for key in (0, width) if key in there):
                if other.time_s != row.time_s:
                    raise OperatorTimesError(
                        f"{path}:{row.line}: {row.operator} of {shape_text(row.shape)} takes "
                        f"{format_quantity(row.time_s, 's')} here and {format_quantity(other.time_s, 's')} in line "
                        f"{other.line}: a kernel has one time (types of equal size count as one, and a blank direction "
                        "or dtype as all)"
                    )
            there.setdefault(width, row)


# The columns of a file that dsx writes; `spread` is for people.
WRITTEN = ("operator", "direction", "m", "n", "k", "batch", "dtype", "time", "spread")


def written_row(operator: str, direction: int | None, shape: Shape, dtype: str, time_s: float, spread: float) -> str:
    """Return a row of a file with the columns `WRITTEN`; `spread` is a share of the time."""
    sizes = ("" if not size else str(size) for size in shape)
    cells = (operator, "" if direction is None else DIRECTIONS[direction], *sizes, dtype, f"{1e6 * time_s:.6g} us")
    return ",".join((*cells, f"{spread:.3f}"))
