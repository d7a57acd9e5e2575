"""The network of a node that a row states; it replaces the one in the cluster file of the GPU.

Nodes with the same GPU are sold and rented with one NIC or with eight, and a run table says which. If the cluster has a
topology, its other links do not change.
"""

import math
import re
from dataclasses import dataclass

from dsx.errors import UnitError
from dsx.spec.cluster import ClusterSpec, changed_network
from dsx.units import format_quantity, parse_quantity

_NICS = re.compile(r"([0-9]{1,4})\s*x\s*")


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The bandwidth from a node to others, in bytes/s per direction."""

    bandwidth: float | None  # of all its NICs; None = as many NICs as in the cluster file
    nic_bandwidth: float | None  # of each; None = not stated


def node_network(text: str) -> NodeNetwork:
    """Return the network that `text` states: "400 Gb/s" for the node, or "4x100 Gb/s" for its NICs.

    Raises ValueError for any other text.
    """
    nics = _NICS.match(text)
    try:
        each = parse_quantity(text[nics.end() :] if nics else text, "bytes/s")
    except UnitError:
        each = math.nan
    total = each * int(nics[1]) if nics else each
    if not 0 < total < math.inf:
        raise ValueError(
            f"{text!r} is not the network of a node: write for example '400 Gb/s', or '4x100 Gb/s' for its NICs"
        )
    return NodeNetwork(total, each if nics else None)


def with_node_network(cluster: ClusterSpec, network: NodeNetwork, gpus_per_node: int) -> ClusterSpec:
    """Return the cluster with this network for its nodes, shared equally by the GPUs of a node.

    If the NIC bandwidth is not stated, the cluster's own applies, up to the bandwidth of the node. If the NIC bandwidth
    alone is stated, the number of NICs is the cluster's own.
    """
    known = cluster.network.net.nic_bandwidth or cluster.network.net.bandwidth
    stated = network.bandwidth
    if stated is None:
        stated = gpus_per_node * cluster.network.net.bandwidth * (network.nic_bandwidth or known) / known
    share = stated / gpus_per_node
    nic = network.nic_bandwidth or min(known, stated)
    changed = changed_network(cluster.network, {"net.bandwidth": share, "net.nic_bandwidth": max(nic, share)})
    name = f"{cluster.name}, {format_quantity(stated, 'bytes/s')} to a node"
    return cluster.model_copy(update={"name": name, "network": changed})
