"""JSON text to checked values: every fault names the file and the path of keys to it.

A file of this kind is written by a program and often is one long line, so that a line number would say little.
"""

import json
import math
import re
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsx.errors import SpecError, did_you_mean
from dsx.spec.locate import find_path, shown
from dsx.spec.text_file import read_text, whole_characters

_LARGEST = 1e30  # in any unit
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escape that may be half a character


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a JSON document, and where it is: "file: key.key"."""

    data: Any
    file: str
    path: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Return the place as messages begin with it."""
        return f"{self.file}: {'.'.join(self.path)}" if self.path else self.file

    def fault(self, message: str) -> SpecError:
        """Return the error that says `message` of this part."""
        return SpecError(f"{self.place}: {message}")

    def keys(self) -> list[str]:
        """Return the keys of an object that has some."""
        if not isinstance(self.data, dict) or not self.data:
            raise self.fault(f"expected an object with keys, got {reprlib.repr(self.data)}")
        return list(self.data)

    def __getitem__(self, key: str) -> "Part":
        if not isinstance(self.data, dict) or key not in self.data:
            keys = self.keys()
            raise self.fault(f"has no {key!r}{did_you_mean(key, keys)} (it has {', '.join(map(str, keys))})")
        return Part(self.data[key], self.file, (*self.path, key))

    def entries(self) -> list[Any]:
        """Return a list that has entries."""
        if not isinstance(self.data, list) or not self.data:
            raise self.fault(f"expected a list with entries, got {reprlib.repr(self.data)}")
        return self.data

    def items(self) -> list["Part"]:
        """Return the entries of a list that has some."""
        return [Part(entry, self.file, (*self.path, str(index))) for index, entry in enumerate(self.entries())]

    def text(self) -> str:
        """Return a text."""
        if not isinstance(self.data, str):
            raise self.fault(f"expected a text, got {reprlib.repr(self.data)}")
        return self.data

    def number(self, least: float = -math.inf) -> float:
        """Return a finite number of at least `least`."""
        if isinstance(self.data, bool) or not isinstance(self.data, int | float):
            raise self.fault(f"expected a number, got {reprlib.repr(self.data)}")
        if not -_LARGEST <= self.data <= _LARGEST:
            raise self.fault(f"expected a finite number, got {reprlib.repr(self.data)}")
        if self.data < least:
            raise self.fault(f"{self.data!r} is less than {least:g}, the least there can be")
        return self.data

    def positive(self) -> float:
        """Return a finite number above 0."""
        if (value := self.number()) <= 0:
            raise self.fault(f"{value!r} is not above 0")
        return value

    def whole(self, least: int) -> int:
        """Return a whole number of at least `least`."""
        if (value := self.number(least)) != int(value):
            raise self.fault(f"{value!r} is not a whole number")
        return int(value)


def load_json(what: str, name: str) -> Part:
    """Return the document at the path `name`; messages call it a `what`. Raises SpecError if it is no JSON file."""
    path = find_path(what, name)
    file = shown(path)
    return Part(parse_json(read_text(path), file, lambda pairs: _object(pairs, file)), file)


def parse_json(text: str, file: str, of_pairs: Callable[[list[tuple[str, Any]]], Any] = dict) -> Any:
    """Return the data of a JSON text; `file` names it in errors, `of_pairs` makes its objects.

    Raises SpecError, with line and column where there are some, for what is no JSON and half characters.
    """
    try:
        data = json.loads(text, object_pairs_hook=of_pairs)
    except json.JSONDecodeError as error:
        raise SpecError(f"{file}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from error
    except RecursionError as error:
        raise SpecError(f"{file}: lists and objects are nested too deeply") from error
    except ValueError as error:  # digits without end
        raise SpecError(f"{file}: is not JSON that can be read: {error}") from error
    if _HALF.search(text):
        _check_characters(data, file)
    return data


def _check_characters(data: Any, file: str) -> None:
    pending = [Part(data, file)]
    while pending:
        part = pending.pop()
        inside = part.data.items() if isinstance(part.data, dict) else ()
        inside = enumerate(part.data) if isinstance(part.data, list) else inside
        for key, value in inside:
            for text in (key, value):
                try:
                    whole_characters(text if isinstance(text, str) else "")
                except ValueError as error:
                    raise part.fault(str(error)) from None
            pending.append(Part(value, file, (*part.path, str(key))))


def _object(pairs: list[tuple[str, Any]], file: str) -> dict[str, Any]:
    """Return an object; a key that stands twice is no choice of which one counts."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            others = ", ".join(dict(pairs))
            raise SpecError(f"{file}: the key {key!r} is given twice in one object, beside {others}")
        found[key] = value
    return found
