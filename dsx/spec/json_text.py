"""JSON files as documents; errors name the path of keys.

Programs write such files, often as one long line, where a line number says little.
"""

import json
import re
import reprlib
from collections.abc import Callable
from typing import Any

from dsx.errors import SpecError
from dsx.spec.document import Document, KeyPath
from dsx.spec.locate import find_path, shown
from dsx.spec.text_file import read_text, whole_characters

_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escape that may be half of a surrogate pair


def load_json(what: str, name: str) -> Document:
    """Return the document at the path `name`; `what` is its kind in messages.

    Raises SpecError if the file is not JSON, not an object, or has a key twice in one object.
    """
    path = find_path(what, name)
    file = shown(path)
    data = parse_json(read_text(path), file, lambda pairs: _object(pairs, file))
    if not isinstance(data, dict):
        raise SpecError(f"{file}: expected an object with keys, got {reprlib.repr(data)}")
    return Document(data, {(): file})


def parse_json(text: str, file: str, of_pairs: Callable[[list[tuple[str, object]]], object] = dict) -> Any:
    """Return the data of a JSON string; errors name `file`, and `of_pairs` makes its objects.

    Raises SpecError, with line and column where known, for invalid JSON and for half surrogate pairs.
    """
    try:
        data = json.loads(text, object_pairs_hook=of_pairs)
    except json.JSONDecodeError as error:
        raise SpecError(f"{file}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from None
    except RecursionError:
        raise SpecError(f"{file}: lists and objects are nested too deeply") from None
    except ValueError as error:  # an integer of too many digits
        raise SpecError(f"{file}: is not JSON that can be read: {error}") from None
    if _HALF.search(text):
        _check_characters(data, file)
    return data


def _check_characters(data: object, file: str) -> None:
    pending: list[tuple[KeyPath, object]] = [((), data)]
    while pending:
        path, part = pending.pop()
        inside = part.items() if isinstance(part, dict) else ()
        inside = enumerate(part) if isinstance(part, list) else inside
        for key, value in inside:
            for text in (key, value):
                try:
                    whole_characters(text if isinstance(text, str) else "")
                except ValueError as error:
                    raise Document({}, {(): file}).fault(path, error) from None
            pending.append(((*path, key), value))


def _object(pairs: list[tuple[str, object]], file: str) -> dict[str, Any]:
    """Return an object; raises SpecError for a repeated key, since either value could be meant."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            others = ", ".join(dict(pairs))
            raise SpecError(f"{file}: an object has the key {key!r} twice (its keys: {others})")
        found[key] = value
    return found
