"""From the `gpu` and `gpus_per_node` of a row to a cluster file, by what the files say under `run_tables`."""

import difflib
import re
from collections.abc import Sequence

from dsx.measured.reasons import Reason
from dsx.spec.cluster import ClusterSpec, load_cluster
from dsx.spec.locate import names


def known_clusters() -> list[ClusterSpec]:
    """Return the clusters of DSX_PATH and of dsx itself."""
    return [load_cluster(name) for name in names("clusters", ".yaml")]


def cluster_of(gpu: str, gpus_per_node: int, clusters: Sequence[ClusterSpec]) -> ClusterSpec | Reason:
    """Return the one of `clusters` that a row ran on, or why there is none.

    A cluster's own name counts, in full. Else the longest `gpus` that the GPU's name begins with decides, without
    regard to case and punctuation, and among its clusters the one with such nodes. If none has, the one with the
    next larger nodes is taken and its fast domain cut to `gpus_per_node`.
    """
    for cluster in clusters:
        if cluster.name == gpu:
            return cluster
    claims = [
        (_plain(beginning), size, cluster)
        for cluster in clusters
        if cluster.run_tables
        for beginning in cluster.run_tables.gpus
        for size in cluster.run_tables.gpus_per_node
    ]
    fitting = [claim for claim in claims if _plain(gpu).startswith(claim[0])]
    if not fitting:
        known = sorted({beginning for beginning, _, _ in claims})
        near = difflib.get_close_matches(_plain(gpu), known, n=1)
        return Reason("no cluster has this gpu", f"{gpu!r}{f', nearest {near[0]!r}' if near else ''}")
    longest = max(len(beginning) for beginning, _, _ in fitting)
    sizes = {size: cluster for beginning, size, cluster in reversed(fitting) if len(beginning) == longest}
    if gpus_per_node in sizes:
        return sizes[gpus_per_node]
    larger = [size for size in sorted(sizes) if size > gpus_per_node]
    if not larger:
        return Reason("no cluster of this gpu has such large nodes", f"{gpus_per_node} x {gpu}")
    return _cut(sizes[larger[0]], gpus_per_node)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia")


def _cut(cluster: ClusterSpec, size: int) -> ClusterSpec:
    domain = cluster.network.nvs.model_copy(update={"size": min(size, cluster.network.nvs.size)})
    network = cluster.network.model_copy(update={"nvs": domain})
    return cluster.model_copy(update={"name": f"{cluster.name}, {size} to a node", "network": network})
