"""Instances of the partition problem: tables of layers measured or estimated elsewhere, and networks of levels.

An instance file (JSON) holds `layers` (core configuration -> width -> rows under `layer_columns`), `edges` (width ->
rows under `edge_columns`), `devices_per_stage`, `max_memory_bytes`, `microbatches_in_batch`, and `time_unit_s`, the
unit of the layer times. A row is a list of cells in the order of its columns. Of several core configurations the last
by name is read. Layers are in the order of their ids, which are consecutive; the embedding may have id -1. Every edge
leads from a layer to a later one, and at least one edge crosses each cut between two layers. Other columns and keys are
ignored.

A network is a hierarchy of levels, each linear in bytes. Devices form level-0 domains, level-0 domains form level-1
domains, and so on; the devices of a domain have consecutive numbers. A network file (JSON) maps names to networks,
which have `bandwidth_GiBps` and `latency_s` by level, innermost first, and `devices_per_level` by number of devices.

* point to point: a path goes through all levels up to the lowest one that joins the two devices. It takes the latency
  of that level, plus the bytes over the least bandwidth of these levels. A transfer of 0 bytes takes no time.
* hierarchical ring all-reduce: at each level the sub-groups of a domain reduce in a ring the bytes that the inner
  levels leave: g members scatter and gather in 2(g-1) passes of 1/g each (Patarasu, Yuan, JPDC 69, 2009), and the next
  outer level has 1/g of the bytes (Rabenseifner, ICCS 2004). A reduce-scatter or an all-gather is half an all-reduce.

The members of an all-reduce are at equal strides, beginning with the first device. So the first domain of each level
has the most members, and is the one that is priced. Not modelled: a topology inside a level, links that several paths
share, several rings on one link, and trees.
"""

import math
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Annotated, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo

from dsx.config.documents import Document, KeyPath, load_json
from dsx.config.schema import Count, number, validate, whole_number
from dsx.cost.collectives import Linear
from dsx.errors import SpecError, UnknownNameError, did_you_mean
from dsx.records import Array, ArrayLike, record
from dsx.units import LARGEST_COUNT

_LARGEST = 1e30  # in any unit: sums and products of such numbers are finite


def _bounded(value: object) -> int | float:
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


T = TypeVar("T", int, str)


def nearest(number: int, numbers: Iterable[int]) -> int:
    """Return the entry of `numbers` that is nearest to `number`; the first of two equally near ones."""
    return min(numbers, key=lambda entry: abs(entry - number))


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
    columns = [field.name for field in fields(row)]

    def check(names: list[str]) -> list[str]:
        if twice := _repeated(names):
            raise ValueError(f"{twice[0]!r} is listed twice")
        for name in columns:
            if name not in names:
                further = [other for other in names if other not in columns]
                raise ValueError(f"has no {name!r}{did_you_mean(name, further)} (it has {', '.join(names)})")
        return names

    return AfterValidator(check)


class _Header(BaseModel):
    layer_columns: Annotated[list[str], _columns_of(LayerRow)]
    edge_columns: Annotated[list[str], _columns_of(EdgeRow)]


def _by_column(header: str) -> BeforeValidator:
    def cells(row: object, info: ValidationInfo) -> dict[str, object]:
        names: list[str] = getattr(info.context, header)
        if not isinstance(row, list):
            raise ValueError(f"expected a list of the {len(names)} values of a row, got {row!r:.100}")
        if len(row) != len(names):
            raise ValueError(f"has {len(row)} values, but there are {len(names)} columns: {', '.join(names)}")
        return dict(zip(names, row, strict=True))

    return BeforeValidator(cells)


def _last_configuration(layers: object) -> object:
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


def _repeated(entries: Iterable[T]) -> list[T]:
    """Return the entries that are listed more than once."""
    return [entry for entry, count in Counter(entries).items() if count > 1]


