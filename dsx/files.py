"""Files: atomic operations in an open folder that never follow links, and the distribution that brought the package.

A file is written under a temporary name, synced to disk, and then renamed, so it is either complete or absent. An open
folder stays the same folder even if its path changes. Names in it are those of its own files, so nothing outside of it
is read, written or removed. The path of the folder itself may be a link.

Not covered: Windows, which has no such renames.

The name on a package index is not that of the import. `[project].name` of pyproject.toml is the one place of it; what
is installed knows it as the distribution that has this package's command.
"""

import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, ELOOP, ENOTDIR
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

MANIFEST = "manifest.json"  # in a result set, and in a folder of traces: what the other files are
PARTIAL = ".partial"  # suffix of a temporary name
_LEFT = re.compile(r"\.[0-9a-f]{16}\.partial")
_NEW_S = 2.0  # after which a file that is written is held by its writer

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe must not wait for its writer; `OpenFolder.open` then refuses it.
_THERE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class OpenFolder:
    """A folder that is open; every method raises OSError where it fails."""

    def __init__(self, path: Path, follow: bool = True) -> None:
        """Open the folder at `path`; a link to a folder only if `follow`."""
        self.path = path
        try:
            self._descriptor = os.open(path, _FOLDER | (0 if follow else os.O_NOFOLLOW))
        except NotADirectoryError:
            if os.path.islink(path) and os.path.isdir(path):
                raise OSError(ENOTDIR, f"{path.name} is a link, which is not followed here") from None
            raise

    def __enter__(self) -> "OpenFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def names(self) -> list[str]:
        """Return the names in the folder, sorted."""
        return sorted(os.listdir(self._descriptor))

    def _stat(self, name: str) -> os.stat_result | None:
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def is_file(self, name: str) -> bool:
        """Return whether `name` is a regular file, and not a link, a folder or a pipe."""
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        """Return the bytes of a regular file; None if there is none of that name."""
        entry = self._stat(name)
        return entry.st_size if entry is not None and stat.S_ISREG(entry.st_mode) else None

    def is_shared(self, name: str) -> bool:
        """Return whether a file has other hard links."""
        entry = self._stat(name)
        return entry is not None and entry.st_nlink > 1

    def has(self, name: str) -> bool:
        """Return whether the name exists, even as a broken link."""
        return self._stat(name) is not None

    def open(self, name: str, flags: int = os.O_RDONLY) -> BinaryIO:
        """Open the file of that name; with O_CREAT, create it if it does not exist."""
        try:
            descriptor = os.open(name, flags | _THERE, 0o666, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == ELOOP:
                raise OSError(ELOOP, f"{name} is a link, which is not followed here") from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(EINVAL, f"{name} is not a file")
            return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def create(self, name: str, *contents: bytes | memoryview, synced: bool = True) -> None:
        """Write a new file of some contents one after the other, and sync it to disk unless told otherwise."""
        descriptor = os.open(name, _NEW, 0o666, dir_fd=self._descriptor)
        try:
            hold(descriptor)
            for content in contents:
                unwritten = memoryview(content)
                while unwritten:
                    unwritten = unwritten[os.write(descriptor, unwritten) :]
            if synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, name: str, target: "OpenFolder", new: str) -> None:
        """Rename a file of this folder to `new` in `target`, and replace any file of that name."""
        os.replace(name, new, src_dir_fd=self._descriptor, dst_dir_fd=target._descriptor)

    def link(self, name: str, target: "OpenFolder", new: str) -> None:
        """Make a hard link to a file of this folder: `new` in `target`, which must not exist."""
        os.link(name, new, src_dir_fd=self._descriptor, dst_dir_fd=target._descriptor, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a name if it exists; the target of a link stays."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder of this folder."""
        os.rmdir(name, dir_fd=self._descriptor)

    def sync(self) -> None:
        """Sync the folder's entries to disk."""
        os.fsync(self._descriptor)

    @contextmanager
    def temporary_name(self, suffix: str = PARTIAL) -> Iterator[str]:
        """Yield a temporary name that no other writer uses; a file that still has it at the end is removed."""
        name = f".{secrets.token_hex(8)}{suffix}"
        try:
            yield name
        finally:
            with suppress(OSError):
                self.remove(name)

    def remove_left(self) -> None:
        """Remove the temporary files of writers that were killed: those that no process holds."""
        for name in filter(_LEFT.fullmatch, self.names()):
            with suppress(OSError), self.open(name) as file:
                is_new = time.time() - os.fstat(file.fileno()).st_mtime < _NEW_S
                if not is_new and hold(file.fileno()):
                    self.remove(name)

    def write_whole(
        self, name: str, *contents: bytes | memoryview, scratch: "OpenFolder | None" = None, synced: bool = True
    ) -> None:
        """Write a file atomically: `name` holds either all of `contents`, synced to disk, or its former content.

        The temporary file is in `scratch`, on the same file system; by default in this folder. A file that is not
        `synced` is whole or absent unless the machine stops.
        """
        folder = scratch or self
        with folder.temporary_name() as partial:
            folder.create(partial, *contents, synced=synced)
            folder.rename(partial, self, name)
        if synced:
            self.sync()


def hold(descriptor: int) -> bool:
    """Lock an open file until it is closed, or the process ends; return whether no other process had locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically: `path` holds either all of `content`, synced to disk, or its former content.

    A link of that name is replaced and not followed. What writers that were killed have left beside it is removed.
    Raises OSError.
    """
    with OpenFolder(path.parent) as folder:
        folder.remove_left()
        folder.write_whole(path.name, content)


COMMAND, MAIN = "dsx", "dsx.__main__:main"


def distribution() -> metadata.Distribution:
    """Return the distribution; raises PackageNotFoundError where none is installed."""
    for entry in metadata.entry_points(group="console_scripts", name=COMMAND):
        if entry.value == MAIN and entry.dist is not None:
            return entry.dist
    raise metadata.PackageNotFoundError(COMMAND)


def install_text(what: str) -> str:
    """Return the command that installs the distribution with `what`: "[place]", an extra, or ">=7.1.0"."""
    return f"pip install '{distribution().name}{what}'"
