"""Which sweep a result set answers: the hash of its spec, and in what two specs differ.

What a spec draws of its results (`plot`) is not part of what it asks, so a set is not priced again for a picture.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dsx.errors import StoreError

_NOT_ASKED = ("plot",)


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a spec asks; neither the order of its keys nor its layout matters."""
    return hashlib.sha256(canonical(_asked(spec)).encode()).hexdigest()


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return the dotted paths at which two specs ask for different things."""
    return _differing(_asked(a), _asked(b))


def canonical(spec: Mapping[str, Any]) -> str:
    """Return a spec as JSON that is the same for the same content; StoreError if JSON cannot hold it."""
    try:
        return json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"a spec must be plain data to be stored: {error}") from None


def _asked(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in _NOT_ASKED}


def _differing(a: Any, b: Any, path: str = "") -> list[str]:
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return [] if a == b else [path]
    return [
        found
        for key in sorted({*a, *b})
        for found in _differing(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    ]
