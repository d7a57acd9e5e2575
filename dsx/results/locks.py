"""Which processes work on an unfinished run: locks in its folder, released when their process ends.

    entry.lock            held for a moment by a process that begins or finishes, so that they do so one by one
    run.lock              held by a plain run, which works alone
    shard-2-of-8.lock     held by the process that works on that shard; shards work beside each other

The last two name their process. The folder is removed when its run is finished, so a process that got a lock in a
removed folder tries again. Not covered: file systems without locks, where a second writer is not noticed. Parts are
written whole and do not depend on their writer, so both writers then write the same set.

The `filelock` package (4.2) does not replace this: on a file system without locks (ENOTSUP, ENOLCK) it raises OSError,
where this module lets a sweep continue.
"""

import errno
import fcntl
import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dsx.errors import StoreError
from dsx.results.folder import ENTRY_LOCK, RUN_LOCK, Shard, is_lock, open_file, open_folder, shard_lock

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
