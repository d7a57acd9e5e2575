"""Records: frozen dataclasses that are JAX pytrees, with units on their fields.

A record is a struct of arrays. A field made by `column` has the unit and the description that the Parquet schema, the
documents and `df.attrs` show, so each column is described in one place. A field made by `static` is part of the
pytree's structure: JAX hashes it and does not trace it.

Annotations of arrays state dtype and axes in the notation of jaxtyping: ``Float[Array, "2 kernels works"]``. Here
`Float`, `Int`, `Real`, `Bool` and `Shaped` (any dtype) are `typing.Annotated`, as jaxtyping's are to a type checker, so
nothing is imported or checked for them at run time; the tests substitute those of jaxtyping (`tests/shapes.py`). A
record of plans whose arrays have more axes is ``Over[Record, "points ... keys"]``: axes before those that its fields
state, and keys in place of plans.

JAX takes half of the time in which a command starts, and few plans are priced on NumPy. So nothing here loads it:
what compiles calls `make_pytrees` first, and `tree_map` does what `jax.tree.map` does, in a third of its time.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast, dataclass_transform
from typing import Annotated as Bool  # noqa: F401
from typing import Annotated as Float  # noqa: F401
from typing import Annotated as Int  # noqa: F401
from typing import Annotated as Over  # noqa: F401
from typing import Annotated as Real  # noqa: F401
from typing import Annotated as Shaped  # noqa: F401

import numpy as np

if TYPE_CHECKING:
    import jax

T = TypeVar("T")
if TYPE_CHECKING:
    Array = jax.Array | np.ndarray
else:
    Array = np.ndarray  # the tests, which check arrays, put that of JAX beside it
ArrayLike = Array | float  # one number for all elements, where an array broadcasts

_fields: dict[type, tuple[list[str], list[str]]] = {}  # of each record class, data and static ones
_pytrees: set[type] = set()  # the record classes that JAX knows, if it is told of any


def column(
    unit: str, description: str, larger_is_better: bool = False, positive: bool = False, needs: tuple[str, ...] = ()
) -> Any:
    """Return a dataclass field for a result column, with its SI unit ("" if it has none) and its meaning.

    `positive` says that it is above zero for every plan; the others are zero for many. `needs` names what a sweep
    (`train_tokens`) or its cluster (`price`, `power`, `failures`) must state, as otherwise the column is NaN.
    """
    metadata = {"unit": unit, "description": description, "larger": larger_is_better, "positive": positive}
    return dataclasses.field(metadata=metadata | {"needs": needs})


def static(**kwargs: Any) -> Any:
    """Return a dataclass field that JAX treats as structure (hashable, never traced)."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, column, static))
def record(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, slotted dataclass and register it as a pytree."""
    return _registered(dataclasses.dataclass(frozen=True, slots=True)(cls))


def make_record(name: str, module: str, fields: Iterable[tuple[str, object, object]]) -> Any:
    """Return a record class; `fields` are (name, annotation, `dataclasses.field`), as a table gives them."""
    cls = dataclasses.make_dataclass(name, fields, frozen=True, slots=True)
    cls.__module__ = module
    return _registered(cls)


def _registered(cls: type[T]) -> type[T]:
    data = leaves(cls)
    _fields[cls] = data, [f.name for f in dataclasses.fields(cast(Any, cls)) if f.name not in data]
    if _pytrees:
        make_pytrees()
    return cls


def make_pytrees() -> None:
    """Make all records pytrees of JAX, those too that are yet to be defined; loads JAX."""
    import jax

    for cls, (data, meta) in _fields.items():
        if cls not in _pytrees:
            jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=meta)
            _pytrees.add(cls)


def tree_map(function: Callable[..., object], tree: T, *trees: T) -> T:
    """Return a tree with `function` of the leaves of one or more trees of one structure.

    Records, tuples, named ones too, lists and dictionaries are nodes, None is an empty one, and all else is a leaf.
    Static fields are those of the first tree.
    """
    result: Any = tree
    if (fields := _fields.get(type(tree))) is not None:
        data, meta = fields
        mapped = {name: tree_map(function, *[getattr(part, name) for part in (tree, *trees)]) for name in data}
        result = type(tree)(**mapped, **{name: getattr(tree, name) for name in meta})
    elif isinstance(tree, tuple | list):
        items = [tree_map(function, *parts) for parts in zip(tree, *cast(Any, trees), strict=True)]
        result = type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    elif isinstance(tree, dict):
        result = {key: tree_map(function, tree[key], *[cast(Any, other)[key] for other in trees]) for key in tree}
    elif tree is not None:
        result = function(tree, *trees)
    return result


def tree_leaves(tree: object) -> list[Any]:
    """Return the leaves of a tree, in the order in which `tree_map` meets them."""
    met: list[Any] = []
    tree_map(met.append, tree)
    return met


def leaves(cls: type) -> list[str]:
    """Return the names of a record's fields that are not `static`, in order."""
    return [f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")]


def larger_is_better(cls: type) -> frozenset[str]:
    """Return the `column` fields of a record of which the largest value is the best; of others it is the smallest."""
    return frozenset(f.name for f in dataclasses.fields(cls) if f.metadata.get("larger"))


def positive_columns(cls: type) -> frozenset[str]:
    """Return the `column` fields of a record that are above zero for every plan."""
    return frozenset(f.name for f in dataclasses.fields(cls) if f.metadata.get("positive"))


def needs_of_columns(cls: type) -> dict[str, tuple[str, ...]]:
    """Return what `column` fields of a record need besides a plan; those that need nothing are left out."""
    return {f.name: f.metadata["needs"] for f in dataclasses.fields(cls) if f.metadata.get("needs")}


def columns(cls: type) -> dict[str, tuple[str, str]]:
    """Return ``{field: (unit, description)}`` of a record's `column` fields, in order."""
    return {
        f.name: (f.metadata["unit"], f.metadata["description"]) for f in dataclasses.fields(cls) if "unit" in f.metadata
    }
