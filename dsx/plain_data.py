"""Answers as plain data, in the one form that Python returns and the shell prints with --json."""

import math
from collections.abc import Mapping
from typing import Any

JSON_VERSION = 1  # of the form


def versioned(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data as JSON has it: with the version of its form, and None in place of NaN and infinity."""
    return {"schema_version": JSON_VERSION} | {key: _finite(value) for key, value in data.items()}


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