@record
class TableChain:
    """N layers in pipeline order, for one microbatch; NumPy float64, or padded after the last layer."""

    forward_s: Array  # [N]
    backward_s: Array  # [N]
    parameter_bytes: Array  # [N]
    activation_bytes: Array  # [N] saved for the backward
    cut_bytes: Array  # [N + 1] of the edges across the cut before each layer and after the last; 0 at both ends


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The layers as one tensor-parallel configuration runs them."""

    width: int
    devices_per_stage: int
    chain: TableChain


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
        widths = [table.width for table in self.tables]
        if width not in widths:
            raise SpecError(
                f"{self.file}: has no width {width}; the nearest is {nearest(width, widths)} "
                f"(it has {', '.join(map(str, widths))})"
            )
        return replace(self, tables=tuple(table for table in self.tables if table.width == width))


def read_instance(name: str) -> Instance:
    """Return the instance in the file with path `name`; raises SpecError with file and key, and all faulty values."""
    document = load_json("instance", name)
    file = validate(document, InstanceFile, validate(document, _Header))
    ((configuration, layers),) = file.layers.items()
    ids = _same_layers(layers, document, ("layers", configuration))
    for key, by_width in (("devices_per_stage", file.devices_per_stage), ("edges", file.edges)):
        if missing := sorted(layers.keys() - by_width.keys()):
            raise document.fault((key,), f"has no width {missing[0]} (it has {', '.join(map(str, by_width))})")
    tables: list[LayerTable] = []
    for width, rows in sorted(layers.items()):
        rows = sorted(rows, key=lambda row: row.id)
        times = [[unit * file.time_unit_s for unit in (row.fw_latency, row.bw_latency)] for row in rows]
        sizes = [[row.param_bytes, row.activation_bytes] for row in rows]
        columns = [*zip(*times, strict=True), *zip(*sizes, strict=True)]
        columns.append(_cuts(file.edges[width], ids, document, ("edges", width)))
        chain = TableChain(*(np.array(column, np.float64) for column in columns))
        if not (chain.forward_s.any() or chain.backward_s.any()):
            raise document.fault(("layers", configuration, width), "no layer takes any time")
        tables.append(LayerTable(width, file.devices_per_stage[width], chain))
    return Instance(document.place(()), ids, tuple(tables), file.microbatches_in_batch, file.max_memory_bytes)


def _same_layers(layers: Mapping[int, Sequence[LayerRow]], document: Document, path: KeyPath) -> tuple[int, ...]:
    """Return the ids of the layers, in order; all widths must have the same."""
    ids = {width: [row.id for row in rows] for width, rows in sorted(layers.items())}
    every = sorted(set().union(*ids.values()))
    for width, of_width in ids.items():
        if twice := _repeated(of_width):
            raise document.fault((*path, width), f"layer {twice[0]} is listed twice")
        if len(of_width) < len(every):
            missing = min({*every}.difference(of_width))
            other = next(width for width, of_width in ids.items() if missing in of_width)
            raise document.fault((*path, width), f"layer {missing} is missing; width {other} has it")
    for layer, following in pairwise(every):
        if following > layer + 1:
            raise document.fault(
                (*path, min(ids)),
                f"layer {layer + 1} is missing, in this width and all others: layer ids must be consecutive, but "
                f"{layer} is followed by {following}",
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


@record
class Hierarchy:
    """The levels, innermost first; arrays of shape [..., Q]."""

    devices_per_level: Array  # integers: lower domains (at level 0: devices) in one domain of each level
    bandwidth: Array  # bytes/s, of a device's link into each level
    latency: Array  # s, of one transfer through each level


def path_bandwidth(hierarchy: Hierarchy) -> jax.Array:
    """Return [Q] bytes/s of a path up to each level."""
    return jax.lax.cummin(jnp.asarray(hierarchy.bandwidth), axis=jnp.ndim(hierarchy.bandwidth) - 1)


def joining_level(device: ArrayLike, other: ArrayLike, hierarchy: Hierarchy) -> jax.Array:
    """Return the lowest level that joins two devices; takes integers, which broadcast."""
    level = jnp.zeros_like(device)
    for size in jnp.cumprod(jnp.asarray(hierarchy.devices_per_level))[:-1]:
        level = level + (device // size != other // size).astype(level.dtype)
    return level


def transfer_s(num_bytes: ArrayLike, latency: ArrayLike, bandwidth: ArrayLike) -> jax.Array:
    """Return the seconds of a transfer along a path with this latency (s) and bandwidth (bytes/s)."""
    return jnp.where(num_bytes > 0, latency + num_bytes / bandwidth, jnp.zeros_like(num_bytes))


def ring_sizes(num_members: ArrayLike, stride: ArrayLike, hierarchy: Hierarchy) -> list[jax.Array]:
    """Return, per level, the largest number of sub-groups in one of its domains; takes integers, which broadcast."""
    sizes = []
    inner = jnp.ones_like(stride)  # devices of a sub-domain
    for count in jnp.asarray(hierarchy.devices_per_level):
        inside = jnp.minimum(num_members, -(-inner * count // stride))
        # If the stride is less than the size of a sub-domain, the members skip none of the sub-domains between them.
        sizes.append(jnp.where(stride >= inner, inside, (inside - 1) * stride // inner + 1))
        inner = inner * count
    return sizes


def all_reduce(num_members: ArrayLike, stride: ArrayLike, hierarchy: Hierarchy) -> Linear:
    """Return the time of a hierarchical ring all-reduce of `num_members`, each `stride` devices from the next."""
    paths, latencies = path_bandwidth(hierarchy), jnp.asarray(hierarchy.latency)
    sizes = [size.astype(paths.dtype) for size in ring_sizes(num_members, stride, hierarchy)]
    latency = per_byte = jnp.zeros_like(sizes[0])
    share = jnp.ones_like(sizes[0])  # of the bytes that the inner levels leave
    for level, members in enumerate(sizes):
        passes = 2.0 * (members - 1.0)
        share = share / members
        latency = latency + passes * latencies[level]
        per_byte = per_byte + passes * share / paths[level]
    return Linear(latency, per_byte)


GIB = 2**30
_MOST_LEVELS = 40  # of a network; no machine has more than four

_Cell = TypeVar("_Cell")
_Levels = Annotated[list[_Cell], Field(min_length=1, max_length=_MOST_LEVELS)]


@dataclass(frozen=True, slots=True)
class NetworkLevels:
    """A network for one number of devices, innermost level first."""

    name: str
    devices_per_level: tuple[int, ...]
    bandwidth: tuple[float, ...]  # bytes/s
    latency: tuple[float, ...]  # s


class _LevelsFile(BaseModel):
    bandwidth_GiBps: _Levels[Above0]
    latency_s: _Levels[Amount]
    devices_per_level: Annotated[dict[CountKey, _Levels[Count]], Field(min_length=1)]


def read_network(reference: str, num_devices: int) -> NetworkLevels:
    """Return the network that FILE:NAME names, for `num_devices` devices.

    Raises SpecError with file and key, UnknownNameError if the file has no network of that name.
    """
    file, colon, name = reference.rpartition(":")
    if not colon or not file or not name:
        raise SpecError(f"network {reference!r}: write FILE:NAME, as in networks.json:fat-tree")
    networks = load_json("network file", file)
    place = networks.place(())
    if name not in networks.data:
        raise UnknownNameError("network", name, networks.data, f"; looked for in {place}")
    document = Document(networks.data[name], {(): f"{place}: {name}"})
    network = validate(document, _LevelsFile)
    sizes = network.devices_per_level
    if num_devices not in sizes:
        has = f"has no entry for {num_devices} devices, only for {', '.join(map(str, sorted(sizes)))}"
        raise document.fault(("devices_per_level",), f"{has}; the nearest is {nearest(num_devices, sizes)}")
    levels = sizes[num_devices]
    if (product := math.prod(levels)) != num_devices:
        fault = f"{' x '.join(map(str, levels))} = {product} devices, not {num_devices}"
        raise document.fault(("devices_per_level", num_devices), fault)
    for key, values in (("bandwidth_GiBps", network.bandwidth_GiBps), ("latency_s", network.latency_s)):
        if len(values) != len(levels):
            differs = f"devices_per_level.{num_devices} has {len(levels)}: they must be equal"
            raise document.fault((key,), f"has {len(values)} levels, but {differs}")
    bandwidth = tuple(value * GIB for value in network.bandwidth_GiBps)
    return NetworkLevels(name, tuple(levels), bandwidth, tuple(network.latency_s))
