"""Time of a collective: the fastest of the algorithms and protocols that a library has for it.

Each pair of an algorithm and a protocol is linear in bytes, so a collective is one call's latency and the least
of a few lines; which pairs there are is data of the assumption set. Groups that share a NIC are all taken to
send at once, as the replicas of a job do: a GPU has its own share of a NIC, and a group of t in a domain t.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp

from dsx.cost.algorithms import ALGORITHMS
from dsx.cost.assumptions import Assumptions
from dsx.cost.groups import Group
from dsx.cost.protocols import PROTOCOLS, Linear
from dsx.hardware.network import Network


class Fastest(NamedTuple):
    """The least of some linear times, after the latency of a call."""

    call_s: Any
    lines: tuple[Linear, ...]

    def __call__(self, num_bytes: Any) -> Any:
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


def send(size: Any, share: Any, network: Network, assumptions: Assumptions) -> Fastest:
    """Return the mean time between neighbours of a pipeline of `size` stages, `share` of them per domain.

    Of its size-1 links, size/share - 1 are slow. They are crossed by one of `share` GPUs of a domain at a time,
    so of a NIC that GPUs share each of those has the shares of the others too.
    """
    one = jnp.ones_like(size)
    links = jnp.maximum(size - one, one)
    slow_links = jnp.floor(size / share) - one
    fast_links = size - one - slow_links
    shares = jnp.clip(share, 1.0, network.gpus_per_nic)
    lines = []
    for name in assumptions.protocols:
        protocol = PROTOCOLS[name](network, assumptions)
        lines.append(
            Linear(
                (fast_links * protocol.fast_latency + slow_links * protocol.slow_latency) / links,
                (fast_links * protocol.fast + slow_links * (protocol.slow / shares)) / links,
            )
        )
    return Fastest(assumptions.call_latency * one, tuple(lines))
