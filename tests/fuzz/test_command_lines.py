"""Command lines with faults, and processes that are killed."""

import contextlib
import io
import json
import os
import random
import reprlib
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
from cli.conftest import MODEL, SWEEP, call
from config import instances
from config.hf.configs import CONFIGS
from fuzz import guard
from fuzz.command_lines import LINES, OPTIONS, outputs
from fuzz.mutation import mutated_arguments
from runs.tables import write

from dsx.text import printable

_QUICK = 160
_LONG = 15_000
_CODES = {0, 2, 3, 4}
SHOWN = 20  # faults in a message


@pytest.fixture
def sandbox(tmp_path, monkeypatch) -> Path:
    """A working directory with something for each verb, below a folder with files that are somebody's."""
    folder = tmp_path / "somebody" / "work"
    folder.mkdir(parents=True)
    (tmp_path / "somebody" / "file.txt").write_text("somebody's")
    (folder / "small.yaml").write_text(MODEL)
    (folder / "sweep.yaml").write_text(SWEEP.replace("keep: all", "keep: {top: 3, per: [tp]}"))
    (folder / "layers.json").write_text(json.dumps(instances.small()))
    (folder / "networks.json").write_text(json.dumps(instances.networks()))
    shutil.copyfile(CONFIGS / "llama-3-8b.json", folder / "config.json")
    write(folder / "bad.csv", {"tp": "3"})
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DSX_PATH", raising=False)
    monkeypatch.setenv("DSX_DEBUG", "")
    assert call("sweep", "sweep.yaml", "-o", "set") == 0
    return folder


def run(arguments: list[str]) -> int:
    """Run a command line; raises Fault for what no command line may do."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), guard.measured():
        code = call(*arguments)
    if code not in _CODES or "Traceback" in err.getvalue():
        raise guard.Fault(f"exit code {code}: {err.getvalue()[-300:]}")
    for text in (out.getvalue(), err.getvalue()):
        if printable(text, keep="\n\t") != text:
            raise guard.Fault(f"prints what a terminal obeys: {text[:300]!r}")
        if len(text) > 1_000_000:
            raise guard.Fault(f"prints {len(text):,} characters")
    return code


def fuzz(numbers: range, sandbox: Path) -> set[int]:
    """Run mutations of good command lines by their numbers; return the exit codes that occurred. Raises Fault."""
    codes: set[int] = set()
    faults: list[str] = []
    kept = sandbox.parent.parent / "kept"
    shutil.copytree(sandbox, kept)
    for number in numbers:
        rng = random.Random(f"command line {number}")
        arguments = mutated_arguments(rng.choice(LINES), OPTIONS, rng)
        # If compiled code takes the process down, this is what it ran.
        (sandbox.parent.parent / "last").write_text(repr(arguments))
        before, allowed = guard.files_below(sandbox.parent), outputs(arguments)
        try:
            codes.add(run(arguments))
            guard.refuse_changes(before, guard.files_below(sandbox.parent), allowed)
        except guard.Fault as fault:
            faults.append(f"command line {number}, {[*map(reprlib.repr, arguments)]}: {fault}")
        if before != guard.files_below(sandbox.parent):
            restore(sandbox, kept)
    if faults:
        raise guard.Fault(f"{len(faults)} of {len(numbers)}:\n" + "\n".join(faults[:SHOWN]))
    return codes


def restore(sandbox: Path, kept: Path) -> None:
    """Put everything in the sandbox back as it was."""
    for path in sandbox.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.copytree(kept, sandbox, dirs_exist_ok=True)


def test_command_lines_with_faults(sandbox):
    # Neither so wild that nothing gets far, nor so tame that nothing is refused.
    assert {0, 2} <= fuzz(range(_QUICK), sandbox)


@pytest.mark.fuzz
@pytest.mark.parametrize("share", range(10))
def test_many_command_lines_with_faults(sandbox, share):
    fuzz(range(_QUICK + share * _LONG // 10, _QUICK + (share + 1) * _LONG // 10), sandbox)
    jax.clear_caches()


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
