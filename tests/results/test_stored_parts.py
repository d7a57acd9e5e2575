"""One part: what fits into it, what it says of itself, and how it is encoded."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from results.sets import WHAT_IF

from dsx.errors import StoreError
from dsx.results import frames as reading
from dsx.results import parts as stored_parts
from dsx.results.folder import part_name
from dsx.results.manifest import Counts, StoredPart


@pytest.fixture
def part(tmp_path, rows, begun):
    path = tmp_path / "part-00003.parquet"
    path.write_bytes(stored_parts.encode(rows(5), Counts(9, 4, {"memory": 2}), begun()))
    return path


def test_a_part_describes_itself(part, begun):
    with pq.ParquetFile(part) as file:
        schema, group = file.schema_arrow, file.metadata.row_group(0)
    assert schema.names == [c.name for c in begun().columns]
    assert json.loads(schema.metadata[b"dsx"])["spec_hash"] == begun().spec_hash
    encodings = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert "BYTE_STREAM_SPLIT" in encodings["step_time_s"].encodings
    assert "RLE_DICTIONARY" in encodings["strategy"].encodings
    assert "RLE_DICTIONARY" not in encodings["tp"].encodings
    assert encodings["tp"].statistics.has_min_max
    assert encodings["candidate"].statistics is None
    assert {column.compression for column in encodings.values()} == {"LZ4"}
    # Footer.
    found = stored_parts.footer(part, stored_parts.part_schema(begun()))
    assert found == stored_parts.Footer(5, Counts(9, 4, {"memory": 2}))
    assert stored_parts.spec_hash_of(part) == begun().spec_hash
    assert stored_parts.footer(part, stored_parts.part_schema(begun(model="other"))) is None
    # A link is no part.
    part.rename(part.with_name("elsewhere"))
    part.symlink_to("elsewhere")
    assert stored_parts.footer(part, stored_parts.part_schema(begun())) is None
    assert stored_parts.spec_hash_of(part) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: pd.DataFrame({"tp": [1]}).to_parquet(path),
        lambda path: pq.write_table(pa.table({"tp": [1]}).replace_schema_metadata({"dsx": "]"}), path),
    ],
)
def test_what_is_no_part_has_no_footer(part, begun, spoil):
    spoil(part)
    assert stored_parts.footer(part, stored_parts.part_schema(begun())) is None
    assert stored_parts.spec_hash_of(part) is None


@pytest.mark.parametrize(
    "counts",
    [
        {"candidates": "9", "feasible": 4, "rejected": {}},
        {"candidates": 9, "feasible": -4, "rejected": {}},
        {"candidates": 9, "feasible": 4, "rejected": []},
        {"candidates": 9, "feasible": 4, "rejected": {"memory": "2"}},
        {"candidates": 9},
        [9, 4, {}],
        "9" * 5000,
        "[" * 100_000,
        None,
    ],
)
def test_counts_of_other_types_are_those_of_no_part(part, begun, counts):
    table = pq.read_table(part)
    about = {b"dsx": pq.read_schema(part).metadata[b"dsx"]}
    about |= {} if counts is None else {b"dsx.counts": counts if isinstance(counts, str) else json.dumps(counts)}
    pq.write_table(table.replace_schema_metadata(about), part)
    assert stored_parts.footer(part, stored_parts.part_schema(begun())) is None
    assert stored_parts.spec_hash_of(part) == begun().spec_hash


@pytest.mark.parametrize("about", ["[" * 100_000, "[]", '{"spec_hash": 1}', "\xff", "9" * 5000])
def test_a_part_that_does_not_say_whose_it_is(part, about):
    pq.write_table(pq.read_table(part).replace_schema_metadata({"dsx": about}), part)
    assert stored_parts.spec_hash_of(part) is None


def test_footers_are_those_of_whole_parts_of_the_run(tmp_path, rows, begun, counts):
    content = stored_parts.encode(rows(5), counts(5), begun())
    for number in (4, 1, 2, 9):
        (tmp_path / part_name(number)).write_bytes(content)
    (tmp_path / part_name(2)).write_bytes(b"")
    (tmp_path / "part-x.parquet").write_bytes(content)
    run = dataclasses.replace(begun(), num_parts=9)
    assert list(stored_parts.footers(tmp_path, run)) == [1, 4]


def test_bytes_depend_on_rows_counts_and_sweep_alone(rows, begun, counts):
    def encoded(n, manifest, counted=5):
        return stored_parts.encode(rows(n), counts(counted), manifest).to_pybytes()

    one = begun()
    other = dataclasses.replace(one, started="2000-01-01T00:00:00+00:00", num_parts=12)
    assert encoded(5, one) == encoded(5, other)
    assert len({encoded(5, one), encoded(6, one), encoded(5, one, 6), encoded(5, begun(model="other"))}) == 4
    # Integers of any width are the same part.
    wide = rows(5)
    names = {column.name for column in begun().columns if column.kind in ("integer", "name")}
    narrow = {name: values.astype(np.int8 if name in names else values.dtype) for name, values in wide.items()}
    assert stored_parts.encode(wide, counts(5), begun()) == stored_parts.encode(narrow, counts(5), begun())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda rows: rows.pop("tp"), "differ in the columns tp"),
        (lambda rows: rows.pop("cluster"), "differ in the columns cluster"),
        (lambda rows: rows.pop("device.hbm_capacity"), "differ in the columns device.hbm_capacity"),
        (lambda rows: rows.update(tq=rows["tp"]), "differ in the columns tq"),
        (lambda rows: rows.update(tp=rows["tp"][:1]), "different lengths"),
        (lambda rows: rows.update(tp=rows["tp"] + 2**40), "column tp does not fit int32"),
        (lambda rows: rows.update(tp=rows["tp"] + 0.5), "column tp does not fit int32"),
        (lambda rows: rows.update(tp=np.array([1, None])), "column tp does not fit int32: 1 values are missing"),
        (lambda rows: rows.update(strategy=rows["tp"] * 0 + 2), "column strategy does not fit"),
        (lambda rows: rows.update(cluster=rows["tp"] * 0 - 1), "column cluster does not fit"),
        (lambda rows: rows.update(mfu=np.array(["a", "b"])), "column mfu does not fit"),
        (lambda rows: rows.update(mfu=rows["mfu"].reshape(2, 1)), "column mfu does not fit"),
    ],
)
def test_rows_that_do_not_fit(rows, begun, counts, spoil, says):
    bad = rows(2, what_if=WHAT_IF)
    spoil(bad)
    with pytest.raises(StoreError, match=says):
        stored_parts.encode(bad, counts(2), begun(what_if=WHAT_IF))


def test_not_a_number_is_a_value(tmp_path, rows, begun, counts):
    some = rows(3)
    some["training_days"] = np.full(3, np.nan, dtype=np.float32)
    (tmp_path / "a").write_bytes(stored_parts.encode(some, counts(3), begun()))
    column = pq.read_table(tmp_path / "a")["training_days"]
    assert column.null_count == 0
    assert np.isnan(column.to_numpy()).all()


def test_layers_of_chunks_are_texts(tmp_path, rows, begun, counts):
    optimal, layers = begun(partition="optimal"), np.array([[3, 1, 4, 0], [8, 0, 0, 0], [3, 1, 4, 0]], dtype=np.int16)
    (tmp_path / "a").write_bytes(stored_parts.encode(rows(3) | {"stage_layers": layers}, counts(3), optimal))
    texts = pq.read_table(tmp_path / "a")["stage_layers"].to_pylist()
    assert texts == ["3,1,4", "8", "3,1,4"]
    again = stored_parts.encode(rows(3) | {"stage_layers": np.array(texts, dtype=object)}, counts(3), optimal)
    assert again.to_pybytes() == (tmp_path / "a").read_bytes()


def test_columns_that_may_lack_values_and_do_not_are_read(tmp_path, begun, written):
    manifest = written(tmp_path, begun(), 5, 7)
    path = tmp_path / manifest.parts[1].file
    table = pq.read_table(path)
    fields = [field.with_nullable(True) for field in table.schema]
    pq.write_table(table.cast(pa.schema(fields, table.schema.metadata)), path)
    assert len(reading.load(tmp_path)) == 12
    assert len(reading.load_chosen(tmp_path, ["tp"], lambda frame: frame)) == 12


def test_a_part_of_endless_equal_rows_is_read_group_by_group(part, begun, monkeypatch):
    """Few bytes may be many rows: what a group may have is bounded, and one is in memory at a time."""
    table = pq.read_table(part)
    many = pa.concat_tables([table.slice(0, 1)] * 40).combine_chunks()
    pq.write_table(many, part, row_group_size=10)
    here = part.parent, StoredPart(part.name, 40), begun()
    assert stored_parts.num_groups(*here[:2]) == 4
    assert stored_parts.read(*here, ["tp"], 3).num_rows == 10
    assert stored_parts.read(*here, ["tp"]).num_rows == 40
    monkeypatch.setattr(stored_parts, "GROUP_ROWS", 9)
    with pytest.raises(StoreError, match="has 10 rows in a group, of at most 9"):
        stored_parts.read(*here, ["tp"], 0)
