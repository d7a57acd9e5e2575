"""Conditions on the rows of a result set: columns and the value that each must have.

    parsed(["num_gpus=16384", "nvs.tp=8", "device.hbm_capacity=80 GB"])

`nvs.tp` is the column `tp_nvs`, as in a plan. A quantity has its unit, and equals what differs by rounding alone.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from dsx.argument_types import wrong
from dsx.errors import InputError, SpecError, did_you_mean
from dsx.printable import printable
from dsx.results.frames import require
from dsx.units import Dimension, format_quantity, parse_number, parse_quantity

if TYPE_CHECKING:
    import pandas as pd

Conditions = Mapping[str, object]
_EXAMPLE = "COLUMN=VALUE, as in num_gpus=16384"


def parsed(name: str, given: Conditions | Sequence[str] | str | None) -> dict[str, object]:
    """Return conditions as a mapping; texts are "COLUMN=VALUE", and one text may have several, with blanks between.

    Raises InputError, which names the argument `name`, for a text without "=".
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {column_name(str(column)): value for column, value in given.items()}
    if not isinstance(given, str | Sequence):
        raise wrong(name, given, f"{_EXAMPLE}, is wanted")
    found: dict[str, object] = {}
    for one in [given] if isinstance(given, str) else given:
        if not isinstance(one, str):
            raise wrong(name, one, f"{_EXAMPLE}, is wanted")
        found |= _parsed(name, one)
    return found


def _parsed(name: str, text: str) -> dict[str, object]:
    """Return the conditions of a text."""
    found: dict[str, object] = {}
    for one in re.split(r"\s+(?=[\w.]+=)", text.strip()):
        column, equals, value = one.partition("=")
        if not (column.strip() and equals and value.strip()):
            raise InputError(f"{name} {printable(one)!r} is no {_EXAMPLE}")
        found[column_name(column.strip())] = value.strip()
    return found


def column_name(text: str) -> str:
    """Return the column of a setting: "tp_nvs" of "nvs.tp"."""
    tier, dot, axis = text.partition(".")
    return f"{axis}_nvs" if dot and tier == "nvs" else text


def matching(df: "pd.DataFrame", conditions: Conditions, few: bool = False) -> NDArray[np.bool_]:
    """Return which rows have all the values, [rows].

    Raises UnknownNameError for an unknown column, InputError if no row has all values; not if `few`, for rows that are
    only a part of a set.
    """
    here = np.ones(len(df), bool)
    for column, value in conditions.items():
        values = require(df, column)
        here &= _equal(df, column, values, value)
        if not (here.any() or few) and len(df):
            raise InputError(f"no row has {text_of(conditions)}{_nearest(df, column, value)}")
    return here


def text_of(conditions: Conditions) -> str:
    """Return conditions as they are written on a command line."""
    return " ".join(f"{column}={value}" for column, value in conditions.items())


def _equal(df: "pd.DataFrame", column: str, values: NDArray[Any], value: object) -> NDArray[np.bool_]:
    if values.dtype.kind not in "iuf":
        return values.astype(str) == str(value)
    unit = df.attrs.get("units", {}).get(column, "")
    number: float | None = None
    with suppress(SpecError):
        quantity = unit in get_args(Dimension) and isinstance(value, str)
        number = float(parse_quantity(value, cast(Dimension, unit)) if quantity else parse_number(value))
    return (
        np.zeros(len(values), bool)
        if number is None
        else np.isclose(values.astype(np.float64), number, rtol=1e-6, atol=0.0)
    )


def _nearest(df: "pd.DataFrame", column: str, value: object) -> str:
    """Return the values that a column has, as the end of a message."""
    unit = df.attrs.get("units", {}).get(column, "")
    found = [one if isinstance(one, str) else format_quantity(one, unit) for one in sorted(df[column].unique())[:12]]
    return f"{did_you_mean(str(value), found)} (known: {', '.join(found)})"
