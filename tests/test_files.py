"""Files in an open folder: whole or absent, and never through a link."""

import errno
import os

import pytest

from dsx.files import OpenFolder, hold, write_whole


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "victim").write_text("of the user")
    return tmp_path / "here"


def test_links_are_replaced_and_not_followed(tmp_path, folder, monkeypatch):
    (folder / "a").symlink_to(tmp_path / "victim")
    write_whole(folder / "a", b"new")
    assert (folder / "a").read_bytes() == b"new"
    assert not (folder / "a").is_symlink()
    assert (tmp_path / "victim").read_text() == "of the user"
    # A passing name that is taken is not written through.
    monkeypatch.setattr("dsx.files.secrets.token_hex", lambda size: "0" * 2 * size)
    (folder / f".{'0' * 16}.partial").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write_whole(folder / "a", b"new")
    assert (tmp_path / "victim").read_text() == "of the user"


def test_what_a_write_leaves_over_is_written_too(folder, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:3]))
    write_whole(folder / "a", b"more than three bytes")
    assert (folder / "a").read_bytes() == b"more than three bytes"


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_what_fails_leaves_what_was_there(folder, monkeypatch, call):
    write_whole(folder / "a", b"first")

    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(folder / "a", b"second")
    assert (folder / "a").read_bytes() == b"first"
    assert os.listdir(folder) == ["a"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path, victim: path.symlink_to(victim), "a is a link, which is not followed here"),
        (lambda path, victim: path.symlink_to("nowhere"), "a is a link"),
        (lambda path, victim: os.mkfifo(path), "a is not a file"),
        (lambda path, victim: path.mkdir(), "a is not a file"),
        (lambda path, victim: None, "No such file"),
    ],
    ids=["link", "dangling", "pipe", "folder", "nothing"],
)
def test_only_files_are_opened(tmp_path, folder, make, says):
    make(folder / "a", tmp_path / "victim")
    with OpenFolder(folder) as there:
        with pytest.raises(OSError, match=says):
            there.open("a")
        assert not there.is_file("a")


@pytest.mark.parametrize("name", ["a", "b"])
def test_locks_are_not_made_through_links(tmp_path, folder, name):
    (folder / "a").symlink_to(tmp_path / "new")
    with OpenFolder(folder) as there:
        if name == "a":
            with pytest.raises(OSError, match="is a link"):
                there.open(name, os.O_RDWR | os.O_CREAT)
        else:
            there.open(name, os.O_RDWR | os.O_CREAT).close()
    assert not (tmp_path / "new").exists()
    assert (folder / "b").exists() == (name == "b")


def test_a_link_to_a_folder(tmp_path, folder):
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError, match="link is a link, which is not followed here"):
        OpenFolder(tmp_path / "link", follow=False)
    with OpenFolder(tmp_path / "link") as there:
        there.write_whole("a", b"")
    assert (folder / "a").exists()
    # An open folder stays where it was.
    (tmp_path / "elsewhere").mkdir()
    with OpenFolder(folder) as there:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "elsewhere")
        there.write_whole("a", b"")
        there.remove("b")
    assert os.listdir(tmp_path / "elsewhere") == []
    assert os.listdir(tmp_path / "moved") == ["a"]


def test_what_a_killed_writer_has_left_is_removed_and_what_is_being_written_stays(folder):
    left, held, new = (folder / f".{digit * 16}.partial" for digit in "abc")
    for file in (left, held, new, folder / ".mine.partial"):
        file.write_bytes(b"half")
    for file in (left, held, folder / ".mine.partial"):
        os.utime(file, (0, 0))
    with open(held, "rb") as writer:
        assert hold(writer.fileno())
        write_whole(folder / "a", b"whole")
        assert {path.name for path in folder.iterdir()} == {held.name, new.name, ".mine.partial", "a"}
