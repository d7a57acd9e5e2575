"""Instances of the partition problem: tables of layers, measured or estimated elsewhere.

The types of values in layer tables and networks: numbers as in any spec, up to 1e30.

The bound keeps sums and products of these numbers finite.

The schema of an instance file (JSON): checks that concern one value at a time.

A row is a list of cells; `layer_columns` and `edge_columns` name them. Columns may be in any order, and other columns
and keys are ignored.

Instances of the partition problem: tables of layers, measured or estimated elsewhere.

An instance holds `layers` (core configuration -> width -> rows under `layer_columns`), `edges` (width -> rows under
`edge_columns`), `devices_per_stage`, `max_memory_bytes`, `microbatches_in_batch`, and `time_unit_s`, the unit of the
layer times. Of several core configurations the last by name is read. The order of the layers is that of their ids,
which are consecutive; the embedding may have id -1. Every edge leads from a layer to a later one, and at least one edge
crosses each cut between two layers. Other keys are ignored.
"""

import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo

from dsx.config.documents import Document, KeyPath, load_json
from dsx.config.schema import validate
from dsx.config.values import Count, number, whole_number
from dsx.errors import SpecError, did_you_mean
from dsx.units import LARGEST_COUNT

_LARGEST = 1e30  # in any unit


def _bounded(value: Any) -> int | float:
    plain = number(value)
    if abs(plain) > _LARGEST:
        raise ValueError(f"{reprlib.repr(plain)} is beyond {_LARGEST:g}, the largest number allowed")
    return plain


def _count_key(key: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,9}", key) or int(key) > LARGEST_COUNT:
        raise ValueError(f"{key!r} is not a whole number from 1 to {LARGEST_COUNT}")
    return int(key)


Amount = Annotated[float, Field(ge=0), BeforeValidator(_bounded)]
Above0 = Annotated[float, Field(gt=0), BeforeValidator(_bounded)]
LayerId = Annotated[int, Field(ge=-LARGEST_COUNT, le=LARGEST_COUNT), BeforeValidator(whole_number)]
CountKey = Annotated[int, BeforeValidator(_count_key)]  # of a JSON object: a width, or a number of devices


def nearest(wanted: int, known: Iterable[int]) -> int:
    """Return the entry of `known` that is nearest to `wanted`; the first of two equally near ones."""
    return min(known, key=lambda other: abs(other - wanted))


