"""Limits of columns: the field `limit` of a sweep, and the same limits beside a command, as in ``tp<=8``.

A limit has one bound. Two limits of a column hold both.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import RootModel

from dsx.errors import InputError
from dsx.spec.column_names import Columns, NumberColumn
from dsx.spec.document import stated_in_code
from dsx.spec.ranges import Limit, Limits
from dsx.spec.validated import validate
from dsx.units import REAL

ColumnLimits = dict[NumberColumn, Limits]

_HOLDS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
# Settings of the job, which have one value each.
_OF_THE_JOB = ("num_gpus", "global_batch_size", "sequence_length")

_RELATION = "[<>=!]+"
_PARTS = re.compile(rf"([^<>=!]*)({_RELATION})(.+)")
_BETWEEN = re.compile(rf"({REAL})([<>]=?)([^<>=!]+)([<>]=?)({REAL})")
_TURNED = str.maketrans("<>", "><")


class _Stated(RootModel[ColumnLimits]):
    """The limits of a command."""


def column_limits(given: object, columns: Columns, place: str) -> dict[str, list[Limit]]:
    """Return the limits of a command by column; `place` is how messages call the argument.

    `given` is a text, such as "tp<=8 pp>=2", several texts, or a mapping as a sweep states it, {"tp": "<=8"}. A share
    of a fast domain may be called as on the command line, nvs.tp. Raises InputError for anything else, SpecError for a
    column that a sweep cannot limit, and for a bound that it cannot have.
    """
    if given is None:
        return {}
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Mapping):
        stated = {_column(str(name)): value for name, value in given.items()}
    elif isinstance(given, Sequence) and all(isinstance(text, str) for text in given):
        stated = _by_column([word for text in given for word in _words(text)], place)
    else:
        raise InputError(f"{place}: {given!r:.60} is given, and limits are wanted, such as 'tp<=8' or {{'tp': '<=8'}}")
    for name in stated:
        if name in _OF_THE_JOB:
            raise InputError(f"{place}: {name}: the job states {name}, so a search has one value of it")
    return validate(stated_in_code(stated, place), _Stated, columns).root


def contradiction(column: str, bounds: Sequence[Limit], values: Sequence[Any]) -> str:
    """Return how bounds of a column exclude each other, or all `values` that it is fixed to; "" if they do not."""
    stated = " and ".join(f"{column}{bound}" for bound in bounds)
    if values and not any(all(_HOLDS[one.relation](value, one.bound) for one in bounds) for value in values):
        return f"{stated} contradicts the fixed {column}={','.join(map(str, values))}: leave out one of the two"
    whole = [round(one.bound) + step for one in bounds for step in (-1, 0, 1)]
    if not any(all(_HOLDS[one.relation](number, one.bound) for one in bounds) for number in whole):
        return f"{stated} exclude each other: leave out one of them"
    return ""


def _words(text: str) -> list[str]:
    """Return the limits in a text, which may have spaces around its relations."""
    return re.sub(rf"\s*({_RELATION})\s*", r"\1", text.strip()).split() or [text]


def _by_column(words: Sequence[str], place: str) -> dict[str, list[Any]]:
    """Return the bounds of limits such as "tp<=8" as a sweep states them, by column."""
    found: dict[str, list[Any]] = {}
    for word in words:
        if both := _BETWEEN.fullmatch(word):
            first, turned, name, relation, second = both.groups()
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
        found.setdefault(_column(name), []).append(f"{relation}{bound}")
    return found


def _column(name: str) -> str:
    return f"{name.removeprefix('nvs.')}_nvs" if name.startswith("nvs.") else name
