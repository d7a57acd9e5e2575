"""Print an object of the API, as text or as one JSON object."""

import json
from collections.abc import Mapping
from typing import Protocol


def print_json(data: Mapping[str, object]) -> None:
    """Print one JSON object."""
    print(json.dumps(data, indent=2))


class _Answer(Protocol):
    def to_data(self) -> Mapping[str, object]: ...


def print_answer(answer: _Answer, as_json: bool) -> None:
    """Print an answer of the API as text or as JSON."""
    print_json(answer.to_data()) if as_json else print(answer)
