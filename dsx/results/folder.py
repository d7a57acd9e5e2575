"""The folder of a result set on disk, and how its files become the set (file_names.py says which there are).

`publish` gives finished parts a second name in the folder (a hard link, or a copy where there are none). Replacing
`manifest.json` is the one step that makes them the result set; the earlier set's parts go after it, then
`.unfinished`, its manifest first. Every step can be done again, so a run that dies in it is finished by the next.

A folder may come from anywhere. Files are read and written in the open folder, never through a link (dsx/files.py),
and nothing is removed but what has a name of ours.
"""

import errno
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter

from dsx.errors import StoreError
from dsx.files import OpenFolder
from dsx.results import plain_json
from dsx.results.file_names import (
    MANIFEST,
    REPLACED,
    UNFINISHED,
    PartFile,
    is_lock,
    is_of_run,
    is_of_set,
    is_passing,
)

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SHOWN = 3  # names in an error


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


def opened(folder: Path) -> OpenFolder:
    """Open the folder of a set or of an unfinished run, which is no link; raises OSError."""
    return OpenFolder(folder, follow=folder.name != UNFINISHED)


def open_file(path: Path) -> BinaryIO:
    """Open a file of a set or run for reading; raises OSError."""
    with opened(path.parent) as folder:
        return folder.open(path.name)


def foreign_files(folder: Path) -> list[str]:
    """Return the names of what is in `folder` though neither a manifest nor an unfinished run says why."""
    with opened(folder) as there:
        names = there.names()
    return [] if MANIFEST in names or UNFINISHED in names else names


def refuse_foreign_entries(folder: Path) -> None:
    """Raise StoreError if `folder` has an unfinished run that is not dsx's, or a link where dsx has files."""
    with opened(folder) as there:
        for name in there.names():
            if is_of_set(name) and there.has(name) and not there.is_file(name):
                raise StoreError(f"{folder / name} is no file of dsx's but a link or a folder; {_move(name)}")
        if not there.has(UNFINISHED):
            return
    run = folder / UNFINISHED
    if run.is_symlink() or not run.is_dir():
        raise StoreError(f"{run} is not dsx's, which makes a folder of that name; {_move(UNFINISHED)}")
    with opened(run) as there:
        foreign = [name for name in there.names() if not _is_own(there, name)]
    if foreign:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        raise StoreError(
            f"{run} holds what is not dsx's ({', '.join(foreign[:_SHOWN])}{more}), and a run would remove it; "
            f"{_move(UNFINISHED)}"
        )


def _is_own(run: OpenFolder, name: str) -> bool:
    """Return whether what is called `name` is a run's own."""
    if not is_of_run(name):
        return False
    # What others are writing may be gone by now. A lock is written to, and so would be all that is the same file.
    return not run.has(name) or (run.is_file(name) and not (is_lock(name) and run.is_shared(name)))


def _move(name: str) -> str:
    return f"move {name} elsewhere, or choose another folder with -o"


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file of a set or run so that `path` holds either all of `content`, on disk, or what it held before."""
    with opened(path.parent) as folder:
        folder.write_whole(path.name, content)


def publish(folder: Path, files: Mapping[str, str], earlier: Iterable[str], text: bytes) -> None:
    """Make files of the unfinished run in `folder` its result set, in place of an earlier one; ends the run.

    Args:
        folder: where the set is.
        files: the files of the run, by the names that they get in the set.
        earlier: names of the parts of the set that is there.
        text: the manifest of the new set.

    Raises OSError; whatever was done by then, the same call can be made again.
    """
    with opened(folder) as there, opened(folder / UNFINISHED) as run:
        replaced = sorted({*earlier, *_replaced(run)})
        run.write_whole(REPLACED, json.dumps(replaced).encode())
        for name, source in files.items():
            _give_name(run, source, there, name)
        there.sync()
        there.write_whole(MANIFEST, text, scratch=run)
    clean(folder, files.keys(), replaced)


def clean(folder: Path, named: Collection[str], left: Iterable[str] = ()) -> None:
    """Remove what a finished run leaves in `folder`: parts of the set it replaced, but those `named`; and itself.

    `left` are parts that are known to be of the set that was replaced, besides those that the run has written down.
    """
    with opened(folder) as there:
        with opened(folder / UNFINISHED) as run:
            gone = {*left, *_replaced(run)}
        for name in sorted(gone):
            if name not in named:
                there.remove(name)
        there.sync()
    discard(folder / UNFINISHED)


def discard(run: Path) -> None:
    """Remove a run and its locks; its manifest goes first, and nobody goes on with a run that has none."""
    with opened(run) as there:
        there.remove(MANIFEST)
        for name in filter(is_of_run, there.names()):
            # Network file systems keep files that are open, as the locks are; the next run removes those.
            with suppress(OSError):
                there.remove(name)
    with opened(run.parent) as folder, suppress(OSError):
        folder.remove_folder(run.name)


def empty(run: Path) -> None:
    """Remove all of a run but its locks, its manifest first."""
    with opened(run) as there:
        there.remove(MANIFEST)
        for name in there.names():
            if is_of_run(name) and not is_lock(name):
                there.remove(name)


def remove_partial(run: Path) -> None:
    """Remove what dead writers of a run were writing; there must be no live ones."""
    with opened(run) as there:
        for name in filter(is_passing, there.names()):
            there.remove(name)


_PARTS = TypeAdapter(list[PartFile])


def _replaced(run: OpenFolder) -> list[str]:
    """Return the parts that the run wrote down as those to remove; none if it did not, or what is there is damaged."""
    try:
        with run.open(REPLACED) as file:
            return plain_json.read(file.read(), _PARTS, REPLACED)
    except (FileNotFoundError, StoreError):
        return []


def _give_name(run: OpenFolder, source: str, folder: OpenFolder, name: str) -> None:
    """Let `name` in `folder` be the file `source` of `run` too, in place of whatever has that name."""
    with run.temporary_name() as partial:
        try:
            run.link(source, run, partial)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with run.open(source) as file:
                folder.write_whole(name, file.read(), scratch=run)
        else:
            # Nothing happens if both are the same file already.
            run.rename(partial, folder, name)
