"""Instances of the pipeline partition: tables of layers, measured or estimated elsewhere, and networks.

An instance holds `layers` (core configuration, width: rows under `layer_columns`), `edges` (width: rows under
`edge_columns`), `devices_per_stage`, `max_memory_bytes`, `microbatches_in_batch` and `time_unit_s`, in which the times
of its layers are. Of several core configurations the last in name order counts. Layers stand in the order of their
ids, which follow each other, as the embedding does with -1. Every edge leads from a layer to a later one, and at least
one crosses every cut between two layers. Other keys are for people.

A file of networks holds objects by name, with `bandwidth_GiBps` and `latency_s` by level, innermost first, and
`devices_per_level` by number of devices.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

from dsx.errors import SpecError, UnknownNameError
from dsx.spec.json_text import Part, load_json
from dsx.units import LARGEST_COUNT

GIB = 2**30
_MOST_LEVELS = 40  # of a network; no machine has more than four

T = TypeVar("T", int, str)


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
                f"{self.file}: has no width {width}; the nearest is {_nearest(width, known)} "
                f"(it has {', '.join(map(str, known))})"
            )
        tables = tuple(table for table in self.tables if table.width == width)
        return Instance(self.file, self.layer_ids, tables, self.num_microbatches, self.device_bytes)


@dataclass(frozen=True, slots=True)
class NetworkLevels:
    """A network for one number of devices, innermost level first."""

    name: str
    devices_per_level: tuple[int, ...]
    bandwidth: tuple[float, ...]  # bytes/s
    latency: tuple[float, ...]  # s


def read_instance(name: str) -> Instance:
    """Return the instance in the file at the path `name`; raises SpecError with file and key."""
    given = load_json("instance", name)
    unit = given["time_unit_s"].positive()
    devices = given["devices_per_stage"]
    configurations = given["layers"]
    layers = configurations[max(configurations.keys())]
    widths = sorted((_width(key, layers), key) for key in layers.keys())
    rows = {key: _rows(layers[key], given["layer_columns"], _LAYER) for _, key in widths}
    ids = _same_layers(layers, {key: [int(row["id"]) for row in found] for key, found in rows.items()})
    tables = []
    for width, key in widths:
        ordered = sorted(rows[key], key=lambda row: row["id"])
        columns = {column: tuple(row[column] for row in ordered) for column in _LAYER}
        times = [tuple(value * unit for value in columns[column]) for column in ("fw_latency", "bw_latency")]
        if not sum(map(sum, times)):
            raise layers[key].fault("no layer takes any time")
        tables.append(
            LayerTable(
                width=width,
                devices_per_stage=_count(devices[key]),
                forward_s=times[0],
                backward_s=times[1],
                parameter_bytes=columns["param_bytes"],
                activation_bytes=columns["activation_bytes"],
                cut_bytes=_cuts(given["edges"][key], given["edge_columns"], ids),
            )
        )
    return Instance(
        file=given.file,
        layer_ids=ids,
        tables=tuple(tables),
        num_microbatches=_count(given["microbatches_in_batch"]),
        device_bytes=given["max_memory_bytes"].positive(),
    )


def read_network(reference: str, num_devices: int) -> NetworkLevels:
    """Return the network that FILE:NAME names, for so many devices.

    Raises SpecError with file and key, UnknownNameError for a name that the file has not.
    """
    file, colon, name = reference.rpartition(":")
    if not colon or not file or not name:
        raise SpecError(f"network {reference!r}: write FILE:NAME, as in networks.json:fat-tree")
    given = load_json("network file", file)
    if name not in given.keys():
        raise UnknownNameError("network", name, given.keys(), f"; looked for in {given.file}")
    network = given[name]
    sizes = network["devices_per_level"]
    known = [_width(key, sizes) for key in sizes.keys()]
    if num_devices not in known:
        raise sizes.fault(
            f"{num_devices} devices are none of {', '.join(map(str, sorted(known)))}; "
            f"the nearest is {_nearest(num_devices, known)}"
        )
    of_devices = sizes[str(num_devices)]
    levels = tuple(size.whole(1) for size in of_devices.items()[: _MOST_LEVELS + 1])
    if len(levels) > _MOST_LEVELS:
        raise of_devices.fault(f"has {len(of_devices.items())} levels; a network has at most {_MOST_LEVELS}")
    if (product := math.prod(levels)) != num_devices:
        raise of_devices.fault(f"{' x '.join(map(str, levels))} = {product} devices are not {num_devices}")
    bandwidth = tuple(value.positive() * GIB for value in network["bandwidth_GiBps"].items())
    latency = tuple(value.number(0) for value in network["latency_s"].items())
    for key, values in (("bandwidth_GiBps", bandwidth), ("latency_s", latency)):
        if len(values) != len(levels):
            raise network[key].fault(
                f"has {len(values)} levels, but devices_per_level.{num_devices} has {len(levels)}: each needs one"
            )
    return NetworkLevels(name, levels, bandwidth, latency)


# The columns of a layer and of an edge, and the least value of each.
_LAYER = {"id": -math.inf, "fw_latency": 0, "bw_latency": 0, "param_bytes": 0, "activation_bytes": 0}
_EDGE = {"src": -math.inf, "dst": -math.inf, "bytes": 0}
_IDS = ("id", "src", "dst")


def _rows(table: Part, columns: Part, least: dict[str, float]) -> list[dict[str, float]]:
    """Return the rows of a table by the columns that `least` names."""
    names = [column.text() for column in columns.items()]
    if (twice := _twice(names)) is not None:
        raise columns.fault(f"{twice!r} stands there twice")
    place = {name: index for index, name in enumerate(names)}
    missing = next((name for name in least if name not in place), None)
    if missing is not None:
        raise columns.fault(f"has no {missing!r} (it has {', '.join(names)})")
    rows = []
    for row in table.items():
        cells = row.entries()
        if len(cells) != len(names):
            raise row.fault(f"has {len(cells)} values, but there are {len(names)} columns: {', '.join(names)}")
        found = {}
        for name, lowest in least.items():
            cell = Part(cells[place[name]], row.file, (*row.path, name))
            found[name] = cell.whole(-LARGEST_COUNT) if name in _IDS else cell.number(lowest)
        rows.append(found)
    return rows


def _twice(found: Sequence[T]) -> T | None:
    """Return what stands twice in a list: the first thing that stands there again."""
    counts = Counter(found)
    return next((one for one in found if counts[one] > 1), None)


def _same_layers(layers: Part, ids: dict[str, list[int]]) -> tuple[int, ...]:
    """Return the layers, in order, that all widths have."""
    every = sorted(set().union(*ids.values()))
    for key, found in ids.items():
        if (twice := _twice(found)) is not None:
            raise layers[key].fault(f"layer {twice} stands there twice")
        if len(found) < len(every):
            missing = min({*every}.difference(found))
            other = next(key for key, found in ids.items() if missing in found)
            raise layers[key].fault(f"layer {missing} is missing, which width {other} has")
    for before, after in pairwise(every):
        if after > before + 1:
            raise layers[next(iter(ids))].fault(
                f"layer {before + 1} is missing, in this width and all others: the ids of layers follow each other, "
                f"and after {before} comes {after}"
            )
    return tuple(every)


def _cuts(edges: Part, columns: Part, ids: tuple[int, ...]) -> tuple[float, ...]:
    """Return the bytes that cross in front of each layer, and behind the last."""
    place = {one: index for index, one in enumerate(ids)}
    bytes_of: list[tuple[int, int, float]] = []  # the cuts between which an edge begins and ends to cross, its bytes
    # One layer alone has no edges.
    for index, edge in enumerate(_rows(edges, columns, _EDGE) if edges.data != [] else ()):
        here = Part(None, edges.file, (*edges.path, str(index)))
        source, target = int(edge["src"]), int(edge["dst"])
        for name, end in (("src", source), ("dst", target)):
            if end not in place:
                raise Part(None, here.file, (*here.path, name)).fault(
                    f"there is no layer {end}; the nearest is {_nearest(end, ids)} (layers {ids[0]} to {ids[-1]})"
                )
        if source >= target:
            raise here.fault(
                f"the edge from layer {source} to {target} leads {'back' if source > target else 'nowhere'}: layers "
                "stand in the order of their ids, and an edge leads to a later one"
                + (f", as {target} to {source} would" if source > target else "")
            )
        bytes_of.append((place[source] + 1, place[target] + 1, edge["bytes"]))
    crossing = _sums(bytes_of, len(ids) + 1)
    free = next((cut for cut in range(1, len(ids)) if not crossing[cut][0]), None)
    if free is not None:
        raise edges.fault(
            f"no edge leads from layer {ids[free - 1]} or an earlier one to layer {ids[free]} or a later one, so a "
            f"transfer between the two would be free; add one from {ids[free - 1]} to {ids[free]}, of 0 bytes if it is"
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


def _width(key: str, part: Part) -> int:
    if not re.fullmatch("[1-9][0-9]{0,9}", key) or int(key) > LARGEST_COUNT:
        raise part.fault(f"{key!r} is not a whole number from 1 to {LARGEST_COUNT}")
    return int(key)


def _count(part: Part) -> int:
    value = part.whole(1)
    if value > LARGEST_COUNT:
        raise part.fault(f"{value} is more than {LARGEST_COUNT}")
    return value


def _nearest(number: int, known: list[int] | tuple[int, ...]) -> int:
    return min(known, key=lambda other: abs(other - number))
