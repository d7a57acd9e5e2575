"""`what_if`: the numbers of the cluster and of the assumption set that a sweep may vary.

What can be varied, with its unit and its bounds, is what the specs of cluster and assumption set say of their
own fields, so a new number there is a new what-if here: a real one is priced at many values at once, an integer
shapes the space. Not modelled: what-ifs of the model.
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
from dsx.spec.quantities import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

Value = float | int  # in SI units

_ASSUMPTIONS = "assumptions"
_QUANTITIES = {"bytes": Bytes, "bytes/s": BytesPerSecond, "flop/s": FlopsPerSecond, "s": Seconds}

# Settings of a sweep that are looked for in what_if, and what each takes at top level.
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
    """A number that can be varied: its SI unit ("" if bare), and whether it is an integer."""

    path: str
    unit: str
    description: str
    integer: bool


@cache
def field(path: str) -> WhatIfField:
    """Return the field at `path`, such as "device.hbm_capacity".

    Raises SpecError, which says what can be varied instead, if there is none.
    """
    info = _numbers().get(path)
    if info is None:
        raise SpecError(_refusal(path))
    *section, name = path.split(".")
    description = f"{name} of the {' '.join(reversed(section))}, varied by the sweep"
    return WhatIfField(path, _unit(info), description, integer=info.annotation is int)


@cache
def value_type(path: str) -> TypeAdapter[Value]:
    """Return what reads and writes a value of the field at `path`, as its own spec does."""
    return TypeAdapter(_numbers()[path].rebuild_annotation())


def is_setting(path: str) -> bool:
    """Return whether `path` is no field of what_if, but a setting of the sweep at top level."""
    return path in _SETTINGS


def is_belief(path: str) -> bool:
    """Return whether `path` is a field of the assumption set, not of the machine."""
    return path.startswith(f"{_ASSUMPTIONS}.")


def is_section(path: str) -> bool:
    """Return whether `path` holds fields: "network.nvs"."""
    return any(known.startswith(f"{path}.") for known in _values())


@cache
def _values() -> dict[str, FieldInfo]:
    """Return every single value that a cluster and an assumption set state, by its path."""

    def inside(model: type[BaseModel], before: str) -> Iterator[tuple[str, FieldInfo]]:
        for name, info in model.model_fields.items():
            kind = info.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from inside(kind, f"{before}{name}.")
            else:
                yield f"{before}{name}", info

    return dict(inside(ClusterSpec, "")) | dict(inside(AssumptionsSpec, f"{_ASSUMPTIONS}."))


@cache
def _numbers() -> dict[str, FieldInfo]:
    """Return the fields that can be varied, by path.

    The integers of an assumption set are sizes of elements: they stand in the work expressions of a layer,
    which are evaluated once for all points.
    """
    return {
        path: info
        for path, info in _values().items()
        if info.annotation is float or (info.annotation is int and not path.startswith(f"{_ASSUMPTIONS}."))
    }


def _unit(info: FieldInfo) -> str:
    # A quantity is known by what reads it, which stays when a field adds bounds of its own.
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
    beside = [known for known, section in numbers.items() if section == _section(path)]
    info = _values().get(path)
    if info is None:
        near = did_you_mean(path, [*numbers, *numbers.values()])
        return f"unknown field {path!r}{near} (known: {', '.join(beside or numbers)})"
    if info.annotation is int:
        return f"{path!r} shapes the work of a layer; use --set {path}=... in a sweep of its own"
    if not beside:
        return f"{path!r} is no number; to compare clusters, give a list of them as 'cluster' at top level"
    return f"{path!r} is no number; those that can vary are {', '.join(beside)}"


def _section(path: str) -> str:
    return path.rpartition(".")[0]
