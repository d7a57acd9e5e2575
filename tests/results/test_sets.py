"""Reading sets: frames, chosen rows, and rows as plain data."""

import dataclasses

import duckdb
import numpy as np
import pandas as pd
import pytest
from results.sets import WHAT_IF

from dsx.errors import StoreError, UnknownNameError
from dsx.results import frames as store
from dsx.results import manifest as manifests
from dsx.results import writer as writing
from dsx.results.folder import UNFINISHED
from dsx.results.frames import as_plans, fastest
from dsx.results.manifest import Counts
from dsx.results.set_columns import COLUMNS


def test_values_come_back(stored, rows, begun):
    df = store.load(stored)
    assert list(df.columns) == [c.name for c in COLUMNS]
    assert len(df) == 12
    written = rows(7, first=100)
    for column in COLUMNS:
        values = df[column.name].cat.codes if column.kind == "name" else df[column.name]
        np.testing.assert_array_equal(values[5:], written[column.name])
    assert df["step_time_s"].dtype == np.float32
    assert df["tp"].dtype == np.int32
    assert df["candidate"].dtype == np.int64
    # Categories are all names in order.
    df = store.load(stored, ["schedule", "strategy"])
    assert list(df["strategy"].cat.categories) == ["flat", "grid"]
    assert list(df["strategy"][:3]) == ["flat", "grid", "flat"]
    assert list(df["schedule"].cat.categories) == ["one"]
    # Attrs.
    attrs = store.load(stored).attrs
    assert attrs["units"]["step_time_s"] == "s"
    assert attrs["units"]["tp"] == ""
    assert attrs["descriptions"]["tp"] == "tensor parallel degree"
    assert [reason["name"] for reason in attrs["reject_reasons"]] == ["memory", "layers"]
    assert attrs["spec"] == begun().spec
    assert attrs["clusters"] == ["near", "far"]
    assert attrs["what_if"] == []
    assert attrs["complete"] is True
    # Chosen columns in their order.
    df = store.load(stored, columns=["mfu", "tp", "mfu"])
    assert list(df.columns) == ["mfu", "tp"]
    assert df.attrs["units"] == {"mfu": "", "tp": ""}
    # Unknown column.
    with pytest.raises(UnknownNameError, match="unknown column 'step_time'; did you mean 'step_time_s'"):
        store.load(stored, columns=["step_time"])
    with pytest.raises(UnknownNameError, match="did you mean 'strategy'"):
        fastest(stored, 1, ["stratgy"])
    with pytest.raises(UnknownNameError, match=r"unknown column 'device\.hbm_capacity'"):
        store.load(stored, columns=["device.hbm_capacity"])
    # Rows that are chosen part by part.
    df = store.load(stored)
    best = store.load_chosen(stored, ["step_time_s"], lambda frame: frame.sort_values("step_time_s").head(4))
    expected = df.sort_values("step_time_s").head(4)
    assert list(best["candidate"]) == list(expected["candidate"])
    assert list(best.columns) == list(df.columns)
    assert best.attrs == df.attrs
    # Other tools read the parts.
    query = f"select count(*), count(distinct strategy), count(distinct cluster) from '{stored}/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(12, 2, 2)]


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_what_if_columns_are_exact_at_any_precision(tmp_path, begun, rows, written, precision):
    manifest = begun(precision, what_if=WHAT_IF)
    written(tmp_path, manifest, 3)
    df = store.load(tmp_path)
    assert list(df.columns) == [c.name for c in manifest.columns]
    assert df["peak_bytes"].dtype == precision
    assert (df["device.hbm_capacity"] == rows(3, what_if=WHAT_IF)["device.hbm_capacity"]).all()
    assert df["network.nvs.size"].dtype == np.int32
    assert df.attrs["what_if"] == ["device.hbm_capacity", "network.nvs.size"]
    assert df.attrs["units"]["device.hbm_capacity"] == "bytes"
    assert df.attrs["descriptions"]["network.nvs.size"] == "size of the fast domain, varied by the sweep"


def test_names_of_no_row_are_categories_too(tmp_path, begun, rows, counts):
    with writing.create(tmp_path, begun(), 1) as writer:
        writer.write(0, rows(3) | {"cluster": np.ones(3, dtype=np.int8)}, counts(3))
        writer.finish()
    cluster = store.load(tmp_path)["cluster"]
    assert list(cluster) == ["far"] * 3
    assert list(cluster.cat.categories) == ["near", "far"]


def test_empty_set_has_every_column(tmp_path, begun, written):
    written(tmp_path, begun(what_if=WHAT_IF), 0, 0)
    df = store.load(tmp_path)
    assert len(df) == 0
    assert list(df.columns) == [c.name for c in begun(what_if=WHAT_IF).columns]
    assert df["tp"].dtype == np.int32
    assert df["device.hbm_capacity"].dtype == np.float64
    assert isinstance(df["strategy"].dtype, pd.CategoricalDtype)
    assert list(df["strategy"].cat.categories) == ["flat", "grid"]


