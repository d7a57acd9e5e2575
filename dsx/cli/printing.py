"""Print an object of the API, as text or as one JSON object."""

import json
import math
from collections.abc import Mapping
from typing import Protocol

JSON_VERSION = 1


def print_json(data: Mapping[str, object]) -> None:
    """Print one JSON object with its schema version; NaN and infinity become null."""
    print(json.dumps(_finite({"schema_version": JSON_VERSION, **data}), indent=2))


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Answer(Protocol):
    def to_data(self) -> Mapping[str, object]: ...


def print_answer(answer: _Answer, as_json: bool) -> None:
    """Print an answer of the API as text or as JSON."""
    print_json(answer.to_data()) if as_json else print(answer)
