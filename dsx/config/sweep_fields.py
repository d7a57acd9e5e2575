"""The fields of a sweep with several values, those that name columns, and limits of columns.

A field takes a choice of the plan ("strategy"), a choice that is a number ("tp"), a column to group by (a choice, or a
column of the hardware point: "cluster", "device.hbm_capacity"), an objective (a column of numbers, with a leading minus
to maximise it: "-mfu"), or any column to draw. The columns are defined in space and cost, which import jax, and by
what_if of the sweep. They come in as names, in the validation context; without a context any name is valid.

A limit, in the field `limit` of a sweep or beside a command as in ``tp<=8``, has one bound; two limits of a column hold
both.
"""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    RootModel,
    ValidationInfo,
    WrapValidator,
    dataclasses,
)

from dsx.config.documents import Plain, stated_in_code
from dsx.config.schema import choice, count, number, validate, whole_number
from dsx.errors import InputError, did_you_mean
from dsx.units import REAL

Relation = Literal["<=", ">=", "==", "<", ">"]

_RELATIONS = get_args(Relation)
_MISWRITTEN = {"=": "==", "=<": "<=", "=>": ">="}
_RANGE = ("from", "to", "times")

EMPTY = "the list is empty: expected at least one value"

# More values in a range, or more points of a what-if, are surely a typing error.
LARGEST_RANGE = 1_000_000

N = TypeVar("N", int, float)
T = TypeVar("T")


def listed(value: object) -> Plain:
    """Return a single string as a list of one; any other value unchanged, for the schema to check."""
    return [value] if isinstance(value, str) else value


def _names(value: object) -> object:
    if value == []:
        raise ValueError("the list is empty: expected at least one name")
    return listed(value)


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


def ends(written: dict[str, object]) -> tuple[Plain, Plain, Plain]:
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

    relation: Relation | Literal["!="]
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
    limits: list[Limit] = []
    for text in value if isinstance(value, list) else [value]:
        match = re.fullmatch(rf"([<>=!]*)\s*({REAL})", text.strip()) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r} is not a bound, such as '<=16' or '>=2'; for one value use fix")
        relation = next((sign for sign in _RELATIONS if sign == match[1]), None)
        if relation is None:
            meant = f"{_MISWRITTEN.get(match[1], '<=')}{match[2]}"
            raise ValueError(
                f"{text!r} has no known relation; did you mean {meant!r}? (known: {', '.join(_RELATIONS)})"
            )
        limits.append(Limit(relation, number(match[2])))
    return limits


def _texts(limits: list[PlanLimit]) -> list[str]:
    return [str(limit) for limit in limits]


Names = Annotated[list[str], BeforeValidator(_names), AfterValidator(once)]  # "1d", [1d, 2d]
# Names, or null for the default.
NamesOrDefault = Annotated[
    Names, WrapValidator(lambda value, read: [] if value is None else read(value)), PlainSerializer(lambda n: n or None)
]
Sizes = Annotated[list[int], BeforeValidator(_sizes)]
Choices = Annotated[list[int | str], BeforeValidator(_choices)]
Limits = Annotated[list[Limit], BeforeValidator(_limits), PlainSerializer(_texts)]
# As a file states them; what a framework needs of plans are the others.
PlanLimits = Annotated[list[PlanLimit], BeforeValidator(_limits), PlainSerializer(_texts)]


@dataclass(frozen=True)
class Columns:
    """The column names that a sweep may mention; the validation context of a sweep."""

    candidates: tuple[str, ...]
    costs: tuple[str, ...]
    named: tuple[str, ...] = ()  # candidate columns of names: strategy
    point: tuple[str, ...] = ("cluster",)  # columns of the hardware point: the cluster, and the fields of what_if
    intervals: tuple[str, ...] = ()  # bounds of costs, computed for kept rows alone, so no objective
    larger: frozenset[str] = frozenset()  # costs that are better when larger
    # What a sweep (`train_tokens`) or its cluster must state for some costs.
    needs: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])
    # From a name that is no column, and the columns that could be meant, to advice; "" if there is none.
    nearest: Callable[[str, Iterable[str]], str] = did_you_mean

    @property
    def all(self) -> tuple[str, ...]:
        """Every column, in the order of the result set."""
        return (*self.point, *self.candidates, *self.costs, *self.intervals)


