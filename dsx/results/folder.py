"""The folder of a result set on disk: its files, how those of a run become the set, and how its JSON is read.

results/a/manifest.json                     describes the set and lists its parts
results/a/part-00000.parquet ...
results/a/.unfinished/manifest.json         describes an unfinished run, from its first moment
results/a/.unfinished/part-00007.parquet    the parts that the run has written so far
results/a/.unfinished/merged.parquet        all parts as one, while the run finishes
results/a/.unfinished/replaced.json         the parts of the set that is being replaced
results/a/.unfinished/*.lock                the processes that work on the run (writer.py)
results/a/.unfinished/.<hex>.partial        a file that is being written

`publish` gives finished parts a second name in the folder (a hard link, or a copy if the file system has no links).
Replacing `manifest.json` is the single step that makes them the result set. Then the parts of the earlier set are
removed, and `.unfinished`, its manifest first. Every step can be repeated, so the next run completes a `publish` that
was interrupted. A folder may come from anywhere: files are read and written in the open folder, never through a link
(dsx/files.py), and only files with names of dsx are removed.

The JSON of a folder is read and checked once, for every run and every reader. A folder may come from anywhere, or be
damaged, so nothing is trusted: neither that the content is text, nor that it is of finite depth, nor that its numbers
are finite. The result is plain data that dsx can write, hash and print. The JSON reader of pydantic does not replace
this: it refuses the surrogates that stand for bytes of a file name, and accepts 1e999 as infinity and whole numbers of
any length.
"""

import errno
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

from pydantic import AfterValidator, TypeAdapter, ValidationError

from dsx.errors import StoreError
from dsx.files import MANIFEST, PARTIAL, OpenFolder

T = TypeVar("T")

# Depth of nested lists and objects; files of dsx have a tenth of it.
_DEEPEST = 100
_LARGEST = 2**63 - 1
_LONGEST_REASON = 300  # letters of a reason


def parse_json(text: bytes, place: str) -> Any:
    """Return the plain data in `text`, which errors call `place`; StoreError if it is not plain data."""
    try:
        data = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
        _check(data, _DEEPEST)
    except (RecursionError, ValueError) as error:  # UnicodeDecodeError and JSONDecodeError too
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise StoreError(f"{place} is not JSON that can be read ({why:.{_LONGEST_REASON}})") from None
    return data


def read_json(text: bytes, kind: "TypeAdapter[T]", place: str) -> T:
    """Return the value of this `kind` in `text`; StoreError if it is not one."""
    try:
        return kind.validate_python(parse_json(text, place))
    except ValidationError as error:
        raise StoreError(f"{place}: {reason(error)}") from None


def reason(error: ValidationError, within: str = "") -> str:
    """Return the place of the first fault, and the fault; `within` is the path of the checked value."""
    first = error.errors(include_url=False)[0]
    steps = [str(step) for step in first["loc"] if not str(step).startswith("<")]
    where = ".".join([*([within] if within else []), *steps]) or "the whole file"
    return f"{where:.{_LONGEST_REASON}}: {first['msg'].removeprefix('Value error, '):.{_LONGEST_REASON}}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _check(value: object, depth: int) -> None:
    if not depth:
        raise RecursionError
    match value:
        case dict() | list():
            for inner in (*value, *(value.values() if isinstance(value, dict) else ())):
                _check(inner, depth - 1)
        case str():
            # Surrogates may stand for bytes of a file name that are not UTF-8; dsx cannot write any others.
            value.encode("utf-8", "surrogateescape")
        case bool():
            pass
        case int() if abs(value) > _LARGEST:
            raise ValueError("a whole number of more than 64 bits")
        case float() if not math.isfinite(value):
            raise ValueError("a number that is not finite")


Shard = tuple[int, int]  # (i, n): the i-th of n shards, counted from 1

UNFINISHED = ".unfinished"
MERGED = "merged.parquet"
REPLACED = "replaced.json"
ENTRY_LOCK = "entry.lock"
RUN_LOCK = "run.lock"

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SHOWN = 3  # names in an error
_PART = re.compile(r"part-([0-9]{5,18})\.parquet")
_LOCK = re.compile(r"(entry|run|shard-[0-9]+-of-[0-9]+)\.lock")
_PASSING = re.compile(rf"\.[0-9a-f]+{re.escape(PARTIAL)}")
# The name that a network file system gives to a file that is removed while it is open, as locks are.
_REMOVED = re.compile(r"\.nfs[0-9a-f]+")


def part_name(number: int) -> str:
    """Return the file name of a part."""
    return f"part-{number:05d}.parquet"


def part_number(name: str) -> int | None:
    """Return the number of the part with this file name; None if it is not the name of a part."""
    match = _PART.fullmatch(name)
    number = int(match[1]) if match else None
    return number if number is not None and part_name(number) == name else None


def _is_part(name: str) -> str:
    if part_number(name) is None:
        raise ValueError("is not the name of a part, such as part-00000.parquet")
    return name


PartFile = Annotated[str, AfterValidator(_is_part)]  # a name from a file that dsx may not have written


def shard_lock(shard: Shard) -> str:
    """Return the name of the lock of a shard."""
    return f"shard-{shard[0]}-of-{shard[1]}.lock"


def is_lock(name: str) -> bool:
    """Return whether `name` is the name of a lock."""
    return _LOCK.fullmatch(name) is not None


def is_passing(name: str) -> bool:
    """Return whether `name` is the name of a file that is being written."""
    return _PASSING.fullmatch(name) is not None


def is_of_set(name: str) -> bool:
    """Return whether a result set has files with this name."""
    return name == MANIFEST or part_number(name) is not None


