"""A run that dies at any moment: nothing is lost, and the same run goes on to the very files of one that did not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dsx

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
@pytest.mark.parametrize("keep", ["all", "merged"])
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
        slow("killed", "merged", "earlier", "60"),
        slow("killed", "all", "nothing", "60"),
    ],
)
def test_death_at_moments_drawn_by_chance(tmp_path, kind, keep, start, times):
    found = reports(tmp_path, kind, keep, start, times)
    assert len(found) == int(times) + 1
    check(found, keep, start)
