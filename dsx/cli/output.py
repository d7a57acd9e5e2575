"""Print an object of the API, as text or as one JSON object."""

import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

JSON_VERSION = 1


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON object with its schema version; NaN and infinity become null."""
    print(json.dumps({"schema_version": JSON_VERSION} | _finite(data), indent=2))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Answer(Protocol):
    def to_data(self) -> dict[str, Any]: ...


def show(answer: _Answer, as_json: bool) -> None:
    """Print an answer of the API as text or as JSON."""
    print_json(answer.to_data()) if as_json else print(answer)
