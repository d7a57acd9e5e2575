"""Algorithms of collectives under one protocol: ring, tree, hierarchical, and direct exchange.

A group of n GPUs with t in each fast domain spans N = n/t domains. The volume V is that of the notation: the gathered
tensor of an all-gather, the input tensor of any other kind.

* Ring: a pass has N-1 slow and n-N fast hops. A gather or scatter is one pass of (n-1)/n V, an all-reduce two (Thakur,
  Rabenseifner, Gropp, IJHPCA 19, 2005; Patarasu, Yuan, JPDC 69, 2009). Its bandwidth is that of the fast link inside
  one domain, that of the NIC if every GPU is alone in its domain, and otherwise the lower of the two, with t NICs per
  domain (arXiv 2410.00273, section 3).
* Tree: log2(N) levels between domains and a chain inside each. A pair of trees keeps every link busy (Sanders, Speck,
  Traeff, Parallel Computing 35, 2009; NCCL 2.4).
* Hierarchical: first inside the domains, then between them on t rails with V/t each. Its all-reduce is Rabenseifner's
  recursive halving: scatter, reduce on the rails, gather (Hidayetoglu et al., arXiv 2408.05962).
* Exchange: every GPU sends to every other GPU at the same time. Bytes for other domains go through the GPU's own NIC.
  Of the latencies of messages, only the start of each one adds up (LogGP: Alexandrov et al., SPAA 1995). Where it
  moves several copies of each token to experts, a dispatcher may send a token once to each domain that needs it, to the
  GPU of the same rank there, which forwards the copies (arXiv 2412.19437, section 3.2.2; `dsx.cost.expert_domains`).
  Then (t-1)/t of the volume crosses fast links, of all domains' copies, and a GPU has N-1 + t-1 peers.

With more than two tiers, a unit of tier k has c_k members of the group. A ring crosses tier k on n/c_(k-1) - n/c_k
hops, and the slowest tier that it crosses limits its bandwidth: a unit of the tier below sends with the bandwidth
shares of its c_(k-1) members. A tree has log2(c_k/c_(k-1)) levels on tier k, a hierarchical collective a stage of
(1/c_(k-1) - 1/c_k) V on c_(k-1) rails. In an exchange, tier k carries the bytes for GPUs beyond the tier below, a
fraction 1 - c_(k-1)/n; along a dimension of a torus, a byte crosses a quarter of the dimension on average. All groups
of an axis send at the same time, so each GPU has only its share of an oversubscribed tier. Groups of different axes
wait for each other, since a GPU runs its collectives in sequence, or overlap with compute.

Not modelled: reduction inside switches (SHARP, NVLS), rings on several dimensions of a torus at once.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise

from dsx.cost import xp
from dsx.cost.expert_domains import SentToDomains
from dsx.cost.groups import Group
from dsx.cost.protocols import Linear, Protocol
from dsx.cost.shapes import PerPlan
from dsx.graph.match import ALL_REDUCE, BROADCAST, REDUCE
from dsx.hardware.network import Network

Algorithm = Callable[[str, Group, Protocol, Network], Linear]


def ring(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of a collective of any kind on a ring."""
    one = xp.ones_like(members.size)
    passes = _passes(kind)
    counts = [members.size, *(units.domains for units in members.by_tier), one]
    hops = [below - above for below, above in pairwise(counts)]
    latency = _dot(protocol.latencies[::-1], hops[::-1])
    fraction = _has_peers(members) if _sends_all(kind) else one - members.per_gpu
    return Linear(passes * latency, passes * fraction * _pipelined(members, protocol, network))


