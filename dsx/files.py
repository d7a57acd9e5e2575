"""Files by their names in an open folder: whole or absent, and never through a link.

A file is written under a passing name that nobody else has, put on disk, and only then renamed, so that each is whole
or absent. An open folder stays the one that was opened, whatever its path comes to mean; a name in it is that of a
file which lies there, so that nothing elsewhere is read, written or removed. How the folder itself is reached is the
user's choice: it may be a link.

Not covered: Windows, which has no such renames.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, ELOOP, ENOTDIR
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

PARTIAL = ".partial"  # ends a passing name

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe is opened without waiting for who writes to it, and refused then.
_THERE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class OpenFolder:
    """A folder that is open; every method raises OSError where it fails."""

    def __init__(self, path: Path, follow: bool = True) -> None:
        """Open it; one that is a link to another folder only if `follow`."""
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

    def is_file(self, name: str) -> bool:
        """Return whether `name` is a file of this folder: no link, no folder, no pipe."""
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def is_shared(self, name: str) -> bool:
        """Return whether a file has other names, here or elsewhere."""
        try:
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_nlink > 1
        except FileNotFoundError:
            return False

    def has(self, name: str) -> bool:
        """Return whether there is anything of that name, be it a link to nothing."""
        try:
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open(self, name: str, flags: int = os.O_RDONLY) -> BinaryIO:
        """Open the file of that name; with O_CREAT it is made if need be."""
        try:
            descriptor = os.open(name, flags | _THERE, 0o666, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == ELOOP:
                raise OSError(ELOOP, f"{name} is a link, which is not followed here") from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(EINVAL, f"{name} is no file")
            return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def create(self, name: str, content: bytes | memoryview) -> None:
        """Write a file that is not there yet, and put it on disk."""
        descriptor = os.open(name, _NEW, 0o666, dir_fd=self._descriptor)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, name: str, target: "OpenFolder", new: str) -> None:
        """Give a file of this folder the name `new` in `target`, in place of whatever has it."""
        os.replace(name, new, src_dir_fd=self._descriptor, dst_dir_fd=target._descriptor)

    def link(self, name: str, target: "OpenFolder", new: str) -> None:
        """Give a file of this folder a second name, `new` in `target`, which must not be there yet."""
        os.link(name, new, src_dir_fd=self._descriptor, dst_dir_fd=target._descriptor, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a name, if it is there; what a link leads to stays."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove a folder of this one, which must be empty."""
        os.rmdir(name, dir_fd=self._descriptor)

    def sync(self) -> None:
        """Put the names of the folder's files on disk."""
        os.fsync(self._descriptor)

    @contextmanager
    def passing(self, suffix: str = PARTIAL) -> Iterator[str]:
        """Give a name that no other writer uses; what still has it at the end is removed."""
        name = f".{secrets.token_hex(8)}{suffix}"
        try:
            yield name
        finally:
            with suppress(OSError):
                self.remove(name)

    def write_whole(self, name: str, content: bytes | memoryview, scratch: "OpenFolder | None" = None) -> None:
        """Write a file so that `name` holds either all of `content`, on disk, or what it held before.

        The passing name lies in `scratch`, on the same disk; by default here.
        """
        there = scratch or self
        with there.passing() as partial:
            there.create(partial, content)
            there.rename(partial, self, name)
        self.sync()


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that `path` holds either all of `content`, on disk, or what it held before.

    A link of that name is replaced, not followed. Raises OSError.
    """
    with OpenFolder(path.parent) as folder:
        folder.write_whole(path.name, content)
