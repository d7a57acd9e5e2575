"""Transfers and all-reduces in a hierarchy of network levels, each linear in bytes.

* point to point: the latency of the level that joins the two devices, plus the bytes over the bandwidth of the path,
  the least of all levels up to that one. A transfer of 0 bytes takes no time.
* hierarchical ring all-reduce: at each level the sub-groups of a domain reduce in a ring the bytes that the inner
  levels leave: g members scatter and gather in 2(g-1) passes of 1/g each (Patarasu, Yuan, JPDC 69, 2009), and the next
  outer level has 1/g of the bytes (Rabenseifner, ICCS 2004). A reduce-scatter or an all-gather is half an all-reduce.

The members of an all-reduce are at equal strides, beginning with the first device. So the first domain of each level
has the most members, and is the one that is priced. Not modelled: several rings on one link, and trees.
"""

from typing import Any

import jax
import jax.numpy as jnp

from dsx.cost.protocols import Linear
from dsx.layer_table.hierarchy import Hierarchy


def path_bandwidth(hierarchy: Hierarchy) -> Any:
    """Return [Q] bytes/s of a path up to each level."""
    return jax.lax.cummin(jnp.asarray(hierarchy.bandwidth), axis=jnp.ndim(hierarchy.bandwidth) - 1)


def joining_level(device: Any, other: Any, hierarchy: Hierarchy) -> Any:
    """Return the lowest level that joins two devices; takes integers, which broadcast."""
    level = jnp.zeros_like(device)
    for size in jnp.cumprod(jnp.asarray(hierarchy.devices_per_level))[:-1]:
        level = level + (device // size != other // size).astype(level.dtype)
    return level


def transfer_s(num_bytes: Any, latency: Any, bandwidth: Any) -> Any:
    """Return the seconds of a transfer along a path with this latency (s) and bandwidth (bytes/s)."""
    return jnp.where(num_bytes > 0, latency + num_bytes / bandwidth, jnp.zeros_like(num_bytes))


def ring_sizes(num_members: Any, stride: Any, hierarchy: Hierarchy) -> list[Any]:
    """Return, per level, the largest number of sub-groups in one of its domains; takes integers, which broadcast."""
    sizes = []
    inner = jnp.ones_like(stride)  # devices of a sub-domain
    for count in jnp.asarray(hierarchy.devices_per_level):
        inside = jnp.minimum(num_members, -(-inner * count // stride))
        # If the stride is less than the size of a sub-domain, the members skip none of the sub-domains between them.
        sizes.append(jnp.where(stride >= inner, inside, (inside - 1) * stride // inner + 1))
        inner = inner * count
    return sizes


def all_reduce(num_members: Any, stride: Any, hierarchy: Hierarchy) -> Linear:
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
