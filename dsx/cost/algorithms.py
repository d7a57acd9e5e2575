"""Algorithms of collectives under one protocol: ring, tree, hierarchical, and direct exchange.

A group of n GPUs, t of them in each fast domain, lies on N = n/t domains. Volumes V are as the notation counts
them: the gathered tensor of an all-gather, the tensor before it of any other kind.

* Ring: N-1 slow and n-N fast hops a pass; a gather or scatter is one pass of (n-1)/n V, an all-reduce two
  (Thakur, Rabenseifner, Gropp, IJHPCA 19, 2005; Patarasu, Yuan, JPDC 69, 2009). Its pace is the fast link's
  inside one domain, the NIC's where every GPU is alone in its domain, and else that of the slower of the two,
  with t NICs to a domain (arXiv 2410.00273, section 3).
* Tree: log2(N) levels between domains and a chain inside each, with every link busy in a pair of trees
  (Sanders, Speck, Traeff, Parallel Computing 35, 2009; NCCL 2.4).
* Hierarchical: inside the domains, and between them on t rails of V/t each (Rabenseifner's reduction by halves
  is the all-reduce of it: scatter, reduce on the rails, gather; Hidayetoglu et al., arXiv 2408.05962).
* Exchange: every GPU sends to every other at once. Bytes for other domains go through the GPU's own NIC, and
  of the messages' latencies only starting them adds up (LogGP: Alexandrov et al., SPAA 1995).

Not modelled: a topology inside a tier, reduction inside switches (SHARP, NVLS).
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from dsx.cost.groups import Group
from dsx.cost.protocols import Linear, Protocol
from dsx.graph.match import ALL_REDUCE, BROADCAST, REDUCE
from dsx.hardware.network import Network

Algorithm = Callable[[str, Group, Protocol, Network], Linear]


def ring(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of any collective around a ring."""
    one = jnp.ones_like(members.size)
    passes = _passes(kind)
    latency = protocol.slow_latency * (members.domains - one) + protocol.fast_latency * (members.size - members.domains)
    part = _several(members) if _sends_all(kind) else one - members.per_gpu
    return Linear(passes * latency, passes * part * _pace(members, protocol, network))


def tree(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of an all-reduce, a broadcast or a reduce along a pair of trees over the domains."""
    passes = _passes(kind) * _several(members)
    levels = protocol.slow_latency * members.depth + protocol.fast_latency * (members.share - 1.0)
    return Linear(
        passes * (protocol.tree_latency * levels),
        passes * (_pace(members, protocol, network) / protocol.tree_bandwidth),
    )


def hierarchical(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of an all-reduce, a gather or a scatter in two stages: inside domains, and between them."""
    one = jnp.ones_like(members.size)
    passes = _passes(kind)
    latency = protocol.fast_latency * (members.share - one) + protocol.slow_latency * (members.domains - one)
    inside = (one - members.per_share) * _inside(members, protocol, network)
    between = (members.per_share - members.per_gpu) * (protocol.slow * (1.0 + protocol.relay))
    return Linear(passes * latency, passes * (inside + between))


def exchange(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of an all-to-all in which every GPU sends to every other at once."""
    one, per_gpu = jnp.ones_like(members.size), members.per_gpu
    far = jnp.where(members.domains > one, protocol.slow_latency * one, jnp.zeros_like(one))
    outside = protocol.slow * (one - members.share * per_gpu)
    inside = _inside(members, protocol, network) * (members.share * per_gpu - per_gpu)
    return Linear(_passes(kind) * (far + protocol.fast_latency * (members.size - one)), jnp.maximum(outside, inside))


ALGORITHMS: dict[str, Algorithm] = {
    "ring": ring,
    "tree": tree,
    "hierarchical": hierarchical,
    "exchange": exchange,
}


def _passes(kind: str) -> float:
    """Return how often the volume goes through: an all-reduce scatters and then gathers."""
    return 2.0 if kind == ALL_REDUCE else 1.0


def _sends_all(kind: str) -> bool:
    """Return whether all of the volume crosses each link of a ring, not (n-1)/n of it."""
    return kind in (BROADCAST, REDUCE)


def _several(members: Group) -> Any:
    """Return 1 where there is someone to talk to, else 0."""
    one = jnp.ones_like(members.size)
    return jnp.where(members.size > one, one, jnp.zeros_like(one))


def _inside(members: Group, protocol: Protocol, network: Network) -> Any:
    """Return the seconds per byte between the members in one domain.

    Without a switch, a GPU has links to each of its `peers`, and t members use those to t-1 of them.
    """
    if not network.peers:
        return protocol.fast * jnp.ones_like(members.size)
    used = jnp.clip(members.share - 1.0, 1.0, float(network.peers))
    return protocol.fast * (network.peers / used)


def _pace(members: Group, protocol: Protocol, network: Network) -> Any:
    """Return the seconds per byte of a pipeline through all members."""
    one = jnp.ones_like(members.size)
    inside = _inside(members, protocol, network)
    # t members receive on one NIC and send on another, but for the 1/t of their traffic that stays on one GPU.
    # One channel has one NIC, which is several shares where GPUs share it.
    shared = members.per_share if protocol.rails else jnp.maximum(members.per_share, one / network.gpus_per_nic)
    crossing = protocol.slow * shared * (1.0 + protocol.relay * shared)
    return jnp.where(
        members.domains == members.size,
        crossing,
        jnp.where(members.domains == one, inside, jnp.maximum(crossing, inside)),
    )
