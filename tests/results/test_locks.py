"""Locks of result folders, and writers that die."""

import errno
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

import dsx
from dsx.errors import StoreError
from dsx.results import writer as writing
from dsx.results.writer import Hold


@pytest.fixture
def run(tmp_path):
    (tmp_path / "set" / "run").mkdir(parents=True)
    return tmp_path / "set" / "run"


ME = re.escape(f"process {os.getpid()} on ")


@pytest.mark.parametrize(("first", "second"), [(None, None), (None, (1, 2)), ((1, 2), None), ((1, 2), (1, 2))])
def test_these_exclude_each_other(run, first, second):
    with closing(Hold(run, first)):
        with pytest.raises(StoreError, match=f"set: .*running.*{ME}.*; wait for it to finish, or choose another"):
            Hold(run, second)
    Hold(run, second).close()


def test_shards_work_together_and_who_is_refused_holds_nothing(run):
    with closing(Hold(run, (1, 2))) as first, closing(Hold(run, (2, 2))) as second, closing(Hold(run, (2, 3))):
        assert (first.alone, second.alone) == (True, False)
        with pytest.raises(StoreError, match=rf"another dsx is running here, {ME}.*, {ME}"):
            Hold(run, None)
    with closing(Hold(run, None)) as plain:
        assert plain.alone
    # A process that is refused holds nothing.
    with closing(Hold(run, (1, 2))):
        for refused in ((1, 2), None):
            with pytest.raises(StoreError, match=r"already running|running here"):
                Hold(run, refused)
        Hold(run, (2, 2)).close()


@pytest.mark.parametrize("garbage", [b"\xff\xfe\x00", b"process 1 on \x1b[31mnode", b"x" * 10_000, b"process a on b"])
def test_a_lock_is_trusted_only_if_a_process_wrote_it(run, garbage):
    (run / "run.lock").write_bytes(garbage)
    with closing(Hold(run, None)):
        assert re.fullmatch(f"{ME}.*", (run / "run.lock").read_text())
        (run / "run.lock").write_bytes(garbage)
        with pytest.raises(StoreError, match="running here, a process that has just started; wait"):
            Hold(run, None)


@pytest.mark.parametrize("name", ["run.lock", "shard-1-of-2.lock"])
def test_no_lock_is_taken_through_a_link(run, name):
    (run.parent / "victim").write_text("of the user")
    (run / name).symlink_to(run.parent / "victim")
    with pytest.raises(OSError, match=f"{name} is a link, which is not followed here"):
        Hold(run, (1, 2))
    assert (run.parent / "victim").read_text() == "of the user"


def test_entry_waits_and_follows_the_folder(run):
    """Who waits for the entry of a folder that is then removed enters the next one."""
    entered = []

    def enter():
        with writing.entry(run):
            entered.append((run / "old").exists())

    with writing.entry(run):
        (run / "old").write_text("")
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(0.05)
        assert entered == []
        for path in run.iterdir():
            path.unlink()
        run.rmdir()
    thread.join(10)
    assert entered == [False]


def test_file_systems_without_locks_and_other_faults(run, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(writing.fcntl, "flock", refuse)
    with writing.entry(run), closing(Hold(run, None)), closing(Hold(run, (1, 2))) as shard:
        assert shard.alone

    # Other faults of locks are not hidden.
    def refuse(file, how):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(writing.fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        Hold(run, None)


HERE = Path(__file__).parent


def reports(folder, *arguments):
    command = [sys.executable, str(HERE / "dying.py"), str(folder), *arguments]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found, keep, start):
    whole = found[0]["end"]
    first = 3 if start == "earlier" else 0
    numbers = [first + n for n in (0, 2)] if keep == "all" else [1 if start == "earlier" else 0]
    assert list(whole) == ["manifest.json", *(f"part-{number:05d}.parquet" for number in numbers)]
    assert [report["end"] for report in found] == [whole] * len(found)
    # Whatever the moment, either the set of before or the new one can be loaded.
    before = "earlier" if start == "earlier" else ""
    assert {report["after"] for report in found} <= {before, dsx.__version__}


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["earlier", pytest.param("nothing", marks=pytest.mark.fuzz)])
@pytest.mark.parametrize("keep", ["merged", pytest.param("all", marks=pytest.mark.fuzz)])
@pytest.mark.parametrize("kind", ["killed", "interrupted", "full"])
def test_death_before_any_change_of_the_disk(tmp_path, kind, keep, start):
    found = reports(tmp_path, kind, keep, start)
    assert len(found) > 40
    assert all(report["status"] for report in found[1:-1])
    check(found, keep, start)


@pytest.mark.parametrize(
    ("kind", "keep", "start", "times"),
    [
        ("killed", "all", "nothing", "6"),
        pytest.param("killed", "merged", "earlier", "60", marks=pytest.mark.fuzz),
        slow("killed", "all", "nothing", "60"),
    ],
)
def test_death_at_moments_drawn_by_chance(tmp_path, kind, keep, start, times):
    found = reports(tmp_path, kind, keep, start, times)
    assert len(found) == int(times) + 1
    check(found, keep, start)
