"""The columns of a result set, made from the records that compute them.

A result set is one flat table: `candidate`, the choices (`Candidates`), their costs (`StepCosts`) and
`reject`. Names, units and descriptions are those of the records, so a new field there is a new column
here, in pandas and in the documents. Whoever changes a record changes `SCHEMA_VERSION` in manifest.py.

Not covered: columns that only some sweeps have. A column that does not vary is simply constant, which
costs almost nothing in Parquet.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from dsx import records
from dsx.cost.columns import StepCosts
from dsx.space.candidates import NAMED, Candidates

Kind = Literal["id", "name", "integer", "real", "reasons"]
Precision = Literal["float32", "float64"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `unit` is an SI unit or "" if bare, `kind` decides its type and encoding."""

    name: str
    unit: str
    description: str
    kind: Kind


def _of(record: type, kind: Kind) -> list[Column]:
    return [
        Column(name, unit, description, "name" if name in NAMED else kind)
        for name, (unit, description) in records.columns(record).items()
    ]


COLUMNS: tuple[Column, ...] = (
    Column("candidate", "", "stable id: a hash of the choices, the same in every run and on every cluster", "id"),
    *_of(Candidates, "integer"),
    *_of(StepCosts, "real"),
    Column("reject", "", "bit set of the reasons against the candidate; 0 is feasible", "reasons"),
)


def arrow_schema(
    names: Mapping[str, Sequence[str]], precision: Precision, file_metadata: Mapping[str, Any]
) -> pa.Schema:
    """Return the Parquet schema of a result set.

    Args:
        names: for each of `NAMED`, the names that its codes stand for.
        precision: of the cost columns.
        file_metadata: what every part says about its set; JSON under the key `dsx`.

    A name column is `dictionary<int8, string>`; `names` is the dictionary, which travels in the
    manifest because a Parquet file only keeps the names that occur in it.
    """
    types: dict[Kind, pa.DataType] = {
        "id": pa.int64(),
        "name": pa.dictionary(pa.int8(), pa.string()),
        "integer": pa.int32(),
        "real": pa.float32() if precision == "float32" else pa.float64(),
        "reasons": pa.int64(),
    }
    about = {**file_metadata, "names": {name: list(names[name]) for name in NAMED}}
    return pa.schema(
        [pa.field(c.name, types[c.kind], metadata={"unit": c.unit, "description": c.description}) for c in COLUMNS],
        metadata={b"dsx": json.dumps(about, sort_keys=True).encode()},
    )


def write_options() -> dict[str, Any]:
    """Return how `pyarrow.parquet.write_table` encodes each column.

    Floats rarely repeat, and compress half again better with their bytes split into streams; codes and
    degrees repeat all the time; ids are hashes, in which nothing repeats.
    """
    encoding: dict[Kind, str] = {"id": "PLAIN", "real": "BYTE_STREAM_SPLIT"}
    return {
        "compression": "zstd",
        "row_group_size": 2**17,
        "use_dictionary": [c.name for c in COLUMNS if c.kind not in encoding],
        "column_encoding": {c.name: encoding[c.kind] for c in COLUMNS if c.kind in encoding},
    }
