"""The columns of a result set, derived from the records that compute them.

A result set is one flat table: `candidate`, `cluster`, the choices (`dsx.plans.choices`), the what-if columns, the
costs (`StepCosts`), their interval (`StepInterval`) and `reject`. `candidate`, `cluster` and the what-if columns
identify a row. `candidate` alone identifies the choices, so sets of different hardware can be joined on it. Names,
units and descriptions come from the records, so a new field of a record is a new column here, in pandas and in the
documents. A change of a record needs a new `SCHEMA_VERSION` in manifest.py.

Sets differ only in their what-if columns, and in the column `stage_layers` of sets with `partition: optimal`. Any other
column that does not vary is constant, which costs almost nothing in Parquet.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dsx import records
from dsx.config.sweep_fields import Columns
from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.plans.choices import CHOICES, NAMED, PLAN_COLUMNS, nearest_column
from dsx.plans.layer_layout import LAYOUT
from dsx.text import Data

# "given" is a real number that the sweep states; it is float64, so that it compares equal to the stated value.
Kind = Literal["id", "name", "integer", "text", "real", "given", "reasons"]
Precision = Literal["float32", "float64"]

# The columns that hold names as codes: positions in the name tuples of the manifest.
NAME_COLUMNS = ("cluster", *NAMED)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `unit` is an SI unit or "" without one, `kind` decides its type and encoding."""

    name: str
    unit: str
    description: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class ExtraColumn:
    """A what-if column: a number that the sweep varies, named by its path, as in "device.hbm_capacity"."""

    name: str
    unit: str
    description: str
    integer: bool


def _of(record: type, kind: Kind) -> list[Column]:
    return [Column(name, unit, description, kind) for name, (unit, description) in records.columns(record).items()]


_CHOICES = (
    Column("candidate", "", "stable id: a hash of the choices, the same in every run and on every cluster", "id"),
    Column("cluster", "", "cluster that the candidate runs on", "name"),
    *(Column(choice.name, "", choice.description, "name" if choice.name in NAMED else "integer") for choice in CHOICES),
)
_COSTS = (
    *_of(StepCosts, "real"),
    *_of(StepInterval, "real"),
    Column("reject", "", "bit set of the reasons against the candidate; 0 is feasible", "reasons"),
)

# A layer layout as text: pandas can group and compare it, and Parquet writes it once for all rows that share it.
CUT = Column(LAYOUT, "", "layers of each pipeline stage, first to last; embedding and head are a layer each", "text")

LARGER_IS_BETTER = records.larger_is_better(StepCosts)
NEEDS = records.needs_of_columns(StepCosts)

# The columns that a sweep may mention, besides those of its own hardware.
MENTIONED = Columns(
    tuple(PLAN_COLUMNS),
    tuple(StepCosts.__dataclass_fields__),
    NAMED,
    intervals=tuple(StepInterval.__dataclass_fields__),
    larger=LARGER_IS_BETTER,
    needs=NEEDS,
    nearest=nearest_column,
)

# The columns of every set.
COLUMNS: tuple[Column, ...] = (*_CHOICES, *_COSTS)


def columns_with(what_if: Iterable[ExtraColumn], cuts: bool = False) -> tuple[Column, ...]:
    """Return the columns of a set that varies `what_if`, in order; with `cuts` each row has its own layer layout."""
    extra = [Column(e.name, e.unit, e.description, "integer" if e.integer else "given") for e in what_if]
    return (*_CHOICES, *([CUT] if cuts else []), *extra, *_COSTS)


def arrow_schema(
    columns: Sequence[Column], names: Mapping[str, Sequence[str]], precision: Precision, about: Mapping[str, object]
) -> "pa.Schema":
    """Return the Parquet schema of a result set; `about` describes it in every part, as JSON under the key `dsx`.

    A name column is `dictionary<int8, string>`; `names` is the dictionary. The manifest holds it too, because a Parquet
    file only keeps the names that occur in it. No value is null.
    """
    import pyarrow as pa

    types: dict[Kind, pa.DataType] = {
        "id": pa.int64(),
        "name": pa.dictionary(pa.int8(), pa.string()),
        "integer": pa.int32(),
        "text": pa.string(),
        "real": pa.float32() if precision == "float32" else pa.float64(),
        "given": pa.float64(),
        "reasons": pa.int64(),
    }
    described = {**about, "names": {name: list(names[name]) for name in NAME_COLUMNS}}
    # Nullable columns take twice as long to write.
    fields = [
        pa.field(c.name, types[c.kind], nullable=False, metadata={"unit": c.unit, "description": c.description})
        for c in columns
    ]
    return pa.schema(fields, metadata={b"dsx": json.dumps(described, sort_keys=True).encode()})


# Bytes of a row on disk by the precision of its costs, rounded up from sets of `keep: all` and `keep: feasible`.
ROW_BYTES = {"float32": 30, "float64": 50}
GROUP_ROWS = 2**20  # that are written, and read, at once at most


def write_options(columns: Sequence[Column]) -> Data:
    """Return the options with which `pyarrow.parquet.write_table` encodes `columns`.

    Measured on the rows of two sweeps, 262,144 at once: these options write 12 million rows per second and core, with
    21 bytes per row. Dictionaries for integers with zstd write 3.3 million with 19 bytes. Plain floats instead of split
    bytes are a quarter faster and a sixth larger; snappy is no faster and needs 30 bytes. Statistics (minimum and
    maximum) are kept for the columns by which a query may skip a part.
    """
    return {
        "compression": "lz4",
        "row_group_size": GROUP_ROWS,
        "write_batch_size": 2**16,
        "use_dictionary": [c.name for c in columns if c.kind in ("name", "text")],
        "column_encoding": {c.name: "BYTE_STREAM_SPLIT" for c in columns if c.kind in ("real", "given")},
        "write_statistics": [c.name for c in columns if c.kind in ("integer", "given", "reasons")],
    }
