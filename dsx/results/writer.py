"""Writing a result set part by part, and publishing the parts as the set: which process may, and how it goes on.

    if finished("results/a", manifest) is None:
        with create("results/a", manifest, num_parts) as writer:    # begins or continues a run
            for number in writer.missing():
                writer.write(number, rows, counts)    # {column: [n] array}, and the counts of the part
            writer.finish()                           # only now does `load` see the set

A sweep is divided into numbered parts; a part depends only on the sweep and its number. The finished parts are those in
the folder of the unfinished run (folder.py). So an interruption loses only the parts that are being written, and a run
that is interrupted a hundred times writes the same files as one that is not. A folder belongs to one sweep. Until a new
set is complete, a run only adds files; it refuses a folder with files that do not belong to its sweep.

Locks in the folder say which processes work on a run; they are released when their process ends:

    entry.lock            held for a moment by a process that begins or finishes, so that they do so one by one
    run.lock              held by a plain run, which works alone
    shard-2-of-8.lock     held by the process that works on that shard; shards work beside each other

The last two name their process. The folder is removed when its run is finished, so a process that got a lock in a
removed folder tries again. Not covered: file systems without locks, where a second writer is not noticed. Parts are
written whole and do not depend on their writer, so both writers then write the same set.

The `filelock` package (4.2) does not replace this: on a file system without locks (ENOTSUP, ENOLCK) it raises OSError,
where this module lets a sweep continue.
"""

import dataclasses
import errno
import fcntl
import os
import platform
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dsx.errors import IncompleteSweep, StoreError
from dsx.files import MANIFEST
from dsx.results import folder as disk
from dsx.results import manifest as manifests
from dsx.results import parts as parts_on_disk
from dsx.results.folder import (
    ENTRY_LOCK,
    MERGED,
    RUN_LOCK,
    UNFINISHED,
    Shard,
    is_lock,
    open_file,
    open_folder,
    part_name,
    part_number,
    shard_lock,
)
from dsx.results.frames import frame, stated
from dsx.results.manifest import Counts, Manifest, StoredPart, differences
from dsx.results.parts import spec_hash_of

_CURE = "wait for it to finish, or choose another folder with -o"
_HOLDER = re.compile(r"process [0-9]{1,10} on [^\s\x00-\x1f\x7f]{1,255}")
_LONGEST_NAME = 512  # bytes of the name of a process
_CREATED = os.O_RDWR | os.O_CREAT
_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


@contextmanager
def entry(run: Path) -> Iterator[None]:
    """Hold the entry lock of the folder `run`, and make the folder if needed; waits for its turn."""
    while True:
        run.mkdir(exist_ok=True)
        try:
            with open_folder(run) as folder:
                file = folder.open(ENTRY_LOCK, _CREATED)
        except FileNotFoundError:
            continue
        with file:
            _lock(file, fcntl.LOCK_EX, wait=True)
            try:
                current = os.path.samestat(os.fstat(file.fileno()), (run / ENTRY_LOCK).lstat())
            except FileNotFoundError:
                continue
            if current:
                yield
                return


class Hold:
    """The lock of one process on a run: a plain run is the only one, shards work beside each other.

    `alone` is true if no other process had a lock when this one was taken.
    """

    def __init__(self, run: Path, shard: Shard | None) -> None:
        """Take the lock; the caller holds the `entry` of the run. StoreError if another process is in the way."""
        self._run, self._name = run, shard_lock(shard) if shard else RUN_LOCK
        with open_folder(run) as folder:
            self._file = folder.open(self._name, _CREATED)
        try:
            held = self._held_by_others()
            self.alone = not held
            if RUN_LOCK in held or (held and shard is None):
                raise StoreError(self._busy(held))
            if not _lock(self._file, fcntl.LOCK_EX):
                if shard is None:
                    raise StoreError(self._busy([RUN_LOCK]))
                holder = _holder(run / self._name)
                raise StoreError(f"{run.parent}: shard {shard[0]}/{shard[1]} is already running, {holder}; {_CURE}")
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {platform.node()}".encode())
            self._file.flush()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        self._file.close()

    def _held_by_others(self) -> list[str]:
        """Return the names of the locks that other processes hold."""
        held: list[str] = []
        with open_folder(self._run) as folder:
            names = [name for name in folder.names() if is_lock(name)]
        for name in (name for name in names if name not in (ENTRY_LOCK, self._name)):
            with open_file(self._run / name) as file:
                held += [] if _lock(file, fcntl.LOCK_SH) else [name]
        return held

    def _busy(self, held: Sequence[str]) -> str:
        holders = ", ".join(_holder(self._run / name) for name in held)
        return f"{self._run.parent}: another dsx is running here, {holders}; {_CURE}"


