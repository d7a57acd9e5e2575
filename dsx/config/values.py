"""The types of single values in a spec: quantities with units, counts, shares, and the bounds of fitted numbers.

Each accepts a plain value, or a value with its source, ``{value: 80 GB, source: "data sheet"}``. The source is for
people and is dropped. Quantities become SI floats; `model_dump(mode="json")` writes them with their unit, so that the
dump can be read. A number that a fit may change states bounds in its unit, ``{value: 0.8, between: [0.6, 0.95]}``; the
spec, which prices plans, does not hold them.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ParamSpec, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, GetCoreSchemaHandler, Strict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from dsx.config.documents import Document, is_sourced
from dsx.errors import SpecError, UnitError, did_you_mean
from dsx.units import (
    LARGEST_COUNT,
    SHARE,
    WHOLE_NUMBER,
    Dimension,
    parse_count,
    parse_number,
    parse_quantity,
    parse_total,
)

P = ParamSpec("P")
T = TypeVar("T")

_BASE_UNIT: dict[Dimension, str] = {
    "bytes": "B",
    "bytes/s": "B/s",
    "flop/s": "FLOP/s",
    "s": "s",
    "W": "W",
    "USD/s": "USD/s",
}


def unsourced(value: object) -> object:
    """Return the value of ``{value: ..., source: ...}``, or `value` itself if it is plain."""
    if is_sourced(value):
        if "between" in value:
            raise ValueError("only fitted real numbers of an assumption set have 'between'; leave it out")
        return value["value"]
    if isinstance(value, dict):
        keys = ("value", "source")
        wrong = next((key for key in value if key not in keys), None)
        reason = f"unknown key {wrong!r}{did_you_mean(str(wrong), keys)}" if wrong else "the value is missing"
        raise ValueError(f"expected one value, or {{value: ..., source: ...}}: {reason}")
    return value


def _parsed(parse: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return what `parse` makes of its arguments; its error is a ValueError, of which pydantic knows the place."""
    try:
        return parse(*arguments, **named)
    except (SpecError, UnitError) as error:
        raise ValueError(str(error)) from None


def number(value: object, expected: str = "a finite number") -> int | float:
    """Return `value`, plain or with its source, as a number; a message says what is `expected`."""
    return _parsed(parse_number, unsourced(value), expected)


def share(value: object) -> int | float:
    """Return `value`, plain or with its source, as a number of which the schema checks that it is a share."""
    return number(value, SHARE)


def total(value: object) -> int | float:
    """Return `value`, plain or with its source, as a number that may have a suffix: "15T"."""
    return _parsed(parse_total, unsourced(value))


def whole_number(value: object) -> int:
    """Return `value`, plain or with its source, as an int: 1e3 is valid, 1.5 is not."""
    plain = number(value, WHOLE_NUMBER)
    if plain != int(plain):
        raise ValueError(f"{plain!r} is not a whole number")
    return int(plain)


def count(value: object) -> int:
    """Return `value`, plain or with its source, as a whole number from 1 to `LARGEST_COUNT`."""
    return _parsed(parse_count, unsourced(value))


def choice(value: object) -> int | str:
    """Return `value`, plain or with its source, as the value of a candidate column: a number or a name."""
    plain = unsourced(value)
    if isinstance(plain, str) and plain:
        return plain
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise ValueError(f"{plain!r} is neither a whole number nor a name")
    if not 0 <= plain <= LARGEST_COUNT:
        raise ValueError(f"{plain!r} is not a whole number from 0 to {LARGEST_COUNT}")
    return plain


@dataclass(frozen=True, slots=True)
class Quantity:
    """The mark of a field with a unit, by which it is read, "80 GB", and written, "80000000000.0 B"."""

    unit: Dimension

    def __get_pydantic_core_schema__(self, source: type[float], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: _parsed(parse_quantity, unsourced(value), self.unit),
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: f"{value!r} {_BASE_UNIT[self.unit]}", when_used="json"
            ),
        )