def tree(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of an all-reduce, a broadcast or a reduce on a pair of trees over the domains."""
    passes = _passes(kind) * _has_peers(members)
    depths = [units.depth for units in members.by_tier]
    crossing = [*(below - above for below, above in pairwise(depths)), depths[-1]]
    levels = _dot(protocol.latencies[:0:-1], crossing[::-1]) + protocol.latencies[0] * (members.share - 1.0)
    return Linear(
        passes * (protocol.tree_latency * levels),
        passes * (_pipelined(members, protocol, network) / protocol.tree_bandwidth),
    )


def hierarchical(kind: str, members: Group, protocol: Protocol, network: Network) -> Linear:
    """Return the time of an all-reduce, a gather or a scatter with one stage per tier, innermost first."""
    one = xp.ones_like(members.size)
    passes = _passes(kind)
    tiers = members.by_tier
    peers = [members.share, *(below.domains / above.domains for below, above in pairwise(tiers)), tiers[-1].domains]
    latency = _dot(protocol.latencies, [count - one for count in peers])
    fractions = [one, *(units.per_share for units in tiers), members.per_gpu]
    stages = [_on_rail(tier, members, protocol, network) for tier in _outer(network)]
    per_byte = [_within_domain(members, protocol, network), *stages]
    seconds_per_byte = _dot([below - above for below, above in pairwise(fractions)], per_byte)
    return Linear(passes * latency, passes * seconds_per_byte)


def exchange(
    kind: str, members: Group, protocol: Protocol, network: Network, sent: SentToDomains | None = None
) -> Linear:
    """Return the time of an all-to-all in which every GPU sends to every other GPU at the same time.

    `sent` is of an all-to-all of several copies of each token. Both kinds of links work at the same time.
    """
    one, per_gpu = xp.ones_like(members.size), members.per_gpu
    tiers = members.by_tier
    farthest_s = xp.zeros_like(one)
    for latency, units in zip(protocol.latencies[1:], tiers, strict=True):
        farthest_s = xp.where(units.domains > one, latency * one, farthest_s)
    seconds_per_byte: list[PerPlan] = []
    for tier, units in zip(_outer(network), tiers, strict=True):
        per_byte = _on_links(tier, members, protocol, network)
        volumes = _link_volumes(tier, one - units.share * per_gpu, members, network)
        seconds_per_byte.append(per_byte * (volumes if sent is None else volumes * sent.share))
    inside, peers = members.share * per_gpu - per_gpu, members.size - one
    if sent is not None:
        inside = inside + sent.once * (one - members.per_share - inside)
        peers = peers + sent.once * (members.domains + members.share - 2.0 - peers)
    within = _within_domain(members, protocol, network)
    seconds_per_byte.append(within * _link_volumes(0, inside, members, network))
    return Linear(
        _passes(kind) * (farthest_s + protocol.latencies[0] * peers),
        functools.reduce(xp.maximum, seconds_per_byte),
    )


ALGORITHMS: dict[str, Algorithm] = {
    "ring": ring,
    "tree": tree,
    "hierarchical": hierarchical,
    "exchange": exchange,
}


def _passes(kind: str) -> float:
    """Return the number of passes of the volume: an all-reduce scatters and then gathers."""
    return 2.0 if kind == ALL_REDUCE else 1.0


def _sends_all(kind: str) -> bool:
    """Return whether the whole volume crosses each link of a ring, not (n-1)/n of it."""
    return kind in (BROADCAST, REDUCE)


def _has_peers(members: Group) -> PerPlan:
    """Return 1 where the group has more than one GPU, else 0."""
    one = xp.ones_like(members.size)
    return xp.where(members.size > one, one, xp.zeros_like(one))


def _dot(left: Sequence[PerPlan], right: Sequence[PerPlan]) -> PerPlan:
    return functools.reduce(xp.add, [a * b for a, b in zip(left, right, strict=True)])


def _outer(network: Network) -> range:
    """Return the tiers beyond the fast domain."""
    return range(1, len(network.tiers))


def _units_used(tier: int, members: Group) -> PerPlan:
    """Return the number of units of the tier below that the group uses in one unit of a tier."""
    if tier == 0:
        return members.share
    tiers = members.by_tier
    return tiers[tier - 1].domains / tiers[tier].domains if tier < len(tiers) else tiers[tier - 1].domains


def _on_links(tier: int, members: Group, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte of one GPU on the links of a tier that the group can use; all with a switch.

    Without a switch, a unit has links to each of its `peers`, and a group on t units uses those to t-1 of them. A group
    on a part of a ring can send in one direction only.
    """
    level, per_byte = network.tiers[tier], protocol.seconds_per_byte[tier]
    if level.peers:
        used = xp.clip(_units_used(tier, members) - 1.0, 1.0, float(level.peers))
        return per_byte * (level.peers / used)
    if level.wraps:
        return xp.where(_units_used(tier, members) == level.chain, per_byte, 2.0 * per_byte)
    return per_byte


def _link_volumes(tier: int, fraction: PerPlan, members: Group, network: Network) -> PerPlan:
    """Return the volumes of an exchange that one GPU's links on a tier carry; `fraction` of a volume crosses the tier.

    In a row or ring of t GPUs the middle links carry t/4 volumes in each direction, forwarded bytes included.
    """
    if not network.tiers[tier].chain:
        return fraction
    units = _units_used(tier, members)
    return xp.where(units > 1.0, units / 4.0, xp.zeros_like(fraction))


def _within_domain(members: Group, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte between the members in one domain."""
    if not (network.nvs.peers or network.nvs.wraps):
        return protocol.seconds_per_byte[0] * xp.ones_like(members.size)
    return _on_links(0, members, protocol, network)


def _on_rail(tier: int, members: Group, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte of a hierarchical stage on one rail of a tier beyond the domain."""
    per_byte = _on_links(tier, members, protocol, network)
    if tier < network.linked:
        return per_byte
    if tier == network.linked:
        return per_byte * (1.0 + protocol.relay)
    # Switches of outer tiers add no relay; the NICs do, since a GPU receives and sends on one.
    return xp.maximum(per_byte, protocol.seconds_per_byte[network.linked] * (1.0 + protocol.relay))


def _pipelined(members: Group, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte of a chain of sends through all members."""
    one = xp.ones_like(members.size)
    within = _within_domain(members, protocol, network)
    between = _between_domains(members, protocol, network)
    return xp.where(
        members.domains == members.size,
        between,
        xp.where(members.domains == one, within, xp.maximum(between, within)),
    )


def _between_domains(members: Group, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte of a chain of sends between domains: those of the slowest tier that it crosses."""
    one = xp.ones_like(members.size)
    tiers, linked = members.by_tier, network.linked
    below_nics = tiers[linked - 1]
    # t members receive on one NIC and send on another, except for the 1/t of their traffic that stays on one GPU.
    # A channel uses one NIC, which has several GPUs' shares if they share it.
    shared = below_nics.per_share if protocol.rails else xp.maximum(below_nics.per_share, one / network.gpus_per_nic)
    slowest = _on_links(linked, members, protocol, network) * shared * (1.0 + protocol.relay * shared)
    if linked > 1:
        slowest = xp.where(below_nics.domains > one, slowest, xp.zeros_like(one))
    for tier in _outer(network):
        if tier == linked:
            continue
        below = tiers[tier - 1]
        above = tiers[tier].domains if tier < len(tiers) else one
        # Groups share the bandwidth of tiers beyond the NICs. On direct links, one channel has the links of one GPU.
        fraction = below.per_share if protocol.rails or tier > linked else one
        per_byte = _on_links(tier, members, protocol, network) * fraction
        slowest = xp.maximum(slowest, xp.where(below.domains > above, per_byte, xp.zeros_like(one)))
    return slowest
