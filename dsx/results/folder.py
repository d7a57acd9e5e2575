"""The folder of a result set on disk: its files, its locks, and the JSON in it.

Read and check the JSON of a result folder; every run and every reader uses this.

A folder may come from anywhere, or be damaged, so nothing is trusted: neither that the content is text, nor that it is
of finite depth, nor that its numbers are finite. The result is plain data that dsx can write, hash and print.

pydantic's own JSON reader does not replace this: it refuses the surrogates that stand for bytes of a file name, and
accepts 1e999 as infinity and whole numbers of any length.

The names of the files in a result folder; dsx leaves files with other names alone.

results/a/manifest.json                     describes the set and lists its parts
results/a/part-00000.parquet ...
results/a/.unfinished/manifest.json         describes an unfinished run, from its first moment
results/a/.unfinished/part-00007.parquet    the parts that the run has written so far
results/a/.unfinished/merged.parquet        all parts as one, while the run finishes
results/a/.unfinished/replaced.json         the parts of the set that is being replaced
results/a/.unfinished/*.lock                the processes that work on the run (locks.py)
results/a/.unfinished/.<hex>.partial        a file that is being written

The folder of a result set on disk, and how its files become the set (file_names.py lists the files).

`publish` gives finished parts a second name in the folder (a hard link, or a copy if the file system has no links).
Replacing `manifest.json` is the single step that makes them the result set. Then the parts of the earlier set are
removed, and `.unfinished`, its manifest first. Every step can be repeated, so the next run completes a `publish` that
was interrupted.

A folder may come from anywhere. Files are read and written in the open folder, never through a link (dsx/files.py),
and only files with names of dsx are removed.

Which processes work on an unfinished run: locks in its folder, released when their process ends.

    entry.lock            held for a moment by a process that begins or finishes, so that they do so one by one
    run.lock              held by every process that works on the run: exclusive for a plain run, shared by shards
    shard-2-of-8.lock     held by the process that works on that shard

The last two name their process. The folder is removed when its run is finished, so a process that got a lock in a
removed folder tries again.

Not covered: file systems without locks, where a second writer is not noticed. Parts are written whole and do not depend
on their writer, so both writers then write the same set.

The `filelock` package (4.2) does not replace this: its FileLock has no shared mode, and its ReadWriteLock cannot turn a
shared lock into an exclusive one or back (RuntimeError), which is how shards share a run and the last one finishes it.
On a file system without locks (ENOTSUP, ENOLCK) it raises OSError, where this module lets a sweep continue.
"""

import errno
import fcntl
import json
import math
import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

from pydantic import AfterValidator, TypeAdapter, ValidationError

from dsx.errors import StoreError
from dsx.files import PARTIAL, OpenFolder

T = TypeVar("T")

# Depth of nested lists and objects; files of dsx have a tenth of it.
_DEEPEST = 100
_LARGEST = 2**63 - 1
_LONGEST_REASON = 300  # letters of a reason


def parse(text: bytes, place: str) -> Any:
    """Return the plain data in `text`, which errors call `place`; StoreError if it is not plain data."""
    try:
        data = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
        _check(data, _DEEPEST)
    except RecursionError:
        raise StoreError(_refusal(place, "nested too deeply")) from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
        raise StoreError(_refusal(place, str(error))) from None
    return data


def read(text: bytes, kind: "TypeAdapter[T]", place: str) -> T:
    """Return the value of this `kind` in `text`; StoreError if it is not one."""
    try:
        return kind.validate_python(parse(text, place))
    except ValidationError as error:
        raise StoreError(f"{place}: {reason(error)}") from None


def reason(error: ValidationError, within: str = "") -> str:
    """Return the place of the first fault, and the fault; `within` is the path of the checked value."""
    first = error.errors(include_url=False)[0]
    steps = [str(step) for step in first["loc"] if not str(step).startswith("<")]
    where = ".".join([*([within] if within else []), *steps]) or "the whole file"
    return f"{where:.{_LONGEST_REASON}}: {first['msg'].removeprefix('Value error, '):.{_LONGEST_REASON}}"


def _refusal(place: str, why: str) -> str:
    return f"{place} is not JSON that can be read ({why:.{_LONGEST_REASON}})"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _check(value: object, depth: int) -> None:
    if not depth:
        raise RecursionError
    match value:
        case dict():
            for key, inner in value.items():
                _check(key, depth - 1)
                _check(inner, depth - 1)
        case list():
            for inner in value:
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

MANIFEST = "manifest.json"
UNFINISHED = ".unfinished"
MERGED = "merged.parquet"
REPLACED = "replaced.json"
ENTRY_LOCK = "entry.lock"
RUN_LOCK = "run.lock"

_PART = re.compile(r"part-([0-9]{5,18})\.parquet")
_SHARD_LOCK = re.compile(r"shard-[0-9]+-of-[0-9]+\.lock")
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


def is_shard_lock(name: str) -> bool:
    """Return whether `name` is the name of the lock of a shard."""
    return _SHARD_LOCK.fullmatch(name) is not None


def is_lock(name: str) -> bool:
    """Return whether `name` is the name of a lock."""
    return name in (ENTRY_LOCK, RUN_LOCK) or is_shard_lock(name)


def is_passing(name: str) -> bool:
    """Return whether `name` is the name of a file that is being written."""
    return _PASSING.fullmatch(name) is not None


def is_of_set(name: str) -> bool:
    """Return whether a result set has files with this name."""
    return name == MANIFEST or part_number(name) is not None


def is_of_run(name: str) -> bool:
    """Return whether an unfinished run has files with this name."""
    others = name in (MERGED, REPLACED) or _REMOVED.fullmatch(name) is not None
    return others or is_of_set(name) or is_lock(name) or is_passing(name)


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SHOWN = 3  # names in an error


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
    with open_folder(folder) as there:
        names = there.names()
    return [] if MANIFEST in names or UNFINISHED in names else names


def refuse_foreign_entries(folder: Path) -> None:
    """Raise StoreError if `folder` has an unfinished run that is not of dsx, or a link where dsx has files."""
    with open_folder(folder) as there:
        for name in there.names():
            if is_of_set(name) and there.has(name) and not there.is_file(name):
                raise StoreError(f"{folder / name} is not a file of dsx but a link or a folder; {_move(name)}")
        if not there.has(UNFINISHED):
            return
    run = folder / UNFINISHED
    if run.is_symlink() or not run.is_dir():
        raise StoreError(f"{run} is not of dsx, which makes a folder of that name; {_move(UNFINISHED)}")
    with open_folder(run) as there:
        foreign = [name for name in there.names() if not _is_own(there, name)]
    if foreign:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        raise StoreError(
            f"{run} holds files that are not of dsx ({', '.join(foreign[:_SHOWN])}{more}), and a run would remove "
            f"them; {_move(UNFINISHED)}"
        )


def _is_own(run: OpenFolder, name: str) -> bool:
    """Return whether the entry `name` belongs to the run."""
    if not is_of_run(name):
        return False
    # A file that others are writing may be gone by now. dsx writes to a lock, and so to every hard link of that file.
    return not run.has(name) or (run.is_file(name) and not (is_lock(name) and run.is_shared(name)))


