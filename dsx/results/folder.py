"""The folder of a result set on disk, and how its files get there whole.

    results/a/manifest.json                  what the set is, and which parts are its own
    results/a/part-00000.parquet ...
    results/a/.unfinished/manifest.json      what a run that has not finished is, from its first moment
    results/a/.unfinished/part-00007.parquet ...     those of its parts that are there

A file is written under a passing name, put on disk, and only then renamed, so each is whole or absent. `publish`
gives finished parts a second name in the folder (a hard link, or a copy where there are none). Replacing
`manifest.json` is the one step that makes them the result set; the earlier set's parts go after it, then
`.unfinished`, its manifest first. Every step can be done again, so a run that dies in it is finished by the next.

Not covered: Windows, which has no such renames.
"""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dsx.errors import StoreError
from dsx.results import manifest

UNFINISHED = ".unfinished"

_REPLACED = "replaced.json"  # in `.unfinished`: the files of the set that is being replaced
_PARTIAL = ".partial"  # ends the passing name of a file that is being written
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def os_errors(doing: str) -> Iterator[None]:
    """Raise an OSError of the block as a StoreError that says what was being done, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            cure = "make room and run the same command again, or choose a folder on another disk with -o"
        else:
            cure = "choose another folder with -o"
        raise StoreError(f"{doing}: {error.strerror or error}; {cure}") from error


def home(folder: Path) -> Path:
    """Return the folder of the sweep that `folder`, its own or that of its unfinished run, belongs to."""
    return folder.parent if folder.name == UNFINISHED else folder


def foreign_files(folder: Path) -> list[str]:
    """Return the names of what is in `folder` though neither a manifest nor an unfinished run says why."""
    names = sorted(path.name for path in folder.iterdir())
    return [] if manifest.FILE in names or UNFINISHED in names else names


def write_whole(path: Path, content: bytes | memoryview, scratch: Path | None = None) -> None:
    """Write a file so that `path` holds either all of `content`, on disk, or what it held before.

    The passing name lies in `scratch`, on the same disk; by default beside `path`.
    """
    with _passing(scratch or path.parent) as partial:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    sync(path.parent)


@contextmanager
def _passing(folder: Path) -> Iterator[Path]:
    """Give a name that no other writer uses; what still has it at the end is removed."""
    partial = folder / f".{secrets.token_hex(8)}{_PARTIAL}"
    try:
        yield partial
    finally:
        with suppress(OSError):
            partial.unlink()


def sync(folder: Path) -> None:
    """Put the names of the folder's files on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(folder: Path, files: Mapping[str, Path], earlier: Iterable[str], text: bytes) -> None:
    """Make files of the unfinished run in `folder` its result set, in place of an earlier one; ends the run.

    Args:
        folder: where the set is.
        files: the files of the run, by their names in the set.
        earlier: names of the files of the set that is there.
        text: the manifest of the new set.

    Raises OSError; whatever was done by then, the same call can be made again.
    """
    run = folder / UNFINISHED
    write_whole(run / _REPLACED, json.dumps(sorted({*earlier, *_replaced(run)})).encode())
    for name, source in files.items():
        _give_name(source, folder / name, run)
    sync(folder)
    write_whole(folder / manifest.FILE, text, scratch=run)
    clean(folder, files.keys())


def clean(folder: Path, named: Collection[str]) -> None:
    """Remove what a finished run leaves in `folder`: files of the set it replaced, but those `named`; and itself."""
    run = folder / UNFINISHED
    for name in _replaced(run):
        if name not in named:
            (folder / name).unlink(missing_ok=True)
    sync(folder)
    discard(run)


def discard(run: Path) -> None:
    """Remove a run and its locks; its manifest goes first, and nobody goes on with a run that has none."""
    (run / manifest.FILE).unlink(missing_ok=True)
    # Network file systems keep files that are open, as the locks are; the next run removes those.
    shutil.rmtree(run, ignore_errors=True)


def empty(run: Path) -> None:
    """Remove all of a run but its locks, its manifest first."""
    (run / manifest.FILE).unlink(missing_ok=True)
    for path in run.iterdir():
        if path.suffix != ".lock":
            path.unlink()


def remove_partial(run: Path) -> None:
    """Remove what dead writers of a run were writing; there must be no live ones."""
    for path in run.glob(f".*{_PARTIAL}"):
        path.unlink(missing_ok=True)


def _replaced(run: Path) -> list[str]:
    path = run / _REPLACED
    return json.loads(path.read_bytes()) if path.exists() else []


def _give_name(source: Path, target: Path, run: Path) -> None:
    """Let `target` be `source` too, in place of whatever has that name."""
    with _passing(run) as partial:
        try:
            os.link(source, partial)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            write_whole(target, source.read_bytes(), scratch=run)
        else:
            # Nothing happens if both are the same file already.
            partial.replace(target)
