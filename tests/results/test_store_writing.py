"""What is written, what is refused, and that an earlier set outlives whatever happens to a later one."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from dsx.errors import StoreError
from dsx.results import folder as disk
from dsx.results import store
from dsx.results.schema import COLUMNS


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_files_and_manifest(stored, begun, counts):
    assert files(stored) == ["manifest.json", "part-00000.parquet", "part-00001.parquet"]
    read = store.read_manifest(stored)
    assert [(part.file, part.rows) for part in read.parts] == [
        ("part-00000.parquet", 5),
        ("part-00001.parquet", 7),
    ]
    assert read.complete
    assert read.counts == counts
    assert read.spec_hash == begun().spec_hash
    assert read.started <= read.finished


def test_parts_describe_themselves(stored):
    with pq.ParquetFile(stored / "part-00000.parquet") as file:
        schema, group = file.schema_arrow, file.metadata.row_group(0)
    assert schema.names == [c.name for c in COLUMNS]
    assert json.loads(schema.metadata[b"dsx"])["spec_hash"] == store.read_manifest(stored).spec_hash
    encodings = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert "BYTE_STREAM_SPLIT" in encodings["step_time_s"].encodings
    assert "RLE_DICTIONARY" in encodings["tp"].encodings
    assert {column.compression for column in encodings.values()} == {"ZSTD"}


def test_other_tools_read_the_parts(stored):
    query = f"select count(*), count(distinct strategy) from '{stored}/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(12, 2)]


def test_finish_returns_what_it_wrote(tmp_path, begun, rows, counts):
    with store.create(tmp_path / "a" / "b", begun()) as writer:
        writer.write(rows(3))
        done = writer.finish(counts)
        assert done == store.read_manifest(tmp_path / "a" / "b")
        with pytest.raises(StoreError, match="finished"):
            writer.write(rows(3))


def test_empty_batches_make_no_part(tmp_path, begun, rows, counts):
    with store.create(tmp_path / "set", begun()) as writer:
        writer.write(rows(0))
        assert writer.finish(counts).parts == ()
    assert files(tmp_path / "set") == ["manifest.json"]


def test_same_spec_replaces(stored, begun, rows, counts):
    (stored / "front.png").write_bytes(b"of the user")
    for n in (3, 4):
        with store.create(stored, begun()) as writer:
            writer.write(rows(n))
            writer.finish(counts)
        (part,) = store.read_manifest(stored).parts
        assert part.rows == n
        assert files(stored) == ["front.png", "manifest.json", part.file]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda rows: rows.pop("tp"), "differ in the columns tp"),
        (lambda rows: rows.update(tq=rows["tp"]), "differ in the columns tq"),
        (lambda rows: rows.update(tp=rows["tp"][:1]), "different lengths"),
        (lambda rows: rows.update(tp=rows["tp"] + 2**40), "column tp does not fit int32"),
        (lambda rows: rows.update(tp=rows["tp"] + 0.5), "column tp does not fit int32"),
        (lambda rows: rows.update(strategy=rows["tp"] * 0 + 2), "column strategy does not fit"),
        (lambda rows: rows.update(mfu=np.array(["a", "b"])), "column mfu does not fit"),
        (lambda rows: rows.update(mfu=rows["mfu"].reshape(2, 1)), "column mfu does not fit"),
    ],
)
def test_rows_that_do_not_fit(tmp_path, begun, rows, spoil, says):
    bad = rows(2)
    spoil(bad)
    with store.create(tmp_path / "set", begun()) as writer, pytest.raises(StoreError, match=says):
        writer.write(bad)
    assert files(tmp_path / "set") == []


def test_another_spec_is_refused(stored, begun):
    before = files(stored)
    with pytest.raises(StoreError, match=r"another sweep .* differ in model, num_gpus.* another folder with -o"):
        with store.create(stored, begun(model="other", num_gpus=8)):
            pass
    assert files(stored) == before


def test_foreign_files_are_refused(tmp_path, begun):
    for name in ("part-00000.parquet", "a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(StoreError, match=r"\(a.txt, b.txt, c.txt and 1 more\).*-o"):
        with store.create(tmp_path, begun()):
            pass
    assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}


def test_a_broken_manifest_is_refused(stored, begun):
    (stored / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match="not JSON"), store.create(stored, begun()):
        pass
    assert (stored / "part-00000.parquet").exists()


def test_not_a_folder(tmp_path, begun):
    file = tmp_path / "file"
    file.write_text("mine")
    for path, says in ((file, "is a file"), (file / "below", "Not a directory")):
        with pytest.raises(StoreError, match=f"{says}.*-o"), store.create(path, begun()):
            pass
    assert file.read_text() == "mine"


def test_full_disk(stored, begun, rows, monkeypatch):
    before = store.load(stored)

    def full(table, file, **options):
        file.write(b"PAR1")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.pq, "write_table", full)
    with pytest.raises(StoreError, match="No space left on device; make room"):
        with store.create(stored, begun()) as writer:
            writer.write(rows(3))
    assert store.load(stored).equals(before)
    assert files(stored) == ["manifest.json", "part-00000.parquet", "part-00001.parquet"]


def test_two_writers(stored, begun, rows, counts):
    with store.create(stored, begun()) as writer:
        writer.write(rows(3))
        with pytest.raises(StoreError, match=r"process .* is writing here"), store.create(stored, begun()):
            pass
        writer.finish(counts)
    assert len(store.load(stored)) == 3


def test_file_system_without_locks(tmp_path, begun, rows, counts, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(disk.fcntl, "flock", refuse)
    with store.create(tmp_path / "set", begun()) as writer:
        writer.write(rows(3))
        writer.finish(counts)
    assert len(store.load(tmp_path / "set")) == 3


def test_interrupted_run(stored, begun, rows, counts):
    before = store.load(stored)
    with pytest.raises(KeyboardInterrupt):
        with store.create(stored, begun()) as writer:
            writer.write(rows(3))
            raise KeyboardInterrupt
    assert store.load(stored).equals(before)
    (left,) = disk.temporaries(stored)
    partial = store.load(left)
    assert len(partial) == 3
    assert partial.attrs["complete"] is False
    with store.create(stored, begun()) as writer:
        assert disk.temporaries(stored) != [left] or not (left / "part-00000.parquet").exists()
        writer.write(rows(4))
        writer.finish(counts)
    assert disk.temporaries(stored) == []


def test_killed_run(tmp_path, begun, rows, counts):
    """A process that is killed holds no lock, so its temporary folder is found to be stale."""
    code = """
