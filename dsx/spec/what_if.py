"""`what_if`: the numbers of the cluster and of the assumption set that a sweep may vary.

The fields, with their units and bounds, come from the specs of cluster and assumption set; a new number there can be
varied here at once. A real number is priced at many values together, an integer shapes the space.

Not modelled: what-ifs of the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import get_args

from pydantic import BaseModel, BeforeValidator, TypeAdapter
from pydantic.fields import FieldInfo

from dsx.errors import SpecError, did_you_mean
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import ClusterSpec
from dsx.spec.overrides import MOVED
from dsx.spec.value_types import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

Value = float | int  # in SI units

_ASSUMPTIONS = "assumptions"
_QUANTITIES = {"bytes": Bytes, "bytes/s": BytesPerSecond, "flop/s": FlopsPerSecond, "s": Seconds}

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
def field(path: str) -> WhatIfField:
    """Return the field at `path`, such as "device.hbm_capacity".

    Raises SpecError, which says what to vary instead, if there is none.
    """
    info = _numbers().get(path)
    if info is None:
        raise SpecError(_refusal(path))
    *section, name = path.split(".")
    description = f"{name} of the {' '.join(reversed(section))}, varied by the sweep"
    return WhatIfField(path, _unit(info), description, integer=info.annotation is int)


def is_field(path: str) -> bool:
    """Return whether a sweep can vary the field at `path`."""
    return path in _numbers()


@cache
def value_type(path: str) -> TypeAdapter[Value]:
    """Return the type that reads and writes values of the field at `path`, as in its own spec."""
    return TypeAdapter(_numbers()[path].rebuild_annotation())


def is_setting(path: str) -> bool:
    """Return whether `path` is a setting of the sweep at top level, and not a field of what_if."""
    return path in _SETTINGS


def is_assumption(path: str) -> bool:
    """Return whether `path` is a field of the assumption set, and not of the cluster."""
    return path.startswith(f"{_ASSUMPTIONS}.")


def is_section(path: str) -> bool:
    """Return whether `path` is a section with fields: "network.nvs"."""
    return any(known.startswith(f"{path}.") for known in _values())


@cache
def _values() -> dict[str, FieldInfo]:
    """Return path -> field for every single value of a cluster and every field of an assumption set.

    The numbers inside a field of an assumption set say how it was fitted.
    """

    def inside(model: type[BaseModel], before: str) -> Iterator[tuple[str, FieldInfo]]:
        for name, info in model.model_fields.items():
            kind = info.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from inside(kind, f"{before}{name}.")
            else:
                yield f"{before}{name}", info

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


def _unit(info: FieldInfo) -> str:
    # A quantity is recognised by its validator, which remains when a field adds its own bounds.
    for unit, kind in _QUANTITIES.items():
        if any(isinstance(mark, BeforeValidator) and mark in info.metadata for mark in get_args(kind)):
            return unit
    return ""


def _refusal(path: str) -> str:
    """Return why the field at `path` cannot be varied, and what to write instead."""
    numbers = {known: _section(known) for known in _numbers()}
    if is_setting(path):
        return f"{path!r} is a setting of the sweep: state it at top level, where it takes {_SETTINGS[path]}"
    if is_section(path):
        inside = next(known for known in numbers if known.startswith(f"{path}."))
        return f"{path!r} is a section: name one of its fields, such as {inside!r}"
    siblings = [known for known, section in numbers.items() if section == _section(path)]
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


def _section(path: str) -> str:
    return path.rpartition(".")[0]
