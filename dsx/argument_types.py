"""Arguments of the wrong type, refused where they enter: each function names the argument and what is wanted.

A path is a text or a Path; NumPy, pandas and pathlib would take other things and fail later, or take them for something
else.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from dsx.errors import InputError

C = TypeVar("C")


def file_path(name: str, given: object) -> Path:
    """Return the argument called `name` as a path; InputError if it is none."""
    if isinstance(given, str | os.PathLike) and isinstance(path := os.fspath(given), str):
        return Path(path)
    raise wrong(name, given, f"a path is wanted, as a text or a Path{_hint_of_folder(given)}")


def one_text(name: str, given: object, example: str) -> str:
    """Return the argument called `name`; InputError if it is no text, such as `example`."""
    if isinstance(given, str):
        return given
    raise wrong(name, given, f"one name is wanted, such as {example!r}")


def texts(name: str, given: object, example: str) -> list[str]:
    """Return several texts as a list; InputError if the argument called `name` is one text, or no texts at all."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray):
        found = [*given]
        if all(isinstance(one, str) for one in found):
            return found
    one = f"; for one write [{given!r:.60}]" if isinstance(given, str) else ""
    raise wrong(name, given, f"a list of names is wanted, such as [{example!r}]{one}")


def function(name: str, given: C) -> C:
    """Return the argument called `name`; InputError if it cannot be called."""
    if callable(given):
        return given
    raise wrong(name, given, "a function is wanted")


def wrong(name: str, given: object, wanted: str) -> InputError:
    """Return the error for an argument of the wrong type; what takes several lines is shown by its type."""
    text = repr(given)
    shown = type(given).__name__ if "\n" in text else text[:60]
    return InputError(f"{name}: {shown} is given, and {wanted}")


def _hint_of_folder(given: object) -> str:
    """Return where the path is of an answer that has a folder."""
    match getattr(given, "folder", ""):
        case "":
            return ""
        case None:
            return "; its .folder is None, since nothing was written: name one where it is made: dsx.sweep(spec, out)"
        case _:
            return "; its .folder is one"
