"""Transfers and all-reduces in a hierarchy of network levels, each linear in bytes.

* point to point: the latency of the level that joins the two devices, and the bytes at the bandwidth of the path
  there, which is the least of all levels up to it. Nothing to send takes no time.
* hierarchical ring all-reduce: at each level the sub-groups that one domain joins reduce in a ring, on what the levels
  inside have left of the bytes: g members scatter and gather in 2(g-1) passes of 1/g each (Patarasu, Yuan, JPDC 69,
  2009), and the level outside has 1/g of the bytes (Rabenseifner, ICCS 2004). A reduce-scatter or an all-gather is
  half of it.

The members of an all-reduce stand at equal strides from the first device on. The first domain of each level then has
most of them, and is the one that is priced. Not modelled: several rings on one link, and trees.
"""

from typing import Any

import jax
import jax.numpy as jnp

from dsx.cost.protocols import Linear
from dsx.layer_table.hierarchy import Hierarchy


def path_bandwidth(hierarchy: Hierarchy) -> Any:
    """Return [Q] bytes/s of a path through each level."""
    return jax.lax.cummin(jnp.asarray(hierarchy.bandwidth), axis=jnp.ndim(hierarchy.bandwidth) - 1)


def joining_level(device: Any, other: Any, hierarchy: Hierarchy) -> Any:
    """Return the lowest level that joins two devices of the hierarchy; integers, which broadcast."""
    level = jnp.zeros_like(device)
    for size in jnp.cumprod(jnp.asarray(hierarchy.devices_per_level))[:-1]:
        level = level + (device // size != other // size).astype(level.dtype)
    return level


def transfer_s(num_bytes: Any, latency: Any, bandwidth: Any) -> Any:
    """Return the seconds from one device to another, along a path of that latency and bandwidth."""
    return jnp.where(num_bytes > 0, latency + num_bytes / bandwidth, jnp.zeros_like(num_bytes))


def ring_sizes(num_members: Any, stride: Any, hierarchy: Hierarchy) -> list[Any]:
    """Return, per level, the largest number of sub-groups that one of its domains joins; integers, which broadcast."""
    sizes = []
    inner = jnp.ones_like(stride)  # devices of a sub-domain
    for count in jnp.asarray(hierarchy.devices_per_level):
        inside = jnp.minimum(num_members, -(-inner * count // stride))
        # Members nearer to each other than a sub-domain is large leave out none of those between them.
        sizes.append(jnp.where(stride >= inner, inside, (inside - 1) * stride // inner + 1))
        inner = inner * count
    return sizes


def all_reduce(num_members: Any, stride: Any, hierarchy: Hierarchy) -> Linear:
    """Return the time of a hierarchical ring all-reduce of `num_members`, each `stride` devices from the next."""
    paths, latencies = path_bandwidth(hierarchy), jnp.asarray(hierarchy.latency)
    sizes = [size.astype(paths.dtype) for size in ring_sizes(num_members, stride, hierarchy)]
    latency = per_byte = jnp.zeros_like(sizes[0])
    share = jnp.ones_like(sizes[0])  # of the bytes, that the levels inside have left
    for level, members in enumerate(sizes):
        passes = 2.0 * (members - 1.0)
        share = share / members
        latency = latency + passes * latencies[level]
        per_byte = per_byte + passes * share / paths[level]
    return Linear(latency, per_byte)
