"""What is written, by one run or many, and how it becomes the set."""

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsx.errors import IncompleteSweep, StoreError
from dsx.results import folder as disk
from dsx.results import frames as store
from dsx.results import writer as writing
from dsx.results.folder import part_name
from dsx.results.manifest import Counts


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}


def test_a_set_has_its_files_and_is_what_finish_returns(stored, begun, files, tmp_path, written):
    assert files(stored) == ["manifest.json", "part-00000.parquet", "part-00001.parquet"]
    read = store.read_manifest(stored)
    assert [(part.file, part.rows) for part in read.parts] == [("part-00000.parquet", 5), ("part-00001.parquet", 7)]
    assert read.complete
    assert read.num_parts == 2
    assert read.counts == Counts(24, 12, {"memory": 12, "layers": 2})
    assert read.spec_hash == begun().spec_hash
    assert read.started <= read.finished
    # Finish returns what it wrote.
    assert written(tmp_path / "a" / "b", begun(), 3) == store.read_manifest(tmp_path / "a" / "b")


def test_the_order_of_writing_does_not_matter(tmp_path, begun, rows, counts, stored):
    with writing.create(tmp_path / "other", begun(), 2) as writer:
        writer.write(1, rows(7, first=100), counts(7))
        writer.write(0, rows(5), counts(5))
        writer.finish()
    assert contents(tmp_path / "other") == contents(stored)
    assert store.read_manifest(tmp_path / "other").parts == store.read_manifest(stored).parts


def test_parts_without_rows_are_counted_and_left_out(tmp_path, begun, written, files):
    manifest = written(tmp_path / "set", begun(), 0, 3, 0, 4)
    assert [part.file for part in manifest.parts] == ["part-00001.parquet", "part-00003.parquet"]
    assert files(tmp_path / "set") == ["manifest.json", "part-00001.parquet", "part-00003.parquet"]
    assert manifest.counts == Counts(14, 7, {"memory": 7, "layers": 4})
    assert written(tmp_path / "none", begun(), 0, 0).parts == ()
    assert files(tmp_path / "none") == ["manifest.json"]


def test_several_threads(tmp_path, begun, rows, counts, files):
    sizes = range(1, 33)
    with writing.create(tmp_path / "set", begun(), len(sizes)) as writer, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: writer.write(n - 1, rows(n, first=n), counts(n)), sizes))
        assert writer.missing() == []
        manifest = writer.finish()
    assert [part.rows for part in manifest.parts] == list(sizes)
    assert len(files(tmp_path / "set")) == 33


def test_missing_is_what_the_folder_does_not_have(tmp_path, begun, rows, counts):
    with writing.create(tmp_path, begun(), 5) as writer:
        assert writer.missing() == writer.unfinished() == [0, 1, 2, 3, 4]
        writer.write(1, rows(2), counts(2))
        writer.write(3, rows(0), counts(0))
        assert writer.missing() == [0, 2, 4]
        (tmp_path / disk.UNFINISHED / part_name(1)).write_bytes(b"damaged")
        assert writer.missing() == [0, 1, 2, 4]
        with pytest.raises(ValueError, match="part 5 of 5"):
            writer.write(5, rows(2), counts(2))


def test_finish_wants_every_part(tmp_path, begun, rows, counts, files):
    with writing.create(tmp_path, begun(), 9) as writer:
        writer.write(1, rows(2), counts(2))
        with pytest.raises(IncompleteSweep, match=r"8 of 9 parts .* \(number 0, 2, 3, 4, 5, ...\); the sweep itself"):
            writer.finish()
        for number in writer.missing()[:-1]:
            writer.write(number, rows(2), counts(2))
        with pytest.raises(IncompleteSweep, match=r"1 of 9 parts .* \(number 8\)"):
            writer.finish()
        writer.write(8, rows(2), counts(2))
        writer.finish()
    assert disk.UNFINISHED not in files(tmp_path)


