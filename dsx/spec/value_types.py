"""The types of single values in a spec: quantities with units, counts, fractions.

Each accepts a plain value, or a value with its source, ``{value: 80 GB, source: "data sheet"}``. The source is for
people and is dropped. Quantities become SI floats; `model_dump(mode="json")` writes them with their unit, so that the
dump can be read.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, Strict

from dsx.errors import SpecError, UnitError, did_you_mean
from dsx.spec.document import is_sourced
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
        known = ("value", "source")
        wrong = next((key for key in value if key not in known), None)
        found = f"unknown key {wrong!r}{did_you_mean(str(wrong), known)}" if wrong else "the value is missing"
        raise ValueError(f"expected one value, or {{value: ..., source: ...}}: {found}")
    return value


def number(value: object, wanted: str = "a finite number") -> int | float:
    """Return `value`, plain or with its source, as a number; a message says what is `wanted`."""
    try:
        return parse_number(unsourced(value), wanted)
    except SpecError as error:
        raise ValueError(str(error)) from None


def share(value: object) -> int | float:
    """Return `value`, plain or with its source, as a number of which the schema checks that it is a share."""
    return number(value, SHARE)


def total(value: object) -> int | float:
    """Return `value`, plain or with its source, as a number that may have a suffix: "15T"."""
    try:
        return parse_total(unsourced(value))
    except SpecError as error:
        raise ValueError(str(error)) from None


def whole_number(value: object) -> int:
    """Return `value`, plain or with its source, as an int: 1e3 is valid, 1.5 is not."""
    plain = number(value, WHOLE_NUMBER)
    if plain != int(plain):
        raise ValueError(f"{plain!r} is not a whole number")
    return int(plain)


def count(value: object) -> int:
    """Return `value`, plain or with its source, as a whole number from 1 to `LARGEST_COUNT`."""
    try:
        return parse_count(unsourced(value))
    except SpecError as error:
        raise ValueError(str(error)) from None


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


def _read(dimension: Dimension) -> BeforeValidator:
    def read(value: object) -> float:
        try:
            return parse_quantity(unsourced(value), dimension)
        except UnitError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(read)


def _write(dimension: Dimension) -> PlainSerializer:
    return PlainSerializer(lambda value: f"{value!r} {_BASE_UNIT[dimension]}", when_used="json")


Bytes = Annotated[float, _read("bytes"), Field(ge=0), _write("bytes")]  # "80 GB"
BytesPerSecond = Annotated[float, _read("bytes/s"), Field(gt=0), _write("bytes/s")]  # "900 GB/s", "400 Gb/s"
FlopsPerSecond = Annotated[float, _read("flop/s"), Field(gt=0), _write("flop/s")]  # "2.5 PFLOP/s"
Seconds = Annotated[float, _read("s"), Field(ge=0), _write("s")]  # "2.5 us"
Watts = Annotated[float, _read("W"), Field(gt=0), _write("W")]  # "700 W"
DollarsPerSecond = Annotated[float, _read("USD/s"), Field(gt=0), _write("USD/s")]  # "2.5 USD/h"

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
