"""From a name to a validated spec: find the file, merge the files that it extends, apply overrides, validate."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict

from dsx.errors import SpecError
from dsx.spec.document import Document, merged, stated_in_code
from dsx.spec.extends import extended
from dsx.spec.locate import Kind, find
from dsx.spec.overrides import Assignment, override
from dsx.spec.validated import S, validate


class Spec(BaseModel):
    """Base of all specs: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    former_keys: ClassVar[Mapping[str, str]] = {}  # former key -> what to write instead
    keys_of_file: ClassVar[Sequence[str]] = ()  # keys that are read before the spec is validated


# A spec as users give it: its name, the path of its file, its content, or the spec itself.
Given = str | Path | Mapping[str, object] | Spec


def load_spec(
    kind: Kind,
    target: str,
    model: type[S],
    name: Given,
    overrides: Sequence[Assignment],
    near: Path | None,
) -> S:
    """Return the spec of the `kind` called `name`, or at that path, with `overrides` set.

    `target` is its name in ``--set``; `near` is the file that mentions the name. Raises UnknownNameError or SpecError.
    """
    return validate(load_overridden(kind, target, model, name, overrides, near), model)


def load_overridden(
    kind: Kind,
    target: str,
    model: type[BaseModel],
    name: Given,
    overrides: Sequence[Assignment],
    near: Path | None,
    open_keys: Collection[str] = (),
) -> Document:
    """Return the document that `load_spec` validates: merged over the files that it extends, with `overrides` set.

    An override may add keys to the fields `open_keys`.
    """
    return overridden(merged(statements(kind, target, model, name, near)), target, model, overrides, open_keys)


def overridden(
    document: Document,
    target: str,
    model: type[BaseModel],
    overrides: Sequence[Assignment],
    open_keys: Collection[str] = (),
) -> Document:
    """Return the document of a spec with `overrides` set; they may add fields, and keys to the fields `open_keys`."""

    def may_add(path: tuple[str, ...]) -> bool:
        return len(path) == 2 and path[0] in open_keys

    return override(document, overrides, target, [*_fields(model)], may_add)


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the fields of a spec, and of its sections."""
    for name, field in model.model_fields.items():
        yield (name,)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from ((name, *path) for path in _fields(kind))


def _check_given(target: str, model: type[BaseModel], given: Given) -> None:
    """Raise SpecError for what is no spec of this `model`, nor the name, the path or the content of one."""
    if isinstance(given, str | Path | Mapping | model):
        return
    wanted = f"a name, a path, a mapping or a {model.__name__} is wanted"
    raise SpecError(f"{target}: {type(given).__name__} is given, and {wanted}")


def statements(kind: Kind, target: str, model: type[BaseModel], given: Given, near: Path | None) -> Sequence[Document]:
    """Return a spec as it is stated, and what it extends, each with its own content, the spec itself first.

    Content has the place `target`.
    """
    _check_given(target, model, given)
    if isinstance(given, str | Path):
        return [document for _, document in extended(find(kind, str(given), ".yaml", near), kind)]
    content = given.model_dump(mode="json") if isinstance(given, Spec) else dict(given)
    base: Any = content.pop("extends", None)
    document = stated_in_code(content, target)
    return [document, *(() if base is None else statements(kind, f"{target}.extends", model, base, near))]
