"""Reads and writes the points of a what_if in a sweep file.

A grid maps fields to a value, a list or a range; every combination is a point. A list of mappings states its points
one by one. All faults are collected, each with its own place.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails

from dsx.errors import SpecError
from dsx.spec.column_names import Columns
from dsx.spec.document import KeyPath, is_sourced
from dsx.spec.ranges import EMPTY, LARGEST_RANGE, ends, geometric, once
from dsx.spec.value_types import number, whole_number
from dsx.spec.what_if import Value, WhatIf, field, is_section, is_setting, value_type

_MOST_FAULTS = 100  # finding the nearest names for 100,000 fields would take minutes

_Stated = tuple[KeyPath, str, object]  # place, path of the field, value as written


def stated_fields(data: object) -> tuple[str, ...]:
    """Return the paths that a what_if names, whether such fields exist or not; `data` is the what_if as written."""
    points = [point for point in (data if isinstance(data, list) else [data]) if isinstance(point, dict)]
    return tuple(once([path for point in points for _, path, _ in _stated(point, ()) if "." in path]))


def _stated(given: dict[str, object], at: KeyPath, before: str = "") -> Iterator[_Stated]:
    """Yield the fields of a mapping; sections may be nested, as in the file of the fields."""
    for key, value in given.items():
        path = f"{before}{key}"
        if isinstance(value, dict) and is_section(path):
            yield from _stated(value, (*at, key), f"{path}.")
        else:
            yield (*at, key), path, value


class _Reading:
    """Reads one what_if; `faults` are those found so far."""

    def __init__(self, columns: Columns | None) -> None:
        self.columns = columns
        self.faults: list[InitErrorDetails] = []

    def grid(self, given: dict[str, Any]) -> WhatIf:
        stated = self.fields(given, ())
        lists = [once(self.values(path, at, value)) for at, path, value in stated]
        size = math.prod(map(len, lists))
        if size > LARGEST_RANGE:
            factors = " x ".join(str(len(values)) for values in lists)
            self.fault((), given, f"{factors} = {size:,} points; a sweep has at most {LARGEST_RANGE:,}")
            return WhatIf()
        return WhatIf(tuple(path for _, path, _ in stated), tuple(product(*lists)))

    def points(self, given: list[object]) -> WhatIf:
        if not given:
            self.fault((), given, EMPTY)
        fields: tuple[str, ...] = ()
        points = []
        for index, point in enumerate(given):
            if not isinstance(point, dict) or not point:
                self.fault((index,), point, f"{point!r} is not a point, such as {{device.hbm_capacity: 80 GB}}")
                continue
            known = len(self.faults)
            values = {path: self.value(path, at, value) for at, path, value in self.fields(point, (index,))}
            if len(self.faults) > known:  # an invalid field is not missing as well
                continue
            fields = fields or tuple(values)
            for path in dict.fromkeys((*fields, *values)):
                if path not in values or path not in fields:
                    where = "here" if path in fields else "in the points before"
                    self.fault((index,), point, f"all points need the same fields, but {path!r} is missing {where}")
            points.append(tuple(values.get(path, math.nan) for path in fields))
        return WhatIf(fields, tuple(once(points)))

    def fields(self, given: dict[str, object], at: KeyPath) -> list[_Stated]:
        """Return the fields in `given` that a what_if can vary."""
        found: dict[str, _Stated] = {}
        for place, path, value in _stated(given, at):
            try:
                field(path)
            except SpecError as error:
                self.fault(place, value, self.choice(path) or str(error))
                continue
            if path in found:
                self.fault(place, value, f"{path!r} is given twice")
            found[path] = (place, path, value)
        return list(found.values())

    def choice(self, path: str) -> str | None:
        """Return the message for a choice of the plan, which is not a field of a what_if; None for any other path."""
        if is_setting(path) or self.columns is None or path not in self.columns.candidates:
            return None
        return f"{path!r} is a choice of the plan, which a sweep searches: restrict it with fix or limit"

    def values(self, path: str, at: KeyPath, given: object) -> list[Value]:
        """Return the values of a list, a range, or one value."""
        if isinstance(given, dict) and not is_sourced(given):
            return self.range(path, at, given)
        if not isinstance(given, list):
            return [self.value(path, at, given)]
        if not given:
            self.fault(at, given, EMPTY)
        return [self.value(path, (*at, index), item) for index, item in enumerate(given)]

    def range(self, path: str, at: KeyPath, given: dict[str, object]) -> list[Value]:
        known = len(self.faults)
        try:
            first, last, times = ends(given)
            first, last = self.value(path, (*at, "from"), first), self.value(path, (*at, "to"), last)
            factor = whole_number(times) if field(path).integer else float(number(times))
            return geometric(given, first, last, factor) if len(self.faults) == known else []
        except ValueError as error:
            self.fault(at, given, str(error))
            return []

    def value(self, path: str, at: KeyPath, given: object) -> Value:
        """Return one value of the field at `path`; NaN for an invalid one."""
        if isinstance(given, list) or (isinstance(given, dict) and not is_sourced(given)):
            self.fault(at, given, f"{given!r} is not one value")
            return math.nan
        try:
            return value_type(path).validate_python(given)
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                self.add({"type": fault["type"], "loc": at, "input": given, "ctx": fault.get("ctx", {})})
            return math.nan

    def fault(self, at: KeyPath, given: object, message: str) -> None:
        self.add({"type": "value_error", "loc": at, "input": given, "ctx": {"error": ValueError(message)}})

    def add(self, fault: InitErrorDetails) -> None:
        """Add a fault; raises ValidationError with all faults so far once there are enough."""
        self.faults.append(fault)
        if len(self.faults) >= _MOST_FAULTS:
            raise self.error()

    def error(self) -> ValidationError:
        """Return the error that lists the faults."""
        return ValidationError.from_exception_data("what_if", self.faults)


def _read(given: object, info: ValidationInfo[Columns | None]) -> WhatIf:
    reading = _Reading(info.context)
    if isinstance(given, dict):
        what_if = reading.grid(given)
    elif isinstance(given, list):
        what_if = reading.points(given)
    else:
        example = "{device.hbm_capacity: [80 GB, 141 GB]}"
        raise ValueError(f"expected fields with their values, such as {example}, or a list of points, got {given!r}")
    if reading.faults:
        raise reading.error()
    return what_if


def _write(what_if: WhatIf) -> dict[str, object] | list[dict[str, object]]:
    """Return a what_if as plain data that reads as the same: a grid if its points are one, else a list of points."""
    lists = [once(list(column)) for column in zip(*what_if.points, strict=True)]
    # The count is compared first, since the product of the values of many single points would be huge.
    if math.prod(map(len, lists)) == len(what_if.points) and tuple(product(*lists)) == what_if.points:
        return {path: _written(path, values) for path, values in zip(what_if.fields, lists, strict=True)}
    columns = zip(*what_if.points, strict=True)
    rows = zip(*(_written(path, column) for path, column in zip(what_if.fields, columns, strict=True)), strict=True)
    return [dict(zip(what_if.fields, row, strict=True)) for row in rows]


def _written(path: str, values: Iterable[Value]) -> list[object]:
    kind = value_type(path)
    return [kind.dump_python(value, mode="json") for value in values]


WhatIfPoints = Annotated[WhatIf, PlainValidator(_read), PlainSerializer(_write)]
