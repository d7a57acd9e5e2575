"""Where a sweep takes several values: lists, geometric ranges, bounds."""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, PlainSerializer
from pydantic.dataclasses import dataclass

from dsx.errors import SpecError, did_you_mean
from dsx.spec.quantities import choice, count, whole_number
from dsx.units import REAL, parse_number

Relation = Literal["<=", ">=", "==", "<", ">"]

_RELATIONS = get_args(Relation)
_MISWRITTEN = {"=": "==", "=<": "<=", "=>": ">="}
_RANGE = ("from", "to", "times")


def _sizes(value: Any) -> list[int]:
    """Return a count, a list of counts or ``{from: 1024, to: 16384, times: 2}`` as a sorted list."""
    items = _geometric(value) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("the list is empty: at least one value is wanted")
    return sorted({count(item) for item in items})


def _geometric(value: dict[str, Any]) -> list[int]:
    for key in value:
        if key not in _RANGE:
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, _RANGE)} (known: {', '.join(_RANGE)})")
    missing = [key for key in _RANGE if key not in value]
    if missing:
        raise ValueError(f"a range is {{from: 1024, to: 16384, times: 2}}; {', '.join(missing)} is missing")
    size, last, times = count(value["from"]), count(value["to"]), whole_number(value["times"])
    if times < 2 or last < size:
        raise ValueError(f"from {size} to {last} times {times}: wanted are 1 <= from <= to, and times >= 2")
    sizes = []
    while size <= last:
        sizes.append(size)
        size *= times
    return sizes


def _choices(value: Any) -> list[int | str]:
    """Return one value of a candidate column, or a list of them, as a list without repetition."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("the list is empty: no candidate could have such a value")
    return list(dict.fromkeys(choice(item) for item in items))


@dataclass(frozen=True)
class Limit:
    """A bound on a column: candidates whose value is not `relation` `bound` are left out."""

    relation: Relation
    bound: int | float

    def __str__(self) -> str:
        """Return the limit as a sweep file writes it."""
        return f"{self.relation}{self.bound}"


def _limits(value: Any) -> list[Limit]:
    return [_limit(item) for item in (value if isinstance(value, list) else [value])]


def _texts(limits: list[Limit]) -> list[str]:
    return [str(limit) for limit in limits]


def _limit(text: Any) -> Limit:
    match = re.fullmatch(rf"\s*([<>=!]*)\s*({REAL})\s*", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is no bound, such as '<=16' or '>=2'; for one value use fix")
    relation = next((known for known in _RELATIONS if known == match[1]), None)
    if relation is None:
        meant = _MISWRITTEN.get(match[1], "<=") + match[2]
        raise ValueError(f"{text!r} has no known relation; did you mean {meant!r}? (known: {', '.join(_RELATIONS)})")
    return Limit(relation, _bound(match[2]))


def _bound(text: str) -> int | float:
    try:
        return parse_number(text)
    except SpecError as error:
        raise ValueError(str(error)) from error


Sizes = Annotated[list[int], BeforeValidator(_sizes)]
Choices = Annotated[list[int | str], BeforeValidator(_choices)]
Limits = Annotated[list[Limit], BeforeValidator(_limits), PlainSerializer(_texts)]
