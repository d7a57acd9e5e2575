"""Arguments as Python callers give them, made what the shell would have read: counts, and fields that are set."""

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

from dsx.errors import InputError, SpecError
from dsx.units import parse_count

# Fields that are changed, as in {"cluster.device.hbm_capacity": "141 GB"} or ["cluster.device.hbm_capacity=141 GB"].
Fields = Mapping[str, Any] | Sequence[str]


def count(name: str, value: object) -> int:
    """Return an argument as a whole number of at least 1; NumPy's are some too. InputError says its `name`."""
    known = operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else value
    try:
        return parse_count(known)
    except SpecError as error:
        raise InputError(f"{name}: {error}") from None


def assignments(fields: Fields | None) -> list[str]:
    """Return fields that are changed as the shell writes them: FIELD=VALUE."""
    if isinstance(fields, str):
        return [fields]
    if isinstance(fields, Mapping):
        return [f"{path}={_text(path, value)}" for path, value in fields.items()]
    return list(fields or ())


def _text(path: str, value: Any) -> str:
    """Return a value as YAML reads it again."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, default=_plain)
    except TypeError:
        raise InputError(f"set {path}: {value!r} is no number, text, list or mapping") from None


def _plain(value: Any) -> Any:
    """Return a number or array of NumPy as Python has it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError
