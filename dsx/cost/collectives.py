"""The time of a collective: that of its fastest algorithm and protocol.

A library has a protocol for large messages, where a hop waits until a whole chunk is in memory and fenced, and one for
small messages, where each word carries its own flag: hops are short, and bandwidth is lower. NCCL calls them Simple and
LL (with LL128 between them) and takes the faster one by a model that is linear in bytes (NCCL, "NCCL_PROTO" in its
documentation, and src/graph/tuning.cc: a table of latencies per protocol and link, and a share of the bandwidth per
protocol). A time linear in bytes is Hockney's model (Parallel Computing 20, 1994), ``latency + bytes / bandwidth``:
latency times bandwidth is the message size that reaches half of the bandwidth. The time of each pair of an algorithm
and a protocol is linear in bytes, so a collective takes the latency of a call plus the least of a few lines. The
assumption set lists the algorithms and protocols.

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
  GPU of the same rank there, which forwards the copies (arXiv 2412.19437, section 3.2.2; `dsx.cost.groups`).
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
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.arrays import Column, PerPlan
from dsx.config.cluster_file import Network
from dsx.cost.context import Assumptions
from dsx.cost.groups import Group, Routing, SentToDomains, group, sent_to_domains
from dsx.notation.sharded_layer import ALL_REDUCE, BROADCAST, REDUCE
from dsx.records import Array, Bool, Float


class Linear(NamedTuple):
    """A time that is linear in bytes: ``latency_s + seconds_per_byte * bytes``."""

    latency_s: PerPlan
    seconds_per_byte: PerPlan

    def __call__(self, num_bytes: PerPlan) -> PerPlan:
        """Return the seconds for `num_bytes`."""
        return self.latency_s + self.seconds_per_byte * num_bytes


class Protocol(NamedTuple):
    """Latencies and inverse bandwidths of the tiers under one protocol, innermost tier first."""

    latencies: tuple[PerPlan, ...]  # s, one hop on each tier
    # Of one GPU on each tier: on its links in the domain, on its NIC, on its share of the tiers beyond.
    seconds_per_byte: tuple[PerPlan, ...]
    relay: PerPlan  # extra cost of a byte on a NIC that one GPU receives and sends on, relative to a plain byte
    rails: bool  # whether a message leaves a domain on the NICs of all members there, or on one NIC
    tree_latency: PerPlan  # latency of a hop in a tree over that in a ring
    tree_bandwidth: PerPlan  # bandwidth of a tree over that of a ring


def bulk(network: Network, assumptions: Assumptions) -> Protocol:
    """Return the protocol of large messages, which uses all NICs of a group in a domain."""
    efficiencies = _by_links(network, assumptions.nvs_efficiency, assumptions.net_efficiency)
    return Protocol(
        latencies=tuple(assumptions.bulk_latency * tier.latency for tier in network.tiers),
        seconds_per_byte=tuple(
            1.0 / (efficiency * tier.bandwidth) for efficiency, tier in zip(efficiencies, network.tiers, strict=True)
        ),
        relay=assumptions.relay,
        rails=True,
        tree_latency=assumptions.tree_latency,
        tree_bandwidth=assumptions.tree_bandwidth,
    )


def eager(network: Network, assumptions: Assumptions) -> Protocol:
    """Return the protocol of small messages, which uses few channels: one NIC of a domain."""
    large = bulk(network, assumptions)
    latencies = _by_links(network, assumptions.eager_nvs_latency, assumptions.eager_net_latency)
    return large._replace(
        latencies=tuple(scale * tier.latency for scale, tier in zip(latencies, network.tiers, strict=True)),
        seconds_per_byte=tuple(seconds / assumptions.eager_bandwidth for seconds in large.seconds_per_byte),
        rails=False,
    )


def _by_links(network: Network, direct: PerPlan, nic: PerPlan) -> list[PerPlan]:
    """Return a parameter per tier: `direct` for direct links of GPUs, `nic` for tiers that use NICs."""
    return [direct if tier < network.linked else nic for tier in range(len(network.tiers))]


PROTOCOLS = {"bulk": bulk, "eager": eager}


class GroupLinks(NamedTuple):
    """The links of a network that a group uses under a protocol, by tier; seconds per byte."""

    members: Group
    protocol: Protocol
    network: Network

    @property
    def outer(self) -> range:
        """The tiers beyond the fast domain."""
        return range(1, len(self.network.tiers))

    def units_used(self, tier: int) -> PerPlan:
        """Return the number of units of the tier below that the group uses in one unit of a tier."""
        if tier == 0:
            return self.members.share
        tiers = self.members.by_tier
        return tiers[tier - 1].domains / tiers[tier].domains if tier < len(tiers) else tiers[tier - 1].domains

    def on_links(self, tier: int) -> PerPlan:
        """Return the seconds per byte of one GPU on the links of a tier that the group can use; all with a switch.

        Without a switch, a unit has links to each of its `peers`, and a group on t units uses those to t-1 of them. A
        group on a part of a ring can send in one direction only.
        """
        level, per_byte = self.network.tiers[tier], self.protocol.seconds_per_byte[tier]
        if level.peers:
            used = xp.clip(self.units_used(tier) - 1.0, 1.0, float(level.peers))
            return per_byte * (level.peers / used)
        if level.wraps:
            return xp.where(self.units_used(tier) == level.chain, per_byte, 2.0 * per_byte)
        return per_byte

    def volumes(self, tier: int, fraction: PerPlan) -> PerPlan:
        """Return the volumes of an exchange that one GPU's links on a tier carry; `fraction` of one crosses the tier.

        In a row or ring of t GPUs the middle links carry t/4 volumes in each direction, forwarded bytes included.
        """
        if not self.network.tiers[tier].chain:
            return fraction
        units = self.units_used(tier)
        return xp.where(units > 1.0, units / 4.0, xp.zeros_like(fraction))

    def within_domain(self) -> PerPlan:
        """Return the seconds per byte between the members in one domain."""
        if not (self.network.nvs.peers or self.network.nvs.wraps):
            return self.protocol.seconds_per_byte[0] * xp.ones_like(self.members.size)
        return self.on_links(0)

    def on_rail(self, tier: int) -> PerPlan:
        """Return the seconds per byte of a hierarchical stage on one rail of a tier beyond the domain."""
        per_byte, linked = self.on_links(tier), self.network.linked
        if tier < linked:
            return per_byte
        relayed = 1.0 + self.protocol.relay
        if tier == linked:
            return per_byte * relayed
        # Switches of outer tiers add no relay; the NICs do, since a GPU receives and sends on one.
        return xp.maximum(per_byte, self.protocol.seconds_per_byte[linked] * relayed)

    def pipelined(self) -> PerPlan:
        """Return the seconds per byte of a chain of sends through all members."""
        members = self.members
        within, between = self.within_domain(), self.between_domains()
        return xp.where(
            members.domains == members.size,
            between,
            xp.where(members.domains == xp.ones_like(members.size), within, xp.maximum(between, within)),
        )

    def between_domains(self) -> PerPlan:
        """Return the seconds per byte of a chain of sends between domains: those of the slowest tier on its way."""
        ones, zero = xp.ones_like(self.members.size), xp.zeros_like(self.members.size)
        protocol, tiers, linked = self.protocol, self.members.by_tier, self.network.linked
        below_nics = tiers[linked - 1]
        # t members receive on one NIC and send on another, except for the 1/t of their traffic that stays on one GPU.
        # A channel uses one NIC, which has several GPUs' shares if they share it.
        shared = below_nics.per_share
        if not protocol.rails:
            shared = xp.maximum(shared, ones / self.network.gpus_per_nic)
        slowest = self.on_links(linked) * shared * (1.0 + protocol.relay * shared)
        if linked > 1:
            slowest = xp.where(below_nics.domains > ones, slowest, zero)
        for tier in self.outer:
            if tier == linked:
                continue
            below = tiers[tier - 1]
            above = tiers[tier].domains if tier < len(tiers) else ones
            # Groups share the bandwidth of tiers beyond the NICs. On direct links, one channel has those of one GPU.
            fraction = below.per_share if protocol.rails or tier > linked else ones
            slowest = xp.maximum(slowest, xp.where(below.domains > above, self.on_links(tier) * fraction, zero))
        return slowest


Algorithm = Callable[[str, GroupLinks], Linear]


def ring(kind: str, links: GroupLinks) -> Linear:
    """Return the time of a collective of any kind on a ring."""
    members, latencies = links.members, links.protocol.latencies
    ones, passes = xp.ones_like(members.size), _passes(kind)
    counts = [members.size, *(units.domains for units in members.by_tier), ones]
    hops = [below - above for below, above in pairwise(counts)]
    latency = _dot(latencies[::-1], hops[::-1])
    # The whole volume of a broadcast or a reduce crosses each link, not (n-1)/n of it.
    fraction = _has_peers(members) if kind in (BROADCAST, REDUCE) else ones - members.per_gpu
    return Linear(passes * latency, passes * fraction * links.pipelined())


def tree(kind: str, links: GroupLinks) -> Linear:
    """Return the time of an all-reduce, a broadcast or a reduce on a pair of trees over the domains."""
    members, protocol = links.members, links.protocol
    passes = _passes(kind) * _has_peers(members)
    depths = [units.depth for units in members.by_tier]
    crossing = [*(below - above for below, above in pairwise(depths)), depths[-1]]
    levels = _dot(protocol.latencies[:0:-1], crossing[::-1]) + protocol.latencies[0] * (members.share - 1.0)
    return Linear(passes * (protocol.tree_latency * levels), passes * (links.pipelined() / protocol.tree_bandwidth))


def hierarchical(kind: str, links: GroupLinks) -> Linear:
    """Return the time of an all-reduce, a gather or a scatter with one stage per tier, innermost first."""
    members = links.members
    ones, passes = xp.ones_like(members.size), _passes(kind)
    tiers = members.by_tier
    peers = [members.share, *(below.domains / above.domains for below, above in pairwise(tiers)), tiers[-1].domains]
    latency = _dot(links.protocol.latencies, [count - ones for count in peers])
    fractions = [ones, *(units.per_share for units in tiers), members.per_gpu]
    stages = [links.on_rail(tier) for tier in links.outer]
    seconds_per_byte = _dot([below - above for below, above in pairwise(fractions)], [links.within_domain(), *stages])
    return Linear(passes * latency, passes * seconds_per_byte)


def exchange(kind: str, links: GroupLinks, sent: SentToDomains | None = None) -> Linear:
    """Return the time of an all-to-all in which every GPU sends to every other GPU at the same time.

    `sent` is of an all-to-all of several copies of each token. Both kinds of links work at the same time.
    """
    members, latencies = links.members, links.protocol.latencies
    ones, per_gpu = xp.ones_like(members.size), members.per_gpu
    tiers = members.by_tier
    farthest_s = xp.zeros_like(ones)
    for latency, units in zip(latencies[1:], tiers, strict=True):
        farthest_s = xp.where(units.domains > ones, latency * ones, farthest_s)
    seconds_per_byte: list[PerPlan] = []
    for tier, units in zip(links.outer, tiers, strict=True):
        volumes = links.volumes(tier, ones - units.share * per_gpu)
        seconds_per_byte.append(links.on_links(tier) * (volumes if sent is None else volumes * sent.share))
    inside, peers = members.share * per_gpu - per_gpu, members.size - ones
    if sent is not None:
        inside = inside + sent.once * (ones - members.per_share - inside)
        peers = peers + sent.once * (members.domains + members.share - 2.0 - peers)
    seconds_per_byte.append(links.within_domain() * links.volumes(0, inside))
    return Linear(_passes(kind) * (farthest_s + latencies[0] * peers), functools.reduce(xp.maximum, seconds_per_byte))


ALGORITHMS: dict[str, Algorithm] = {"ring": ring, "tree": tree, "hierarchical": hierarchical, "exchange": exchange}


def _passes(kind: str) -> float:
    """Return the number of passes of the volume: an all-reduce scatters and then gathers."""
    return 2.0 if kind == ALL_REDUCE else 1.0


def _has_peers(members: Group) -> PerPlan:
    """Return 1 where the group has more than one GPU, else 0."""
    ones = xp.ones_like(members.size)
    return xp.where(members.size > ones, ones, xp.zeros_like(ones))


def _dot(counts: Sequence[PerPlan], values: Sequence[PerPlan]) -> PerPlan:
    return functools.reduce(xp.add, [count * value for count, value in zip(counts, values, strict=True)])


class FastestAlgorithm(NamedTuple):
    """The latency of a call plus the least of some times that are linear in bytes."""

    call_s: Column
    lines: tuple[Linear, ...]

    def __call__(self, num_bytes: PerPlan) -> Column:
        """Return the seconds for `num_bytes`."""
        return self.call_s + functools.reduce(xp.minimum, [line(num_bytes) for line in self.lines])


def collective(
    kind: str, members: Group, network: Network, assumptions: Assumptions, routing: Routing | None = None
) -> FastestAlgorithm:
    """Return the time of a collective over groups of GPUs; `kind` is one of `dsx.notation.sharded_layer`'s.

    The fields of `members` broadcast. A group of one GPU takes no time. `routing` says how the tokens of an all-to-all
    choose experts, if it moves several copies of each. All groups of an axis send at the same time, as the replicas of
    a job do: a GPU has its own share of a NIC, and a group with t GPUs in a domain has t shares.
    """
    links = [GroupLinks(members, PROTOCOLS[name](network, assumptions), network) for name in assumptions.protocols]
    algorithms = [ALGORITHMS[name] for name in dict(assumptions.algorithms)[kind]]
    if routing is not None:
        sent = sent_to_domains(routing, members.domains, assumptions.dispatcher)
        algorithms = [partial(exchange, sent=sent) if algorithm is exchange else algorithm for algorithm in algorithms]
    ones = xp.ones_like(members.size)
    return FastestAlgorithm(
        xp.where(members.size > ones, assumptions.call_latency * ones, xp.zeros_like(ones)),
        tuple(algorithm(kind, of_protocol) for algorithm in algorithms for of_protocol in links),
    )


def send(
    size: PerPlan, share: PerPlan, network: Network, assumptions: Assumptions, outer: Sequence[PerPlan] = ()
) -> FastestAlgorithm:
    """Return the mean time of a send between neighbours in a pipeline of `size` stages, `share` of them per domain.

    Of its size-1 links, one fewer than its domains are slow. A link has the cost of the outermost tier that it crosses.
    `outer` has the stages in a unit of each tier between the domain and the outermost one.
    """
    ones = xp.ones_like(size)
    links = xp.maximum(size - ones, ones)
    stages_per_unit = [share, *outer]
    units = [*(xp.ceil(size / stages) for stages in stages_per_unit), ones]
    slow_links = [below - above for below, above in pairwise(units)]
    counts = [size - ones - functools.reduce(xp.add, slow_links), *slow_links]
    lines = []
    for of_tiers in _links(stages_per_unit, _members_on_nic(stages_per_unit, network), network, assumptions):
        latency = _dot(counts, [link.latency_s for link in of_tiers])
        seconds_per_byte = _dot(counts, [link.seconds_per_byte for link in of_tiers])
        lines.append(Linear(latency / links, seconds_per_byte / links))
    return FastestAlgorithm(assumptions.call_latency * ones, tuple(lines))


class Slowest(NamedTuple):
    """The longest of some times."""

    times: tuple[FastestAlgorithm, ...]
    counts: tuple[Bool[Array, "*#plans"], ...]  # whether each counts

    def __call__(self, num_bytes: PerPlan) -> Column:
        """Return the seconds for `num_bytes`."""
        zero = xp.zeros_like(num_bytes)
        times = zip(self.times, self.counts, strict=True)
        return functools.reduce(xp.maximum, [xp.where(counts, time(num_bytes), zero) for time, counts in times])


def neighbours(
    per_unit: Sequence[PerPlan], nic_shares: PerPlan, network: Network, assumptions: Assumptions
) -> tuple[FastestAlgorithm, ...]:
    """Return the time of a send between neighbours of a pipeline or a ring on a link of each tier, innermost first.

    `per_unit` has the GPUs of a unit of each tier below the outermost one for each GPU that sends out of it at the same
    time, and `nic_shares` those of a NIC.
    """
    call_s = assumptions.call_latency * xp.ones_like(per_unit[0])
    links = _links(per_unit, nic_shares, network, assumptions)
    return tuple(FastestAlgorithm(call_s, of_tier) for of_tier in zip(*links, strict=True))


def pipeline_nic_shares(stages_per_unit: Sequence[PerPlan], network: Network) -> PerPlan:
    """Return the GPUs of a NIC for each one that sends over it at the edge of a domain, where stages are consecutive.

    All replicas of the stage at the edge send at the same time, and the other stages of the domain do not.
    """
    return xp.clip(stages_per_unit[network.linked - 1] / network.nics, 1.0, network.gpus_per_nic)


def _members_on_nic(per_unit: Sequence[PerPlan], network: Network) -> PerPlan:
    """Return the members of a ring or a pipeline on a NIC, of which one sends over it, where members are neighbours."""
    return xp.clip(per_unit[network.linked - 1], 1.0, network.gpus_per_nic)


def hop(members: Group, network: Network, assumptions: Assumptions) -> Slowest:
    """Return the time of a hop of a ring, in which every member sends a block to the next one: the slowest link's.

    One member of a domain sends out of it, on its own NIC, however many others the ring has there; likewise of a unit
    of each outer tier. What it sends has arrived before, so it relays nothing. A ring of one GPU has no hop.
    """
    tiers = members.by_tier
    shares = [units.share for units in tiers]
    counts = [members.size, *(units.domains for units in tiers), xp.ones_like(members.size)]
    return Slowest(
        neighbours(shares, _members_on_nic(shares, network), network, assumptions),
        tuple(below > above for below, above in pairwise(counts)),
    )


def _links(
    per_unit: Sequence[PerPlan], nic_shares: PerPlan, network: Network, assumptions: Assumptions
) -> list[list[Linear]]:
    """Return, by protocol, the time of a send between neighbours on a link of each tier, innermost first.

    One of `per_unit` GPUs of each unit below the outermost tier sends out of it at a time, and one of `nic_shares` on a
    NIC. So it has the shares of the others too, on the NIC and, beyond the NICs, of the unit. Without a switch,
    neighbours have one link.
    """

    def link(tier: int, protocol: Protocol) -> Linear:
        level, per_gpu = network.tiers[tier], protocol.seconds_per_byte[tier]
        single = 2.0 * per_gpu if level.wraps else level.peers * per_gpu if level.peers else per_gpu
        per_byte = single if tier < network.linked else protocol.seconds_per_byte[network.linked] / nic_shares
        if tier > network.linked or (tier and level.peers):
            per_byte = xp.maximum(per_byte, single / per_unit[tier - 1])
        return Linear(protocol.latencies[tier], per_byte)

    protocols = [PROTOCOLS[name](network, assumptions) for name in assumptions.protocols]
    return [[link(tier, protocol) for tier in range(len(network.tiers))] for protocol in protocols]


_UNBOUNDED = (2, 8)  # groups on an outermost tier without a size, in units of the tier below


def group_sizes(network: Network) -> tuple[int, ...]:
    """Return the sizes of groups to price: for each tier, two units of the tier below, and one whole unit."""
    sizes: list[int] = []
    below = 1
    for tier in network.tiers:
        steps = (2 * below, tier.size) if tier.size else tuple(times * below for times in _UNBOUNDED)
        sizes += [size for size in steps if below < size and (not tier.size or size <= tier.size)]
        below = tier.size or below
    return tuple(dict.fromkeys(sizes))


@xp.unchecked
def collective_times(
    kind: str, network: Network, assumptions: Assumptions, groups: Sequence[int], volumes: Sequence[float]
) -> Float[np.ndarray, "volumes groups"]:
    """Return the [V, G] seconds of a collective over each of `groups`, for each of `volumes` in bytes.

    Ranks of a group are consecutive; its size is a whole number of units of each tier that it fills.
    """
    columns: list[Column] = []
    for size in groups:
        shares = [np.array([float(min(size, tier.size))]) for tier in network.tiers[:-1]]
        members = group(np.array([float(size)]), *shares)
        columns.append(collective(kind, members, network, assumptions)(np.array(volumes, dtype=np.float64)))
    return np.stack(columns, axis=1)
