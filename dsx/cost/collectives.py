"""The time of a collective: that of its fastest algorithm and protocol.

The time of each pair of an algorithm and a protocol is linear in bytes, so a collective takes the latency of a call
plus the least of a few lines. The assumption set lists the algorithms and protocols. All groups of an axis send at the
same time, as the replicas of a job do: a GPU has its own share of a NIC, and a group with t GPUs in a domain has t
shares.
"""

import functools
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from dsx.cost import xp
from dsx.cost.algorithms import ALGORITHMS, _dot, exchange
from dsx.cost.assumptions import Assumptions
from dsx.cost.expert_domains import Routing, sent_to_domains
from dsx.cost.groups import Group
from dsx.cost.protocols import PROTOCOLS, Linear, Protocol
from dsx.cost.shapes import Column, PerPlan
from dsx.hardware.network import Network
from dsx.records import Array, Bool


class Fastest(NamedTuple):
    """The latency of a call plus the least of some times that are linear in bytes."""

    call_s: Column
    lines: tuple[Linear, ...]

    def __call__(self, num_bytes: PerPlan) -> Column:
        """Return the seconds for `num_bytes`."""
        return self.call_s + functools.reduce(xp.minimum, [line(num_bytes) for line in self.lines])


def collective(
    kind: str, members: Group, network: Network, assumptions: Assumptions, routing: Routing | None = None
) -> Fastest:
    """Return the time of a collective over groups of GPUs; `kind` is one of `dsx.graph.match`'s.

    The fields of `members` broadcast. A group of one GPU takes no time. `routing` says how the tokens of an all-to-all
    choose experts, if it moves several copies of each.
    """
    protocols = [PROTOCOLS[name](network, assumptions) for name in assumptions.protocols]
    algorithms = [ALGORITHMS[name] for name in dict(assumptions.algorithms)[kind]]
    if routing is not None:
        sent = sent_to_domains(routing, members.domains, assumptions.dispatcher)
        algorithms = [partial(exchange, sent=sent) if algorithm is exchange else algorithm for algorithm in algorithms]
    one = xp.ones_like(members.size)
    return Fastest(
        xp.where(members.size > one, assumptions.call_latency * one, xp.zeros_like(one)),
        tuple(algorithm(kind, members, protocol, network) for algorithm in algorithms for protocol in protocols),
    )


def send(
    size: PerPlan, share: PerPlan, network: Network, assumptions: Assumptions, outer: Sequence[PerPlan] = ()
) -> Fastest:
    """Return the mean time of a send between neighbours in a pipeline of `size` stages, `share` of them per domain.

    Of its size-1 links, one fewer than its domains are slow. A link has the cost of the outermost tier that it crosses.
    `outer` has the stages in a unit of each tier between the domain and the outermost one.
    """
    one = xp.ones_like(size)
    links = xp.maximum(size - one, one)
    stages_per_unit = [share, *outer]
    units = [*(xp.ceil(size / stages) for stages in stages_per_unit), one]
    slow_links = [below - above for below, above in pairwise(units)]
    counts = [size - one - functools.reduce(xp.add, slow_links), *slow_links]
    lines = []
    for of_tiers in _links(stages_per_unit, _members_on_nic(stages_per_unit, network), network, assumptions):
        latency = _dot(counts, [link.latency_s for link in of_tiers])
        seconds_per_byte = _dot(counts, [link.seconds_per_byte for link in of_tiers])
        lines.append(Linear(latency / links, seconds_per_byte / links))
    return Fastest(assumptions.call_latency * one, tuple(lines))


class Slowest(NamedTuple):
    """The longest of some times."""

    times: tuple[Fastest, ...]
    counts: tuple[Bool[Array, "*#plans"], ...]  # whether each counts

    def __call__(self, num_bytes: PerPlan) -> Column:
        """Return the seconds for `num_bytes`."""
        nothing = xp.zeros_like(num_bytes)
        each = zip(self.times, self.counts, strict=True)
        return functools.reduce(xp.maximum, [xp.where(counts, time(num_bytes), nothing) for time, counts in each])


def neighbours(
    per_unit: Sequence[PerPlan], nic_shares: PerPlan, network: Network, assumptions: Assumptions
) -> tuple[Fastest, ...]:
    """Return the time of a send between neighbours of a pipeline or a ring on a link of each tier, innermost first.

    `per_unit` has the GPUs of a unit of each tier below the outermost one for each GPU that sends out of it at the same
    time, and `nic_shares` those of a NIC.
    """
    call_s = assumptions.call_latency * xp.ones_like(per_unit[0])
    links = _links(per_unit, nic_shares, network, assumptions)
    return tuple(Fastest(call_s, of_tier) for of_tier in zip(*links, strict=True))


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
    one = xp.ones_like(members.size)
    tiers = members.by_tier
    shares = [units.share for units in tiers]
    counts = [members.size, *(units.domains for units in tiers), one]
    return Slowest(
        neighbours(shares, _members_on_nic(shares, network), network, assumptions),
        tuple(below > above for below, above in pairwise(counts)),
    )


def _links(
    per_unit: Sequence[PerPlan], nic_shares: PerPlan, network: Network, assumptions: Assumptions
) -> list[list[Linear]]:
    """Return, by protocol, the time of a send between neighbours on a link of each tier, innermost first.

    One of `per_unit` GPUs of each unit below the outermost tier sends out of it at a time, and one of `nic_shares` on a
    NIC. So it has the shares of the others too, on the NIC and, beyond the NICs, of the unit.
    """
    found = []
    for name in assumptions.protocols:
        protocol = PROTOCOLS[name](network, assumptions)
        links = []
        for tier, latency in enumerate(protocol.latencies):
            per_byte = _link(tier, protocol, network)
            if tier >= network.linked:
                per_byte = protocol.seconds_per_byte[network.linked] / nic_shares
            if tier > network.linked or (tier and network.tiers[tier].peers):
                per_byte = xp.maximum(per_byte, _link(tier, protocol, network) / per_unit[tier - 1])
            links.append(Linear(latency, per_byte))
        found.append(links)
    return found


def _link(tier: int, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte between two neighbours on a tier; without a switch they have one link."""
    level, per_byte = network.tiers[tier], protocol.seconds_per_byte[tier]
    if level.wraps:
        return 2.0 * per_byte
    return level.peers * per_byte if level.peers else per_byte
