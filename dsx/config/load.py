"""From a name to a checked record: find the file, merge what it extends, apply overrides, validate.

`extends: NAME` in a file states only its differences from another file of the same kind, which may extend a third.
Sections merge; numbers, strings and lists replace.

`--set TARGET.PATH=VALUE` replaces one value of a file for one run, as in ``cluster.device.hbm_capacity=141 GB``; a path
that the file does not have counts as misspelt, unless it is an optional field of the schema. The replaced number loses
its source. Items of a list are named by their position, from 0.

Not modelled: removing a key, several bases.
"""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from dsx.config.documents import (
    Document,
    KeyPath,
    Plain,
    is_sourced,
    load_document,
    merged,
    parse_value,
    paths_of,
    stated_in_code,
)
from dsx.config.schema import Spec, wrong_base
from dsx.config.search_path import find, shown
from dsx.errors import InputError, SpecError, did_you_mean, nearest_names
from dsx.text import whole_number_text

_MOST_FILES = 30  # that extend each other; packaged: nine

# A spec as users give it: its name, the path of its file, its content, or the spec itself.
Given = str | Path | Mapping[str, object] | Spec


def extended(path: Path, spec: type[Spec]) -> list[tuple[Path, Document]]:
    """Return the file of a spec at `path` and those that it extends, each with its own content, the file itself first.

    Raises SpecError for a cycle, a base that does not exist, and what `load_document` raises.
    """
    folder, files = spec.file_kind.folder, list[tuple[Path, Document]]()
    while True:
        document = load_document(path)
        if "extends" not in document.data or folder is None:
            return [*files, (path, document)]
        place = f"{document.place(('extends',))}: extends"
        name = document.data["extends"]
        if not isinstance(name, str):
            raise SpecError(f"{place}: expected the name of one file, got {name!r}")
        try:
            base = find(folder, name, ".yaml", near=path)
        except InputError as error:
            if fault := wrong_base(shown(path), name, spec):
                raise SpecError(fault) from None
            raise SpecError(f"{place}: {error}") from None
        content = {key: value for key, value in document.data.items() if key != "extends"}
        files.append((path, Document(content, document.places)))
        chain = [file for file, _ in files]
        if any(base.resolve() == file.resolve() for file in chain):
            cycle = " extends ".join(map(shown, (*chain, base)))
            raise SpecError(f"{place}: a file cannot extend itself: {cycle}")
        if len(chain) == _MOST_FILES:
            raise SpecError(f"{place}: {shown(chain[0])} extends a chain of more than {_MOST_FILES} files")
        path = base


def statements(spec: type[Spec], reference: Given, near: Path | None = None, place: str = "") -> Sequence[Document]:
    """Return a spec as it is stated, and what it extends, each with its own content, the spec itself first.

    `near` is the file that mentions the name; content has the `place`, by default the target of its kind. Raises
    SpecError for what is no spec, nor the name, the path or the content of one.
    """
    kind = spec.file_kind
    place = place or kind.target
    if not isinstance(reference, str | Path | Mapping | spec):
        expected = f"a name, a path, a mapping or a {spec.__name__} is wanted"
        raise SpecError(f"{place}: {type(reference).__name__} is given, and {expected}")
    if isinstance(reference, str | Path):
        if kind.folder is None:
            raise TypeError(f"no folder has files of {spec.__name__}")
        return [document for _, document in extended(find(kind.folder, str(reference), ".yaml", near), spec)]
    content = reference.model_dump(mode="json") if isinstance(reference, Spec) else dict(reference)
    base: Plain = content.pop("extends", None)
    document = stated_in_code(content, place)
    return [document, *(() if base is None else statements(spec, base, near, f"{place}.extends"))]


def stated_document(
    spec: type[Spec], reference: Given, overrides: Sequence["Assignment"] = (), near: Path | None = None
) -> Document:
    """Return the document to validate as a spec: merged over the files that it extends, with `overrides` set."""
    return override(merged(statements(spec, reference, near)), overrides, spec)


# A field and its value, ("device.hbm_capacity", "141 GB"): a text is read as on the command line; other plain data is
# the value itself.
Assignment = tuple[str, Plain]

TARGETS = ("model", "cluster", "assumptions", "sweep")
_OTHER_WORDS = {"precision": "linear_dtype", "dtype": "linear_dtype"}  # for paths of an assumption set
MOVED = {"host_memory_bandwidth": "node.host_memory_bandwidth"}  # former fields of an assumption set, of a cluster now
_OF_A_CLUSTER = ("device", "network", "node")  # its sections, which a `what_if` names without it


