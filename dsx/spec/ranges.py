"""Where a sweep takes several values: lists, geometric ranges, bounds."""

import re
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, ValidatorFunctionWrapHandler, WrapValidator
from pydantic.dataclasses import dataclass

from dsx.errors import SpecError, did_you_mean
from dsx.spec.quantities import choice, count, whole_number
from dsx.units import REAL, parse_number

Relation = Literal["<=", ">=", "==", "<", ">"]

_RELATIONS = get_args(Relation)
_MISWRITTEN = {"=": "==", "=<": "<=", "=>": ">="}
_RANGE = ("from", "to", "times")

EMPTY = "the list is empty: at least one value is wanted"

# More values than this in one range, or points in one what-if, are a slip of the pen.
LARGEST_RANGE = 1_000_000

N = TypeVar("N", int, float)


def listed(value: Any) -> Any:
    """Return a single text as a list of one; anything else is left to the schema."""
    return [value] if isinstance(value, str) else value


def _names(value: Any) -> Any:
    if value == []:
        raise ValueError("the list is empty: at least one name is wanted")
    return listed(value)


def _names_or_none(value: Any, read: ValidatorFunctionWrapHandler) -> list[str]:
    return [] if value is None else read(value)


def once(values: list[Any]) -> list[Any]:
    """Return `values` without repetition, each at its first place."""
    return list(dict.fromkeys(values))


def _sizes(value: Any) -> list[int]:
    """Return a count, a list of counts or ``{from: 1024, to: 16384, times: 2}`` as a sorted list."""
    if isinstance(value, dict):
        first, last, times = ends(value)
        return geometric(value, count(first), count(last), whole_number(times))
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError(EMPTY)
    return sorted({count(item) for item in items})


def ends(written: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return what a range states as from, to and times, as it is written.

    Raises ValueError for another key, and for one that is missing.
    """
    for key in written:
        if key not in _RANGE:
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, _RANGE)} (known: {', '.join(_RANGE)})")
    missing = [key for key in _RANGE if key not in written]
    if missing:
        example = ", ".join(f"{key}: {written.get(key, 2 if key == 'times' else '...')}" for key in _RANGE)
        raise ValueError(f"a range is {{{example}}}; {', '.join(missing)} is missing")
    return written["from"], written["to"], written["times"]


def geometric(written: dict[str, Any], first: N, last: N, times: N) -> list[N]:
    """Return `first`, `first` * `times`, `first` * `times`^2, ... up to `last`.

    Real values keep the 15 digits that a float holds, so that 1e-6 times 10 is the 1e-5 that others write, and
    one that passes `last` by rounding alone is `last`. Raises ValueError, which shows the range as `written`,
    for one that is empty or does not grow.
    """
    shown = f"from {written['from']} to {written['to']} times {written['times']}"
    if not (0 < first <= last and times > 1):
        raise ValueError(f"{shown}: wanted are 0 < from <= to, and times > 1")
    values, value = [], first
    limit = last if isinstance(last, int) else last * (1 + 1e-9)
    while value <= limit:
        if len(values) == LARGEST_RANGE:
            raise ValueError(f"{shown} has more than {LARGEST_RANGE:,} values; take a larger factor")
        exact = isinstance(value, int) or value == first
        values.append(value if exact else min(float(f"{value:.15g}"), last))
        value *= times
    return values


def _choices(value: Any) -> list[int | str]:
    """Return one value of a candidate column, or a list of them, as a list without repetition."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("the list is empty: no candidate could have such a value")
    return once([choice(item) for item in items])


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
    match = re.fullmatch(rf"([<>=!]*)\s*({REAL})", text.strip()) if isinstance(text, str) else None
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


Names = Annotated[list[str], BeforeValidator(_names), AfterValidator(once)]  # "1d", [1d, 2d]
# Names, or null for those that are taken where nothing is said.
NamesOrDefault = Annotated[Names, WrapValidator(_names_or_none), PlainSerializer(lambda names: names or None)]
Sizes = Annotated[list[int], BeforeValidator(_sizes)]
Choices = Annotated[list[int | str], BeforeValidator(_choices)]
Limits = Annotated[list[Limit], BeforeValidator(_limits), PlainSerializer(_texts)]
