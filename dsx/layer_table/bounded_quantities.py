"""The types of values in layer tables and networks: numbers as in any spec, up to 1e30.

The bound keeps sums and products of these numbers finite.
"""

import re
import reprlib
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from dsx.spec.value_types import number, whole_number
from dsx.units import LARGEST_COUNT

_LARGEST = 1e30  # in any unit


def _bounded(value: Any) -> int | float:
    plain = number(value)
    if abs(plain) > _LARGEST:
        raise ValueError(f"{reprlib.repr(plain)} is beyond {_LARGEST:g}, the largest number allowed")
    return plain


def _count_key(key: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,9}", key) or int(key) > LARGEST_COUNT:
        raise ValueError(f"{key!r} is not a whole number from 1 to {LARGEST_COUNT}")
    return int(key)


Amount = Annotated[float, Field(ge=0), BeforeValidator(_bounded)]
Above0 = Annotated[float, Field(gt=0), BeforeValidator(_bounded)]
LayerId = Annotated[int, Field(ge=-LARGEST_COUNT, le=LARGEST_COUNT), BeforeValidator(whole_number)]
CountKey = Annotated[int, BeforeValidator(_count_key)]  # of a JSON object: a width, or a number of devices


def nearest(wanted: int, known: Iterable[int]) -> int:
    """Return the entry of `known` that is nearest to `wanted`; the first of two equally near ones."""
    return min(known, key=lambda other: abs(other - wanted))