def value_text(value: Plain) -> str:
    """Return the value of an assignment as the command line takes it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return whole_number_text(value)
    return value if isinstance(value, str) else json.dumps(value)


def stated(assignment: str | Assignment) -> tuple[str, Plain, str]:
    """Return the field and the value of an assignment, or of FIELD=VALUE, and how an error quotes it."""
    if isinstance(assignment, str):
        path, _, value = assignment.partition("=")
        return path, value, assignment
    path, value = assignment
    return path, value, f"{path}={value_text(value)}"


def split(assignments: Iterable[str | Assignment]) -> dict[str, list[Assignment]]:
    """Return the assignments of each of TARGETS, from "TARGET.PATH=VALUE" or (TARGET.PATH, value).

    Raises SpecError for any other target.
    """
    by_target: dict[str, list[Assignment]] = {target: [] for target in TARGETS}
    for assignment in assignments:
        name, value, text = stated(assignment)
        target, _, path = name.strip().partition(".")
        if target not in by_target:
            near = f"; did you mean 'cluster.{target}'?" if target in _OF_A_CLUSTER else did_you_mean(target, TARGETS)
            raise SpecError(f"--set {text}: unknown target {target!r}{near} (known: {', '.join(TARGETS)})")
        if "=" not in text or not path:
            raise SpecError(f"--set {text}: expected TARGET.PATH=VALUE, such as model.dimensions.e=4096")
        by_target[target].append((path, value))
    return by_target


def value_of(value: Plain, place: str) -> Plain:
    """Return the value that an assignment states; SpecError, with its place, for a text that is none."""
    return parse_value(value, place) if isinstance(value, str) else copy.deepcopy(value)


def override(document: Document, assignments: Sequence[Assignment], spec: type[Spec]) -> Document:
    """Return `document` with each (path, value) set; later assignments win, and the ``--set`` is the place of a value.

    A path that `document` lacks may be added if the schema has it, or may have it (`Spec.may_add`). Raises SpecError
    for any other path, with the nearest one.
    """
    data = copy.deepcopy(document.data)
    options = {path: f"--set {spec.file_kind.target}.{path}" for path, _ in assignments}
    for path, value in assignments:
        steps = _steps(data, path, options[path], spec)
        inner: Plain = data
        for step, part in pairwise(steps):
            inner = inner[step] if isinstance(step, int) else inner.setdefault(step, {})
            if isinstance(part, str) and not isinstance(inner, dict):
                raise SpecError(f"{options[path]}: {step!r} is {inner!r}, which has no part {part!r}")
        inner[steps[-1]] = value_of(value, options[path])
    places = dict(document.places)
    for path, option in options.items():
        for at in (*document.places, *paths_of(data)):  # replaced parts too: a fault may name a missing entry
            if f"{'.'.join(map(str, at))}.".startswith(f"{path}."):
                places[at] = option
    return Document(data, places)


def _steps(data: dict[str, object], path: str, option: str, spec: type[Spec]) -> KeyPath:
    """Return the keys and list positions of the dotted `path`."""
    settable = {".".join(map(str, steps)): steps for steps in _settable(data)}
    if path in settable:
        return settable[path]
    names = section, *parts = path.split(".")
    fields = [*_fields(spec)]
    if tuple(names) in fields or spec.may_add(names):
        return tuple(names)
    if moved := MOVED.get(path):
        raise SpecError(f"{option}: it is 'cluster.{moved}' now, of a whole node")
    paths, meant = [*settable, *map(".".join, fields)], _OTHER_WORDS.get(path, "")
    near = f"; did you mean {meant!r}?" if meant in paths else did_you_mean(path, paths)
    if parts and section not in spec.model_fields:  # a misspelt section
        corrected = *nearest_names(section, spec.model_fields, cutoff=0.5), *parts
        if corrected in fields or spec.may_add(corrected):
            near = f"; did you mean {'.'.join(corrected)!r}?"
    raise SpecError(f"{option}: unknown path {path!r}{near}")


def _settable(data: object, path: KeyPath = ()) -> Iterable[KeyPath]:
    if path:
        yield path
    if is_sourced(data):
        return
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from _settable(value, (*path, key))


def _fields(spec: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the fields of a spec, and of its sections."""
    for name, field in spec.model_fields.items():
        yield (name,)
        for kind in _sections(field.annotation):
            yield from ((name, *path) for path in _fields(kind))


def _sections(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the specs that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)
