"""`--set cluster.device.hbm_capacity=141 GB`: replaces one value of a file for one run.

An assignment is TARGET.PATH=VALUE. It replaces a value of the file; a path that the file does not have counts as
misspelt, unless it is an optional field of the schema. The replaced number loses its source. Items of a list are named
by their position, from 0.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any

from dsx.errors import SpecError, did_you_mean
from dsx.spec.document import Document, KeyPath, is_sourced, paths_of
from dsx.spec.yaml_text import parse_value

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
