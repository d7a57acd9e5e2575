"""The JSON of a result folder, read and checked; every run and every reader uses this.

A folder may come from anywhere, or be damaged, so nothing is trusted: neither that the content is text, nor that it is
of finite depth, nor that its numbers are finite. The result is plain data that dsx can write, hash and print.
The JSON reader of pydantic does not replace this: it refuses the surrogates that stand for bytes of a file name, and
accepts 1e999 as infinity and whole numbers of any length.
"""

import json
import math
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from dsx.errors import StoreError

T = TypeVar("T")

# Depth of nested lists and objects; files of dsx have a tenth of it.
_DEEPEST = 100
_LARGEST = 2**63 - 1
_LONGEST_REASON = 300  # letters of a reason


def parse(text: bytes, place: str) -> Any:
    """Return the plain data in `text`, which errors call `place`; StoreError if it is not plain data."""
    try:
        data = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
        _check(data, _DEEPEST)
    except (RecursionError, ValueError) as error:  # UnicodeDecodeError and JSONDecodeError too
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise StoreError(f"{place} is not JSON that can be read ({why:.{_LONGEST_REASON}})") from None
    return data


def read(text: bytes, kind: "TypeAdapter[T]", place: str) -> T:
    """Return the value of this `kind` in `text`; StoreError if it is not one."""
    try:
        return kind.validate_python(parse(text, place))
    except ValidationError as error:
        raise StoreError(f"{place}: {reason(error)}") from None


def reason(error: ValidationError, within: str = "") -> str:
    """Return the place of the first fault, and the fault; `within` is the path of the checked value."""
    first = error.errors(include_url=False)[0]
    steps = [str(step) for step in first["loc"] if not str(step).startswith("<")]
    where = ".".join([*([within] if within else []), *steps]) or "the whole file"
    return f"{where:.{_LONGEST_REASON}}: {first['msg'].removeprefix('Value error, '):.{_LONGEST_REASON}}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _check(value: object, depth: int) -> None:
    if not depth:
        raise RecursionError
    match value:
        case dict() | list():
            for inner in (*value, *(value.values() if isinstance(value, dict) else ())):
                _check(inner, depth - 1)
        case str():
            # Surrogates may stand for bytes of a file name that are not UTF-8; dsx cannot write any others.
            value.encode("utf-8", "surrogateescape")
        case bool():
            pass
        case int() if abs(value) > _LARGEST:
            raise ValueError("a whole number of more than 64 bits")
        case float() if not math.isfinite(value):
            raise ValueError("a number that is not finite")