def _move(name: str) -> str:
    return f"move {name} elsewhere, or choose another folder with -o"


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file of a set or run: `path` holds either all of `content`, on disk, or its earlier content."""
    with open_folder(path.parent) as folder:
        folder.write_whole(path.name, content)


def publish(folder: Path, files: Mapping[str, str], earlier: Iterable[str], text: bytes) -> None:
    """Make files of the unfinished run in `folder` its result set, in place of an earlier one, and end the run.

    Args:
        folder: the folder of the set.
        files: names in the set -> files of the run.
        earlier: names of the parts of the earlier set.
        text: the manifest of the new set.

    Raises OSError; the same call can be repeated, whichever steps were done.
    """
    with open_folder(folder) as there, open_folder(folder / UNFINISHED) as run:
        replaced = sorted({*earlier, *_replaced(run)})
        run.write_whole(REPLACED, json.dumps(replaced).encode())
        for name, source in files.items():
            _give_name(run, source, there, name)
        there.sync()
        there.write_whole(MANIFEST, text, scratch=run)
    clean(folder, files.keys(), replaced)


def clean(folder: Path, named: Collection[str], left: Iterable[str] = ()) -> None:
    """Remove a finished run from `folder`, and the parts of the set that it replaced, except those `named`.

    `left` are parts of the replaced set, in addition to those that the run has recorded.
    """
    with open_folder(folder) as there:
        with open_folder(folder / UNFINISHED) as run:
            gone = {*left, *_replaced(run)}
        for name in sorted(gone):
            if name not in named:
                there.remove(name)
        there.sync()
    discard(folder / UNFINISHED)


def discard(run: Path) -> None:
    """Remove a run and its locks; its manifest first, since no process continues a run without a manifest."""
    with open_folder(run) as there:
        there.remove(MANIFEST)
        for name in filter(is_of_run, there.names()):
            # Network file systems keep open files, such as the locks; the next run removes them.
            with suppress(OSError):
                there.remove(name)
    with open_folder(run.parent) as folder, suppress(OSError):
        folder.remove_folder(run.name)


def empty(run: Path) -> None:
    """Remove all files of a run except its locks, the manifest first."""
    with open_folder(run) as there:
        there.remove(MANIFEST)
        for name in there.names():
            if is_of_run(name) and not is_lock(name):
                there.remove(name)


def remove_partial(run: Path) -> None:
    """Remove the partial files of writers that died; there must be no live writers."""
    with open_folder(run) as there:
        for name in filter(is_passing, there.names()):
            there.remove(name)


_PARTS = TypeAdapter(list[PartFile])


def _replaced(run: OpenFolder) -> list[str]:
    """Return the parts that the run recorded for removal; none if it has no such record, or a damaged one."""
    try:
        with run.open(REPLACED) as file:
            return read(file.read(), _PARTS, REPLACED)
    except (FileNotFoundError, StoreError):
        return []


def _give_name(run: OpenFolder, source: str, folder: OpenFolder, name: str) -> None:
    """Make `name` in `folder` a second name of the file `source` of `run`, in place of any file of that name."""
    with run.temporary_name() as partial:
        try:
            run.link(source, run, partial)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with run.open(source) as file:
                folder.write_whole(name, file.read(), scratch=run)
        else:
            # If both are the same file already, nothing happens.
            run.rename(partial, folder, name)


_CURE = "wait for it to finish, or choose another folder with -o"
_HOLDER = re.compile(r"process [0-9]{1,10} on [^\s\x00-\x1f\x7f]{1,255}")
_LONGEST_NAME = 512  # bytes of the name of a process
_MADE = os.O_RDWR | os.O_CREAT
_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


@contextmanager
def entry(run: Path) -> Iterator[None]:
    """Hold the entry lock of the folder `run`, and make the folder if needed; waits for its turn."""
    while True:
        run.mkdir(exist_ok=True)
        path = run / ENTRY_LOCK
        try:
            with open_folder(run) as folder:
                file = folder.open(ENTRY_LOCK, _MADE)
        except FileNotFoundError:
            continue
        with file:
            _lock(file, fcntl.LOCK_EX, wait=True)
            if _is_at(file, path):
                yield
                return


class Hold:
    """The locks of one process on a run; `alone` is true if no other process has any."""

    def __init__(self, run: Path, shard: Shard | None) -> None:
        """Take the locks; the caller holds the `entry` of the run. StoreError if other processes hold them."""
        self._run, self._shard = run, shard
        self._files: list[BinaryIO] = []
        try:
            self._common = self._open(RUN_LOCK)
            self.alone = _lock(self._common, fcntl.LOCK_EX)
            if not self.alone and not (shard and _lock(self._common, fcntl.LOCK_SH)):
                raise StoreError(self._busy())
            own = self._open(shard_lock(shard)) if shard else self._common
            if shard and not _lock(own, fcntl.LOCK_EX):
                raise StoreError(
                    f"{run.parent}: {_name(shard)} is already running, {_holder(run / shard_lock(shard))}; {_CURE}"
                )
            own.truncate(0)
            own.write(f"process {os.getpid()} on {platform.node()}".encode())
            own.flush()
        except BaseException:
            self.close()
            raise

    def share(self) -> None:
        """Let other shards join the run, if this is a shard."""
        if self._shard:
            _lock(self._common, fcntl.LOCK_SH)
            self.alone = False

    def take_all(self) -> None:
        """Take the run exclusively to finish it; the caller holds the `entry` of the run.

        Raises StoreError if other processes work on it. This shard then no longer counts as running.
        """
        self.alone = _lock(self._common, fcntl.LOCK_EX)
        if not self.alone:
            raise StoreError(self._busy())

    def close(self) -> None:
        """Release all locks."""
        for file in self._files:
            file.close()

    def _open(self, name: str) -> BinaryIO:
        with open_folder(self._run) as folder:
            file = folder.open(name, _MADE)
        self._files.append(file)
        return file

    def _busy(self) -> str:
        own = shard_lock(self._shard) if self._shard else ""
        with open_folder(self._run) as folder:
            shards = [self._run / name for name in folder.names() if is_shard_lock(name) and name != own]
        others = [path for path in shards if _is_held(path)]
        who = ", ".join(map(_holder, others or [self._run / RUN_LOCK]))
        return f"{self._run.parent}: another dsx is running here, {who}; {_CURE}"


def _name(shard: Shard) -> str:
    return f"shard {shard[0]}/{shard[1]}"


def _holder(path: Path) -> str:
    """Return the process that holds the lock at `path`, by its own words: "process 12 on node7"."""
    with open_file(path) as file:
        said = file.read(_LONGEST_NAME).decode("utf-8", "replace")
    return said if _HOLDER.fullmatch(said) else "a process that has just started"


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Return whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _is_held(path: Path) -> bool:
    with open_file(path) as file:
        return not _lock(file, fcntl.LOCK_SH)


def _lock(file: BinaryIO, how: int, wait: bool = False) -> bool:
    """Take a lock, or change its mode; return whether that was possible."""
    try:
        fcntl.flock(file, how if wait else how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
    return True
