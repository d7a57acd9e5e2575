"""Time of a collective: the fastest of the algorithms and protocols that a library has for it.

Each pair of an algorithm and a protocol is linear in bytes, so a collective is one call's latency and the least
of a few lines; which pairs there are is data of the assumption set. Groups that share a NIC are all taken to
send at once, as the replicas of a job do: a GPU has its own share of a NIC, and a group of t in a domain t.
"""

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import jax.numpy as jnp

from dsx.cost.algorithms import ALGORITHMS
from dsx.cost.assumptions import Assumptions
from dsx.cost.groups import Group
from dsx.cost.protocols import PROTOCOLS, Linear, Protocol
from dsx.cost.shapes import Column, PerPlan
from dsx.hardware.network import Network


class Fastest(NamedTuple):
    """The least of some linear times, after the latency of a call."""

    call_s: Column
    lines: tuple[Linear, ...]

    def __call__(self, num_bytes: PerPlan) -> Column:
        """Return the seconds for `num_bytes`."""
        return self.call_s + functools.reduce(jnp.minimum, [line(num_bytes) for line in self.lines])


def collective(kind: str, members: Group, network: Network, assumptions: Assumptions) -> Fastest:
    """Return the time of a collective over groups of GPUs; `kind` is one of `dsx.graph.match`'s.

    The fields of `members` broadcast. A group of one has nothing to do.
    """
    protocols = [PROTOCOLS[name](network, assumptions) for name in assumptions.protocols]
    algorithms = [ALGORITHMS[name] for name in dict(assumptions.algorithms)[kind]]
    one = jnp.ones_like(members.size)
    return Fastest(
        jnp.where(members.size > one, assumptions.call_latency * one, jnp.zeros_like(one)),
        tuple(algorithm(kind, members, protocol, network) for algorithm in algorithms for protocol in protocols),
    )


def send(
    size: PerPlan, share: PerPlan, network: Network, assumptions: Assumptions, outer: Sequence[PerPlan] = ()
) -> Fastest:
    """Return the mean time between neighbours of a pipeline of `size` stages, `share` of them per domain.

    Of its size-1 links, size/share - 1 are slow. They are crossed by one of `share` GPUs of a domain at a time,
    so of a NIC that GPUs share each of those has the shares of the others too. A link takes the outermost tier that it
    crosses; `outer` are the stages in a unit of each tier between the domain and the outermost one, of which likewise
    one at a time sends out of the unit, on the shares of the others.
    """
    one = jnp.ones_like(size)
    links = jnp.maximum(size - one, one)
    lying = [share, *outer]
    units = [*(jnp.floor(size / stages) for stages in lying), one]
    slow_links = [below - above for below, above in pairwise(units)]
    fast_links = size - one - functools.reduce(jnp.add, slow_links)
    shares = jnp.clip(lying[network.linked - 1], 1.0, network.gpus_per_nic)
    lines = []
    for name in assumptions.protocols:
        protocol = PROTOCOLS[name](network, assumptions)
        latency, seconds_per_byte = fast_links * protocol.latencies[0], fast_links * _link(0, protocol, network)
        for tier, crossing in enumerate(slow_links, 1):
            pace = _link(tier, protocol, network)
            if tier >= network.linked:
                pace = protocol.paces[network.linked] / shares
            if tier > network.linked or network.tiers[tier].peers:
                pace = jnp.maximum(pace, _link(tier, protocol, network) / lying[tier - 1])
            latency, seconds_per_byte = (
                latency + crossing * protocol.latencies[tier],
                seconds_per_byte + crossing * pace,
            )
        lines.append(Linear(latency / links, seconds_per_byte / links))
    return Fastest(assumptions.call_latency * one, tuple(lines))


def _link(tier: int, protocol: Protocol, network: Network) -> PerPlan:
    """Return the seconds per byte between two neighbours on a tier, on the one link that they have without a switch.

    In a fast domain that is a mesh they are taken to have all links of a GPU, by way of the others.
    """
    level, pace = network.tiers[tier], protocol.paces[tier]
    if level.wraps:
        return 2.0 * pace
    return level.peers * pace if level.peers and tier else pace
