"""Files that ``-o`` names: whole or absent, and nothing of the user is written through."""

import errno
import os
import subprocess
import sys

import pytest

from dsx.config.hf_config import write
from dsx.errors import StoreError
from dsx.pictures.figure import save
from dsx.verbs.arguments import write_output_file


def figure(path):
    from matplotlib.figure import Figure

    save(Figure(figsize=(1, 1)).subplots(), path)


WRITERS = [
    ("rows.csv", lambda path: write_output_file(path, "text")),
    ("model.yaml", lambda path: write("text", path)),
    ("picture.png", figure),
    ("picture.svg", figure),
]


@pytest.mark.parametrize(("name", "writes"), WRITERS)
def test_a_link_with_a_foreseeable_passing_name_is_not_written_through(tmp_path, name, writes):
    (tmp_path / "victim").write_text("of the user")
    links = [f".{name}.partial", f".{name.partition('.')[0]}.{os.getpid()}.yaml"]
    for link in links:
        (tmp_path / link).symlink_to("victim")
    writes(tmp_path / name)
    assert (tmp_path / "victim").read_text() == "of the user"
    assert sorted(os.listdir(tmp_path)) == sorted([*links, name, "victim"])


@pytest.mark.parametrize(("name", "writes"), WRITERS)
def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch, name, writes):
    (tmp_path / name).write_text("earlier")

    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StoreError, match=f"cannot write .*{name}: No space left"):
        writes(tmp_path / name)
    assert (tmp_path / name).read_text() == "earlier"
    assert os.listdir(tmp_path) == [name]


def test_a_link_is_replaced_and_a_device_written(tmp_path):
    (tmp_path / "victim").write_text("of the user")
    for name, leads in (("rows.csv", "victim"), ("new.csv", "elsewhere")):
        (tmp_path / name).symlink_to(leads)
        write_output_file(tmp_path / name, "text")
        assert not (tmp_path / name).is_symlink() and (tmp_path / name).read_text() == "text"
    assert (tmp_path / "victim").read_text() == "of the user" and not (tmp_path / "elsewhere").exists()
    write_output_file(tmp_path.joinpath(os.devnull), "text")
    assert not os.path.isfile(os.devnull)


@pytest.mark.parametrize(("name", "writes"), WRITERS)
def test_a_planted_link_is_not_written_through(tmp_path, name, writes):
    (tmp_path / "victim").write_text("of the user")
    (tmp_path / name).symlink_to("victim")
    writes(tmp_path / name)
    assert (tmp_path / "victim").read_text() == "of the user" and not (tmp_path / name).is_symlink()


def test_a_stream_is_written_wherever_it_leads(tmp_path):
    code = "from pathlib import Path; from dsx.verbs.arguments import *; write_output_file(Path('/dev/stdout'), 'text')"
    with open(tmp_path / "out", "w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "text"
