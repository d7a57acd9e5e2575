"""Records: frozen dataclasses that are JAX pytrees, with units on their fields.

A record is a struct of arrays. A field made by `column` has the unit and the description that the Parquet schema, the
documents and `df.attrs` show, so each column is described in one place. A field made by `static` is part of the
pytree's structure: JAX hashes it and does not trace it.

Annotations of arrays state dtype and axes in the notation of jaxtyping: ``Float[Array, "2 kernels works"]``. Here
`Float`, `Int`, `Real` and `Bool` are `typing.Annotated`, as jaxtyping's are to a type checker, so nothing is imported
or checked for them at run time; the tests substitute those of jaxtyping (`tests/shapes.py`).
"""

import dataclasses
from collections.abc import Iterable
from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Annotated as Real
from typing import Any, TypeVar, cast, dataclass_transform

import jax
import numpy as np

__all__ = [
    "Array",
    "ArrayLike",
    "Bool",
    "Float",
    "Int",
    "Real",
    "column",
    "columns",
    "leaves",
    "make_record",
    "record",
    "static",
]

T = TypeVar("T")
Array = jax.Array | np.ndarray
ArrayLike = Array | float  # one number for all elements, where an array broadcasts


def column(unit: str, description: str) -> Any:
    """Return a dataclass field for a result column, with its SI unit ("" if it has none) and its meaning."""
    return dataclasses.field(metadata={"unit": unit, "description": description})


def static(**kwargs: Any) -> Any:
    """Return a dataclass field that JAX treats as structure (hashable, never traced)."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, column, static))
def record(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, slotted dataclass and register it as a pytree."""
    return _registered(dataclasses.dataclass(frozen=True, slots=True)(cls))


def make_record(name: str, module: str, fields: Iterable[tuple[str, Any, Any]]) -> Any:
    """Return a record class; `fields` are (name, annotation, `dataclasses.field`), as a table gives them."""
    cls = dataclasses.make_dataclass(name, fields, frozen=True, slots=True)
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
