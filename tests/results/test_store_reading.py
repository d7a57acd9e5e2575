import numpy as np
import pandas as pd
import pytest

from dsx.errors import StoreError, UnknownNameError
from dsx.results import store
from dsx.results.schema import COLUMNS


def test_values_come_back(stored, rows):
    df = store.load(stored)
    assert list(df.columns) == [c.name for c in COLUMNS]
    assert len(df) == 12
    written = rows(7, first=5)
    for column in COLUMNS:
        values = df[column.name].cat.codes if column.kind == "name" else df[column.name]
        np.testing.assert_array_equal(values[5:], written[column.name])
    assert df["step_time_s"].dtype == np.float32
    assert df["tp"].dtype == np.int32
    assert df["candidate"].dtype == np.int64


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_precision(tmp_path, begun, rows, counts, precision):
    with store.create(tmp_path, begun(precision)) as writer:
        writer.write(rows(3))
        writer.finish(counts)
    assert store.load(tmp_path)["peak_bytes"].dtype == precision


def test_categories_are_all_names_in_order(stored):
    df = store.load(stored, ["schedule", "strategy"])
    assert list(df["strategy"].cat.categories) == ["flat", "grid"]
    assert list(df["strategy"][:3]) == ["flat", "grid", "flat"]
    # No row of the set uses this one's other names, and they are categories all the same.
    assert list(df["schedule"].cat.categories) == ["one"]


def test_unused_names_stay_categories(tmp_path, begun, rows, counts):
    some = rows(3)
    some["recompute"] = np.ones(3, dtype=np.int8)
    with store.create(tmp_path, begun()) as writer:
        writer.write(some)
        writer.finish(counts)
    recompute = store.load(tmp_path)["recompute"]
    assert list(recompute) == ["full"] * 3
    assert list(recompute.cat.categories) == ["none", "full"]


def test_attrs(stored, begun):
    attrs = store.load(stored).attrs
    assert attrs["units"]["step_time_s"] == "s"
    assert attrs["units"]["tp"] == ""
    assert attrs["descriptions"]["tp"] == "tensor parallel degree"
    assert [reason["name"] for reason in attrs["reject_reasons"]] == ["memory", "layers"]
    assert attrs["spec"] == begun().spec
    assert attrs["complete"] is True


def test_chosen_columns_in_their_order(stored):
    df = store.load(stored, columns=["mfu", "tp", "mfu"])
    assert list(df.columns) == ["mfu", "tp"]
    assert df.attrs["units"] == {"mfu": "", "tp": ""}


def test_unknown_column(stored):
    with pytest.raises(UnknownNameError, match="unknown column 'step_time'; did you mean 'step_time_s'"):
        store.load(stored, columns=["step_time"])


def test_empty_set_has_every_column(tmp_path, begun, counts):
    with store.create(tmp_path, begun()) as writer:
        writer.finish(counts)
    df = store.load(tmp_path)
    assert len(df) == 0
    assert list(df.columns) == [c.name for c in COLUMNS]
    assert df["tp"].dtype == np.int32
    assert isinstance(df["strategy"].dtype, pd.CategoricalDtype)
    assert list(df["strategy"].cat.categories) == ["flat", "grid"]


def test_folder_named_like_a_partition(tmp_path, begun, rows, counts):
    folder = tmp_path / "num_gpus=1024"
    with store.create(folder, begun()) as writer:
        writer.write(rows(3))
        writer.finish(counts)
    assert (store.load(folder)["num_gpus"] < 100).all()


def test_nothing_there(tmp_path, begun, rows):
    file = tmp_path / "file"
    file.write_text("")
    for path, says in ((tmp_path / "no", "does not exist"), (file, "is a file"), (tmp_path, "no manifest")):
        with pytest.raises(StoreError, match=says):
            store.load(path)
    with store.create(tmp_path / "running", begun()) as writer:
        writer.write(rows(3))
        with pytest.raises(StoreError, match="has not finished; run it again"):
            store.load(tmp_path / "running")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda part: part.unlink(), "is missing"),
        (lambda part: part.write_bytes(b""), "cannot be read"),
        (lambda part: part.write_bytes(part.read_bytes()[:-100]), "cannot be read"),
        (
            lambda part: part.write_bytes(part.with_name("part-00000.parquet").read_bytes()),
            "has 5 rows, not 7",
        ),
        (lambda part: pd.DataFrame({"tp": range(7)}).to_parquet(part), "has no column candidate"),
    ],
)
def test_broken_parts(stored, spoil, says):
    spoil(stored / "part-00001.parquet")
    with pytest.raises(StoreError, match=f"part-00001.parquet {says}.*run the sweep again"):
        store.load(stored)