def _holder(path: Path) -> str:
    """Return the process that holds the lock at `path`, by its own words: "process 12 on node7"."""
    with open_file(path) as file:
        name = file.read(_LONGEST_NAME).decode("utf-8", "replace")
    return name if _HOLDER.fullmatch(name) else "a process that has just started"


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


Merge = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]
Rows = Mapping[str, np.ndarray]

_SHOWN = 5  # numbers of missing parts in an error


class Writer:
    """Writes the parts of one result set; made by `create`."""

    def __init__(self, folder: Path, manifest: Manifest, shard: Shard | None) -> None:
        self._folder, self._manifest, self._shard = folder, manifest, shard
        self._run = folder / UNFINISHED

    def unfinished(self) -> list[int]:
        """Return the numbers of all missing or damaged parts, including those of other shards."""
        with disk.os_errors(f"cannot read {self._run}"):
            return self._gaps(parts_on_disk.footers(self._run, self._manifest))

    def missing(self) -> list[int]:
        """Return the numbers of the parts that this process has to write: of its shard, or of the whole run."""
        i, n = self._shard or (1, 1)
        return [number for number in self.unfinished() if number % n == i - 1]

    def write(self, number: int, rows: Rows, counts: Counts) -> None:
        """Write a part of n rows, whole or not at all; several threads may call this at once.

        `rows` has every column of the set, names as codes; `counts` are of the candidates priced for the part, kept or
        not. Raises StoreError if the rows do not fit the schema, or cannot be written.
        """
        if not 0 <= number < self._manifest.num_parts:
            raise ValueError(f"part {number} of {self._manifest.num_parts}")
        content = memoryview(parts_on_disk.encode(rows, counts, self._manifest))
        try:
            with disk.os_errors(f"cannot write part {number} of {self._folder}"):
                disk.write_whole(self._run / part_name(number), content)
        except StoreError as error:
            if not self._run.is_dir():
                raise StoreError(f"{self._run} was removed meanwhile; run the same command again") from error
            raise

    def finish(self, merge: Merge | None = None) -> Manifest:
        """Make the parts the folder's result set, in place of an earlier one; return its manifest.

        Only a run without a shard does so: no other process works on the parts then. Parts without rows are left out.
        With `merge`, the set has a single part: what `merge` returns for the rows of all parts, in order, with codes
        for names.
        Raises IncompleteSweep if parts are missing, StoreError if the set cannot be written; this or a later run can
        then call `finish` again.
        """
        if self._shard:
            raise ValueError("shards do not finish a set; a run without a shard does")
        with disk.os_errors(f"cannot finish {self._folder}"), entry(self._run):
            written = parts_on_disk.footers(self._run, self._manifest)
            if missing := self._gaps(written):
                more = ", ..." if len(missing) > _SHOWN else ""
                raise IncompleteSweep(
                    f"{len(missing)} of {self._manifest.num_parts} parts of {self._folder} are missing "
                    f"(number {', '.join(map(str, missing[:_SHOWN]))}{more}); the sweep itself prices them, or the "
                    "shards that write them"
                )
            counts = manifests.total(self._manifest, [part.counts for part in written.values()])
            filled = {number: StoredPart(part_name(number), part.rows) for number, part in written.items() if part.rows}
            if merge is not None:
                columns = [column.name for column in self._manifest.columns]
                tables = [parts_on_disk.read(self._run, part, self._manifest, columns) for part in filled.values()]
                df = frame(self._manifest, tables, columns)
                codes = {name: df[name].cat.codes for name in self._manifest.names}
                rows = merge({name: codes.get(name, df[name]).to_numpy() for name in columns})
                content = memoryview(parts_on_disk.encode(rows, counts, self._manifest))
                disk.write_whole(self._run / MERGED, content)
                filled = {0: StoredPart(MERGED, len(rows[columns[0]]))}
            earlier = stated(self._folder)
            named = {part.file for part in earlier.parts} if earlier else set()
            # Parts of the earlier set, and what is left from a run of this sweep that died.
            replaced = {
                path.name
                for path in parts_on_disk.part_files(self._folder).values()
                if path.name in named or spec_hash_of(path) == self._manifest.spec_hash
            }
            taken = {number for file in named if (number := part_number(file)) is not None}
            # New numbers, so that the earlier set can be read until the new one replaces it.
            first = max(taken) + 1 if taken & filled.keys() else 0
            files = {part_name(first + number): part for number, part in filled.items()}
            for name in files:
                if name not in replaced and os.path.lexists(self._folder / name):
                    foreign = f"{self._folder / name} already exists and is not of this sweep"
                    raise StoreError(f"{foreign}; move it elsewhere and run the same command again")
            done = dataclasses.replace(
                self._manifest,
                parts=tuple(StoredPart(name, part.rows) for name, part in files.items()),
                counts=counts,
                complete=True,
                finished=manifests.now(),
            )
            sources = {name: part.file for name, part in files.items()}
            disk.publish(self._folder, sources, replaced, manifests.to_json(done))
            return done

    def _gaps(self, written: Collection[int]) -> list[int]:
        return [number for number in range(self._manifest.num_parts) if number not in written]


