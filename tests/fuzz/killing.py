"""A program that runs a small sweep again and again, each time dying somewhere else, and says what was left.

    python killing.py FOLDER KEEP SEED COUNT    COUNT kills at a change of the disk, as many by the clock, and
                                                a quarter as many calls that fail or write less

Each run is `dsx sweep` as a user starts it, in a process of its own, forked from this one, which has imported dsx and
JAX but has no JAX backend yet, and so none of its threads: a fork with them could hang. At a change of the disk
(faults.py) the process ends by `os._exit` or SIGKILL, before the change or, of a write, in the middle of it. By the
clock it gets SIGKILL from outside: of four runs two some milliseconds after a change that is drawn, one at a time that
is drawn between its first and last change, and one between its start and its end. A kill counts as between the first
and the last write if the run had made a change and had not made its last.

After every kill, by the same command, the sweep goes on to its end. A line of JSON says for each how the process
ended, how many changes it had made, and whether the folder is that of a run that nobody disturbed. The first line is
of that run. FOLDER then holds nothing else than before.
"""

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pandas
import pyarrow.parquet
from results.faults import LOCK, Change, replace_calls

from dsx.results import frames as plan_rows
from dsx.results import writer as store
from dsx.search import spaces as study
from dsx.search import sweep
from dsx.verbs.process import main as dsx

LOADED = (jax, pandas, pyarrow.parquet, plan_rows, store, study, sweep)
EXITED = 9  # the exit code of a run that ends by os._exit
BEGUN, LAST = b".", b"$"  # what a run says before each change, and after its last one
KILLED = -signal.SIGKILL
ALL = 1_000_000  # changes: more than there are
FEW_MILLISECONDS = 3e-3
MOST_TRIES = 20  # until a kill by the clock comes before the end

MODEL = """name: small
source: made up
default_sequence_length: 2048
dimensions: {e: 1024, h: 8, g: 8, k: 128, f: 4096}
layers:
  - {kind: transformer, count: 4}
"""
SWEEP = """model: small.yaml
cluster: b200-nvs8
num_gpus: [4, 8]
global_batch_size: 16
strategy: 1d
assumptions: paper-2410.00273
keep: KEEP
part_size: 8
"""


class Run:
    """One `dsx sweep` in a process of its own, into the folder `out` of this working directory."""

    def __init__(self, act: Callable[[Change], Any] = Change.__call__) -> None:
        self._said, says = os.pipe()
        self.started = time.monotonic()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._said)
                _as_user(says, act)
            finally:
                os._exit(1)
        os.close(says)
        self.changes, self.made_last, self.has_ended = 0, False, False

    def wait(self, changes: int) -> None:
        """Wait until the run has begun so many changes, or has ended."""
        while self.changes < changes and not self.has_ended:
            said = os.read(self._said, 1)
            self.changes += said == BEGUN
            self.made_last |= said == LAST
            self.has_ended = not said

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def end(self) -> int:
        """Wait for the end and return the exit status; `changes` then are all that were begun."""
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self.wait(ALL)
        os.close(self._said)
        return status


def _as_user(says: int, act: Callable[[Change], Any]) -> None:
    write = os.write
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def saying(change: Change) -> Any:
        if change.name == LOCK:
            return change()
        write(says, BEGUN)
        done = act(change)
        if change.name == "rmdir":
            write(says, LAST)
        return done

    replace_calls(saying, str(Path("out")))
    sys.argv = ["dsx", "sweep", "sweep.yaml", "-o", "out"]
    try:
        dsx()
    except SystemExit as done:
        sys.stdout.flush()
        os._exit(done.code if isinstance(done.code, int) else 0)


def dying_at(step: int, how: str) -> Callable[[Change], Any]:
    """Return what ends the process at its n-th change, or lets the call fail: exit, kill, torn, short or an errno."""
    seen = iter(range(1_000_000))

    def act(change: Change) -> Any:
        if next(seen) != step:
            return change()
        if how in ("torn", "short") and change.name == "write":
            descriptor, content = change.arguments
            written = change.call(descriptor, content[: max(1, len(content) // 2)])
            if how == "short":
                return written
        if how == "exit":
            os._exit(EXITED)
        if how in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        if how in errno.errorcode.values():
            number = getattr(errno, how)
            raise OSError(number, os.strerror(number))
        return change()

    return act


def described(folder: Path) -> dict[str, str]:
    """Return the hashes of all files in a folder, without the times in the manifest."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        if path.name == "manifest.json":
            content = json.dumps(json.loads(content) | {"started": "", "finished": ""}).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


class Kills:
    """The runs that die, each with what it leaves compared with what an undisturbed run makes."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        Run().end()  # what it compiles is there for the others
        shutil.rmtree("out")
        whole = Run()
        whole.wait(1)
        first = time.monotonic()
        whole.wait(ALL)
        self.span, self.took = time.monotonic() - first, time.monotonic() - whole.started
        assert whole.end() == 0, Path("log").read_text()
        self.whole, self.changes = described(Path("out")), whole.changes
        self.before = set(os.listdir())
        say(kind="whole", changes=self.changes, files=list(self.whole), took=self.took, span=self.span)

    def report(self, kind: str, status: int, run: Run) -> None:
        again = Run()
        resumed = again.end()
        same = resumed == 0 and described(Path("out")) == self.whole and set(os.listdir()) == self.before
        between = run.changes > 0 and not run.made_last
        log = "" if same else Path("log").read_text()
        say(kind=kind, status=status, changes=run.changes, between=between, same=same, log=log)

    def at_a_change(self, kind: str) -> None:
        """Die at a change of the disk, or let it fail, so that the run ends by itself."""
        shutil.rmtree("out")
        step = self.drawn.randrange(1, self.changes)
        run = Run(dying_at(step, kind))
        self.report(kind, run.end(), run)

    def by_the_clock(self, since: str) -> None:
        """Get SIGKILL at a time that is drawn, since a change, the first of them, or the start."""
        for _ in range(MOST_TRIES):
            shutil.rmtree("out", ignore_errors=True)
            run = Run()
            within = {"change": FEW_MILLISECONDS, "first": self.span, "start": self.took}[since]
            if since != "start":
                run.wait(1 if since == "first" else self.drawn.randrange(1, self.changes))
            time.sleep(self.drawn.uniform(0, within))
            run.kill()
            if (status := run.end()) == KILLED:
                self.report(since, status, run)
                return
        raise AssertionError("no run was killed before its end")


def say(**report: Any) -> None:
    print(json.dumps(report), flush=True)


def main() -> None:
    folder, keep, seed, count = sys.argv[1:]
    work = Path(folder)
    (work / "small.yaml").write_text(MODEL)
    (work / "sweep.yaml").write_text(SWEEP.replace("KEEP", keep))
    os.chdir(work)
    kills = Kills(int(seed))
    for n in range(int(count)):
        kills.at_a_change(("exit", "kill", "torn")[n % 3])
        kills.by_the_clock(("change", "first", "change", "start")[n % 4])
        if n % 4 == 0:
            kills.at_a_change(("short", "ENOSPC", "EIO")[n // 4 % 3])


main()
