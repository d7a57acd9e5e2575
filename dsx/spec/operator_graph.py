"""A graph of operators from a JSON file: what each takes and keeps, and which tensors it hands to which others.

    {"nodes": [{"id": 0, "op": "MatMul", "compute_us": 12.5, "memory_bytes": 4096, "colocate": "w"}],
     "edges": [{"src": 0, "dst": 1, "bytes": 4096, "tensor": "y"}]}

`op`, `memory_bytes`, `colocate` and `tensor` may be left out; `compute_us` may be a list, of one number per device. The
node-link form of networkx, with `links` (or `edges`) of `source` and `target`, has the same attributes. Other keys are
ignored.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsx.errors import did_you_mean
from dsx.spec.document import Document, KeyPath
from dsx.spec.json_text import load_json

Id = int | str
_LARGEST = 1e30  # in any unit
_ENDS = (("src", "dst"), ("source", "target"))  # names of the ends of an edge


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """One operator."""

    id: Id
    kind: str
    compute_us: tuple[float, ...]  # one number, or one for each device
    memory_bytes: float
    colocate: str | None  # operators with the same label share a device


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """What one operator hands to another; operators are positions."""

    source: int
    target: int
    num_bytes: float  # 0 for a dependency without data
    tensor: str | None  # edges of one operator with the same name carry the same tensor


@dataclass(frozen=True, slots=True)
class OperatorGraphSpec:
    """A graph of operators."""

    file: str
    operators: tuple[OperatorSpec, ...]
    edges: tuple[EdgeSpec, ...]


def read_operator_graph(name: str) -> OperatorGraphSpec:
    """Return the graph in the file with path `name`; raises SpecError with file and key."""
    return parse_operator_graph(load_json("operator graph", name))


def parse_operator_graph(document: Document) -> OperatorGraphSpec:
    """Return the graph of a document; raises SpecError with its place and key."""
    nodes = _list(document, "nodes")
    key = "links" if "links" in document.data and "edges" not in document.data else "edges"
    links = _list(document, key)
    operators = tuple(_operator(document, ("nodes", place), node) for place, node in enumerate(nodes))
    if not operators:
        raise document.fault(("nodes",), "has no operators")
    position: dict[Id, int] = {}
    written: dict[str, int] = {}  # answers in JSON have texts as keys
    for place, operator in enumerate(operators):
        first = written.setdefault(str(operator.id), place)
        if first != place:
            raise document.fault(("nodes", place, "id"), f"{operator.id!r} is the id of nodes.{first} too")
        position[operator.id] = place
    lengths = {len(operator.compute_us) for operator in operators} - {1}
    if len(lengths) > 1:
        raise document.fault(("nodes",), f"compute_us has lists of {' and '.join(map(str, sorted(lengths)))} numbers")
    edges = tuple(_edge(document, (key, place), link, position) for place, link in enumerate(links))
    return OperatorGraphSpec(document.place(()), operators, edges)


def _list(document: Document, key: str) -> list[Any]:
    if key not in document.data:
        known = [str(one) for one in document.data]
        raise document.fault((), f"has no {key!r}{did_you_mean(key, known)}; nodes and edges are wanted")
    found = document.data[key]
    if not isinstance(found, list):
        raise document.fault((key,), "a list is wanted")
    return found


def _operator(document: Document, path: KeyPath, node: object) -> OperatorSpec:
    if not isinstance(node, dict):
        raise document.fault(path, "an object is wanted")
    own = node.get("id")
    if isinstance(own, bool) or not isinstance(own, int | str):
        raise document.fault((*path, "id"), f"{own!r:.60} is no id; a whole number or a text is wanted")
    if "compute_us" not in node:
        raise document.fault(path, f"operator {own!r} has no compute_us")
    given = node["compute_us"]
    times = given if isinstance(given, list) else [given]
    if not times:
        raise document.fault((*path, "compute_us"), "the list is empty")
    label = node.get("colocate")
    if label is not None and (isinstance(label, bool) or not isinstance(label, int | str)):
        raise document.fault((*path, "colocate"), f"{label!r:.60} is no label")
    return OperatorSpec(
        id=own,
        kind=str(node.get("op", "")),
        compute_us=tuple(_amount(document, (*path, "compute_us"), time) for time in times),
        memory_bytes=_amount(document, (*path, "memory_bytes"), node.get("memory_bytes", 0)),
        colocate=None if label is None else str(label),
    )


def _edge(document: Document, path: KeyPath, link: object, position: Mapping[Id, int]) -> EdgeSpec:
    if not isinstance(link, dict):
        raise document.fault(path, "an object is wanted")
    names = next((names for names in _ENDS if names[0] in link or names[1] in link), _ENDS[0])
    ends: list[int] = []
    for name in names:
        end = link.get(name)
        if isinstance(end, bool) or not isinstance(end, int | str) or end not in position:
            raise document.fault((*path, name), f"there is no operator {end!r:.60}{_nearest(end, [*position])}")
        ends.append(position[end])
    if ends[0] == ends[1]:
        raise document.fault(path, f"operator {link[names[0]]!r} has an edge to itself")
    tensor = link.get("tensor")
    if tensor is not None and (isinstance(tensor, bool) or not isinstance(tensor, int | str)):
        raise document.fault((*path, "tensor"), f"{tensor!r:.60} is no name")
    num_bytes = _amount(document, (*path, "bytes"), link.get("bytes", 0))
    return EdgeSpec(ends[0], ends[1], num_bytes, None if tensor is None else str(tensor))


def _amount(document: Document, path: KeyPath, value: object) -> float:
    """Return a number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise document.fault(path, f"{value!r:.60} is no number")
    if not 0 <= value <= _LARGEST or math.isnan(value):
        raise document.fault(path, f"{value} is no number from 0 to {_LARGEST:g}")
    return float(value)


def _nearest(end: object, known: Sequence[Id]) -> str:
    if isinstance(end, str):
        return did_you_mean(end, [str(one) for one in known])
    numbers = [one for one in known if isinstance(one, int)]
    if isinstance(end, int) and numbers:
        return f"; the ids go from {min(numbers)} to {max(numbers)}"
    return ""
