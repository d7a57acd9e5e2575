"""Two hundred kills of a sweep, by `dsx sweep` itself: every one goes on to the very files of a run that nobody hit.

test_dying.py has the same for the result folder alone, before every single change of the disk.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
KEEPS = ("all", "{top: 2, per: [num_gpus]}")
COUNT = 50  # for each, at a change and by the clock
SEED = 2410
CLOCK, AT_A_CHANGE = ("change", "first", "start"), ("exit", "kill", "torn")
FAULTS = {"short": (0,), "ENOSPC": (0, 2), "EIO": (0, 2)}  # exit codes: what only tidies up may fail


def reports(folder, keep):
    folder.mkdir()
    command = [sys.executable, str(TESTS / "fuzz" / "killing.py"), str(folder), keep, str(SEED), str(COUNT)]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.fuzz
def test_two_hundred_kills(tmp_path):
    with ThreadPoolExecutor(len(KEEPS)) as pool:
        found = list(pool.map(reports, [tmp_path / "all", tmp_path / "top"], KEEPS))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "top"]
    assert [len(whole["files"]) > 5 for whole, *_ in found] == [True, False]
    runs = [report for _, *after in found for report in after]
    assert [report for report in runs if not report["same"]] == []
    kills = [report for report in runs if report["kind"] in (*CLOCK, *AT_A_CHANGE)]
    assert len(kills) == 200
    assert all(report["status"] in (-9, 9) for report in kills)
    assert sum(report["kind"] in AT_A_CHANGE for report in kills) == 100
    assert sum(report["between"] for report in kills) >= 150
    failed = [report for report in runs if report["kind"] in FAULTS]
    assert {report["kind"] for report in failed} == {*FAULTS}
    assert [report for report in failed if report["status"] not in FAULTS[report["kind"]]] == []
    counted = {kind: sum(report["kind"] == kind for report in runs) for kind in (*AT_A_CHANGE, *CLOCK, *FAULTS)}
    print(f"{sum(report['between'] for report in kills)} of {len(kills)} between first and last write; {counted}")
