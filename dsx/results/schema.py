"""The columns of a result set, made from the records that compute them.

A result set is one flat table: `candidate`, `cluster`, the choices (`dsx.space.choices`), what the sweep varied of
the hardware, the costs (`StepCosts`), their interval (`StepInterval`) and `reject`. `candidate`, `cluster` and
the what-if columns identify a row; `candidate` alone identifies the choices, so sets of different hardware join
on it. Names, units and descriptions are those of the records, so a new field there is a new column here, in
pandas and in the documents. Whoever changes a record changes `SCHEMA_VERSION` in manifest.py.

Only what-if columns differ from set to set, and the column of cuts, which a set of `partition: optimal` has. Any other
column that does not vary is simply constant, which costs almost nothing in Parquet.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from dsx import records
from dsx.cost.columns import StepCosts
from dsx.cost.interval import StepInterval
from dsx.space.choices import CHOICES, NAMED

# "given" is a real number that the sweep states; it keeps float64, so that it compares equal to what was stated.
Kind = Literal["id", "name", "integer", "text", "real", "given", "reasons"]
Precision = Literal["float32", "float64"]

# The columns that hold names, as codes: positions in the name tuples of the manifest.
NAME_COLUMNS = ("cluster", *NAMED)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `unit` is an SI unit or "" if bare, `kind` decides its type and encoding."""

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

# A cut as text: one value that pandas groups and compares, and that Parquet writes once for all rows that share it.
CUT = Column(
    "stage_layers", "", "layers of each pipeline stage, first to last; embedding and head are a layer each", "text"
)

# The columns of every set.
COLUMNS: tuple[Column, ...] = (*_CHOICES, *_COSTS)


def columns_with(what_if: Iterable[ExtraColumn], cuts: bool = False) -> tuple[Column, ...]:
    """Return the columns of a set that varies `what_if`, in order; with `cuts` each row has one of its own."""
    extra = [Column(e.name, e.unit, e.description, "integer" if e.integer else "given") for e in what_if]
    return (*_CHOICES, *([CUT] if cuts else []), *extra, *_COSTS)


def arrow_schema(
    columns: Sequence[Column], names: Mapping[str, Sequence[str]], precision: Precision, about: Mapping[str, Any]
) -> pa.Schema:
    """Return the Parquet schema of a result set.

    Args:
        columns: those of the set.
        names: for each of `NAME_COLUMNS`, the names that its codes stand for.
        precision: of the cost columns.
        about: what every part says about its set; JSON under the key `dsx`.

    A name column is `dictionary<int8, string>`; `names` is the dictionary, which travels in the
    manifest because a Parquet file only keeps the names that occur in it. No value is ever null.
    """
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
    # Columns that may be null cost twice the time to write.
    fields = [
        pa.field(c.name, types[c.kind], nullable=False, metadata={"unit": c.unit, "description": c.description})
        for c in columns
    ]
    return pa.schema(fields, metadata={b"dsx": json.dumps(described, sort_keys=True).encode()})


def write_options(columns: Sequence[Column]) -> dict[str, Any]:
    """Return how `pyarrow.parquet.write_table` encodes each of `columns`.

    Measured on the rows of two sweeps, 262,144 at once: dictionaries for integers with zstd write 3.3 million
    rows a second and core at 19 bytes a row; this writes 12 million at 21. Plain floats instead of split bytes
    are a quarter faster and a sixth larger, snappy no faster and 30 bytes. The smallest and largest value of a
    part are kept for the columns by which a query may skip it.
    """
    return {
        "compression": "lz4",
        "row_group_size": 2**20,
        "write_batch_size": 2**16,
        "use_dictionary": [c.name for c in columns if c.kind in ("name", "text")],
        "column_encoding": {c.name: "BYTE_STREAM_SPLIT" for c in columns if c.kind in ("real", "given")},
        "write_statistics": [c.name for c in columns if c.kind in ("integer", "given", "reasons")],
    }
