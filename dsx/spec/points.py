"""The points of a what_if: from what a sweep file writes, and back.

A grid is a mapping of fields to a value, a list or a range; every combination is a point. A list of mappings
states its points one by one. All faults are collected, each with its own place.
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
from dsx.spec.quantities import number, whole_number
from dsx.spec.ranges import EMPTY, LARGEST_RANGE, ends, geometric, once
from dsx.spec.what_if import Value, WhatIf, field, is_section, is_setting, value_type

_MOST_FAULTS = 100  # to find what each of 100,000 fields was meant to be takes minutes

_Stated = tuple[KeyPath, str, Any]  # where it is written, the path of the field, what is written


def stated_fields(data: Any) -> tuple[str, ...]:
    """Return the paths that a what_if, as it is written, names, whether there is such a field or not."""
    points = [point for point in (data if isinstance(data, list) else [data]) if isinstance(point, dict)]
    return tuple(once([path for point in points for _, path, _ in _stated(point, ()) if "." in path]))


def _stated(given: dict[str, Any], at: KeyPath, before: str = "") -> Iterator[_Stated]:
    """Yield what a mapping states; sections may be nested, as they are in the file that has the fields."""
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
            self.fault((), given, f"{factors} = {size:,} points; at most {LARGEST_RANGE:,} make up one sweep")
            return WhatIf()
        return WhatIf(tuple(path for _, path, _ in stated), tuple(product(*lists)))

    def points(self, given: list[Any]) -> WhatIf:
        if not given:
            self.fault((), given, EMPTY)
        fields: tuple[str, ...] = ()
        points = []
        for index, point in enumerate(given):
            if not isinstance(point, dict) or not point:
                self.fault((index,), point, f"{point!r} is no point, such as {{device.hbm_capacity: 80 GB}}")
                continue
            known = len(self.faults)
            values = {path: self.value(path, at, value) for at, path, value in self.fields(point, (index,))}
            if len(self.faults) > known:  # fields that cannot be read are not missing too
                continue
            fields = fields or tuple(values)
            for path in dict.fromkeys((*fields, *values)):
                if path not in values or path not in fields:
                    where = "here" if path in fields else "in those before"
                    self.fault((index,), point, f"all points need the same fields, and {path!r} is missing {where}")
            points.append(tuple(values.get(path, math.nan) for path in fields))
        return WhatIf(fields, tuple(once(points)))

    def fields(self, given: dict[str, Any], at: KeyPath) -> list[_Stated]:
        """Return what `given` states of fields that can be varied."""
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
        """Return what to say of a choice of the plan, which is searched anyway."""
        if is_setting(path) or self.columns is None or path not in self.columns.candidates:
            return None
        return f"{path!r} is a choice of the plan, which every sweep searches: narrow it with fix or limit"

    def values(self, path: str, at: KeyPath, given: Any) -> list[Value]:
        """Return the values of a list, a range, or one value."""
        if isinstance(given, dict) and not is_sourced(given):
            return self.range(path, at, given)
        if not isinstance(given, list):
            return [self.value(path, at, given)]
        if not given:
            self.fault(at, given, EMPTY)
        return [self.value(path, (*at, index), item) for index, item in enumerate(given)]

    def range(self, path: str, at: KeyPath, given: dict[str, Any]) -> list[Value]:
        known = len(self.faults)
        try:
            first, last, times = ends(given)
            first, last = self.value(path, (*at, "from"), first), self.value(path, (*at, "to"), last)
            factor = whole_number(times) if field(path).integer else float(number(times))
            return geometric(given, first, last, factor) if len(self.faults) == known else []
        except ValueError as error:
            self.fault(at, given, str(error))
            return []

    def value(self, path: str, at: KeyPath, given: Any) -> Value:
        """Return one value of the field at `path`; a fault is NaN."""
        if isinstance(given, list) or (isinstance(given, dict) and not is_sourced(given)):
            self.fault(at, given, f"{given!r} is not one value")
            return math.nan
        try:
            return value_type(path).validate_python(given)
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                self.add({"type": fault["type"], "loc": at, "input": given, "ctx": fault.get("ctx", {})})
            return math.nan

    def fault(self, at: KeyPath, given: Any, message: str) -> None:
        self.add({"type": "value_error", "loc": at, "input": given, "ctx": {"error": ValueError(message)}})

    def add(self, fault: InitErrorDetails) -> None:
        """Note a fault; raises ValidationError with those so far where nobody would read more."""
        self.faults.append(fault)
        if len(self.faults) >= _MOST_FAULTS:
            raise self.error()

    def error(self) -> ValidationError:
        """Return the error of the faults."""
        return ValidationError.from_exception_data("what_if", self.faults)


def _read(given: Any, info: ValidationInfo[Columns | None]) -> WhatIf:
    reading = _Reading(info.context)
    if isinstance(given, dict):
        what_if = reading.grid(given)
    elif isinstance(given, list):
        what_if = reading.points(given)
    else:
        example = "{device.hbm_capacity: [80 GB, 141 GB]}"
        raise ValueError(f"expected fields and their values, such as {example}, or a list of points, got {given!r}")
    if reading.faults:
        raise reading.error()
    return what_if


def _write(what_if: WhatIf) -> dict[str, Any] | list[dict[str, Any]]:
    """Return what reads as `what_if` again: fields and lists if its points are a grid, else the points."""
    lists = [once(list(column)) for column in zip(*what_if.points, strict=True)]
    # Counted first: the product of the values of many single points is far larger than they are.
    if math.prod(map(len, lists)) == len(what_if.points) and tuple(product(*lists)) == what_if.points:
        return {path: _written(path, values) for path, values in zip(what_if.fields, lists, strict=True)}
    columns = zip(*what_if.points, strict=True)
    rows = zip(*(_written(path, column) for path, column in zip(what_if.fields, columns, strict=True)), strict=True)
    return [dict(zip(what_if.fields, row, strict=True)) for row in rows]


def _written(path: str, values: Iterable[Value]) -> list[Any]:
    kind = value_type(path)
    return [kind.dump_python(value, mode="json") for value in values]


WhatIfPoints = Annotated[WhatIf, PlainValidator(_read), PlainSerializer(_write)]
