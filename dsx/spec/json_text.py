"""JSON text to checked values: every fault names the file and the path of keys to it.

A file of this kind is written by a program and often is one long line, so that a line number would say little.
"""

import json
import math
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsx.errors import SpecError, did_you_mean
from dsx.spec.locate import find_path, shown

_LARGEST = 1e30  # in any unit


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
        keys = self.keys()
        if key not in keys:
            raise self.fault(f"has no {key!r}{did_you_mean(key, keys)} (it has {', '.join(map(str, keys))})")
        return Part(self.data[key], self.file, (*self.path, key))

    def items(self) -> list["Part"]:
        """Return the entries of a list that has some."""
        if not isinstance(self.data, list) or not self.data:
            raise self.fault(f"expected a list with entries, got {reprlib.repr(self.data)}")
        return [Part(entry, self.file, (*self.path, str(index))) for index, entry in enumerate(self.data)]

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
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        return Part(json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, file)), file)
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{file}: is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise SpecError(f"{file}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:  # lists within lists within ..., digits without end
        raise SpecError(f"{file}: is not JSON that can be read: {error}") from error


def _object(pairs: list[tuple[str, Any]], file: str) -> dict[str, Any]:
    """Return an object; a key that stands twice is no choice of which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise SpecError(f"{file}: the key {twice!r} is given twice in one object, beside {', '.join(found)}")
    return found
