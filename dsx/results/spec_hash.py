"""The sweep that a result set answers: the hash of its spec, and the differences of two specs.

The key `plot` is left out: it does not change the rows, so a new picture does not require a new sweep.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dsx.errors import StoreError

_IGNORED = ("plot",)


def spec_hash(spec: Mapping[str, object]) -> str:
    """Return the SHA-256 of a spec; it depends neither on the order of the keys nor on the layout of the file."""
    return hashlib.sha256(canonical(_without_ignored(spec)).encode()).hexdigest()


def differences(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """Return the dotted paths at which two specs differ."""
    return _differing(_without_ignored(a), _without_ignored(b))


def canonical(spec: Mapping[str, object]) -> str:
    """Return a spec as JSON that depends on its content alone; StoreError if JSON cannot hold it."""
    try:
        return json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"a spec must be plain data to be stored: {error}") from None


def _without_ignored(spec: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in _IGNORED}


def _differing(a: object, b: object, path: str = "") -> list[str]:
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return [] if a == b else [path]
    return [
        found
        for key in sorted({*a, *b})
        for found in _differing(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    ]
