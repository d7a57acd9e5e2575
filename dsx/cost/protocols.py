"""Protocols of a collective library: the cost of a hop and of a byte.

A library has a protocol for large messages, where a hop waits until a whole chunk is in memory and fenced, and one for
small messages, where each word carries its own flag: hops are short, and bandwidth is lower. NCCL calls them Simple and
LL (with LL128 between them) and takes the faster one by a model that is linear in bytes (NCCL, "NCCL_PROTO" in its
documentation, and src/graph/tuning.cc: a table of latencies per protocol and link, and a share of the bandwidth per
protocol). A time linear in bytes is Hockney's model (Parallel Computing 20, 1994), ``latency + bytes / bandwidth``:
latency times bandwidth is the message size that reaches half of the bandwidth.
"""

from typing import NamedTuple

from dsx.cost.assumptions import Assumptions
from dsx.cost.shapes import PerPlan
from dsx.hardware.network import Network


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
