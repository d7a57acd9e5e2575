"""A document: plain data, and the file and line of each part of it.

With these places, an error that the schema finds later can name file:line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeGuard

from dsx.errors import SpecError

KeyPath = tuple[str | int, ...]

_OF_VALUES = {"value", "source", "between", "needs", "otherwise", "lost"}


@dataclass(frozen=True)
class Document:
    """Plain data (dicts, lists, scalars) and its places."""

    data: dict[str, Any]
    places: dict[KeyPath, str]  # key path -> "file:line"; () is the document itself

    def place(self, path: KeyPath) -> str:
        """Return the place of `path`, or of the innermost section around it that has one."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places[path]

    def message(self, path: KeyPath, text: object) -> str:
        """Return `text` with the place and the keys of `path` in front: "file:line: key.key: text"."""
        # A message about the whole document has no path.
        keys = [".".join(map(str, path))] if path else []
        return ": ".join([self.place(path), *keys, str(text)])

    def fault(self, path: KeyPath, text: object) -> SpecError:
        """Return the error with the message of `text` at `path`."""
        return SpecError(self.message(path, text))


def stated_in_code(content: Mapping[Any, object], place: str) -> Document:
    """Return content that a program states as a document; `place` is the place of all of it."""
    data: dict[str, object] = _plain(content)
    return Document(data, dict.fromkeys(paths_of(data), place))


def _plain(value: Any) -> Any:
    """Return what a program states as a file would: tuples and arrays are lists, numbers of NumPy are Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple | range) else value


def paths_of(data: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of `data` and those of all its parts."""
    yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from paths_of(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from paths_of(value, (*path, index))


def is_sourced(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether `value` is a value with its source, ``{value: ..., source: ...}``, and not a section.

    A fitted number also states its bounds, ``between: [..., ...]``, an effect what it needs and its value without that
    (`dsx.spec.conditions`).
    """
    return isinstance(value, dict) and "value" in value and value.keys() <= _OF_VALUES


def merged(stated: Sequence[Document]) -> Document:
    """Return documents as one, each merged over those after it: sections merge, any other value replaces."""
    return reduce(_merged_over, reversed(stated))


def _merged_over(base: Document, over: Document) -> Document:
    data = _merge(base.data, over.data)
    places = base.places | over.places
    return Document(data, {path: places[path] for path in paths_of(data)})


def _merge(base: Any, over: Any) -> Any:
    sections = isinstance(base, dict) and isinstance(over, dict)
    # A number replaces both value and source: the old source does not vouch for the new value.
    if not sections or is_sourced(base) or is_sourced(over):
        return over
    return base | {key: _merge(base[key], value) if key in base else value for key, value in over.items()}
