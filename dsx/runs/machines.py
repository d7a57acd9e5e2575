"""From the `gpu` and `gpus_per_node` of a row to a cluster file, by what the files say under `run_tables`."""

import re
from collections.abc import Sequence

from dsx.errors import nearest_names
from dsx.runs.reasons import Reason
from dsx.spec.cluster import ClusterSpec, load_cluster
from dsx.spec.locate import names

_ENDS_BEHIND_DIGIT = r"(?![0-9])(?!(?!gi?b?(?![a-z]))[a-z])"  # 80 in 80GB and 80g, not in 800 and 80X
_ENDS_BEHIND_LETTER = r"(?![a-z])"


def known_clusters() -> list[ClusterSpec]:
    """Return the clusters of DSX_PATH and of dsx itself."""
    return [load_cluster(name) for name in names("clusters", ".yaml")]


def cluster_of(gpu: str, gpus_per_node: int, clusters: Sequence[ClusterSpec]) -> ClusterSpec | Reason:
    """Return the one of `clusters` that a row ran on, or why there is none.

    A cluster's own name counts, in full. Else the longest `gpus` that the GPU's name begins with decides, without
    regard to case and punctuation, and among its clusters the one with such nodes. If none has, the one with the
    next larger nodes is taken and its fast domain cut to `gpus_per_node`. A beginning ends where a part of the name
    does: more digits, or letters other than a unit of memory, make it the name of another GPU.
    """
    for cluster in clusters:
        if cluster.name == gpu:
            return cluster
    claims = [
        (beginning, size, cluster)
        for cluster in clusters
        if cluster.run_tables
        for beginning in cluster.run_tables.gpus
        for size in cluster.run_tables.gpus_per_node
    ]
    fitting = [claim for claim in claims if begins_with(gpu, claim[0])]
    if not fitting:
        written = {_plain(beginning): beginning for beginning, _, _ in claims}
        near = ", ".join(written[name] for name in nearest_names(_plain(gpu), written, cutoff=0.6, most=3))
        return Reason("no cluster has this gpu", f"{gpu!r}{f', nearest: {near}' if near else ''}")
    longest = max(len(_plain(beginning)) for beginning, _, _ in fitting)
    sizes = {size: cluster for beginning, size, cluster in reversed(fitting) if len(_plain(beginning)) == longest}
    if gpus_per_node in sizes:
        return sizes[gpus_per_node]
    larger = [size for size in sorted(sizes) if size > gpus_per_node]
    if not larger:
        return Reason("no cluster of this gpu has such large nodes", f"{gpus_per_node} x {gpu}")
    return _cut(sizes[larger[0]], gpus_per_node)


def begins_with(gpu: str, beginning: str) -> bool:
    """Return whether the name of a GPU begins so, without regard to case and punctuation."""
    name = re.sub(r"^[^a-z0-9]*nvidia", "", gpu.lower())
    characters = _plain(beginning)
    ends = _ENDS_BEHIND_DIGIT if characters[-1:].isdigit() else _ENDS_BEHIND_LETTER
    return re.match("".join(f"[^a-z0-9]*{character}" for character in characters) + ends, name) is not None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia")


def _cut(cluster: ClusterSpec, size: int) -> ClusterSpec:
    domain = cluster.network.nvs.model_copy(update={"size": min(size, cluster.network.nvs.size)})
    network = cluster.network.model_copy(update={"nvs": domain})
    return cluster.model_copy(update={"name": f"{cluster.name}, {size} to a node", "network": network})
