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

On more than two tiers c_k members lie in each unit of tier k. A ring crosses tier k on n/c_(k-1) - n/c_k of its hops,
and its pace is that of the slowest tier that it crosses: out of a unit of the tier below go c_(k-1) members' shares of
what the tier carries. A tree has log2(c_k/c_(k-1)) levels there, a hierarchical collective a stage of
(1/c_(k-1) - 1/c_k) V on c_(k-1) rails. Of an exchange, tier k carries the bytes for GPUs beyond the tier below,
1 - c_(k-1)/n of them, and along a dimension of a torus each goes a quarter of it on average. Every group of an axis
is taken to send at once, so each GPU has its share of an oversubscribed tier and no more; groups of different axes
wait for each other, as a GPU's collectives do, or hide behind computing.

Not modelled: reduction inside switches (SHARP, NVLS), rings of several dimensions of a torus at once.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise

import jax.numpy as jnp

from dsx.cost.groups import Group
from dsx.cost.protocols import Linear, Protocol
from dsx.cost.shapes import PerPlan
from dsx.graph.match import ALL_REDUCE, BROADCAST, REDUCE
from dsx.hardware.network import Network

Algorithm = Callable[[str, Group, Protocol, Network], Linear]


def ring(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of any collective around a ring."""
    one = jnp.ones_like(members.size)
    passes = _passes(kind)
    counts = [members.size, *(units.domains for units in members.lying), one]
    hops = [below - above for below, above in pairwise(counts)]
    latency = _sum_of(protocol.latencies[::-1], hops[::-1])
    part = _several(members) if _sends_all(kind) else one - members.per_gpu
    return Linear(passes * latency, passes * part * _pace(members, protocol, network))


def tree(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of an all-reduce, a broadcast or a reduce along a pair of trees over the domains."""
    passes = _passes(kind) * _several(members)
    depths = [units.depth for units in members.lying]
    crossing = [*(below - above for below, above in pairwise(depths)), depths[-1]]
    levels = _sum_of(protocol.latencies[:0:-1], crossing[::-1]) + protocol.latencies[0] * (members.share - 1.0)
    return Linear(
        passes * (protocol.tree_latency * levels),
        passes * (_pace(members, protocol, network) / protocol.tree_bandwidth),
    )


def hierarchical(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of an all-reduce, a gather or a scatter in a stage for each tier, innermost first."""
    one = jnp.ones_like(members.size)
    passes = _passes(kind)
    lying = members.lying
    peers = [members.share, *(below.domains / above.domains for below, above in pairwise(lying)), lying[-1].domains]
    latency = _sum_of(protocol.latencies, [count - one for count in peers])
    parts = [one, *(units.per_share for units in lying), members.per_gpu]
    stages = [_stage(tier, members, protocol, network) for tier in _outer(network)]
    paces = [_inside(members, protocol, network), *stages]
    seconds_per_byte = _sum_of([below - above for below, above in pairwise(parts)], paces)
    return Linear(passes * latency, passes * seconds_per_byte)


def exchange(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of an all-to-all in which every GPU sends to every other at once."""
    one, per_gpu = jnp.ones_like(members.size), members.per_gpu
    lying = members.lying
    far = jnp.zeros_like(one)
    for latency, units in zip(protocol.latencies[1:], lying, strict=True):
        far = jnp.where(units.domains > one, latency * one, far)
    paces: list[PerPlan] = []
    for tier, units in zip(_outer(network), lying, strict=True):
        pace = _on_links(tier, members, protocol, network)
        paces.append(pace * _travelled(tier, one - units.share * per_gpu, members, network))
    inside = _inside(members, protocol, network)
    paces.append(inside * _travelled(0, members.share * per_gpu - per_gpu, members, network))
    return Linear(
        _passes(kind) * (far + protocol.latencies[0] * (members.size - one)), functools.reduce(jnp.maximum, paces)
    )


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


def _several(members: Group) -> PerPlan:
    """Return 1 where there is someone to talk to, else 0."""
    one = jnp.ones_like(members.size)
    return jnp.where(members.size > one, one, jnp.zeros_like(one))


def _sum_of(one: Sequence[PerPlan], other: Sequence[PerPlan]) -> PerPlan:
    return functools.reduce(jnp.add, [left * right for left, right in zip(one, other, strict=True)])


def _outer(network: Network) -> range:
    """Return the tiers beyond the fast domain."""
    return range(1, len(network.tiers))


def _taken(tier: int, members: Group) -> PerPlan:
    """Return how many units of the tier below the group takes of one unit of a tier."""
    if tier == 0:
        return members.share
    lying = members.lying
    return lying[tier - 1].domains / lying[tier].domains if tier < len(lying) else lying[tier - 1].domains


def _on_links(tier: int, members: Group, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte of one GPU on the links that the group has on a tier: all of them behind a switch.

    Without a switch, a unit has links to each of its `peers`, and t units use those to t-1 of them. Units that are
    not all of a ring have one way around alone.
    """
    level, pace = network.tiers[tier], protocol.paces[tier]
    if level.peers:
        used = jnp.clip(_taken(tier, members) - 1.0, 1.0, float(level.peers))
        return pace * (level.peers / used)
    if level.wraps:
        return jnp.where(_taken(tier, members) == level.chain, pace, 2.0 * pace)
    return pace


def _travelled(tier: int, part: PerPlan, members: Group, network: Network) -> PerPlan:
    """Return the links that the bytes of an exchange cross on a tier, in volumes; `part` of them go there at all.

    Along a row or ring of t GPUs the middle carries t/4 volumes each way, for each GPU and what it sends on.
    """
    if not network.tiers[tier].chain:
        return part
    taken = _taken(tier, members)
    return jnp.where(taken > 1.0, taken / 4.0, jnp.zeros_like(part))


def _inside(members: Group, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte between the members in one domain."""
    if not (network.nvs.peers or network.nvs.wraps):
        return protocol.paces[0] * jnp.ones_like(members.size)
    return _on_links(0, members, protocol, network)


def _stage(tier: int, members: Group, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte of a stage on a tier beyond the domain, on one rail."""
    pace = _on_links(tier, members, protocol, network)
    if tier < network.linked:
        return pace
    if tier == network.linked:
        return pace * (1.0 + protocol.relay)
    # Switches between others have no NIC that receives and sends on.
    return jnp.maximum(pace, protocol.paces[network.linked] * (1.0 + protocol.relay))


def _pace(members: Group, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte of a pipeline through all members."""
    one = jnp.ones_like(members.size)
    inside = _inside(members, protocol, network)
    crossing = _crossing(members, protocol, network)
    return jnp.where(
        members.domains == members.size,
        crossing,
        jnp.where(members.domains == one, inside, jnp.maximum(crossing, inside)),
    )


def _crossing(members: Group, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte of a pipeline between domains: those of the slowest tier that it crosses."""
    one = jnp.ones_like(members.size)
    lying, linked = members.lying, network.linked
    behind = lying[linked - 1]
    # t members receive on one NIC and send on another, but for the 1/t of their traffic that stays on one GPU.
    # One channel has one NIC, which is several shares where GPUs share it.
    shared = behind.per_share if protocol.rails else jnp.maximum(behind.per_share, one / network.gpus_per_nic)
    slowest = _on_links(linked, members, protocol, network) * shared * (1.0 + protocol.relay * shared)
    if linked > 1:
        slowest = jnp.where(behind.domains > one, slowest, jnp.zeros_like(one))
    for tier in _outer(network):
        if tier == linked:
            continue
        below = lying[tier - 1]
        above = lying[tier].domains if tier < len(lying) else one
        # Of the tiers that NICs lead to, groups share what they carry; of its own links a channel has one GPU's.
        part = below.per_share if protocol.rails or tier > linked else one
        pace = _on_links(tier, members, protocol, network) * part
        slowest = jnp.maximum(slowest, jnp.where(below.domains > above, pace, jnp.zeros_like(one)))
    return slowest
