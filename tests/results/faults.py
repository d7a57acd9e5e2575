"""What a process is about to change on disk, call by call, so that a test can end it there or let the call fail.

dsx changes a result folder by calls of `os` in an open folder (dsx/files.py) and by `Path.mkdir`; locks are taken by
`fcntl.flock`. The functions are replaced in this process, so this is for processes that are given up afterwards.
"""

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NAMES = ("open", "write", "fsync", "replace", "link", "unlink", "rmdir", "mkdir")
LOCK = "flock"


@dataclass(frozen=True)
class Change:
    """The n-th change, counted from 0; calling it makes the change."""

    n: int
    name: str  # of the function
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self) -> Any:
        return self.call(*self.arguments, **self.options)


def replace_calls(act: Callable[[Change], Any], only_under: str) -> None:
    """Let `act` take the place of every change; folders that are made count where they lie under `only_under`."""
    counted = iter(range(1_000_000))

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any, **options: Any) -> Any:
            if not _changes(name, arguments, options, only_under):
                return call(*arguments, **options)
            return act(Change(next(counted), name, call, arguments, options))

        return changing

    for name in NAMES:
        setattr(os, name, wrapped(name, getattr(os, name)))
    fcntl.flock = wrapped(LOCK, fcntl.flock)


def _changes(name: str, arguments: tuple[Any, ...], options: dict[str, Any], only_under: str) -> bool:
    match name:
        case "open":
            return "dir_fd" in options and bool(arguments[1] & os.O_CREAT)
        case "mkdir":
            return str(arguments[0]).startswith(only_under)
        case "write" | "fsync" | "flock":
            return True
        case _:
            return "dir_fd" in options or "src_dir_fd" in options
