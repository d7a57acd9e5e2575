"""`what_if`: the numbers of the cluster and of the assumption set that a sweep may vary.

The fields, with their units and bounds, come from the specs of cluster and assumption set; a new number there can be
varied here at once. A real number is priced at many values together, an integer shapes the space. A grid maps fields to
a value, a list or a range; every combination is a point. A list of mappings states its points one by one. All faults
are collected, each with its own place.

Not modelled: what-ifs of the model.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Annotated

from pydantic import (
    BaseModel,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.cluster_file import ClusterSpec
from dsx.config.documents import KeyPath, is_sourced
from dsx.config.load import MOVED
from dsx.config.schema import Quantity, number, whole_number
from dsx.config.sweep_fields import EMPTY, LARGEST_RANGE, Columns, ends, geometric, once
from dsx.errors import SpecError, did_you_mean

Value = float | int  # in SI units

_ASSUMPTIONS = "assumptions"

# Settings of a sweep that users may expect in what_if, and what each takes at top level.
_SETTINGS = {
    **dict.fromkeys(("cluster", "num_gpus", "global_batch_size", "strategy"), "a list"),
    **dict.fromkeys(("model", "sequence_length", "train_tokens"), "one value; for several, make several sweeps"),
}


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The hardware points of a sweep: the values of `fields` at each of `points`, in SI units."""

    fields: tuple[str, ...] = ()
    points: tuple[tuple[Value, ...], ...] = ((),)


@dataclass(frozen=True, slots=True)
class WhatIfField:
    """A number that a sweep can vary: its SI unit ("" if it has none), and whether it is an integer."""

    path: str
    unit: str
    description: str
    integer: bool


@cache
def varied_field(path: str) -> WhatIfField:
    """Return the field at `path`, such as "device.hbm_capacity".

    Raises SpecError, which says what to vary instead, if there is none.
    """
    info = _numbers().get(path)
    if info is None:
        raise SpecError(_refusal(path))
    *section, name = path.split(".")
    description = f"{name} of the {' '.join(reversed(section))}, varied by the sweep"
    unit = next((mark.unit for mark in info.metadata if isinstance(mark, Quantity)), "")
    return WhatIfField(path, unit, description, integer=info.annotation is int)


def is_field(path: str) -> bool:
    """Return whether a sweep can vary the field at `path`."""
    return path in _numbers()


@cache
def value_type(path: str) -> TypeAdapter[Value]:
    """Return the type that reads and writes values of the field at `path`, as in its own spec."""
    return TypeAdapter(_numbers()[path].rebuild_annotation())


def is_assumption(path: str) -> bool:
    """Return whether `path` is a field of the assumption set, and not of the cluster."""
    return path.startswith(f"{_ASSUMPTIONS}.")


def is_section(path: str) -> bool:
    """Return whether `path` is a section with fields: "network.nvs"."""
    return any(field.startswith(f"{path}.") for field in _values())


