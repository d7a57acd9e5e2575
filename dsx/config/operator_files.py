"""Files of operators: graphs of operators (JSON), and measured times of kernels (CSV).

A graph says what each operator takes and keeps, and which tensors it hands to which others:

    {"nodes": [{"id": 0, "op": "MatMul", "compute_us": 12.5, "memory_bytes": 4096, "colocate": "w"}],
     "edges": [{"src": 0, "dst": 1, "bytes": 4096, "tensor": "y"}]}

`op`, `memory_bytes`, `colocate` and `tensor` may be left out; `compute_us` may be a list, of one number per device. The
node-link form of networkx, with `links` (or `edges`) of `source` and `target`, has the same attributes. Other keys are
ignored.

A table of times has one kernel per row, by operator and local shape. `operator` is the name of an operator (einsum,
norm) or of a `fuse` block (attention). A matrix multiply is `batch` times (m x k) by (k x n). A fused kernel with
multiplies has the sizes of its first multiply. Any other kernel has m x n elements, with n along the last dimension,
and no k. `time` is a quantity with its unit. Lines that begin with # are comments.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from pydantic import TypeAdapter

from dsx.config.documents import CsvFormat, CsvRow, Document, KeyPath, Plain, load_json, read_csv, whole_number
from dsx.config.search_path import find_path
from dsx.errors import OperatorTimesError, SpecError, UnitError, did_you_mean
from dsx.units import format_quantity, parse_quantity

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
    key = "links" if "links" in document.data and "edges" not in document.data else "edges"
    nodes, links = (_objects(document, name) for name in ("nodes", key))
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


def _objects(document: Document, key: str) -> list[dict[str, Plain]]:
    if key not in document.data:
        keys = [str(name) for name in document.data]
        raise document.fault((), f"has no {key!r}{did_you_mean(key, keys)}; nodes and edges are wanted")
    if not isinstance(items := document.data[key], list):
        raise document.fault((key,), "a list is wanted")
    return items


def _check_object(document: Document, path: KeyPath, item: object) -> None:
    if not isinstance(item, dict):
        raise document.fault(path, "an object is wanted")


def _is_name(value: object) -> TypeGuard[Id]:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _name(document: Document, path: KeyPath, node: dict[str, Plain], key: str, noun: str) -> str | None:
    name = node.get(key)
    if name is not None and not _is_name(name):
        raise document.fault((*path, key), f"{name!r:.60} is no {noun}")
    return None if name is None else str(name)


def _operator(document: Document, path: KeyPath, node: dict[str, Plain]) -> OperatorSpec:
    _check_object(document, path, node)
    identity = node.get("id")
    if not _is_name(identity):
        raise document.fault((*path, "id"), f"{identity!r:.60} is no id; a whole number or a text is wanted")
    if "compute_us" not in node:
        raise document.fault(path, f"operator {identity!r} has no compute_us")
    measured = node["compute_us"]
    times = measured if isinstance(measured, list) else [measured]
    if not times:
        raise document.fault((*path, "compute_us"), "the list is empty")
    label = _name(document, path, node, "colocate", "label")
    compute_us = tuple(_amount(document, (*path, "compute_us"), time) for time in times)
    memory_bytes = _amount(document, (*path, "memory_bytes"), node.get("memory_bytes", 0))
    return OperatorSpec(identity, str(node.get("op", "")), compute_us, memory_bytes, label)


def _edge(document: Document, path: KeyPath, link: dict[str, Plain], position: Mapping[Id, int]) -> EdgeSpec:
    _check_object(document, path, link)
    names = next((names for names in _ENDS if names[0] in link or names[1] in link), _ENDS[0])
    ends: list[int] = []
    for name in names:
        end = link.get(name)
        if not _is_name(end) or end not in position:
            raise document.fault((*path, name), f"there is no operator {end!r:.60}{_nearest(end, [*position])}")
        ends.append(position[end])
    if ends[0] == ends[1]:
        raise document.fault(path, f"operator {link[names[0]]!r} has an edge to itself")
    tensor = _name(document, path, link, "tensor", "name")
    return EdgeSpec(ends[0], ends[1], _amount(document, (*path, "bytes"), link.get("bytes", 0)), tensor)


def _amount(document: Document, path: KeyPath, value: object) -> float:
    """Return a number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise document.fault(path, f"{value!r:.60} is no number")
    if not 0 <= value <= _LARGEST or math.isnan(value):
        raise document.fault(path, f"{value} is no number from 0 to {_LARGEST:g}")
    return float(value)


def _nearest(end: object, ids: Sequence[Id]) -> str:
    if isinstance(end, str):
        return did_you_mean(end, [str(identity) for identity in ids])
    numbers = [identity for identity in ids if isinstance(identity, int)]
    if isinstance(end, int) and numbers:
        return f"; the ids go from {min(numbers)} to {max(numbers)}"
    return ""


DIRECTIONS = ("forward", "backward")
_REQUIRED, _OPTIONAL = ("operator", "m", "n", "time"), ("direction", "k", "batch", "dtype")
_HINT = f" (columns: {', '.join((*_REQUIRED, *_OPTIONAL))})"
_FORMAT = CsvFormat("operator times begin", OperatorTimesError, _REQUIRED, _OPTIONAL, comment="#", hint=_HINT)

# Bytes of an element, the only property of a type that the model uses. A measured row is matched by them: 4-bit numbers
# have a scale for each block, so count as one.
DTYPES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 1}

