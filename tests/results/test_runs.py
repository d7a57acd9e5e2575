"""Which folder a run may use, what it goes on with, and that an earlier set outlives whatever happens to it."""

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsx.errors import StoreError
from dsx.results import folder as disk
from dsx.results import frames as store
from dsx.results import manifest as manifests
from dsx.results import writer as writing


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}


def of_version(manifest, version="0.0.1"):
    return dataclasses.replace(manifest, dsx_version=version)


def leave(folder, manifest, rows, counts, num_parts=3):
    """Leave a run of which one part is there."""
    with writing.create(folder, manifest, num_parts) as writer:
        writer.write(1, rows(4), counts(4))


def test_finished_is_a_whole_set_of_this_sweep_and_version(stored, begun, tmp_path):
    assert writing.finished(stored, begun()) == store.read_manifest(stored)
    assert writing.finished(stored, begun(plot={"kind": "any"})) is not None
    assert writing.finished(stored, begun(model="other")) is None
    assert writing.finished(stored, of_version(begun())) is None
    assert writing.finished(tmp_path / "nowhere", begun()) is None
    assert writing.finished(tmp_path, begun()) is None
    assert writing.finished(stored / "manifest.json", begun()) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda part: part.unlink(),
        lambda part: part.write_bytes(part.read_bytes()[:-1]),
        lambda part: part.write_bytes(part.with_name("part-00000.parquet").read_bytes()),
    ],
    ids=["missing", "cut", "other rows"],
)
def test_a_damaged_set_is_not_finished_and_is_replaced(stored, begun, written, tmp_path, files, spoil):
    written(tmp_path / "whole", begun(), 5, 7)
    (stored / "front.png").write_text("of the user")
    spoil(stored / "part-00001.parquet")
    assert writing.finished(stored, begun()) is None
    written(stored, begun(), 5, 7)
    assert len(store.load(stored)) == 12
    assert sorted(contents(stored).values()) == sorted(contents(tmp_path / "whole").values())
    assert files(stored) == ["front.png", "manifest.json", "part-00002.parquet", "part-00003.parquet"]


def test_a_set_of_another_version_is_readable_until_it_is_replaced(stored, begun, rows, counts):
    for version, names in (("9.1", (2, 3)), ("9.2", (0, 1)), ("9.3", (2, 3))):
        before = store.load(stored)
        with writing.create(stored, of_version(begun(), version), 2) as writer:
            for number in writer.missing():
                writer.write(number, rows(3, first=number), counts(3))
            assert store.load(stored).equals(before)
            writer.finish()
        assert sorted(contents(stored)) == [f"part-{number:05d}.parquet" for number in names]
        assert store.read_manifest(stored).dsx_version == version


def test_a_set_that_is_finished_is_not_begun_again(stored, begun, files):
    before = files(stored)
    with pytest.raises(StoreError, match="another process has just finished"), writing.create(stored, begun(), 2):
        pass
    assert files(stored) == before


def test_a_run_goes_on_where_it_was_left(tmp_path, begun, rows, counts, written):
    written(tmp_path / "whole", begun(), 1, 2, 3)
    folder = tmp_path / "set"
    for number, before in ((1, [0, 1, 2]), (0, [0, 2]), (2, [2])):
        with pytest.raises(KeyboardInterrupt), writing.create(folder, begun(), 3) as writer:
            assert writer.missing() == before
            writer.write(number, rows(number + 1, first=100 * number), counts(number + 1))
            raise KeyboardInterrupt
    with writing.create(folder, begun(), 3) as writer:
        assert writer.missing() == []
        writer.finish()
    assert contents(folder) == contents(tmp_path / "whole")
    whole, resumed = store.read_manifest(tmp_path / "whole"), store.read_manifest(folder)
    assert resumed == dataclasses.replace(whole, started=resumed.started, finished=resumed.finished)


