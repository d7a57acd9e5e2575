"""A program that runs a small sweep again and again, each time dying somewhere else, and says what was left.

    python dying.py FOLDER KIND KEEP START            dies before the n-th change of the disk, for every n
    python dying.py FOLDER KIND KEEP START TIMES      dies at moments drawn by chance, so many times

KIND is how it dies: killed, interrupted, or full (of the disk). KEEP is all, or merged into one part. START is what
the folder holds: nothing, or an earlier set, of another version. Each death happens in a folder of its own, where
the same run then goes on to its end. For each a line of JSON says how the process ended, which set could be loaded
after that, and what is there at the end; the first is of a run that did not die.

The work is done in forked processes, so that the libraries are imported once.
"""

import dataclasses
import errno
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from results.faults import Change, replace_calls
from results.sets import begin_manifest, make_counts, make_rows

import dsx
from dsx.errors import StoreError
from dsx.results import frames as store
from dsx.results import writer as writing

SIZES = (3, 0, 4)
WRITING = ("open", "write", "fsync", "mkdir", "link")  # what a full disk does not let happen
SURVIVED, DIED = 0, 3
PAUSE = 0.002  # seconds of work for a part, where moments are drawn by chance


def sweep(folder: Path, keep: str, version: str, threads: int = 1, pause: float = 0.0) -> None:
    manifest = dataclasses.replace(begin_manifest(), dsx_version=version)
    if writing.finished(folder, manifest) is not None:
        return

    def write(number: int) -> None:
        time.sleep(pause)
        writer.write(number, make_rows(SIZES[number], first=100 * number), make_counts(SIZES[number]))

    with writing.create(folder, manifest, len(SIZES)) as writer:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(write, writer.missing()))
        writer.finish(largest if keep == "merged" else None)


def largest(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = np.argsort(-rows["mfu"], kind="stable")[:5]
    return {name: values[order] for name, values in rows.items()}


def die_at(step: int, kind: str) -> Callable[[Change], Any]:
    """Return what ends the process before its n-th change of the disk."""

    def act(change: Change) -> Any:
        # A disk stays full; who is killed or interrupted is so once.
        if change.n == step and kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if change.n == step and kind == "interrupted":
            raise KeyboardInterrupt
        if change.n >= step and kind == "full" and change.name in WRITING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return change()

    return act


def in_a_child(work: Callable[[], None]) -> tuple[int, Callable[[], int]]:
    """Start work in a child; return its id, and what waits for its exit status."""
    child = os.fork()
    if child == 0:
        status = SURVIVED
        try:
            work()
        except KeyboardInterrupt:
            status = DIED
        except StoreError as error:
            status = DIED if "make room" in str(error) else 1
        finally:
            os._exit(status)
    return child, lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def described(folder: Path) -> dict[str, str]:
    """Return all files and folders by name with the files' hashes, without the times in the manifest."""
    return {str(path.relative_to(folder)): digest(path) for path in sorted(folder.rglob("*"))}


def digest(path: Path) -> str:
    if path.is_dir():
        return ""
    content = path.read_bytes()
    if path.name == "manifest.json":
        manifest = json.loads(content)
        content = json.dumps(manifest | {"started": "", "finished": ""}).encode()
    return hashlib.sha256(content).hexdigest()


def loaded(folder: Path) -> str:
    """Return the version of the set that can be loaded, or "" if there is none yet."""
    try:
        frame = store.load(folder)
    except StoreError as error:
        if "no result set at" in str(error) or "has not finished" in str(error):
            return ""
        raise
    manifest = store.read_manifest(folder)
    assert manifest.counts is not None
    assert len(frame) == sum(part.rows for part in manifest.parts)
    return manifest.dsx_version


class Deaths:
    """Runs of one kind; each is reported by a line on stdout."""

    def __init__(self, root: str, kind: str, keep: str, start: str) -> None:
        self.root, self.kind, self.keep, self.start = Path(root), kind, keep, start

    def prepared(self, name: str) -> Path:
        """Return a folder with what there is at the start."""
        folder = self.root / name
        if self.start == "earlier":
            sweep(folder, self.keep, "earlier")
        return folder

    def run(self, folder: Path, threads: int = 1, pause: float = 0.0) -> None:
        sweep(folder, self.keep, dsx.__version__, threads, pause)

    def report(self, folder: Path, status: int) -> None:
        after = loaded(folder)
        self.run(folder)
        print(json.dumps({"status": status, "after": after, "end": described(folder)}), flush=True)

    def at_every_step(self) -> None:
        step, status = 0, DIED
        while status != SURVIVED:
            folder = self.prepared(str(step))

            def work(folder: Path = folder, step: int = step) -> None:
                replace_calls(die_at(step, self.kind), str(folder))
                self.run(folder)

            status = in_a_child(work)[1]()
            self.report(folder, status)
            step += 1

    def by_chance(self, times: int, took: float) -> None:
        """Die three times on the way, each time within the seconds that the whole run takes."""
        number = signal.SIGKILL if self.kind == "killed" else signal.SIGINT
        for time_of in range(times):
            folder, status = self.prepared(str(time_of)), SURVIVED
            for _ in range(3):
                child, status_of = in_a_child(lambda folder=folder: self.run(folder, 2, PAUSE))
                time.sleep(random.uniform(0, took))
                os.kill(child, number)
                status = status_of()
            self.report(folder, status)


def main() -> None:
    deaths = Deaths(*sys.argv[1:5])
    whole = deaths.prepared("whole")
    began = time.monotonic()
    deaths.run(whole, 2, PAUSE)
    took = time.monotonic() - began
    deaths.report(whole, SURVIVED)
    if len(sys.argv) > 5:
        deaths.by_chance(int(sys.argv[5]), took)
    else:
        deaths.at_every_step()


main()