def is_of_run(name: str) -> bool:
    """Return whether an unfinished run has files with this name."""
    of_run = name in (MERGED, REPLACED) or _REMOVED.fullmatch(name) is not None
    return of_run or is_of_set(name) or is_lock(name) or is_passing(name)


@contextmanager
def os_errors(doing: str) -> Iterator[None]:
    """Raise an OSError of the block as a StoreError that says what dsx was `doing`, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            cure = "make room and run the same command again, or choose a folder on another disk with -o"
        else:
            cure = "choose another folder with -o"
        raise StoreError(f"{doing}: {error.strerror or error}; {cure}") from error


def home(folder: Path) -> Path:
    """Return the folder of the sweep; `folder` is that folder itself, or the one of its unfinished run."""
    return folder.parent if folder.name == UNFINISHED else folder


def open_folder(folder: Path) -> OpenFolder:
    """Open the folder of a set or of an unfinished run; the latter may not be a link; raises OSError."""
    return OpenFolder(folder, follow=folder.name != UNFINISHED)


def open_file(path: Path) -> BinaryIO:
    """Open a file of a set or run for reading; raises OSError."""
    with open_folder(path.parent) as folder:
        return folder.open(path.name)


def foreign_files(folder: Path) -> list[str]:
    """Return the names of all files in `folder` if it has neither a manifest nor an unfinished run."""
    with open_folder(folder) as opened:
        names = opened.names()
    return [] if MANIFEST in names or UNFINISHED in names else names


def refuse_foreign_entries(folder: Path) -> None:
    """Raise StoreError if `folder` has an unfinished run that is not of dsx, or a link where dsx has files."""
    with open_folder(folder) as opened:
        for name in opened.names():
            if is_of_set(name) and opened.has(name) and not opened.is_file(name):
                raise StoreError(f"{folder / name} is not a file of dsx but a link or a folder; {_move(name)}")
        if not opened.has(UNFINISHED):
            return
    run = folder / UNFINISHED
    if run.is_symlink() or not run.is_dir():
        raise StoreError(f"{run} is not of dsx, which makes a folder of that name; {_move(UNFINISHED)}")
    with open_folder(run) as opened:
        # A file that others are writing may be gone by now. dsx writes to a lock, and so to every hard link of it.
        foreign = [
            name
            for name in opened.names()
            if not is_of_run(name)
            or (opened.has(name) and (not opened.is_file(name) or (is_lock(name) and opened.is_shared(name))))
        ]
    if foreign:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        raise StoreError(
            f"{run} holds files that are not of dsx ({', '.join(foreign[:_SHOWN])}{more}), and a run would remove "
            f"them; {_move(UNFINISHED)}"
        )


def _move(name: str) -> str:
    return f"move {name} elsewhere, or choose another folder with -o"


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file of a set or run: `path` holds either all of `content`, on disk, or its earlier content."""
    with open_folder(path.parent) as folder:
        folder.write_whole(path.name, content)


def publish(folder: Path, files: Mapping[str, str], earlier: Iterable[str], text: bytes) -> None:
    """Make `files` (name in the set -> file of the run) the set in `folder`, and end the run.

    `earlier` are the parts of the set that it replaces, `text` is the new manifest. Raises OSError; the call can be
    repeated, whichever steps were done.
    """
    with open_folder(folder) as opened, open_folder(folder / UNFINISHED) as run:
        replaced = sorted({*earlier, *_replaced(run)})
        run.write_whole(REPLACED, json.dumps(replaced).encode())
        for name, source in files.items():
            # A second name of the file in place of any other file; nothing happens if it has that name already.
            with run.temporary_name() as partial:
                try:
                    run.link(source, run, partial)
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    with run.open(source) as file:
                        opened.write_whole(name, file.read(), scratch=run)
                else:
                    run.rename(partial, opened, name)
        opened.sync()
        opened.write_whole(MANIFEST, text, scratch=run)
    clean(folder, files.keys(), replaced)


def clean(folder: Path, kept: Collection[str], earlier: Iterable[str] = ()) -> None:
    """Remove a finished run, and the recorded and `earlier` parts that its set replaced, except those `kept`."""
    with open_folder(folder) as opened:
        with open_folder(folder / UNFINISHED) as run:
            replaced = {*earlier, *_replaced(run)}
        for name in sorted(replaced.difference(kept)):
            opened.remove(name)
        opened.sync()
    discard(folder / UNFINISHED)


def discard(run: Path) -> None:
    """Remove a run and its locks; its manifest first, since no process continues a run without a manifest."""
    with open_folder(run) as opened:
        opened.remove(MANIFEST)
        for name in filter(is_of_run, opened.names()):
            # Network file systems keep open files, such as the locks; the next run removes them.
            with suppress(OSError):
                opened.remove(name)
    with open_folder(run.parent) as folder, suppress(OSError):
        folder.remove_folder(run.name)


def empty(run: Path) -> None:
    """Remove all files of a run except its locks, the manifest first."""
    with open_folder(run) as opened:
        opened.remove(MANIFEST)
        for name in opened.names():
            if is_of_run(name) and not is_lock(name):
                opened.remove(name)


def remove_partial(run: Path) -> None:
    """Remove the partial files of writers that died; there must be no live writers."""
    with open_folder(run) as opened:
        for name in filter(is_passing, opened.names()):
            opened.remove(name)


_PARTS = TypeAdapter(list[PartFile])


def _replaced(run: OpenFolder) -> list[str]:
    """Return the parts that the run recorded for removal; none if it has no such record, or a damaged one."""
    try:
        with run.open(REPLACED) as file:
            return read_json(file.read(), _PARTS, REPLACED)
    except (FileNotFoundError, StoreError):
        return []
