"""Records: frozen dataclasses that are JAX pytrees, and whose fields say their unit.

A record is a struct of arrays. A field made by `column` carries the unit and the description that the
Parquet schema, the documents and `df.attrs` show, so a column is described in exactly one place. A
field made by `static` is part of the pytree's structure: it is hashed, not traced.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar, cast, dataclass_transform

import jax
import numpy as np

T = TypeVar("T")
Array = jax.Array | np.ndarray | float  # what a leaf holds: numbers, traced ones, or one number for all


def column(unit: str, description: str) -> Any:
    """Return a dataclass field that is a result column: its SI unit ("" if bare) and meaning."""
    return dataclasses.field(metadata={"unit": unit, "description": description})


def static(**kwargs: Any) -> Any:
    """Return a dataclass field that JAX treats as structure (hashable, never traced)."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, column, static))
def record(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, slotted dataclass and register it as a pytree."""
    return _registered(dataclasses.dataclass(frozen=True, slots=True)(cls))


def made(name: str, module: str, fields: Iterable[tuple[str, Any]]) -> Any:
    """Return a record of that name whose fields, each a name and its `dataclasses.field`, follow from a table."""
    cls = dataclasses.make_dataclass(name, [(field, Any, kind) for field, kind in fields], frozen=True, slots=True)
    cls.__module__ = module
    return _registered(cls)


def _registered(cls: type[T]) -> type[T]:
    data = leaves(cls)
    meta = [f.name for f in dataclasses.fields(cast(Any, cls)) if f.name not in data]
    return jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=meta)


def leaves(cls: type) -> list[str]:
    """Return the names of a record's fields that are not `static`, in order."""
    return [f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")]


def columns(cls: type) -> dict[str, tuple[str, str]]:
    """Return ``{field: (unit, description)}`` of a record's `column` fields, in order."""
    return {
        f.name: (f.metadata["unit"], f.metadata["description"]) for f in dataclasses.fields(cls) if "unit" in f.metadata
    }
