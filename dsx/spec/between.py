"""Bounds of the numbers that are fitted: ``{value: 0.8, source: "...", between: [0.6, 0.95]}``.

A fit may change a number that states them, and no other. Bounds are written as the number is, with its unit. They
are no part of the spec, which holds what prices a plan.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from dsx.errors import SpecError
from dsx.spec.document import Document, is_sourced


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between which values a fit may move a number, in SI units; low < high."""

    low: float
    high: float


def without_bounds(document: Document, model: type[BaseModel]) -> tuple[Document, dict[str, Bounds]]:
    """Return the document without the bounds that it states, and these by field.

    Raises SpecError that lists, with their lines, bounds that are no two numbers of their field or the wrong way
    round, and values outside them.
    """
    data, found, faults = dict(document.data), dict[str, Bounds](), list[str]()
    for name, stated in document.data.items():
        if name not in model.model_fields or not is_sourced(stated) or "between" not in stated:
            continue
        data[name] = {key: value for key, value in stated.items() if key != "between"}
        try:
            found[name] = _bounds(model.model_fields[name], stated["between"], stated["value"])
        except ValueError as error:
            faults.append(f"{document.place((name, 'between'))}: {name}: {error}")
    if faults:
        raise SpecError("\n".join(faults))
    return Document(data, document.places), found


def _bounds(info: FieldInfo, between: Any, value: Any) -> Bounds:
    if info.annotation is not float:
        raise ValueError("has 'between', but is no real number that could be fitted")
    if not isinstance(between, list) or len(between) != 2:
        raise ValueError(f"between: expected two numbers, [lowest, highest], got {between!r}")
    kind = TypeAdapter[float](info.rebuild_annotation())
    low, high = (_number(kind, bound) for bound in between)
    if low >= high:
        raise ValueError(f"between: the lowest comes first, and {between[0]} is not below {between[1]}")
    try:
        own = kind.validate_python(value)
    except ValidationError:  # said, with its line, where the field is validated
        return Bounds(low, high)
    if not low <= own <= high:
        raise ValueError(f"the value {value} is not between {between[0]} and {between[1]}")
    return Bounds(low, high)


def _number(kind: TypeAdapter[float], bound: Any) -> float:
    try:
        return kind.validate_python(bound)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"between: {bound!r}: {message[0].lower()}{message[1:]}") from None
