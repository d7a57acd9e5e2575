"""Bounds of fitted numbers: ``{value: 0.8, source: "...", between: [0.6, 0.95]}``.

A fit may change only numbers that state bounds. Bounds have the unit of the number. The spec, which prices plans, does
not hold them.
"""

from dataclasses import dataclass

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from dsx.errors import SpecError
from dsx.spec.document import Document, is_sourced


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
    data, found, faults = dict(document.data), dict[str, Bounds](), list[str]()
    for name, stated in document.data.items():
        if name not in model.model_fields or not is_sourced(stated) or "between" not in stated:
            continue
        data[name] = {key: value for key, value in stated.items() if key != "between"}
        try:
            found[name] = _bounds_around(model.model_fields[name], stated["between"], stated["value"])
        except ValueError as error:
            faults.append(f"{document.place((name, 'between'))}: {name}: {error}")
    if faults:
        raise SpecError("\n".join(faults))
    return Document(data, document.places), found


def bounds_of(info: FieldInfo, between: object) -> Bounds:
    """Return the bounds that `between` states for a number; ValueError if they are not two increasing numbers."""
    if info.annotation is not float:
        raise ValueError("has 'between', but is not a real number, which a fit could change")
    if not isinstance(between, list) or len(between) != 2:
        raise ValueError(f"between: expected two numbers, [lowest, highest], got {between!r}")
    kind = TypeAdapter[float](info.rebuild_annotation())
    low, high = (_number(kind, bound) for bound in between)
    if low >= high:
        raise ValueError(f"between: the lower bound comes first, but {between[0]} is not below {between[1]}")
    return Bounds(low, high)


def _bounds_around(info: FieldInfo, between: object, value: object) -> Bounds:
    bounds = bounds_of(info, between)
    try:
        own = TypeAdapter[float](info.rebuild_annotation()).validate_python(value)
    except ValidationError:  # the validation of the field reports it
        return bounds
    if not bounds.low <= own <= bounds.high:
        raise ValueError(f"the value {value} is not between {between[0]} and {between[1]}")  # pyright: ignore[reportIndexIssue]
    return bounds


def _number(kind: TypeAdapter[float], bound: object) -> float:
    try:
        return kind.validate_python(bound)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"between: {bound!r}: {message[0].lower()}{message[1:]}") from None