def test_the_start_is_that_of_the_first_run(tmp_path, begun, rows, counts, written):
    leave(tmp_path, dataclasses.replace(begun(), started="2001-01-01T00:00:00+00:00"), rows, counts)
    assert written(tmp_path, begun(), 1, 2, 3).started == "2001-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("change", "num_parts", "says"),
    [
        (
            lambda m: manifests.begin(m.spec | {"model": "x"}, m.names, [], "float32"),
            3,
            r"of another sweep .*in model\)",
        ),
        (of_version, 3, r"of dsx [\d.]+ \(this is 0\.0\.1\)"),
        (lambda m: m, 4, r"of 3 parts \(this one has 4\)"),
    ],
    ids=["spec", "version", "parts"],
)
def test_another_unfinished_run_is_refused(tmp_path, begun, rows, counts, files, change, num_parts, says):
    leave(tmp_path, begun(), rows, counts)
    before = files(tmp_path)
    with pytest.raises(StoreError, match=rf"unfinished run {says}; .*delete .*\.unfinished, or choose another folder"):
        with writing.create(tmp_path, change(begun()), num_parts):
            pass
    assert files(tmp_path) == before
    shutil.rmtree(tmp_path / disk.UNFINISHED)
    leave(tmp_path, change(begun()), rows, counts, num_parts)


def test_a_run_without_a_part_is_in_nobodys_way(tmp_path, begun, rows, counts, files):
    run = tmp_path / disk.UNFINISHED
    with writing.create(tmp_path, begun(), 3):
        assert files(run) == ["entry.lock", "manifest.json", "run.lock"]
    assert files(tmp_path) == []
    # As of a run that was killed before its first part.
    run.mkdir()
    (run / "manifest.json").write_bytes(manifests.to_json(begun(model="other")))
    leave(tmp_path, begun(), rows, counts)


def test_what_dead_writers_leave_is_removed(tmp_path, begun, rows, counts, files):
    leave(tmp_path, begun(), rows, counts)
    (tmp_path / disk.UNFINISHED / ".0123.partial").write_text("half")
    leave(tmp_path, begun(), rows, counts)
    assert ".unfinished/.0123.partial" not in files(tmp_path)
    # The folder of a run is not that of a set.
    leave(tmp_path, begun(), rows, counts)
    with pytest.raises(StoreError, match=f"is an unfinished run; give the folder that contains it, {tmp_path}"):
        leave(tmp_path / disk.UNFINISHED, begun(), rows, counts)


def test_another_spec_is_refused(stored, begun, files):
    before = files(stored)
    with pytest.raises(StoreError, match=r"another sweep .* differ in model, num_gpus.* another folder with -o"):
        with writing.create(stored, begun(model="other", num_gpus=8), 2):
            pass
    assert files(stored) == before


def test_foreign_files_and_broken_manifests_are_refused(tmp_path, begun):
    for name in ("part-00000.parquet", "a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(StoreError, match=r"\(a.txt, b.txt, c.txt and 1 more\).*-o"):
        with writing.create(tmp_path, begun(), 1):
            pass
    assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}
    # Not a folder.
    file = tmp_path / "file"
    file.write_text("mine")
    for path, says in ((file, "is a file"), (file / "below", "Not a directory")):
        with pytest.raises(StoreError, match=f"{says}.*-o"), writing.create(path, begun(), 1):
            pass
    assert file.read_text() == "mine"


def test_files_of_the_user_beside_a_run_are_left_alone(tmp_path, begun, rows, counts, written, files):
    leave(tmp_path, begun(), rows, counts)
    (tmp_path / "log.txt").write_text("mine")
    written(tmp_path, begun(), 1, 2, 3)
    assert files(tmp_path) == ["log.txt", "manifest.json", *(f"part-0000{n}.parquet" for n in range(3))]


def test_parts_of_this_sweep_without_a_manifest_are_replaced(stored, begun, written, files):
    """A run died while it published, and somebody deleted `.unfinished`."""
    (stored / "manifest.json").unlink()
    written(stored, begun(), 3)
    assert files(stored) == ["manifest.json", "part-00000.parquet"]
    assert len(store.load(stored)) == 3


def test_a_broken_manifest_is_refused(stored, begun):
    (stored / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match="not JSON"), writing.create(stored, begun(), 2):
        pass
    with pytest.raises(StoreError, match="not JSON"):
        writing.finished(stored, begun())
    assert (stored / "part-00000.parquet").exists()


def test_where_nothing_can_be_written(tmp_path, stored, begun, monkeypatch):
    with pytest.raises(StoreError, match=r"cannot write to /proc/.*; choose another folder with -o"):
        with writing.create("/proc/dsx-results", begun(), 1):
            pass

    def refuse(path, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    (stored / disk.UNFINISHED).mkdir()
    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreError, match="Read-only file system; choose another folder"):
        with writing.create(tmp_path / "new", begun(), 1):
            pass
    # A set that is there can be used all the same.
    monkeypatch.undo()
    monkeypatch.setattr(writing, "entry", refuse)
    assert writing.finished(stored, begun()) is not None