def finished(folder: str | Path, manifest: Manifest) -> Manifest | None:
    """Return the manifest of the set in `folder` if it is complete and of the sweep of `manifest`.

    None if there is no set, if another version of dsx wrote it, or if a part is missing or damaged. Files that a run
    left when it died while finishing are removed.
    Raises StoreError if the manifest in `folder` is broken or has another schema version, or if the folder of the
    unfinished run is not of dsx.
    """
    folder = Path(folder)
    with disk.os_errors(f"cannot read {folder}"):
        if not folder.is_dir():
            return None
        disk.refuse_foreign_entries(folder)
        done = _whole(folder, manifest)
    if done is not None:
        run = folder / UNFINISHED

        def remove() -> None:
            begun = stated(run)
            if not _foreign_parts(run, done) and (begun is None or _is_same_sweep(begun, done)):
                files = parts_on_disk.part_files(folder).values()
                earlier = [path.name for path in files if spec_hash_of(path) == done.spec_hash]
                disk.clean(folder, {part.file for part in done.parts}, earlier)

        _while_alone(run, remove)
    return done


@contextmanager
def create(folder: str | Path, manifest: Manifest, num_parts: int, shard: Shard | None = None) -> Iterator[Writer]:
    """Yield a writer that begins or continues the set of `manifest`, of `num_parts` parts; makes `folder` if needed.

    A `shard` (i, n) writes the i-th of n shares of the parts, counted from 1; shards may run at the same time, a run
    without a shard must be the only one. If no part was written, the folder is left as it was.
    Raises StoreError, without any change, if the folder cannot be written; if it holds the results or an unfinished run
    of another sweep, version or number of parts, or files or links that are not of dsx; or if other processes work in
    it.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, not a folder; choose another folder with -o")
    run = folder / UNFINISHED
    with ExitStack() as stack:
        with disk.os_errors(f"cannot write to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            disk.refuse_foreign_entries(folder)
            _refuse_other_results(folder, manifest)
            if foreign := _foreign_parts(run, manifest):
                raise StoreError(
                    f"{run} holds parts of another sweep ({', '.join(foreign[:3])}) and no manifest; move it "
                    "elsewhere, or choose another folder with -o"
                )
            # If no part was written, the folder is left as it was.
            stack.callback(_while_alone, run, lambda: None if parts_on_disk.part_files(run) else disk.discard(run))
            with entry(run):
                hold = stack.enter_context(closing(Hold(run, shard)))
                begun = _begin(folder, dataclasses.replace(manifest, num_parts=num_parts), hold.alone)
                if shard is None:
                    disk.remove_partial(run)
        yield Writer(folder, begun, shard)


def _refuse_other_results(folder: Path, manifest: Manifest) -> None:
    stored = stated(folder)
    if stored is not None and not stored.complete:
        raise StoreError(f"{folder} is an unfinished run; give the folder that contains it, {folder.parent}")
    if stored is not None and stored.spec_hash != manifest.spec_hash:
        keys = differences(stored.spec, manifest.spec)
        raise StoreError(
            f"{folder} holds the results of another sweep ({stored.spec_hash[:12]}; this one is "
            f"{manifest.spec_hash[:12]}, they differ in {', '.join(keys[:4])}); choose another folder with -o"
        )
    # Parts of this sweep without a manifest are from a run that died and whose `.unfinished` was then deleted.
    foreign = [n for n in disk.foreign_files(folder) if spec_hash_of(folder / n) != manifest.spec_hash]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise StoreError(
            f"{folder} holds files that are not a result set ({', '.join(foreign[:3])}{more}); "
            "choose another folder with -o"
        )


def _foreign_parts(run: Path, manifest: Manifest) -> list[str]:
    """Return the parts in a run without a manifest that are not of the sweep; its own remain if a run dies."""
    if not run.is_dir() or stated(run) is not None:
        return []
    paths = [*parts_on_disk.part_files(run).values(), *(path for path in (run / MERGED,) if path.exists())]
    return [path.name for path in paths if spec_hash_of(path) != manifest.spec_hash]


def _begin(folder: Path, manifest: Manifest, alone: bool) -> Manifest:
    """Return the manifest of the unfinished run in `folder`; begin a run if there is none to continue."""
    run = folder / UNFINISHED
    if _whole(folder, manifest) is not None:
        raise StoreError(f"another process has just finished {folder}; run the same command again to see it")
    begun = stated(run)
    why = ""  # how an unfinished run differs
    if begun is not None and begun.spec_hash != manifest.spec_hash:
        why = f"another sweep (they differ in {', '.join(differences(begun.spec, manifest.spec)[:4])})"
    elif begun is not None and begun.dsx_version != manifest.dsx_version:
        why = f"dsx {begun.dsx_version} (this is {manifest.dsx_version})"
    elif begun is not None and begun.num_parts != manifest.num_parts:
        why = f"{begun.num_parts} parts (this one has {manifest.num_parts})"
    # A run without parts can be replaced: nothing is lost.
    if why and (parts_on_disk.part_files(run) or not alone):
        raise StoreError(
            f"{folder} holds an unfinished run of {why}; continue that run, delete {run}, or choose another folder "
            "with -o"
        )
    if begun is not None and not why:
        return dataclasses.replace(manifest, started=begun.started)
    if alone:
        disk.empty(run)
    disk.write_whole(run / MANIFEST, manifests.to_json(manifest))
    return manifest


def _whole(folder: Path, manifest: Manifest) -> Manifest | None:
    stored = stated(folder)
    if stored is None or not stored.complete or not _is_same_sweep(stored, manifest):
        return None
    schema = parts_on_disk.part_schema(stored)
    written = ((part, parts_on_disk.footer(folder / part.file, schema)) for part in stored.parts)
    return stored if all(footer is not None and footer.rows == part.rows for part, footer in written) else None


def _is_same_sweep(a: Manifest, b: Manifest) -> bool:
    return (a.spec_hash, a.dsx_version) == (b.spec_hash, b.dsx_version)


def _while_alone(run: Path, tidy: Callable[[], None]) -> None:
    """Tidy a run if no process works on it; do nothing if one does, or if the run may not be changed."""
    with suppress(OSError, StoreError):
        if run.is_dir():
            with entry(run), closing(Hold(run, None)):
                tidy()
