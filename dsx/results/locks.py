"""Which processes work on an unfinished run: locks in its folder, released when their process ends.

    entry.lock            held for a moment by a process that begins or finishes, so that they do so one by one
    run.lock              held by every process that works on the run: exclusive for a plain run, shared by shards
    shard-2-of-8.lock     held by the process that works on that shard

The last two name their process. The folder is removed when its run is finished, so a process that got a lock in a
removed folder tries again. Not covered: file systems without locks, where a second writer is not noticed. Parts are
written whole and do not depend on their writer, so both writers then write the same set.

The `filelock` package (4.2) does not replace this: its FileLock has no shared mode, and its ReadWriteLock cannot turn a
shared lock into an exclusive one or back (RuntimeError), which is how shards share a run and the last one finishes it.
On a file system without locks (ENOTSUP, ENOLCK) it raises OSError, where this module lets a sweep continue.
"""

import errno
import fcntl
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dsx.errors import StoreError
from dsx.results.folder import ENTRY_LOCK, RUN_LOCK, Shard, is_shard_lock, open_file, open_folder, shard_lock

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
            named = self._open(shard_lock(shard)) if shard else self._common
            if shard and not _lock(named, fcntl.LOCK_EX):
                holder = _holder(run / shard_lock(shard))
                raise StoreError(f"{run.parent}: shard {shard[0]}/{shard[1]} is already running, {holder}; {_CURE}")
            named.truncate(0)
            named.write(f"process {os.getpid()} on {platform.node()}".encode())
            named.flush()
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
            file = folder.open(name, _CREATED)
        self._files.append(file)
        return file

    def _busy(self) -> str:
        mine = shard_lock(self._shard) if self._shard else ""
        with open_folder(self._run) as folder:
            shards = [self._run / name for name in folder.names() if is_shard_lock(name) and name != mine]
        held = [path for path in shards if _is_held(path)]
        holders = ", ".join(map(_holder, held or [self._run / RUN_LOCK]))
        return f"{self._run.parent}: another dsx is running here, {holders}; {_CURE}"


def _holder(path: Path) -> str:
    """Return the process that holds the lock at `path`, by its own words: "process 12 on node7"."""
    with open_file(path) as file:
        name = file.read(_LONGEST_NAME).decode("utf-8", "replace")
    return name if _HOLDER.fullmatch(name) else "a process that has just started"


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
