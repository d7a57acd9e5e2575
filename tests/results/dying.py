"""A program that runs a small sweep again and again, each time dying somewhere else, and says what was left.

    python dying.py steps FOLDER KIND KEEP START    dies before the n-th change of the disk, for every n
    python dying.py times FOLDER KIND KEEP START    dies at N moments drawn by chance, with N from stdin

KIND is how it dies: killed, interrupted or full (a full disk), and KEEP is all or merged. START is what the folder
holds: nothing, or a set of an earlier version. Each way of dying happens in a folder of its own, where the same run then
goes on to its end; a line of JSON says what was there after the death and what at the end.

The work is done in forked processes, so that all libraries are imported once.
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

import numpy as np
from results import sets

import dsx
from dsx.errors import StoreError
from dsx.results import store

SIZES = (3, 0, 4, 2)
CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "fcntl.flock"}
SURVIVED, DIED = 0, 3


def sweep(folder: Path, keep: str, version: str, threads: int = 1, pause: float = 0.0) -> None:
    manifest = dataclasses.replace(sets.begin_manifest(), dsx_version=version)
    if store.finished(folder, manifest) is not None:
        return

    def write(number: int) -> None:
        time.sleep(pause)
        writer.write(number, sets.make_rows(SIZES[number], first=100 * number), sets.make_counts(SIZES[number]))

    with store.create(folder, manifest, len(SIZES)) as writer:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(write, writer.missing()))
        writer.finish(largest if keep == "merged" else None)


def largest(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = np.argsort(-rows["mfu"], kind="stable")[:5]
    return {name: values[order] for name, values in rows.items()}


def die_at(step: int, kind: str, folder: Path) -> Callable[..., None]:
    """Return an audit hook that ends the process before its n-th change of what is in the folder."""
    changes = iter(range(1_000_000))
    root = str(folder)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event not in CHANGES or not (event == "fcntl.flock" or str(arguments[0]).startswith(root)):
            return
        # A disk stays full; who is killed or interrupted is so once.
        count = next(changes)
        if count == step and kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if count == step and kind == "interrupted":
            raise KeyboardInterrupt
        if count >= step and kind == "full" and is_writing(event, arguments):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return hook


def is_writing(event: str, arguments: tuple[object, ...]) -> bool:
    return event in ("os.mkdir", "os.link") or (event == "open" and "x" in str(arguments[1]))


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
    """Return all files by name with their hashes, without the times in the manifest."""
    return {str(path.relative_to(folder)): digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def digest(path: Path) -> str:
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


def main() -> None:
    way, root, kind, keep, start = sys.argv[1:]
    version = dsx.__version__

    def prepared(name: str) -> Path:
        folder = Path(root) / name
        if start == "earlier":
            sweep(folder, keep, "earlier")
        return folder

    def report(folder: Path, status: int) -> None:
        after = loaded(folder)
        sweep(folder, keep, version)
        print(json.dumps({"status": status, "after": after, "end": described(folder)}), flush=True)

    whole = prepared("whole")
    began = time.monotonic()
    sweep(whole, keep, version, threads=2, pause=0.002)
    took = time.monotonic() - began
    report(whole, SURVIVED)
    if way == "steps":
        step, status = 0, DIED
        while status != SURVIVED:
            folder = prepared(str(step))

            def work(folder: Path = folder, step: int = step) -> None:
                sys.addaudithook(die_at(step, kind, folder))
                sweep(folder, keep, version)

            status = in_a_child(work)[1]()
            report(folder, status)
            step += 1
    else:
        for number in range(int(sys.stdin.read())):
            folder = prepared(str(number))
            for _ in range(3):
                child, status_of = in_a_child(lambda folder=folder: sweep(folder, keep, version, 2, 0.002))
                time.sleep(random.uniform(0, took))
                os.kill(child, signal.SIGKILL if kind == "killed" else signal.SIGINT)
                status = status_of()
            report(folder, status)


main()
