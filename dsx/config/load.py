"""From a name to a checked record: find the file, merge what it extends, apply overrides, validate.

`extends: NAME`: a file that states only its differences from another file of the same kind.

The other file may extend a third. Sections merge; numbers, strings and lists replace.

Not modelled: removing a key, several bases.

`--set cluster.device.hbm_capacity=141 GB`: replaces one value of a file for one run.

An assignment is TARGET.PATH=VALUE. It replaces a value of the file; a path that the file does not have counts as
misspelt, unless it is an optional field of the schema. The replaced number loses its source. Items of a list are named
by their position, from 0.

From a name to a validated spec: find the file, merge the files that it extends, apply overrides, validate.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict

from dsx.config.documents import (
    Document,
    KeyPath,
    Kind,
    find,
    is_sourced,
    load_document,
    merged,
    parse_value,
    paths_of,
    shown,
    stated_in_code,
)
from dsx.config.values import S, validate, wrong_base
from dsx.errors import InputError, SpecError, did_you_mean

_MOST_FILES = 30  # that extend each other; packaged: three


def extended(path: Path, kind: Kind, extending: tuple[Path, ...] = ()) -> list[tuple[Path, Document]]:
    """Return the file at `path` and those that it extends, each with its own content, the file itself first.

    `extending` are the files that extend `path`. Raises SpecError for a cycle, a base that does not exist, and
    what `load_document` raises.
    """
    document = load_document(path)
    if "extends" not in document.data:
        return [(path, document)]
    place = document.place(("extends",))
    name = document.data["extends"]
    if not isinstance(name, str):
        raise SpecError(f"{place}: extends: expected the name of one file, got {name!r}")
    try:
        base = find(kind, name, ".yaml", near=path)
    except InputError as error:
        if told := wrong_base(shown(path), name, kind):
            raise SpecError(told) from None
        raise SpecError(f"{place}: extends: {error}") from None
    chain = (*extending, path)
    if any(base.resolve() == file.resolve() for file in chain):
        cycle = " extends ".join(shown(file) for file in (*chain, base))
        raise SpecError(f"{place}: extends: a file cannot extend itself: {cycle}")
    if len(chain) == _MOST_FILES:
        raise SpecError(f"{place}: extends: {shown(extending[0])} extends a chain of more than {_MOST_FILES} files")
    rest = {key: value for key, value in document.data.items() if key != "extends"}
    return [(path, Document(rest, document.places)), *extended(base, kind, chain)]


Assignment = tuple[str, str]  # ("device.hbm_capacity", "141 GB")

TARGETS = ("model", "cluster", "assumptions", "sweep")
_OTHER_WORDS = {"precision": "linear_dtype", "dtype": "linear_dtype"}  # for paths of an assumption set
MOVED = {"host_memory_bandwidth": "node.host_memory_bandwidth"}  # former fields of an assumption set, of a cluster now
_OF_A_CLUSTER = ("device", "network", "node")  # its sections, which a `what_if` names without it


def split(assignments: Iterable[str]) -> dict[str, list[Assignment]]:
    """Return the (path, value) pairs of each of TARGETS; raises SpecError for any other target."""
    by_target: dict[str, list[Assignment]] = {target: [] for target in TARGETS}
    for text in assignments:
        name, equals, value = text.partition("=")
        target, _, path = name.strip().partition(".")
        if target not in by_target:
            near = f"; did you mean 'cluster.{target}'?" if target in _OF_A_CLUSTER else did_you_mean(target, TARGETS)
            raise SpecError(f"--set {text}: unknown target {target!r}{near} (known: {', '.join(TARGETS)})")
        if not equals or not path:
            raise SpecError(f"--set {text}: expected TARGET.PATH=VALUE, such as model.dimensions.e=4096")
        by_target[target].append((path, value))
    return by_target


def _nothing(path: tuple[str, ...]) -> bool:
    del path
    return False


def apply(
    data: dict[str, Any],
    assignments: Iterable[Assignment],
    target: str = "",
    fields: Collection[tuple[str, ...]] = (),
    may_add: Callable[[tuple[str, ...]], bool] = _nothing,
) -> dict[str, Any]:
    """Return a copy of `data` with each (path, value) set; later assignments win.

    Messages put `target` in front of the path. A path that `data` lacks may be added if it is one of `fields`, those of
    the schema, or if `may_add` returns so. Raises SpecError for any other path, with the nearest one.
    """
    changed = copy.deepcopy(data)
    for path, text in assignments:
        place = _place(target, path)
        steps = _steps(changed, path, place, fields, may_add)
        inner: Any = changed
        for step, part in pairwise(steps):
            inner = inner[step] if isinstance(step, int) else inner.setdefault(step, {})
            if isinstance(part, str) and not isinstance(inner, dict):
                raise SpecError(f"{place}: {step!r} is {inner!r}, which has no part {part!r}")
        inner[steps[-1]] = parse_value(text, place)
    return changed


def override(
    document: Document,
    assignments: Sequence[Assignment],
    target: str,
    fields: Collection[tuple[str, ...]] = (),
    may_add: Callable[[tuple[str, ...]], bool] = _nothing,
) -> Document:
    """Return `document` with the assignments applied; the places of the changed values become the ``--set``."""
    data = apply(document.data, assignments, target, fields, may_add)
    places = dict(document.places)
    for path, _ in assignments:
        for at in (*document.places, *paths_of(data)):  # replaced parts too: a fault may name a missing entry
            if f"{'.'.join(map(str, at))}.".startswith(f"{path}."):
                places[at] = _place(target, path)
    return Document(data, places)


def _place(target: str, path: str) -> str:
    return f"--set {target}.{path}" if target else f"--set {path}"


def _steps(
    data: dict[str, object],
    path: str,
    place: str,
    fields: Collection[tuple[str, ...]],
    may_add: Callable[[tuple[str, ...]], bool],
) -> KeyPath:
    """Return the keys and list positions of the dotted `path`."""
    settable = {".".join(map(str, steps)): steps for steps in _settable(data)}
    if path in settable:
        return settable[path]
    names = tuple(path.split("."))
    if names in fields or may_add(names):
        return names
    known = [*settable, *map(".".join, fields)]
    meant = _OTHER_WORDS.get(path, "")
    if moved := MOVED.get(path):
        raise SpecError(f"{place}: it is 'cluster.{moved}' now, of a whole node")
    near = f"; did you mean {meant!r}?" if meant in known else did_you_mean(path, known)
    raise SpecError(f"{place}: unknown path {path!r}{near}")


def _settable(data: object, path: KeyPath = ()) -> Iterable[KeyPath]:
    if path:
        yield path
    if is_sourced(data):
        return
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from _settable(value, (*path, key))


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