def test_folder_named_like_a_partition(tmp_path, begun, written):
    folder = tmp_path / "num_gpus=1024"
    written(folder, begun(), 3)
    assert (store.load(folder)["num_gpus"] < 100).all()


def test_sets_that_are_not_there_or_older(tmp_path, stored, begun):
    file = tmp_path / "file"
    file.write_text("")
    for path, says in ((tmp_path / "no", "does not exist"), (file, "is a file"), (tmp_path, "no manifest")):
        with pytest.raises(StoreError, match=says):
            store.load(path)
    # An older set.
    old = dataclasses.replace(store.read_manifest(stored), schema_version=1)
    (stored / "manifest.json").write_bytes(manifests.to_json(old))
    with pytest.raises(StoreError, match=r"older schema version 1.*run the sweep again, into another folder"):
        store.load(stored)
    with pytest.raises(StoreError, match="older schema version 1"), writing.create(stored, begun(), 2):
        pass


def test_an_unfinished_run(tmp_path, begun, rows, counts):
    with writing.create(tmp_path, begun(), 4) as writer:
        writer.write(2, rows(3), counts(3))
        writer.write(0, rows(5), counts(5))
        with pytest.raises(
            StoreError, match=r"not finished: it has 2 of 4 parts.*same command again.*from .*\.unfinished"
        ):
            store.load(tmp_path)
        df = store.load(tmp_path / UNFINISHED)
    assert len(df) == 8
    assert df.attrs["complete"] is False
    manifest = store.read_manifest(tmp_path / UNFINISHED)
    assert [(part.file, part.rows) for part in manifest.parts] == [("part-00000.parquet", 5), ("part-00002.parquet", 3)]
    assert manifest.counts == Counts(16, 8, {"memory": 8, "layers": 2})
    assert manifest.num_parts == 4


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda part: part.unlink(), "is missing; "),
        (lambda part: part.write_bytes(b""), "cannot be read"),
        (lambda part: part.write_bytes(part.read_bytes()[:-100]), "cannot be read"),
        (lambda part: part.write_bytes(part.with_name("part-00000.parquet").read_bytes()), "has 5 rows, not 7"),
        (lambda part: pd.DataFrame({"tp": range(7)}).to_parquet(part), "has no column candidate"),
    ],
)
def test_broken_parts(stored, spoil, says):
    spoil(stored / "part-00001.parquet")
    with pytest.raises(
        StoreError, match=f"part-00001.parquet {says}.*run the sweep again with -o {stored}, which prices every"
    ):
        store.load(stored)


def test_the_small_frame_has_the_values_of_the_whole_one(tmp_path, begun, written):
    written(tmp_path, begun(what_if=WHAT_IF), 30, 0, 20)
    columns = ["candidate", "tp", "strategy", "reject", "step_time_s", "network.nvs.size"]
    small, whole = store.load_small(tmp_path, columns), store.load(tmp_path, columns)
    pd.testing.assert_frame_equal(small, whole, check_dtype=False)
    assert small["tp"].dtype == small["reject"].dtype == np.int8
    assert small["strategy"].dtype == whole["strategy"].dtype
    assert small.memory_usage(index=False).sum() < 0.6 * whole.memory_usage(index=False).sum()


@pytest.fixture
def varied(tmp_path, written, begun):
    """The folder of a set of two clusters and a what_if, in parts of 30 and 20 rows."""
    written(tmp_path / "varied", begun(what_if=WHAT_IF), 30, 20)
    return tmp_path / "varied"


def test_the_fastest_over_all_parts_and_of_each_group(varied):
    frame = store.load(varied)
    fits = frame[frame["reject"] == 0].sort_values("step_time_s")
    plans = fastest(varied, 4)
    assert [plan["plan"]["candidate"] for plan in plans] == list(fits["candidate"][:4])
    assert [plan["step_time_s"] for plan in plans] == list(fits["step_time_s"][:4])
    assert len(fastest(varied, None)) == len(fits)
    # Of each group.
    fits = frame[frame["reject"] == 0]
    groups = fits.groupby(["cluster", "strategy"], observed=True)["step_time_s"]
    assert [plan["step_time_s"] for plan in fastest(varied, None, ["cluster", "strategy"])] == list(groups.min())
    twice = fastest(varied, None, ["cluster", "strategy"], of_each=2)
    assert [plan["step_time_s"] for plan in twice] == [t for _, group in groups for t in group.nsmallest(2)]
    assert fastest(varied, 3, ["cluster", "strategy"], of_each=2) == twice[:3]
    # Hardware and reasons.
    for plan, (_, row) in zip(as_plans(frame), frame.iterrows(), strict=True):
        assert plan["hardware"] == {name: row[name] for name in ("cluster", "device.hbm_capacity", "network.nvs.size")}
        assert plan["reject"] == {0: [], 1: ["memory"], 2: ["layers"]}[row["reject"]]
        assert plan["fits"] == (row["reject"] != 1)
        assert plan["plan"]["tp"] == row["tp"]