import os, signal, sys
from dsx.results import folder
with folder.claimed(folder.Path(sys.argv[1])) as temporary:
    (temporary / "part-00000.parquet").write_bytes(b"")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert done.returncode < 0
    assert len(disk.temporaries(tmp_path)) == 1
    with store.create(tmp_path, begun()) as writer:
        assert len(disk.temporaries(tmp_path)) == 1
        writer.write(rows(2))
        writer.finish(counts)
    assert files(tmp_path) == ["manifest.json", "part-00000.parquet"]


class Death(BaseException):
    """What the runs below die of."""


@pytest.mark.parametrize("is_kill", [False, True], ids=["interrupted", "killed"])
@pytest.mark.parametrize("is_rerun", [False, True], ids=["first run", "rerun"])
def test_death_at_any_step_of_the_swap(tmp_path, begun, rows, counts, monkeypatch, is_rerun, is_kill):
    """Whatever step a run dies at, the folder holds the earlier set or the new one, and can be used again."""
    seen = set()
    died, step = True, 0
    while died:
        folder = tmp_path / str(step)
        if is_rerun:
            with store.create(folder, begun()) as writer:
                writer.write(rows(5))
                writer.write(rows(5))
                writer.finish(counts)
        with monkeypatch.context() as patch:
            if is_kill:
                patch.setattr(disk.shutil, "rmtree", lambda path, ignore_errors: None)
            died = dies_at(step, folder, begun(), [rows(3), rows(4), rows(2)], counts)
        if is_rerun or (folder / "manifest.json").exists():
            seen.add(len(store.load(folder)))
        else:
            with pytest.raises(StoreError, match="has not finished"):
                store.load(folder)
        with store.create(folder, begun()) as writer:
            writer.write(rows(6))
            writer.finish(counts)
        (part,) = store.read_manifest(folder).parts
        assert files(folder) == ["manifest.json", part.file]
        step += 1
    assert step >= 6
    assert seen == ({10, 9} if is_rerun else {9})


def dies_at(step, folder, begun, batches, counts):
    """Run a sweep whose `finish` dies at its n-th change of the folder; say if it came to that."""
    calls = iter(range(10_000))

    def fatal(function):
        def call(*args, **kwargs):
            if next(calls) == step:
                raise Death
            return function(*args, **kwargs)

        return call

    try:
        with store.create(folder, begun) as writer:
            for batch in batches:
                writer.write(batch)
            with pytest.MonkeyPatch.context() as patch:
                for name in ("rename", "replace", "unlink"):
                    patch.setattr(Path, name, fatal(getattr(Path, name)))
                writer.finish(counts)
    except Death:
        return True
    return False
