"""Protocols of a collective library: what a hop and a byte cost under each.

A library has a protocol for large messages, whose hops wait until a whole chunk lies in memory and is fenced,
and one for small messages, whose words carry their own flag: hops are short, and bandwidth is given away.
NCCL calls them Simple and LL (with LL128 between them) and takes the faster one by a model that is linear in
bytes (NCCL, "NCCL_PROTO" in its documentation, and src/graph/tuning.cc: a table of latencies per protocol
and link, and a share of the bandwidth per protocol). A time linear in bytes is Hockney's model (Parallel
Computing 20, 1994), ``latency + bytes / bandwidth``: latency times bandwidth is the message size that reaches
half of the bandwidth.
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
    """What messages meet on the tiers under one protocol, innermost first."""

    latencies: tuple[PerPlan, ...]  # s, one hop on each tier
    # s/byte of one GPU on each tier: its links in a domain, its NIC, its share of what is beyond.
    paces: tuple[PerPlan, ...]
    relay: PerPlan  # share of a NIC's pace that its byte costs more where one GPU receives it and sends it on
    rails: bool  # whether a message crosses domains on the NICs of all members there, or on one
    tree_latency: PerPlan  # hops' latencies in a tree over those in a ring
    tree_bandwidth: PerPlan  # bandwidth of a tree over that of a ring


def bulk(network: Network, assumptions: Assumptions) -> Protocol:
    """Return the protocol of large messages, which runs on all NICs that a group has in a domain."""
    reached = _by_links(network, assumptions.nvs_efficiency, assumptions.net_efficiency)
    return Protocol(
        latencies=tuple(assumptions.bulk_latency * tier.latency for tier in network.tiers),
        paces=tuple(1.0 / (share * tier.bandwidth) for share, tier in zip(reached, network.tiers, strict=True)),
        relay=assumptions.relay,
        rails=True,
        tree_latency=assumptions.tree_latency,
        tree_bandwidth=assumptions.tree_bandwidth,
    )


def eager(network: Network, assumptions: Assumptions) -> Protocol:
    """Return the protocol of small messages, which runs on few channels: one NIC of a domain."""
    large = bulk(network, assumptions)
    hops = _by_links(network, assumptions.eager_nvs_latency, assumptions.eager_net_latency)
    return large._replace(
        latencies=tuple(hop * tier.latency for hop, tier in zip(hops, network.tiers, strict=True)),
        paces=tuple(pace / assumptions.eager_bandwidth for pace in large.paces),
        rails=False,
    )


def _by_links(network: Network, own: PerPlan, behind_nics: PerPlan) -> list[PerPlan]:
    """Return a belief per tier: `own` of links of the GPUs themselves, `behind_nics` of what lies beyond."""
    return [own if tier < network.linked else behind_nics for tier in range(len(network.tiers))]


PROTOCOLS = {"bulk": bulk, "eager": eager}