@cache
def _values() -> dict[str, FieldInfo]:
    """Return path -> field for every single value of a cluster and every field of an assumption set.

    The numbers inside a field of an assumption set say how it was fitted.
    """

    def inside(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
        for name, info in model.model_fields.items():
            kind = info.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from inside(kind, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", info

    of_assumptions = {f"{_ASSUMPTIONS}.{name}": info for name, info in AssumptionsSpec.model_fields.items()}
    return dict(inside(ClusterSpec, "")) | of_assumptions


@cache
def _numbers() -> dict[str, FieldInfo]:
    """Return path -> field for the numbers that a sweep can vary.

    The integers of an assumption set are element sizes in the work expressions of a layer, which are evaluated once for
    all points, so they are not among them.
    """
    return {
        path: info
        for path, info in _values().items()
        if info.annotation is float or (info.annotation is int and not path.startswith(f"{_ASSUMPTIONS}."))
    }


def _refusal(path: str) -> str:
    """Return why the field at `path` cannot be varied, and what to write instead."""
    numbers = {field: field.rpartition(".")[0] for field in _numbers()}
    if path in _SETTINGS:
        return f"{path!r} is a setting of the sweep: state it at top level, where it takes {_SETTINGS[path]}"
    if is_section(path):
        inside = next(field for field in numbers if field.startswith(f"{path}."))
        return f"{path!r} is a section: name one of its fields, such as {inside!r}"
    siblings = [field for field, section in numbers.items() if section == path.rpartition(".")[0]]
    info = _values().get(path)
    if moved := MOVED.get(path.removeprefix(f"{_ASSUMPTIONS}.")):
        return f"unknown field {path!r}: it is {moved!r} now, of a whole node"
    if info is None:
        near = did_you_mean(path, [*numbers, *numbers.values()])
        return f"unknown field {path!r}{near} (known: {', '.join(siblings or numbers)})"
    if info.annotation is int:
        return f"{path!r} shapes the work of a layer; use --set {path}=... in a sweep of its own"
    if not siblings:
        return f"{path!r} is not a number; to compare clusters, give a list of them as 'cluster' at top level"
    return f"{path!r} is not a number; the fields that can vary are {', '.join(siblings)}"


_MOST_FAULTS = 100  # finding the nearest names for 100,000 fields would take minutes

_Stated = tuple[KeyPath, str, object]  # place, path of the field, value as written


def stated_fields(data: object) -> tuple[str, ...]:
    """Return the paths that a what_if names, whether such fields exist or not; `data` is the what_if as written."""
    points = [point for point in (data if isinstance(data, list) else [data]) if isinstance(point, dict)]
    return tuple(once([path for point in points for _, path, _ in _stated(point, ()) if "." in path]))


def _stated(content: dict[str, object], at: KeyPath, prefix: str = "") -> Iterator[_Stated]:
    """Yield the fields of a mapping; sections may be nested, as in the file of the fields."""
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and is_section(path):
            yield from _stated(value, (*at, key), f"{path}.")
        else:
            yield (*at, key), path, value


class _PointReader:
    """Reads one what_if; `faults` are those found so far."""

    def __init__(self, columns: Columns | None) -> None:
        self.columns = columns
        self.faults: list[InitErrorDetails] = []

    def grid(self, content: dict[str, object]) -> WhatIf:
        entries = self.fields(content, ())
        lists = [once(self.values(path, at, value)) for at, path, value in entries]
        size = math.prod(map(len, lists))
        if size > LARGEST_RANGE:
            factors = " x ".join(str(len(values)) for values in lists)
            self.fault((), content, f"{factors} = {size:,} points; a sweep has at most {LARGEST_RANGE:,}")
            return WhatIf()
        return WhatIf(tuple(path for _, path, _ in entries), tuple(product(*lists)))

    def points(self, content: list[object]) -> WhatIf:
        if not content:
            self.fault((), content, EMPTY)
        fields: tuple[str, ...] = ()
        points = []
        for index, point in enumerate(content):
            if not isinstance(point, dict) or not point:
                self.fault((index,), point, f"{point!r} is not a point, such as {{device.hbm_capacity: 80 GB}}")
                continue
            num_faults = len(self.faults)
            values = {path: self.value(path, at, value) for at, path, value in self.fields(point, (index,))}
            if len(self.faults) > num_faults:  # an invalid field is not missing as well
                continue
            fields = fields or tuple(values)
            for path in dict.fromkeys((*fields, *values)):
                if path not in values or path not in fields:
                    where = "here" if path in fields else "in the points before"
                    self.fault((index,), point, f"all points need the same fields, but {path!r} is missing {where}")
            points.append(tuple(values.get(path, math.nan) for path in fields))
        return WhatIf(fields, tuple(once(points)))

    def fields(self, content: dict[str, object], at: KeyPath) -> list[_Stated]:
        """Return the fields in `content` that a what_if can vary."""
        entries: dict[str, _Stated] = {}
        for place, path, value in _stated(content, at):
            try:
                varied_field(path)
            except SpecError as error:
                self.fault(place, value, self.choice(path) or str(error))
                continue
            if path in entries:
                self.fault(place, value, f"{path!r} is given twice")
            entries[path] = (place, path, value)
        return list(entries.values())

    def choice(self, path: str) -> str | None:
        """Return the message for a choice of the plan, which is not a field of a what_if; None for any other path."""
        if path in _SETTINGS or self.columns is None or path not in self.columns.candidates:
            return None
        return f"{path!r} is a choice of the plan, which a sweep searches: restrict it with fix or limit"

    def values(self, path: str, at: KeyPath, content: object) -> list[Value]:
        """Return the values of a list, a range, or one value."""
        if isinstance(content, dict) and not is_sourced(content):
            return self.range(path, at, content)
        if not isinstance(content, list):
            return [self.value(path, at, content)]
        if not content:
            self.fault(at, content, EMPTY)
        return [self.value(path, (*at, index), item) for index, item in enumerate(content)]

    def range(self, path: str, at: KeyPath, content: dict[str, object]) -> list[Value]:
        num_faults = len(self.faults)
        try:
            first, last, times = ends(content)
            first, last = self.value(path, (*at, "from"), first), self.value(path, (*at, "to"), last)
            factor = whole_number(times) if varied_field(path).integer else float(number(times))
            return geometric(content, first, last, factor) if len(self.faults) == num_faults else []
        except ValueError as error:
            self.fault(at, content, str(error))
            return []

    def value(self, path: str, at: KeyPath, content: object) -> Value:
        """Return one value of the field at `path`; NaN for an invalid one."""
        if isinstance(content, list) or (isinstance(content, dict) and not is_sourced(content)):
            self.fault(at, content, f"{content!r} is not one value")
            return math.nan
        try:
            return value_type(path).validate_python(content)
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                self.add({"type": fault["type"], "loc": at, "input": content, "ctx": fault.get("ctx", {})})
            return math.nan

    def fault(self, at: KeyPath, content: object, message: str) -> None:
        self.add({"type": "value_error", "loc": at, "input": content, "ctx": {"error": ValueError(message)}})

    def add(self, fault: InitErrorDetails) -> None:
        """Add a fault; raises ValidationError with all faults so far once there are enough."""
        self.faults.append(fault)
        if len(self.faults) >= _MOST_FAULTS:
            raise self.error()

    def error(self) -> ValidationError:
        """Return the error that lists the faults."""
        return ValidationError.from_exception_data("what_if", self.faults)


def _read(content: object, info: ValidationInfo[Columns | None]) -> WhatIf:
    reading = _PointReader(info.context)
    if isinstance(content, dict):
        what_if = reading.grid(content)
    elif isinstance(content, list):
        what_if = reading.points(content)
    else:
        example = "{device.hbm_capacity: [80 GB, 141 GB]}"
        raise ValueError(f"expected fields with their values, such as {example}, or a list of points, got {content!r}")
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