def fastest(rows):
    best = np.argsort(rows["step_time_s"], kind="stable")[:4]
    return {name: values[best] for name, values in rows.items()}


def test_merge_makes_one_part(tmp_path, begun, rows, counts, written, files):
    written(tmp_path / "all", begun(), 5, 0, 7)
    everything = store.load(tmp_path / "all")
    with writing.create(tmp_path / "top", begun(), 3) as writer:
        for number, size in ((2, 7), (0, 5), (1, 0)):
            writer.write(number, rows(size, first=100 * number), counts(size))
        manifest = writer.finish(fastest)
    assert files(tmp_path / "top") == ["manifest.json", "part-00000.parquet"]
    assert (manifest.num_parts, manifest.counts) == (3, store.read_manifest(tmp_path / "all").counts)
    top = store.load(tmp_path / "top")
    expected = everything.sort_values("step_time_s", kind="stable").head(4).reset_index(drop=True)
    assert top.equals(expected)


def test_merge_of_nothing_is_a_part_without_rows(tmp_path, begun, rows, counts):
    seen = []
    with writing.create(tmp_path, begun(), 1) as writer:
        writer.write(0, rows(0), counts(3))
        manifest = writer.finish(lambda merged: seen.append(merged) or merged)
    assert [(part.file, part.rows) for part in manifest.parts] == [("part-00000.parquet", 0)]
    assert list(seen[0]) == [column.name for column in manifest.columns]
    assert seen[0]["cluster"].dtype == np.int8
    assert len(store.load(tmp_path)) == 0


def test_rows_that_do_not_fit_leave_nothing(tmp_path, begun, rows, counts, files):
    with writing.create(tmp_path / "set", begun(), 1) as writer, pytest.raises(StoreError, match="columns tp"):
        writer.write(0, {name: values for name, values in rows(2).items() if name != "tp"}, counts(2))
    assert files(tmp_path / "set") == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_while_writing(tmp_path, begun, rows, counts, written, monkeypatch, number):
    written(tmp_path / "whole", begun(), 5, 7)

    def full(descriptor):
        raise OSError(number, os.strerror(number))

    with writing.create(tmp_path / "set", begun(), 2) as writer:
        writer.write(0, rows(5), counts(5))
        with (
            monkeypatch.context() as patch,
            pytest.raises(StoreError, match=r"cannot write part 1 .*make room and run"),
        ):
            patch.setattr(os, "fsync", full)
            writer.write(1, rows(7, first=100), counts(7))
    with writing.create(tmp_path / "set", begun(), 2) as writer:
        assert writer.missing() == [1]
        writer.write(1, rows(7, first=100), counts(7))
        with monkeypatch.context() as patch, pytest.raises(StoreError, match=r"cannot finish .*make room and run"):
            patch.setattr(os, "fsync", full)
            writer.finish()
        writer.finish()
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


def test_the_run_is_removed_while_it_writes(tmp_path, begun, rows, counts):
    with writing.create(tmp_path, begun(), 2) as writer:
        writer.write(0, rows(5), counts(5))
        shutil.rmtree(tmp_path / disk.UNFINISHED)
        with pytest.raises(StoreError, match="was removed meanwhile; run the same command again"):
            writer.write(1, rows(5), counts(5))
        with pytest.raises(IncompleteSweep, match="2 of 2 parts"):
            writer.finish()


def test_a_file_of_the_user_is_in_the_way(tmp_path, begun, rows, counts, written):
    with writing.create(tmp_path, begun(), 1) as writer:
        writer.write(0, rows(5), counts(5))
        mine = tmp_path / "part-00000.parquet"
        mine.write_text("mine")
        with pytest.raises(StoreError, match=r"part-00000\.parquet already exists .*move it elsewhere"):
            writer.finish()
        assert mine.read_text() == "mine"
        mine.unlink()
        assert writer.finish().parts[0].rows == 5
