"""How files get into a folder, whole or not at all, and which names are of dsx."""

import errno
import os

import pytest

from dsx.errors import StoreError
from dsx.files import OpenFolder
from dsx.results import folder as disk
from dsx.results.folder import is_lock, is_of_run, is_of_set, is_passing, part_name, part_number, shard_lock


def test_names_numbers_and_homes():
    assert part_name(7) == "part-00007.parquet"
    assert part_name(123456) == "part-123456.parquet"
    assert [part_number(part_name(n)) for n in (0, 7, 123456)] == [0, 7, 123456]
    # Home.
    assert str(disk.home(disk.Path("a/.unfinished"))) == "a"
    assert str(disk.home(disk.Path("a"))) == "a"


@pytest.mark.parametrize(
    "name",
    [
        "part-7.parquet",
        "part-000007.parquet",  # a second name for number 7
        "part-00007.parquet.bak",
        "manifest.json",
        "../part-00007.parquet",
        "part-00007.parquet\n",
        "part-\N{ARABIC-INDIC DIGIT ONE}0000.parquet",
        f"part-{'9' * 5000}.parquet",
    ],
)
def test_what_is_no_part(name):
    assert part_number(name) is None


@pytest.mark.parametrize(
    "name", ["manifest.json", "replaced.json", "merged.parquet", "part-00000.parquet", ".0a1b.partial", ".nfs00a1"]
)
def test_names_of_a_run(name):
    assert is_of_run(name)
    assert not is_lock(name)
    assert is_passing(name) == name.endswith("partial")
    assert is_of_set(name) == (name in ("manifest.json", "part-00000.parquet"))


@pytest.mark.parametrize("name", ["entry.lock", "run.lock", shard_lock((2, 8))])
def test_names_of_locks(name):
    assert is_lock(name)
    assert is_of_run(name)


@pytest.mark.parametrize("name", ["notes.txt", "poetry.lock", "shard-a-of-b.lock", ".partial", ".mine.partial", "sub"])
def test_names_of_others(name):
    assert not is_of_run(name)


def failing(number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return fail


def test_a_file_is_replaced_whole(tmp_path, files):
    disk.write_whole(tmp_path / "a", b"first")
    disk.write_whole(tmp_path / "a", memoryview(b"second"))
    assert (tmp_path / "a").read_bytes() == b"second"
    assert files(tmp_path) == ["a"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_what_cannot_be_written_leaves_what_was_there(tmp_path, files, monkeypatch, step):
    disk.write_whole(tmp_path / "a", b"first")
    monkeypatch.setattr(os, step, failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        disk.write_whole(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert files(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "make room and run the same command again"),
        (errno.EDQUOT, "make room and run the same command again"),
        (errno.EROFS, "Read-only file system; choose another folder with -o"),
    ],
)
def test_errors_say_what_to_do(number, cure):
    with pytest.raises(StoreError, match=f"cannot do it: .*{cure}"), disk.os_errors("cannot do it"):
        failing(number)()


OLD, FIRST, SECOND = "part-00007.parquet", "part-00000.parquet", "part-00001.parquet"
X, Y = "part-00002.parquet", "part-00003.parquet"


@pytest.fixture
def run(tmp_path):
    """A run with two files, in a folder with a file of the set before it and one of the user."""
    run = tmp_path / disk.UNFINISHED
    run.mkdir()
    for name, text in (("manifest.json", "run"), (X, "1"), (Y, "2"), ("run.lock", "")):
        (run / name).write_text(text)
    for name, text in (("manifest.json", "old"), (OLD, "0"), ("mine", "")):
        (tmp_path / name).write_text(text)
    return run


@pytest.mark.parametrize("number", [None, errno.EPERM, errno.EOPNOTSUPP], ids=["links", "no links", "no such call"])
def test_publish_with_and_without_links(tmp_path, run, files, monkeypatch, number):
    if number:
        monkeypatch.setattr(os, "link", failing(number))
    disk.publish(tmp_path, {FIRST: X, SECOND: Y}, [OLD], b"new")
    assert files(tmp_path) == ["manifest.json", "mine", FIRST, SECOND]
    assert [(tmp_path / name).read_text() for name in (FIRST, SECOND, "manifest.json")] == ["1", "2", "new"]


def test_publish_again_after_it_failed(tmp_path, run, files, monkeypatch):
    (tmp_path / SECOND).write_text("of an earlier try")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(OpenFolder, "sync", failing(errno.ENOSPC))
        disk.publish(tmp_path, {FIRST: X, SECOND: Y}, [OLD], b"new")
    assert (tmp_path / "manifest.json").read_text() == "old"
    disk.publish(tmp_path, {FIRST: X, SECOND: Y}, [OLD], b"new")
    assert files(tmp_path) == ["manifest.json", "mine", FIRST, SECOND]
    assert (tmp_path / SECOND).read_text() == "2"


def test_links_fail_for_another_reason(tmp_path, run, monkeypatch):
    monkeypatch.setattr(os, "link", failing(errno.EDQUOT))
    with pytest.raises(OSError, match="quota"):
        disk.publish(tmp_path, {FIRST: X}, [], b"new")
    assert (tmp_path / "manifest.json").read_text() == "old"


def test_files_of_both_sets_stay(tmp_path, run, files):
    disk.publish(tmp_path, {OLD: X}, [OLD], b"new")
    assert files(tmp_path) == ["manifest.json", "mine", OLD]
    assert (tmp_path / OLD).read_text() == "1"


@pytest.mark.parametrize(
    "written",
    [
        b'["../victim.txt"]',
        b'["mine"]',
        b'["/tmp/victim.txt"]',
        b'["part-00007.parquet", "../victim.txt"]',
        b'{"part-00007.parquet": 1}',
        b"[" * 100_000,
        b"\xff\x00garbage",
        b"",
    ],
)
def test_only_parts_are_removed_and_garbage_is_not_trusted(tmp_path, run, files, written):
    (tmp_path / "victim.txt").write_text("of the user")
    (tmp_path / "set").mkdir()
    for path in list(tmp_path.iterdir()):
        if path.name not in ("set", "victim.txt"):
            path.rename(tmp_path / "set" / path.name)
    (tmp_path / "set" / disk.UNFINISHED / "replaced.json").write_bytes(written)
    disk.clean(tmp_path / "set", [])
    assert (tmp_path / "victim.txt").read_text() == "of the user"
    assert files(tmp_path / "set") == ["manifest.json", "mine", OLD]


def test_what_is_not_ours_survives_every_removal(run, files):
    (run / ".1234.partial").write_text("")
    disk.remove_partial(run)
    assert files(run) == ["manifest.json", X, Y, "run.lock"]
    disk.empty(run)
    assert files(run) == ["run.lock"]
    (run / "mine").write_text("of the user")
    disk.remove_partial(run)
    disk.empty(run)
    disk.discard(run)
    assert files(run) == ["mine"]


def test_foreign_files(tmp_path, run):
    assert disk.foreign_files(tmp_path) == []
    (tmp_path / "manifest.json").unlink()
    assert disk.foreign_files(tmp_path) == []
    disk.discard(run)
    assert disk.foreign_files(tmp_path) == ["mine", OLD]