Bytes = Annotated[float, Quantity("bytes"), Field(ge=0)]  # "80 GB"
BytesPerSecond = Annotated[float, Quantity("bytes/s"), Field(gt=0)]  # "900 GB/s", "400 Gb/s"
FlopsPerSecond = Annotated[float, Quantity("flop/s"), Field(gt=0)]  # "2.5 PFLOP/s"
Seconds = Annotated[float, Quantity("s"), Field(ge=0)]  # "2.5 us"
Watts = Annotated[float, Quantity("W"), Field(gt=0)]  # "700 W"
DollarsPerSecond = Annotated[float, Quantity("USD/s"), Field(gt=0)]  # "2.5 USD/h"

Count = Annotated[int, BeforeValidator(count)]  # at least 1
Total = Annotated[int, Field(gt=0), BeforeValidator(whole_number)]  # at least 1, and as large as one likes
Fraction = Annotated[float, Field(gt=0, le=1), BeforeValidator(share)]  # of a peak: above 0, at most 1
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(share)]  # from 0 to 1
NonNegative = Annotated[float, Field(ge=0), BeforeValidator(number)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(number)]
UsageEffectiveness = Annotated[float, Field(ge=1), BeforeValidator(number)]  # of a site: its power over its machines'
Tokens = Annotated[float, Field(gt=0), BeforeValidator(total)]  # "15T"
Flag = Annotated[bool, Strict(), BeforeValidator(unsourced)]  # true or false
Choice = Annotated[int | str, BeforeValidator(choice)]  # of a candidate column: 8, "1f1b"

Sourced = BeforeValidator(unsourced)  # for any other type that may carry a source


def usually(default: T) -> T:
    """Return a field that is written only where it differs from its default.

    Result sets are identified by hashes of what they were made from, which a field added later must not change.
    """
    return Field(default, exclude_if=lambda value: value == default)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range within which a fit may change a number, in SI units; low < high."""

    low: float
    high: float


def without_bounds(document: Document, model: type[BaseModel]) -> tuple[Document, dict[str, Bounds]]:
    """Return the document without its bounds, and the bounds by field.

    Raises SpecError that lists, with their lines, bounds that are not two increasing numbers of their field, and values
    outside their bounds.
    """
    data, bounds, faults = dict(document.data), dict[str, Bounds](), list[str]()
    for name, entry in document.data.items():
        if name not in model.model_fields or not is_sourced(entry) or "between" not in entry:
            continue
        data[name] = {key: value for key, value in entry.items() if key != "between"}
        try:
            bounds[name] = bounds_of(model.model_fields[name], entry["between"], entry["value"])
        except ValueError as error:
            faults.append(f"{document.place((name, 'between'))}: {name}: {error}")
    if faults:
        raise SpecError("\n".join(faults))
    return Document(data, document.places), bounds


def bounds_of(info: FieldInfo, between: object, value: object = None) -> Bounds:
    """Return the bounds that `between` states for a number.

    Raises ValueError if they are not two increasing numbers, or `value` is a number that is not between them.
    """
    if info.annotation is not float:
        raise ValueError("has 'between', but is not a real number, which a fit could change")
    if not isinstance(between, list) or len(between) != 2:
        raise ValueError(f"between: expected two numbers, [lowest, highest], got {between!r}")
    kind = TypeAdapter[float](info.rebuild_annotation())
    ends: list[float] = []
    for bound in between:
        try:
            ends.append(kind.validate_python(bound))
        except ValidationError as error:
            message = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"between: {bound!r}: {message[0].lower()}{message[1:]}") from None
    low, high = ends
    if low >= high:
        raise ValueError(f"between: the lower bound comes first, but {between[0]} is not below {between[1]}")
    with contextlib.suppress(ValidationError):  # which the validation of the field reports
        if value is not None and not low <= kind.validate_python(value) <= high:
            raise ValueError(f"the value {value} is not between {between[0]} and {between[1]}")
    return Bounds(low, high)