Shape = tuple[int, int, int, int]  # m, n, k, batch; k and batch are 0 for a kernel without multiplies


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One row: the time of a kernel."""

    line: int  # of the file, from 1; the header is line 1
    operator: str
    directions: tuple[int, ...]  # positions in `DIRECTIONS`; both for a blank cell
    shape: Shape
    dtype: str  # "" matches the type that the job computes in
    time_s: float


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """The rows of one file, in its order, and the name of the file in messages."""

    file: str
    rows: tuple[OperatorTime, ...]

    def to_data(self) -> dict[str, object]:
        """Return the rows as plain data, with the name of the file without its folder."""
        return {
            "file": Path(self.file).name,
            "rows": [
                [row.line, row.operator, list(row.directions), list(row.shape), row.dtype, row.time_s]
                for row in self.rows
            ],
        }

    @classmethod
    def from_data(cls, data: dict[str, object]) -> "OperatorTimes":
        """Return the times from what `to_data` returns; raises pydantic.ValidationError for anything else."""
        stored = _STORED.validate_python(data)
        return cls(stored.file, tuple(OperatorTime(*row) for row in stored.rows))


@dataclass(frozen=True, slots=True)
class _Stored:
    """The data that `to_data` returns."""

    file: str
    rows: list[tuple[int, str, tuple[int, ...], Shape, str, float]]


_STORED = TypeAdapter(_Stored)


def shape_text(shape: Shape) -> str:
    """Return a shape for people: "4096 x 4096 x 1024" is m x n x k; a batch other than 1 is in front."""
    m, n, k, batch = shape
    return f"{m} x {n}" if not k else f"{f'{batch} of ' if batch != 1 else ''}{m} x {n} x {k}"


def read_operator_times(name: str, near: Path | None = None) -> OperatorTimes:
    """Return the rows of the file at the path `name`; `near` is the file that mentions it.

    Raises SpecError for a path that is not a file, OperatorTimesError with file, line and value for a missing column,
    an invalid cell, and two rows that give one kernel different times.
    """
    path = find_path("operator times", name, near)
    rows = tuple(map(_row, read_csv(path, str(path), _FORMAT).rows))
    # Rows that match the same kernel, by the bytes of their types.
    seen: dict[tuple[str, int, Shape], dict[int, OperatorTime]] = {}
    for row in rows:
        width = DTYPES.get(row.dtype, 0)
        for direction in row.directions:
            by_width = seen.setdefault((row.operator, direction, row.shape), {})
            # A row without a type matches all of them.
            for other in by_width.values() if not width else (by_width[key] for key in (0, width) if key in by_width):
                if other.time_s != row.time_s:
                    raise OperatorTimesError(
                        f"{path}:{row.line}: {row.operator} of {shape_text(row.shape)} takes "
                        f"{format_quantity(row.time_s, 's')} here and {format_quantity(other.time_s, 's')} in line "
                        f"{other.line}: a kernel has one time (types of equal size count as one, and a blank direction "
                        "or dtype as all)"
                    )
            by_width.setdefault(width, row)
    return OperatorTimes(str(path), rows)


def _row(row: CsvRow) -> OperatorTime:
    cells, place = row.cells, row.place
    for name in _REQUIRED:
        if not cells[name]:
            raise OperatorTimesError(f"{place}: {name}: is blank, but every row needs it")
    direction, dtype = cells.get("direction", ""), cells.get("dtype", "").lower()
    for name, value, choices in (("direction", direction, DIRECTIONS), ("dtype", dtype, DTYPES)):
        if value and value not in choices:
            raise OperatorTimesError(
                f"{place}: {name}: {value!r} is not one of {', '.join(choices)}{did_you_mean(value, choices)}"
            )
    k, batch = cells.get("k", ""), cells.get("batch", "")
    if batch and not k:
        raise OperatorTimesError(f"{place}: batch: counts matrix multiplies, so k is needed too")
    name, sizes = "", {"m": 0, "n": 0, "k": 0, "batch": 0}
    try:
        for name, text in {"m": cells["m"], "n": cells["n"], **({"k": k, "batch": batch or "1"} if k else {})}.items():
            sizes[name] = whole_number(text)
        name = "time"
        time_s = parse_quantity(cells["time"], "s")
    except (ValueError, SpecError, UnitError) as error:
        raise OperatorTimesError(f"{place}: {name}: {error}") from None
    if time_s <= 0:
        raise OperatorTimesError(f"{place}: time: {cells['time']!r} is not above 0")
    directions = (DIRECTIONS.index(direction),) if direction else tuple(range(len(DIRECTIONS)))
    shape = sizes["m"], sizes["n"], sizes["k"], sizes["batch"]
    return OperatorTime(row.line, cells["operator"], directions, shape, dtype, time_s)


# The columns of a file that dsx writes; `spread` is for people.
WRITTEN = ("operator", "direction", "m", "n", "k", "batch", "dtype", "time", "spread")


def written_row(operator: str, direction: int | None, shape: Shape, dtype: str, time_s: float, spread: float) -> str:
    """Return a row of a file with the columns `WRITTEN`; `spread` is a share of the time."""
    sizes = ("" if not size else str(size) for size in shape)
    cells = (operator, "" if direction is None else DIRECTIONS[direction], *sizes, dtype, f"{1e6 * time_s:.6g} us")
    return ",".join((*cells, f"{spread:.3f}"))
