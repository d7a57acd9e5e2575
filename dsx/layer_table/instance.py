"""Instances of the pipeline partition: tables of layers, measured or estimated elsewhere.

An instance holds `layers` (core configuration, width: rows under `layer_columns`), `edges` (width: rows under
`edge_columns`), `devices_per_stage`, `max_memory_bytes`, `microbatches_in_batch` and `time_unit_s`, in which the times
of its layers are. Of several core configurations the last in name order counts. Layers stand in the order of their
ids, which follow each other, as the embedding does with -1. Every edge leads from a layer to a later one, and at least
one crosses every cut between two layers. Other keys are for people.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from dsx.errors import SpecError
from dsx.layer_table.instance_file import EdgeRow, LayerRow, instance_file, repeated
from dsx.layer_table.quantities import nearest
from dsx.spec.document import Document, KeyPath
from dsx.spec.json_text import load_json


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The layers of one width in pipeline order, for one microbatch; n of each, and n + 1 cuts."""

    width: int
    devices_per_stage: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    parameter_bytes: tuple[float, ...]
    activation_bytes: tuple[float, ...]  # saved for the backward
    cut_bytes: tuple[float, ...]  # of all edges that cross in front of each layer; in front of the first, and behind
    # the last, there are none


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance file."""

    file: str
    layer_ids: tuple[int, ...]  # in pipeline order
    tables: tuple[LayerTable, ...]  # by width
    num_microbatches: int  # of a step, for all replicas
    device_bytes: float

    def only(self, width: int) -> "Instance":
        """Return the instance with one of its widths; raises SpecError for another."""
        known = [table.width for table in self.tables]
        if width not in known:
            raise SpecError(
                f"{self.file}: has no width {width}; the nearest is {nearest(width, known)} "
                f"(it has {', '.join(map(str, known))})"
            )
        return replace(self, tables=tuple(table for table in self.tables if table.width == width))


def read_instance(name: str) -> Instance:
    """Return the instance in the file at the path `name`; raises SpecError with file and key."""
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
    """Return the layers, in order, that all widths have."""
    ids = {width: [row.id for row in rows] for width, rows in sorted(layers.items())}
    every = sorted(set().union(*ids.values()))
    for width, found in ids.items():
        if (again := repeated(found)) is not None:
            raise document.fault((*path, width), f"layer {again} stands there twice")
        if len(found) < len(every):
            missing = min({*every}.difference(found))
            other = next(width for width, found in ids.items() if missing in found)
            raise document.fault((*path, width), f"layer {missing} is missing, which width {other} has")
    for before, after in pairwise(every):
        if after > before + 1:
            raise document.fault(
                (*path, min(ids)),
                f"layer {before + 1} is missing, in this width and all others: the ids of layers follow each other, "
                f"and after {before} comes {after}",
            )
    return tuple(every)


def _cuts(edges: Sequence[EdgeRow], ids: tuple[int, ...], document: Document, path: KeyPath) -> tuple[float, ...]:
    """Return the bytes that cross in front of each layer, and behind the last."""
    position = {one: index for index, one in enumerate(ids)}
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
                f"the edge from layer {edge.src} to {edge.dst} leads {'back' if back else 'nowhere'}: layers "
                "stand in the order of their ids, and an edge leads to a later one"
                + (f", as {edge.dst} to {edge.src} would" if back else ""),
            )
    # An edge begins to cross behind its source, and no longer does behind its target.
    crossing = _sums([(position[edge.src] + 1, position[edge.dst] + 1, edge.bytes) for edge in edges], len(ids) + 1)
    free = next((cut for cut in range(1, len(ids)) if not crossing[cut][0]), None)
    if free is not None:
        raise document.fault(
            path,
            f"no edge leads from layer {ids[free - 1]} or an earlier one to layer {ids[free]} or a later one, so a "
            f"transfer between the two would be free; add one from {ids[free - 1]} to {ids[free]}, of 0 bytes if it is",
        )
    return tuple(size for _, size in crossing)


def _sums(intervals: list[tuple[int, int, float]], length: int) -> list[tuple[int, float]]:
    """Return how many intervals [first, end) hold each position, and the nearest float to the sum of their values.

    The sums run in whole multiples of the smallest fraction, so that what is taken away again leaves no rounding.
    """
    ratios = [float(value).as_integer_ratio() for _, _, value in intervals]
    smallest = max((below for _, below in ratios), default=1)  # powers of two, so each divides it
    counts, values = [0] * length, [0] * length
    for (first, end, _), (above, below) in zip(intervals, ratios, strict=True):
        for position, sign in ((first, 1), (end, -1)):
            counts[position] += sign
            values[position] += sign * above * (smallest // below)
    return [(count, value / smallest) for count, value in zip(accumulate(counts), accumulate(values), strict=True)]
