"""Networks for layer tables: a hierarchy of levels, each linear in bytes.

Devices form level-0 domains, level-0 domains form level-1 domains, and so on; the devices of a domain have consecutive
numbers. A network file (JSON) maps names to networks, which have `bandwidth_GiBps` and `latency_s` by level, innermost
first, and `devices_per_level` by number of devices.

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
from dataclasses import dataclass
from typing import Annotated, TypeVar

import jax
import jax.numpy as jnp
from pydantic import BaseModel, Field

from dsx.config.documents import Document, load_json
from dsx.config.schema import validate
from dsx.config.values import Count
from dsx.cost.collectives import Linear
from dsx.errors import SpecError, UnknownNameError
from dsx.layer_table.instance import Above0, Amount, CountKey, nearest
from dsx.records import Array, ArrayLike, record


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

T = TypeVar("T")
_Levels = Annotated[list[T], Field(min_length=1, max_length=_MOST_LEVELS)]


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