T = TypeVar("T", int, str)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer in one width, for one microbatch."""

    id: LayerId
    fw_latency: Amount  # in `time_unit_s`
    bw_latency: Amount
    param_bytes: Amount
    activation_bytes: Amount  # saved for the backward


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """A tensor from one layer that a later layer reads."""

    src: LayerId
    dst: LayerId
    bytes: Amount


def _columns_of(row: type) -> AfterValidator:
    wanted = [field.name for field in fields(row)]

    def check(names: list[str]) -> list[str]:
        if (twice := repeated(names)) is not None:
            raise ValueError(f"{twice!r} is listed twice")
        for name in wanted:
            if name not in names:
                others = [other for other in names if other not in wanted]
                raise ValueError(f"has no {name!r}{did_you_mean(name, others)} (it has {', '.join(names)})")
        return names

    return AfterValidator(check)


class _Header(BaseModel):
    layer_columns: Annotated[list[str], _columns_of(LayerRow)]
    edge_columns: Annotated[list[str], _columns_of(EdgeRow)]


def _by_column(header: str) -> BeforeValidator:
    def cells(row: Any, info: ValidationInfo) -> dict[str, Any]:
        names: list[str] = getattr(info.context, header)
        if not isinstance(row, list):
            raise ValueError(f"expected a list of the {len(names)} values of a row, got {row!r:.100}")
        if len(row) != len(names):
            raise ValueError(f"has {len(row)} values, but there are {len(names)} columns: {', '.join(names)}")
        return dict(zip(names, row, strict=True))

    return BeforeValidator(cells)


def _last_configuration(layers: Any) -> Any:
    return {max(layers): layers[max(layers)]} if isinstance(layers, dict) and layers else layers


LayerRows = Annotated[list[Annotated[LayerRow, _by_column("layer_columns")]], Field(min_length=1)]
EdgeRows = list[Annotated[EdgeRow, _by_column("edge_columns")]]
Widths = Annotated[dict[CountKey, LayerRows], Field(min_length=1)]


class InstanceFile(BaseModel):
    """The keys of an instance file that dsx reads."""

    layers: Annotated[dict[str, Widths], Field(min_length=1), BeforeValidator(_last_configuration)]
    edges: dict[CountKey, EdgeRows]  # by width
    devices_per_stage: dict[CountKey, Count]  # by width
    max_memory_bytes: Above0
    microbatches_in_batch: Count
    time_unit_s: Above0


def instance_file(document: Document) -> InstanceFile:
    """Return the document as an instance file; raises SpecError with a list of all faulty values."""
    return validate(document, InstanceFile, validate(document, _Header))


def repeated(found: Iterable[T]) -> T | None:
    """Return the first entry that is listed more than once; None if there is none."""
    return next((entry for entry, count in Counter(found).items() if count > 1), None)


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The n layers of one width in pipeline order, and their n + 1 cuts, for one microbatch."""

    width: int
    devices_per_stage: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    parameter_bytes: tuple[float, ...]
    activation_bytes: tuple[float, ...]  # saved for the backward
    cut_bytes: tuple[float, ...]  # of the edges across the cut before each layer and after the last; 0 at both ends


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance file."""

    file: str
    layer_ids: tuple[int, ...]  # in pipeline order
    tables: tuple[LayerTable, ...]  # by width
    num_microbatches: int  # of a step, for all replicas
    device_bytes: float

    def only(self, width: int) -> "Instance":
        """Return the instance with this width alone; raises SpecError if it has no such width."""
        known = [table.width for table in self.tables]
        if width not in known:
            raise SpecError(
                f"{self.file}: has no width {width}; the nearest is {nearest(width, known)} "
                f"(it has {', '.join(map(str, known))})"
            )
        return replace(self, tables=tuple(table for table in self.tables if table.width == width))


def read_instance(name: str) -> Instance:
    """Return the instance in the file with path `name`; raises SpecError with file and key."""
    document = load_json("instance", name)
    given = instance_file(document)
    ((configuration, layers),) = given.layers.items()
    ids = _same_layers(layers, document, ("layers", configuration))
    for key, found in (("devices_per_stage", given.devices_per_stage), ("edges", given.edges)):
        if missing := sorted(layers.keys() - found.keys()):
            raise document.fault((key,), f"has no width {missing[0]} (it has {', '.join(map(str, found))})")
    tables: list[LayerTable] = []
    for width, rows in sorted(layers.items()):
        rows = sorted(rows, key=lambda row: row.id)
        forward_s = tuple(row.fw_latency * given.time_unit_s for row in rows)
        backward_s = tuple(row.bw_latency * given.time_unit_s for row in rows)
        if not any((*forward_s, *backward_s)):
            raise document.fault(("layers", configuration, width), "no layer takes any time")
        tables.append(
            LayerTable(
                width=width,
                devices_per_stage=given.devices_per_stage[width],
                forward_s=forward_s,
                backward_s=backward_s,
                parameter_bytes=tuple(row.param_bytes for row in rows),
                activation_bytes=tuple(row.activation_bytes for row in rows),
                cut_bytes=_cuts(given.edges[width], ids, document, ("edges", width)),
            )
        )
    return Instance(
        file=document.place(()),
        layer_ids=ids,
        tables=tuple(tables),
        num_microbatches=given.microbatches_in_batch,
        device_bytes=given.max_memory_bytes,
    )


def _same_layers(layers: Mapping[int, Sequence[LayerRow]], document: Document, path: KeyPath) -> tuple[int, ...]:
    """Return the ids of the layers, in order; all widths must have the same."""
    ids = {width: [row.id for row in rows] for width, rows in sorted(layers.items())}
    every = sorted(set().union(*ids.values()))
    for width, found in ids.items():
        if (twice := repeated(found)) is not None:
            raise document.fault((*path, width), f"layer {twice} is listed twice")
        if len(found) < len(every):
            missing = min({*every}.difference(found))
            other = next(width for width, found in ids.items() if missing in found)
            raise document.fault((*path, width), f"layer {missing} is missing; width {other} has it")
    for before, after in pairwise(every):
        if after > before + 1:
            raise document.fault(
                (*path, min(ids)),
                f"layer {before + 1} is missing, in this width and all others: layer ids must be consecutive, but "
                f"{before} is followed by {after}",
            )
    return tuple(every)


def _cuts(edges: Sequence[EdgeRow], ids: tuple[int, ...], document: Document, path: KeyPath) -> tuple[float, ...]:
    """Return the bytes across the cut before each layer, and across the one after the last layer."""
    position = {layer: index for index, layer in enumerate(ids)}
    for index, edge in enumerate(edges):
        for name, end in (("src", edge.src), ("dst", edge.dst)):
            if end not in position:
                raise document.fault(
                    (*path, index, name),
                    f"there is no layer {end}; the nearest is {nearest(end, ids)} (layers {ids[0]} to {ids[-1]})",
                )
        if edge.src >= edge.dst:
            back = edge.src > edge.dst
            raise document.fault(
                (*path, index),
                f"the edge from layer {edge.src} to {edge.dst} leads {'back' if back else 'nowhere'}: an edge must "
                "lead to a layer with a larger id" + (f", as one from {edge.dst} to {edge.src} would" if back else ""),
            )
    # An edge crosses the cuts after its source, up to the one before its target.
    crossing = _sums([(position[edge.src] + 1, position[edge.dst] + 1, edge.bytes) for edge in edges], len(ids) + 1)
    bare = next((cut for cut in range(1, len(ids)) if not crossing[cut][0]), None)
    if bare is not None:
        raise document.fault(
            path,
            f"no edge crosses the cut between layers {ids[bare - 1]} and {ids[bare]}, so a transfer there would cost "
            f"nothing; add an edge from {ids[bare - 1]} to {ids[bare]}, of 0 bytes if that is right",
        )
    return tuple(size for _, size in crossing)


def _sums(intervals: list[tuple[int, int, float]], length: int) -> list[tuple[int, float]]:
    """Return how many intervals [first, end) contain each position, and the nearest float to the sum of their values.

    The running sums are whole multiples of the smallest fraction, so that adding and subtracting a value is exact.
    """
    ratios = [float(value).as_integer_ratio() for _, _, value in intervals]
    smallest = max((below for _, below in ratios), default=1)  # powers of two, so each divides it
    counts, values = [0] * length, [0] * length
    for (first, end, _), (above, below) in zip(intervals, ratios, strict=True):
        for position, sign in ((first, 1), (end, -1)):
            counts[position] += sign
            values[position] += sign * above * (smallest // below)
    return [(count, value / smallest) for count, value in zip(accumulate(counts), accumulate(values), strict=True)]