def _candidate(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    # Only fields of what_if have a dot.
    if columns and name not in columns.candidates and (name in columns.point or "." in name):
        raise ValueError(f"{name!r} belongs to the hardware; expected a choice of the plan, such as 'tp'")
    return _choice(name, columns, columns.candidates if columns else ())


def _group(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    return _choice(name, columns, (*columns.candidates, *columns.point) if columns else ())


def _choice(name: str, columns: Columns | None, expected: tuple[str, ...]) -> str:
    if columns is None or name in expected:
        return name
    if name in columns.costs or name in columns.intervals:
        raise ValueError(f"{name!r} is a cost; expected a candidate column, such as 'tp'")
    raise ValueError(f"unknown candidate column {name!r}{_nearest(name, columns, expected)}")


def _nearest(name: str, columns: Columns, expected: Sequence[str]) -> str:
    # Only fields of what_if have a dot.
    dotted = [column for column in expected if "." in column]
    if "." in name and not dotted:
        return "; what_if varies no such field"
    return columns.nearest(name, dotted if "." in name else expected)


class HasNames(Protocol):
    """Columns of which some hold names."""

    @property
    def named(self) -> tuple[str, ...]:
        """The columns of names."""
        ...


def check_number(name: str, info: ValidationInfo[HasNames | None]) -> str:
    """Return the name of a column that holds numbers; raises ValueError for one that holds names."""
    if info.context and name in info.context.named:
        raise ValueError(f"{name!r} holds names; expected a column of numbers, such as 'tp'; for a name use fix")
    return name


def _objective(written: str, info: ValidationInfo[Columns | None]) -> str:
    columns, name = info.context, written.removeprefix("-")
    if columns is None:
        return written
    numbers = [column for column in (*columns.candidates, *columns.costs) if column not in columns.named]
    if name in columns.point:
        raise ValueError(f"{name!r} does not vary within a front: each hardware point has a front of its own")
    if name in columns.intervals:
        raise ValueError(f"{name!r} is computed for kept rows alone and cannot be an objective; 'step_time_s' can")
    if name not in numbers:
        what = f"{name!r} holds names, not numbers" if name in columns.named else f"unknown column {name!r}"
        raise ValueError(f"{what}{columns.nearest(name, numbers)}")
    check_direction(written, columns.larger)
    return written


def check_direction(objective: str, larger: Collection[str]) -> None:
    """Raise ValueError for an objective that minimises one of the columns that are better when larger."""
    if objective in larger:
        raise ValueError(f"the smallest {objective!r} is the worst; write '-{objective}' to maximise it")


def _least_cost(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    if columns is not None and name in columns.larger:
        raise ValueError(f"the smallest {name!r} is the worst; a front can maximise it: {{pareto: [-{name}]}}")
    if columns is None or name in columns.costs:
        return name
    if name.startswith("-"):
        raise ValueError(f"{name!r}: the top candidates are those of the smallest cost; a front can maximise")
    raise ValueError(f"{name!r} is no cost{did_you_mean(name, columns.costs)}; expected one to be small: 'cost_usd'")


def _result(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    if columns is not None and name not in columns.all:
        raise ValueError(f"unknown column {name!r}{_nearest(name, columns, columns.all)}")
    return name


def _axis(written: str, info: ValidationInfo[Columns | None]) -> str:
    _result(written.removeprefix("-"), info)
    return written


CandidateColumn = Annotated[str, AfterValidator(_candidate)]  # a choice of the plan: "strategy"
NumberColumn = Annotated[CandidateColumn, AfterValidator(check_number)]  # a choice that is a number: "tp"
GroupColumn = Annotated[str, AfterValidator(_group)]  # a choice, or a column of the hardware point: "cluster"
Objective = Annotated[str, AfterValidator(_objective)]  # a column to minimise, "step_time_s", or maximise, "-mfu"
LeastCost = Annotated[str, AfterValidator(_least_cost)]  # a cost to minimise: "cost_usd"
ResultColumn = Annotated[str, AfterValidator(_result)]  # any column
AxisColumn = Annotated[str, AfterValidator(_axis)]  # any column, or an objective: "-mfu"


ColumnLimits = dict[NumberColumn, Limits]

_HOLDS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
# Settings of the job, which have one value each.
_OF_THE_JOB = ("num_gpus", "global_batch_size", "sequence_length")

_RELATION = "[<>=!]+"
_PARTS = re.compile(rf"([^<>=!]*)({_RELATION})(.+)")
_BETWEEN = re.compile(rf"({REAL})([<>]=?)([^<>=!]+)([<>]=?)({REAL})")
_TURNED = str.maketrans("<>", "><")


class _CommandLimits(RootModel[ColumnLimits]):
    """The limits of a command."""


def column_limits(limits: object, columns: Columns, place: str) -> dict[str, list[Limit]]:
    """Return the limits of a command by column; `place` is how messages call the argument.

    `limits` is a text, such as "tp<=8 pp>=2", several texts, or a mapping as a sweep states it, {"tp": "<=8"}. A share
    of a fast domain may be called as on the command line, nvs.tp. Raises InputError for anything else, SpecError for a
    column that a sweep cannot limit, and for a bound that it cannot have.
    """
    if limits is None:
        return {}
    if isinstance(limits, str):
        limits = [limits]
    if isinstance(limits, Mapping):
        by_column = {_column(str(name)): value for name, value in limits.items()}
    elif isinstance(limits, Sequence) and all(isinstance(text, str) for text in limits):
        # The limits in a text may have spaces around their relations.
        spaceless = [re.sub(rf"\s*({_RELATION})\s*", r"\1", text.strip()).split() or [text] for text in limits]
        by_column = _by_column([word for words in spaceless for word in words], place)
    else:
        raise InputError(f"{place}: {limits!r:.60} is given, and limits are wanted, such as 'tp<=8' or {{'tp': '<=8'}}")
    for name in by_column:
        if name in _OF_THE_JOB:
            raise InputError(f"{place}: {name}: the job states {name}, so a search has one value of it")
    return validate(stated_in_code(by_column, place), _CommandLimits, columns).root


def contradiction(column: str, bounds: Sequence[Limit], values: Sequence[int | str]) -> str:
    """Return how bounds of a column exclude each other, or all `values` that it is fixed to; "" if they do not."""
    text = " and ".join(f"{column}{bound}" for bound in bounds)
    if values and not any(all(_HOLDS[limit.relation](value, limit.bound) for limit in bounds) for value in values):
        return f"{text} contradicts the fixed {column}={','.join(map(str, values))}: leave out one of the two"
    numbers = [round(limit.bound) + step for limit in bounds for step in (-1, 0, 1)]
    if not any(all(_HOLDS[limit.relation](number, limit.bound) for limit in bounds) for number in numbers):
        return f"{text} exclude each other: leave out one of them"
    return ""


def _by_column(words: Sequence[str], place: str) -> dict[str, list[str]]:
    """Return the bounds of limits such as "tp<=8" as a sweep states them, by column."""
    bounds: dict[str, list[str]] = {}
    for word in words:
        if match := _BETWEEN.fullmatch(word):
            first, turned, name, relation, second = match.groups()
            meant = f"'{name}{turned.translate(_TURNED)}{first}' and '{name}{relation}{second}'"
            raise InputError(f"{place}: {word!r}: a limit has one bound; give two limits, {meant}")
        parts = _PARTS.fullmatch(word)
        if parts is None or not parts[1]:
            raise InputError(
                f"{place}: {word!r} is not a limit, such as 'tp<=8'; in a shell it needs quotes, since < and > redirect"
            )
        name, relation, bound = parts.groups()
        if re.fullmatch(REAL, name):
            meant = f"{bound}{relation.translate(_TURNED)}{name}"
            raise InputError(f"{place}: {word!r}: the column comes first; did you mean {meant!r}?")
        bounds.setdefault(_column(name), []).append(f"{relation}{bound}")
    return bounds


def _column(name: str) -> str:
    return f"{name.removeprefix('nvs.')}_nvs" if name.startswith("nvs.") else name
