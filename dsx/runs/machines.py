"""The machine and the software of a row: its cluster, the network of its nodes, and its stack.

Cluster files list under `run_tables` the names of their GPU and the GPUs of a node. Nodes with the same GPU are sold
and rented with one NIC or with eight, so a row may state the network of its nodes, which replaces the network of the
cluster file; other links of a topology do not change.

The stack follows from the columns `software` (framework and release), `framework` and `year`. A name of a stack in the
first two is that stack. Otherwise the stacks count whose words the columns contain and that are no later than the
release; the longest word wins, then the last stack. A release is a month that the columns state ("24.07",
"2025-04-30"), else the middle of the year. Software that no stack names has the stack of its date among those without
words, and is reported.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dsx.config.cluster_file import ClusterSpec, begins_with, load_cluster, plain
from dsx.config.search_path import names
from dsx.config.stack import StackSpec, load_stack, months
from dsx.config.topology import changed_network
from dsx.errors import nearest_names
from dsx.runs.table import NodeNetwork, UnmodelledError
from dsx.units import format_quantity


def known_clusters() -> list[ClusterSpec]:
    """Return the clusters in DSX_PATH and those packaged with dsx."""
    return [load_cluster(name) for name in names("clusters", ".yaml")]


def cluster_of(gpu: str, gpus_per_node: int, clusters: Sequence[ClusterSpec]) -> ClusterSpec:
    """Return the cluster that a row ran on, one of `clusters`; raises UnmodelledError if there is none.

    The full name of a cluster matches first. Otherwise the GPU's name must begin with a prefix that a cluster lists
    under `gpus`, ignoring case and punctuation, and the longest prefix wins. Of its clusters, one whose nodes have
    `gpus_per_node` is taken; if there is none, a cluster with the next larger nodes, its fast domain reduced to
    `gpus_per_node`.
    """
    if by_name := [cluster for cluster in clusters if cluster.name == gpu]:
        return by_name[0]
    listed = [
        (prefix, size, cluster)
        for cluster in clusters
        if cluster.run_tables
        for prefix in cluster.run_tables.gpus
        for size in cluster.run_tables.gpus_per_node
    ]
    matching = [entry for entry in listed if begins_with(gpu, entry[0])]
    if not matching:
        written = {plain(prefix): prefix for prefix, _, _ in listed}
        near = ", ".join(written[name] for name in nearest_names(plain(gpu), written, cutoff=0.6, most=3))
        raise UnmodelledError("no cluster has this gpu", f"{gpu!r}{f', nearest: {near}' if near else ''}")
    longest = max(len(plain(prefix)) for prefix, _, _ in matching)
    by_size = {size: cluster for prefix, size, cluster in reversed(matching) if len(plain(prefix)) == longest}
    if gpus_per_node in by_size:
        return by_size[gpus_per_node]
    larger = [size for size in sorted(by_size) if size > gpus_per_node]
    if not larger:
        raise UnmodelledError("no cluster of this gpu has nodes this large", f"{gpus_per_node} x {gpu}")
    cluster = by_size[larger[0]]
    domain = cluster.network.nvs.model_copy(update={"size": min(gpus_per_node, cluster.network.nvs.size)})
    network = cluster.network.model_copy(update={"nvs": domain})
    return cluster.model_copy(update={"name": f"{cluster.name}, {gpus_per_node} to a node", "network": network})


def with_node_network(cluster: ClusterSpec, network: NodeNetwork, gpus_per_node: int) -> ClusterSpec:
    """Return the cluster with this network for its nodes, shared equally by the GPUs of a node.

    If the NIC bandwidth is not stated, the cluster's own applies, up to the bandwidth of the node. If the NIC bandwidth
    alone is stated, the number of NICs is the cluster's own.
    """
    usual_nic = cluster.network.net.nic_bandwidth or cluster.network.net.bandwidth
    of_node = network.bandwidth
    if of_node is None:
        of_node = gpus_per_node * cluster.network.net.bandwidth * (network.nic_bandwidth or usual_nic) / usual_nic
    share = of_node / gpus_per_node
    nic = network.nic_bandwidth or min(usual_nic, of_node)
    changed = changed_network(cluster.network, {"net.bandwidth": share, "net.nic_bandwidth": max(nic, share)})
    name = f"{cluster.name}, {format_quantity(of_node, 'bytes/s')} to a node"
    return cluster.model_copy(update={"name": name, "network": changed})


_RELEASES = (
    re.compile(r"(?<![0-9.])(20[0-9]{2})-(0[1-9]|1[0-2])(?![0-9])"),  # 2024-07, 2024-07-15
    re.compile(r"(?<![0-9.])(2[0-9])\.(0[1-9]|1[0-2])(?![0-9])"),  # 24.07, 24.07.01
)
_MIDDLE = 6  # of a year, a month
_SIMILAR = 0.7  # of 1, a name from which on a word may have been meant


@dataclass(frozen=True, slots=True)
class Software:
    """The stack of a run."""

    stack: StackSpec
    unknown: str | None  # the software as written, if no stack names it


def known_stacks() -> list[StackSpec]:
    """Return the stacks in DSX_PATH and those packaged with dsx."""
    return [load_stack(name) for name in names("stacks", ".yaml")]


def software_of(
    software: str | None, framework: str | None, year: int | None, stacks: Sequence[StackSpec]
) -> Software | None:
    """Return the stack of a run, one of `stacks`; None if there are none without words to fall back on.

    A run without a year and a release is taken to be as new as the newest stack.
    """
    texts = [text for text in (software, framework) if text]
    if by_name := [stack for text in texts for stack in stacks if stack.name == text]:
        return Software(by_name[0], None)
    written = " ".join(texts)
    # A word begins where one of the text begins.
    named = [
        (len(word), stack)
        for stack in stacks
        for word in stack.software.words
        if re.search(rf"(?<![a-z0-9]){re.escape(word.lower())}", written.lower())
    ]
    candidates = sorted(
        named or [(0, stack) for stack in stacks if not stack.software.words], key=lambda entry: entry[1].software.since
    )
    if not candidates:
        return None
    # The month of the release, counted from year 0; None if nothing is known.
    release = None if year is None else months(year, _MIDDLE)
    if match := next(filter(None, (pattern.search(written) for pattern in _RELEASES)), None):
        release = months(int(match[1]) % 2000 + 2000, int(match[2]))
    released = [entry for entry in candidates if release is None or entry[1].software.since <= release]
    # If all stacks are later, the first one.
    _, latest = max(released, key=lambda entry: (entry[0], entry[1].software.since)) if released else candidates[0]
    return Software(latest, None if named or not written else written)


def described(unknown: str, stack: StackSpec, stacks: Sequence[StackSpec]) -> str:
    """Return the remark on software that no stack names: the nearest word, and the stack that is assumed."""
    words = sorted({word for listed in stacks for word in listed.software.words})
    near = [name for word in unknown.split() for name in nearest_names(word, words, cutoff=_SIMILAR)]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"software {unknown!r} is not known{hint}; the stack {stack.name!r} is assumed"
