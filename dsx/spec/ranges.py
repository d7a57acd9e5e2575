"""Types of the fields of a sweep with several values: lists, geometric ranges, bounds."""

import math
import re
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, ValidatorFunctionWrapHandler, WrapValidator
from pydantic import dataclasses

from dsx.errors import SpecError, did_you_mean
from dsx.spec.value_types import choice, count, whole_number
from dsx.units import REAL, parse_number

Relation = Literal["<=", ">=", "==", "<", ">"]

_RELATIONS = get_args(Relation)
_MISWRITTEN = {"=": "==", "=<": "<=", "=>": ">="}
_RANGE = ("from", "to", "times")

EMPTY = "the list is empty: expected at least one value"

# More values in a range, or more points of a what-if, are surely a typing error.
LARGEST_RANGE = 1_000_000

N = TypeVar("N", int, float)
T = TypeVar("T")


def listed(value: object) -> Any:
    """Return a single string as a list of one; any other value unchanged, for the schema to check."""
    return [value] if isinstance(value, str) else value


def _names(value: object) -> object:
    if value == []:
        raise ValueError("the list is empty: expected at least one name")
    return listed(value)


def _names_or_none(value: object, read: ValidatorFunctionWrapHandler) -> list[str]:
    return [] if value is None else read(value)


def once(values: list[T]) -> list[T]:
    """Return `values` without repetitions, in the order of their first occurrence."""
    return list(dict.fromkeys(values))


def _sizes(value: object) -> list[int]:
    """Return a count, a list of counts or ``{from: 1024, to: 16384, times: 2}`` as a sorted list."""
    if isinstance(value, dict):
        first, last, times = ends(value)
        return geometric(value, count(first), count(last), whole_number(times))
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError(EMPTY)
    return sorted({count(item) for item in items})


def ends(written: dict[str, object]) -> tuple[Any, Any, Any]:
    """Return (from, to, times) of a range as written; raises ValueError for an unknown or a missing key."""
    for key in written:
        if key not in _RANGE:
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, _RANGE)} (known: {', '.join(_RANGE)})")
    missing = [key for key in _RANGE if key not in written]
    if missing:
        example = ", ".join(f"{key}: {written.get(key, 2 if key == 'times' else '...')}" for key in _RANGE)
        raise ValueError(f"a range is {{{example}}}; {', '.join(missing)} is missing")
    return written["from"], written["to"], written["times"]


def divisors_of(number: int) -> list[int]:
    """Return the divisors of a number in increasing order."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def geometric(written: dict[str, object], first: N, last: N, times: N) -> list[N]:
    """Return `first`, `first` * `times`, `first` * `times`^2, ... up to `last`.

    Real values are rounded to the 15 digits that a float holds, so that 1e-6 times 10 is exactly 1e-5, and a value that
    exceeds `last` by rounding alone is `last`. Raises ValueError, which shows the range as `written`, for an empty
    range or one that does not grow.
    """
    shown = f"from {written['from']} to {written['to']} times {written['times']}"
    if not (0 < first <= last and times > 1):
        raise ValueError(f"{shown}: expected 0 < from <= to, and times > 1")
    values, value = [], first
    limit = last if isinstance(last, int) else last * (1 + 1e-9)
    while value <= limit:
        if len(values) == LARGEST_RANGE:
            raise ValueError(f"{shown} has more than {LARGEST_RANGE:,} values; take a larger factor")
        exact = isinstance(value, int) or value == first
        values.append(value if exact else min(float(f"{value:.15g}"), last))
        value *= times
    return values


def _choices(value: object) -> list[int | str]:
    """Return one value of a candidate column, or a list of them, as a list without repetition."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("the list is empty, so no candidate would match")
    return once([choice(item) for item in items])


@dataclasses.dataclass(frozen=True)
class Limit:
    """A bound on a column: only candidates with value `relation` `bound` are searched."""

    relation: Relation
    bound: int | float

    def __str__(self) -> str:
        """Return the limit as a sweep file writes it."""
        return f"{self.relation}{self.bound}"


@dataclasses.dataclass(frozen=True)
class ColumnLimit:
    """A bound on a column of plans that is another column."""

    relation: Literal["<=", ">=", "==", "!=", "<", ">"]
    column: str

    def __str__(self) -> str:
        """Return the limit as text."""
        return f"{self.relation}{self.column}"


@dataclasses.dataclass(frozen=True)
class ProductLimit:
    """A bound on a column of plans: its product with another column divides a number."""

    column: str
    number: int

    def __str__(self) -> str:
        """Return the limit as text."""
        return f" of which the product with {self.column} divides {self.number}"


PlanLimit = Limit | ColumnLimit | ProductLimit


def _limits(value: object) -> list[Limit]:
    return [_limit(item) for item in (value if isinstance(value, list) else [value])]


def _texts(limits: list[PlanLimit]) -> list[str]:
    return [str(limit) for limit in limits]


def _limit(text: object) -> Limit:
    match = re.fullmatch(rf"([<>=!]*)\s*({REAL})", text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a bound, such as '<=16' or '>=2'; for one value use fix")
    relation = next((known for known in _RELATIONS if known == match[1]), None)
    if relation is None:
        meant = _MISWRITTEN.get(match[1], "<=") + match[2]
        raise ValueError(f"{text!r} has no known relation; did you mean {meant!r}? (known: {', '.join(_RELATIONS)})")
    return Limit(relation, _bound(match[2]))


def _bound(text: str) -> int | float:
    try:
        return parse_number(text)
    except SpecError as error:
        raise ValueError(str(error)) from None


Names = Annotated[list[str], BeforeValidator(_names), AfterValidator(once)]  # "1d", [1d, 2d]
# Names, or null for the default.
NamesOrDefault = Annotated[Names, WrapValidator(_names_or_none), PlainSerializer(lambda names: names or None)]
Sizes = Annotated[list[int], BeforeValidator(_sizes)]
Choices = Annotated[list[int | str], BeforeValidator(_choices)]
Limits = Annotated[list[Limit], BeforeValidator(_limits), PlainSerializer(_texts)]
# As a file states them; what a framework needs of plans are the others.
PlanLimits = Annotated[list[PlanLimit], BeforeValidator(_limits), PlainSerializer(_texts)]
