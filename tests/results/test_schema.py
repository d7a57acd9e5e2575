import json

import pyarrow as pa
import pytest

from dsx import records
from dsx.cost.columns import StepCosts
from dsx.results.schema import COLUMNS, arrow_schema, write_options
from dsx.space.candidates import NAMED, Candidates

NAMES = {name: ("a", "b") for name in NAMED}


def test_columns_are_those_of_the_records():
    costs = list(records.columns(StepCosts))
    assert [c.name for c in COLUMNS] == ["candidate", *records.columns(Candidates), *costs, "reject"]
    assert {c.name for c in COLUMNS if c.kind == "name"} == set(NAMED)
    assert [c.name for c in COLUMNS if c.kind == "real"] == costs
    assert all(c.description for c in COLUMNS)


@pytest.mark.parametrize(("precision", "real"), [("float32", pa.float32()), ("float64", pa.float64())])
def test_types_units_and_metadata(precision, real):
    schema = arrow_schema(NAMES, precision, {"schema_version": 1})
    assert schema.field("candidate").type == pa.int64()
    assert schema.field("reject").type == pa.int64()
    assert schema.field("tp").type == pa.int32()
    assert schema.field("strategy").type == pa.dictionary(pa.int8(), pa.string())
    assert schema.field("step_time_s").type == real
    assert schema.field("peak_bytes").metadata[b"unit"] == b"bytes"
    assert schema.field("peak_bytes").metadata[b"description"].startswith(b"memory of the worst stage")
    assert json.loads(schema.metadata[b"dsx"]) == {
        "schema_version": 1,
        "names": {name: ["a", "b"] for name in NAMED},
    }


def test_every_column_has_one_encoding():
    options = write_options()
    encoded = [*options["use_dictionary"], *options["column_encoding"]]
    assert sorted(encoded) == sorted(c.name for c in COLUMNS)
    assert options["column_encoding"]["step_time_s"] == "BYTE_STREAM_SPLIT"
    assert options["column_encoding"]["candidate"] == "PLAIN"
