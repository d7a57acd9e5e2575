import json

import pyarrow as pa
import pytest

from dsx import records
from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.plans.choices import NAMED, PLAN_COLUMNS
from dsx.results.set_columns import COLUMNS, NAME_COLUMNS, ExtraColumn, arrow_schema, columns_with, write_options

NAMES = {name: ("a", "b") for name in NAME_COLUMNS}
REAL = ExtraColumn("device.hbm_capacity", "bytes", "what it holds", integer=False)
INTEGER = ExtraColumn("network.nvs.size", "", "how many", integer=True)


def test_columns_are_those_of_the_records():
    choices = list(PLAN_COLUMNS)
    costs = [*records.columns(StepCosts), *records.columns(StepInterval)]
    assert [c.name for c in COLUMNS] == ["candidate", "cluster", *choices, *costs, "reject"]
    assert {c.name for c in COLUMNS if c.kind == "name"} == {"cluster", *NAMED} == set(NAME_COLUMNS)
    assert [c.name for c in COLUMNS if c.kind == "real"] == costs
    assert all(c.description for c in COLUMNS)


def test_what_if_columns_lie_between_choices_and_costs():
    assert columns_with(()) == COLUMNS
    names = [c.name for c in columns_with([REAL, INTEGER])]
    at = names.index("device.hbm_capacity")
    last, first = list(PLAN_COLUMNS)[-1], next(iter(records.columns(StepCosts)))
    assert names[at - 1 : at + 3] == [last, "device.hbm_capacity", "network.nvs.size", first]


@pytest.mark.parametrize(("precision", "real"), [("float32", pa.float32()), ("float64", pa.float64())])
def test_types_units_and_metadata(precision, real):
    schema = arrow_schema(columns_with([REAL, INTEGER]), NAMES, precision, {"schema_version": 2})
    assert schema.field("candidate").type == pa.int64()
    assert schema.field("reject").type == pa.int64()
    assert schema.field("tp").type == pa.int32()
    assert schema.field("strategy").type == schema.field("cluster").type == pa.dictionary(pa.int8(), pa.string())
    assert schema.field("step_time_s").type == real
    assert schema.field("device.hbm_capacity").type == pa.float64()
    assert schema.field("device.hbm_capacity").metadata == {b"unit": b"bytes", b"description": b"what it holds"}
    assert schema.field("network.nvs.size").type == pa.int32()
    assert schema.field("peak_bytes").metadata[b"unit"] == b"bytes"
    assert schema.field("peak_bytes").metadata[b"description"].startswith(b"memory of the worst stage")
    assert not any(field.nullable for field in schema)
    assert json.loads(schema.metadata[b"dsx"]) == {
        "schema_version": 2,
        "names": {name: ["a", "b"] for name in NAME_COLUMNS},
    }


def test_encodings():
    options = write_options(columns_with([REAL, INTEGER]))
    assert set(options["use_dictionary"]) == set(NAME_COLUMNS)
    assert set(options["column_encoding"]) == {
        "device.hbm_capacity",
        *records.columns(StepCosts),
        *records.columns(StepInterval),
    }
    assert set(options["column_encoding"].values()) == {"BYTE_STREAM_SPLIT"}
    assert {"tp", "reject", "network.nvs.size", "device.hbm_capacity"} <= set(options["write_statistics"])
    assert "candidate" not in options["write_statistics"]
