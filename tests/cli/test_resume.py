"""A sweep that is interrupted, killed or shared out ends with the files that an uninterrupted one writes."""

import hashlib
import json
import re

import pytest

import dsx

PARTS = ("--set", "sweep.part_size=7")


def files(folder):
    """The content of the set's files; of the manifest what is not a time."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("part-*")}
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["started"], manifest["finished"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*found, "manifest.json"])
    return found | {"manifest.json": manifest}


def parts_of(run):
    return len(json.loads((run / "manifest.json").read_text())["parts"])


@pytest.fixture
def whole(run, folder):
    assert run("sweep", "sweep.yaml", "-o", "whole", *PARTS).code == 0
    assert parts_of(folder / "whole") > 5
    return files(folder / "whole")


def stopped_after(monkeypatch, count):
    """Make the writer stop with Ctrl-C when it has written `count` parts."""
    from dsx.results.writer import Writer

    write, written = Writer.write, []

    def stopping(self, *arguments):
        if len(written) == count:
            raise KeyboardInterrupt
        written.append(arguments[0])
        write(self, *arguments)

    monkeypatch.setattr(Writer, "write", stopping)
    return written


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_the_same_command_goes_on(run, folder, whole, monkeypatch, count):
    with monkeypatch.context() as patch:
        written = stopped_after(patch, count)
        done = run("sweep", "sweep.yaml", "-o", "out", *PARTS)
    assert (done.code, done.out) == (4, "")
    assert f"interrupted, with {len(written)} of " in done.err
    assert ("the same command continues from there" if written else "the same command begins again") in done.err
    if count:
        assert "the sweep into out has not finished" in run("pareto", "out").err
    again = run("sweep", "sweep.yaml", "-o", "out", *PARTS)
    assert again.code == 0
    assert ("are there already; continuing with the others" in again.err) == (count > 0)
    assert files(folder / "out") == whole


@pytest.mark.sampled(0)
@pytest.mark.parametrize("keep", ["all", "feasible", "{top: 3, per: [tp]}", "{pareto: [step_time_s, peak_bytes]}"])
def test_shards_and_finish(run, folder, keep):
    options = (*PARTS, "--set", f"sweep.keep={keep}")
    assert run("sweep", "sweep.yaml", "-o", "whole", *options).code == 0
    for shard in ("2/3", "3/3"):
        done = run("sweep", "sweep.yaml", "-o", "out", *options, "--shard", shard)
        assert (done.code, done.out) == (0, "")
        assert f"shard {shard} is done" in done.err
    early = run("sweep", "sweep.yaml", "-o", "out", *options, "--finish")
    assert early.code == 4
    assert "parts of out are missing (number 0, 3, 6" in early.err
    data = json.loads(run("sweep", "sweep.yaml", "-o", "out", *options, "--shard", "1/3", "--json").out)
    assert (data["folder"], data["shard"]) == ("out", [1, 3])
    done = run("sweep", "sweep.yaml", "-o", "out", *options, "--finish", "--json")
    assert done.code == 0
    assert json.loads(done.out)["rows"] == len(dsx.load("out")) > 0
    assert files(folder / "out") == files(folder / "whole")


@pytest.mark.parametrize("keep", ["all", "{top: 2}", "{pareto: [step_time_s, peak_bytes]}"])
def test_fewer_parts_than_shards(run, folder, keep):
    options = ("sweep", "sweep.yaml", "--shard", "3/4", "--set", f"sweep.keep={keep}")
    done = run(*options, "-o", "idle")
    assert (done.code, done.out) == (0, "")
    assert "the sweep has 1 part, and 3 of 4 shards have nothing to do; give part_size: " in done.err
    assert "shard 3/4 is done: 0 of 1 part in idle" in done.err
    size = re.search(r"part_size: (\d+) in it to share it among 4 shards", done.err)[1]
    done = run(*options, "-o", "busy", "--set", f"sweep.part_size={size}", "--json")
    assert json.loads(done.out)["parts"] >= 1
    assert "nothing to do" not in done.err


def test_fewer_parts_than_shards_at_all(run, folder):
    done = run("sweep", "sweep.yaml", "-o", "out", "--set", "sweep.keep={top: 2}", "--shard", "3/100000")
    assert done.code == 0
    assert "the sweep has 1 part, and 99999 of 100000 shards have nothing to do\n" in done.err
    # Finishing what has not begun.
    done = run("sweep", "sweep.yaml", "-o", "out", "--finish")
    assert done.code == 4
    assert "1 of 1 parts of out are missing" in done.err
    both = run("sweep", "sweep.yaml", "-o", "out", "--finish", "--shard", "1/2")
    assert both.code == 2
    assert "give one of them" in both.err


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_what_is_no_shard(run, folder, shard):
    done = run("sweep", "sweep.yaml", f"--shard={shard}")
    assert done.code == 2
    assert f"'{shard}' is not a shard: write the second of eight as 2/8" in done.err