def test_shards(tmp_path, begun, rows, counts, written):
    written(tmp_path / "whole", begun(), 0, 1, 2, 3, 4)
    folder = tmp_path / "set"
    with (
        writing.create(folder, begun(), 5, (1, 2)) as first,
        writing.create(folder, begun(), 5, (2, 2)) as second,
        writing.create(folder, begun(), 5, (3, 3)) as other,
    ):
        assert (first.missing(), second.missing(), other.missing()) == ([0, 2, 4], [1, 3], [2])
        for number in (*first.missing(), *other.missing()):
            first.write(number, rows(number, first=100 * number), counts(number))
        assert first.missing() == other.missing() == []
        assert first.unfinished() == [1, 3]
        for number in second.missing():
            second.write(number, rows(number, first=100 * number), counts(number))
        with pytest.raises(ValueError, match="shards do not finish a set"):
            first.finish()
        with pytest.raises(StoreError, match="another dsx is running here"), writing.create(folder, begun(), 5):
            pass
        with pytest.raises(StoreError, match="shard 2/2 is already running"):
            with writing.create(folder, begun(), 5, (2, 2)):
                pass
    with writing.create(folder, begun(), 5) as writer:
        with pytest.raises(StoreError, match="another dsx is running here"):
            with writing.create(folder, begun(), 5, (1, 2)):
                pass
        writer.finish()
    assert contents(folder) == contents(tmp_path / "whole")


def test_a_shard_of_another_sweep_does_not_disturb_those_at_work(tmp_path, begun):
    with writing.create(tmp_path, begun(), 2, (1, 2)):
        with pytest.raises(StoreError, match="unfinished run of another sweep"):
            with writing.create(tmp_path, begun(model="other"), 2, (2, 2)):
                pass
        with writing.create(tmp_path, begun(), 2, (2, 2)) as writer:
            assert writer.missing() == [1]


WORKER = """
import sys
from results.sets import begin_manifest, make_counts, make_rows
from dsx.results import writer as writing
with writing.create(sys.argv[1], begin_manifest(), 2) as writer:
    writer.write(0, make_rows(5), make_counts(5))
    print("working", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_two_processes(tmp_path, begun, files):
    command = [sys.executable, "-c", WORKER, str(tmp_path / "set")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    with worker:
        assert worker.stdout and worker.stdout.readline() == "working\n"
        for shard in (None, (1, 2)):
            with pytest.raises(StoreError, match=f"running here, process {worker.pid} on "):
                with writing.create(tmp_path / "set", begun(), 2, shard):
                    pass
        worker.kill()
    with writing.create(tmp_path / "set", begun(), 2) as writer:
        assert writer.missing() == [1]


def test_finished_while_this_one_waited(tmp_path, begun, written, monkeypatch):
    """Two processes begin at once; one waits for the other, which finishes."""
    enter = writing.entry

    def late(run):
        monkeypatch.setattr(writing, "entry", enter)
        written(tmp_path, begun(), 3)
        return enter(run)

    monkeypatch.setattr(writing, "entry", late)
    with pytest.raises(StoreError, match=r"has just finished .*; run the same command again"):
        with writing.create(tmp_path, begun(), 1):
            pass
    assert not (tmp_path / disk.UNFINISHED).exists()


@pytest.mark.parametrize("name", ["part-00000.parquet", "merged.parquet"])
@pytest.mark.parametrize("of_a_sweep", [True, False])
def test_parts_of_nobody_in_an_unfinished_run_are_refused(stored, begun, written, tmp_path, name, of_a_sweep):
    run = tmp_path / "new" / ".unfinished"
    run.mkdir(parents=True)
    content = (stored / "part-00000.parquet").read_bytes() if of_a_sweep else b"of the user"
    (run / name).write_bytes(content)
    with pytest.raises(StoreError, match="holds parts of another sweep"):
        leave(tmp_path / "new", begun(model="other"), None, None)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == {name: content}
    # Beside a finished set they stay, too.
    shutil.copytree(run, stored / ".unfinished")
    if not of_a_sweep:
        assert writing.finished(stored, begun()) is not None
        assert (stored / ".unfinished" / name).read_bytes() == content
