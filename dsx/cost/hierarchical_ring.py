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

import jax.numpy as jnp

from dsx.cost.protocols import Linear
from dsx.hardware.hierarchy import Hierarchy


def path_bandwidth(hierarchy: Hierarchy) -> Any:
    """Return [Q] bytes/s of a path through each level."""
    bandwidth = jnp.asarray(hierarchy.bandwidth)
    return jnp.stack([jnp.min(bandwidth[..., : level + 1], axis=-1) for level in range(bandwidth.shape[-1])], axis=-1)


def joining_level(device: Any, other: Any, hierarchy: Hierarchy) -> Any:
    """Return the lowest level that joins two devices; the arguments are integers, and broadcast."""
    apart = [device // size != other // size for size in hierarchy.domain_sizes[:-1]]
    return sum((step.astype(jnp.int32) for step in apart), jnp.zeros(jnp.shape(device), jnp.int32))


def transfer_s(num_bytes: Any, latency: Any, bandwidth: Any) -> Any:
    """Return the seconds from one device to another, along a path of that latency and bandwidth."""
    return jnp.where(num_bytes > 0, latency + num_bytes / bandwidth, jnp.zeros_like(num_bytes))


def ring_sizes(num_members: Any, stride: Any, hierarchy: Hierarchy) -> list[Any]:
    """Return the largest number of sub-groups that a domain of each level joins; the arguments are integers."""
    sizes = []
    inner = 1
    for size in hierarchy.domain_sizes:
        inside = jnp.minimum(num_members, -(-size // stride))
        # Members closer than a sub-domain is large leave none of the sub-domains between them out.
        sizes.append(jnp.where(stride >= inner, inside, (inside - 1) * stride // inner + 1))
        inner = size
    return sizes


def all_reduce(num_members: Any, stride: Any, hierarchy: Hierarchy) -> Linear:
    """Return the time of a hierarchical ring all-reduce of `num_members`, each `stride` devices from the next."""
    paths = path_bandwidth(hierarchy)
    latencies = jnp.asarray(hierarchy.latency)
    latency = per_byte = jnp.zeros(jnp.broadcast_shapes(jnp.shape(num_members), jnp.shape(stride)), paths.dtype)
    share = jnp.ones_like(per_byte)  # of the bytes, that the levels inside have left
    for level, size in enumerate(ring_sizes(num_members, stride, hierarchy)):
        members = size.astype(paths.dtype)
        passes = 2.0 * (members - 1.0)
        share = share / members
        latency = latency + passes * latencies[..., level]
        per_byte = per_byte + passes * share / paths[..., level]
    return Linear(latency, per_byte)
