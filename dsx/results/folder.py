"""The folder of a result set on disk: who may write to it, and how nothing is ever lost.

A run writes into `<folder>/.writing-<pid>`, and moves its parts beside the earlier ones only when all
are there, under numbers that the folder does not use yet. Replacing `manifest.json` is then the one step
that makes them the result set; the earlier parts go after it. A run that dies before that step leaves
the earlier set as it was; one that dies after it leaves files that no manifest names, and the next run
removes those.

A running writer holds a lock in its temporary folder; one that nobody holds is a dead writer's.

Not covered: Windows, which has no such lock, and file systems without locks, where a second writer is
not noticed (the last to finish wins; both sets are whole).
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dsx.errors import StoreError
from dsx.results import manifest

TEMPORARY = ".writing-"
_PART = re.compile(r"part-(\d{5,})\.parquet")


@contextmanager
def os_errors(doing: str) -> Iterator[None]:
    """Raise an OSError of the block as a StoreError that says what was being done, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cure = "make room, or choose a folder on another disk with -o"
        else:
            cure = "choose another folder with -o"
        raise StoreError(f"{doing}: {error.strerror or error}; {cure}") from error


def part_name(number: int) -> str:
    """Return the file name of a part."""
    return f"part-{number:05d}.parquet"


def part_numbers(folder: Path) -> list[int]:
    """Return the numbers of all parts in `folder`, ascending, whether a manifest names them or not."""
    return sorted(int(match[1]) for path in folder.iterdir() if (match := _PART.fullmatch(path.name)))


def temporaries(folder: Path) -> list[Path]:
    """Return the temporary folders of running and of interrupted writers."""
    return sorted(path for path in folder.iterdir() if path.name.startswith(TEMPORARY))


def foreign_files(folder: Path) -> list[str]:
    """Return the names of what is in `folder` and not dsx's.

    Parts without a manifest are dsx's only beside a temporary folder: a run died while it moved them.
    """
    ours = bool(temporaries(folder))
    return sorted(
        path.name
        for path in folder.iterdir()
        if not path.name.startswith(TEMPORARY) and not (ours and _PART.fullmatch(path.name))
    )


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that `path` holds either all of it, on disk, or what it held before."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Put the names of the folder's files on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Give a temporary folder in `folder` to one writer; on leaving, it stays if parts are left in it.

    Those of dead writers are removed. Raises StoreError if another writer is at work, or nothing can be
    written.
    """
    with os_errors(f"cannot write to {folder}"):
        for path in temporaries(folder):
            _lock(path).close()
            shutil.rmtree(path)
        temporary = folder / f"{TEMPORARY}{os.getpid()}"
        temporary.mkdir()
        lock = _lock(temporary)
    try:
        yield temporary
    finally:
        lock.close()
        # Without it, parts that are already moved and have no manifest yet would pass for foreign ones.
        needed = part_numbers(folder) and not (folder / manifest.FILE).exists()
        if not needed and not part_numbers(temporary):
            shutil.rmtree(temporary, ignore_errors=True)


def _lock(temporary: Path) -> BinaryIO:
    file = (temporary / "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreError(
            f"{temporary.parent}: another dsx, process {temporary.name.removeprefix(TEMPORARY)}, is writing "
            "here; wait for it to finish, or choose another folder with -o"
        ) from None
    except OSError as error:
        # A file system without locks: nobody can hold one.
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            file.close()
            raise
    return file


def publish(temporary: Path, folder: Path, body: Callable[[list[str]], bytes]) -> None:
    """Move the parts of `temporary` into `folder`, where they replace the earlier result set.

    `body` gives the text of the manifest for the parts' new names, in order. Raises OSError.
    """
    earlier, made = part_numbers(folder), part_numbers(temporary)
    # Not the name of any part that the present manifest may name.
    first = 0 if not earlier or earlier[0] >= len(made) else earlier[-1] + 1
    names = [part_name(first + i) for i in range(len(made))]
    for number, name in zip(made, names, strict=True):
        (temporary / part_name(number)).rename(folder / name)
    sync(folder)
    write_whole(folder / manifest.FILE, lambda file: file.write(body(names)))
    for number in earlier:
        (folder / part_name(number)).unlink()
