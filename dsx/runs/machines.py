"""Find the cluster of a row from its `gpu` and `gpus_per_node`: cluster files list theirs under `run_tables`."""

from collections.abc import Sequence

from dsx.errors import nearest_names
from dsx.runs.reasons import Reason
from dsx.spec.cluster import ClusterSpec, load_cluster
from dsx.spec.device_names import begins_with, plain
from dsx.spec.locate import names


def known_clusters() -> list[ClusterSpec]:
    """Return the clusters in DSX_PATH and those packaged with dsx."""
    return [load_cluster(name) for name in names("clusters", ".yaml")]


def cluster_of(gpu: str, gpus_per_node: int, clusters: Sequence[ClusterSpec]) -> ClusterSpec | Reason:
    """Return the cluster that a row ran on, one of `clusters`, or the reason why there is none.

    The full name of a cluster matches first. Otherwise the GPU's name must begin with a prefix that a cluster lists
    under `gpus`, ignoring case and punctuation, and the longest prefix wins. Of its clusters the one whose nodes have
    `gpus_per_node` is taken; if there is none, the one with the next larger nodes, its fast domain reduced to
    `gpus_per_node`.
    """
    for cluster in clusters:
        if cluster.name == gpu:
            return cluster
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
        return Reason("no cluster has this gpu", f"{gpu!r}{f', nearest: {near}' if near else ''}")
    longest = max(len(plain(prefix)) for prefix, _, _ in matching)
    sizes = {size: cluster for prefix, size, cluster in reversed(matching) if len(plain(prefix)) == longest}
    if gpus_per_node in sizes:
        return sizes[gpus_per_node]
    larger = [size for size in sorted(sizes) if size > gpus_per_node]
    if not larger:
        return Reason("no cluster of this gpu has nodes this large", f"{gpus_per_node} x {gpu}")
    return _with_smaller_nodes(sizes[larger[0]], gpus_per_node)


def _with_smaller_nodes(cluster: ClusterSpec, size: int) -> ClusterSpec:
    domain = cluster.network.nvs.model_copy(update={"size": min(size, cluster.network.nvs.size)})
    network = cluster.network.model_copy(update={"nvs": domain})
    return cluster.model_copy(update={"name": f"{cluster.name}, {size} to a node", "network": network})
