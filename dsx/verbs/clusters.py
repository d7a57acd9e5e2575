"""``dsx clusters show``: the tiers of a cluster's network, and the times of collectives on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import Network, cluster_from_spec, load_cluster
from dsx.config.load import Given, split, value_text
from dsx.cost.collectives import collective_times, group_sizes
from dsx.cost.context import assumptions_from_spec
from dsx.errors import InputError
from dsx.notation.sharded_layer import ALL_REDUCE, ALL_TO_ALL
from dsx.tables.format import table
from dsx.text import Data, printable
from dsx.units import format_quantity
from dsx.verbs.arguments import Answer, Fields, assignments, paragraphs
from dsx.verbs.job import DEFAULT_ASSUMPTIONS

_VOLUMES = tuple(10.0**power for power in range(3, 10))  # bytes


@dataclass(frozen=True, eq=False, repr=False)
class ClusterTimes(Answer):
    """The tiers of a cluster, and the time of an all-reduce and an all-to-all on them."""

    name: str  # name of the cluster
    description: str  # `description` of its file
    assumptions: str  # name of the assumption set
    network: Network  # tiers: size, bandwidth, latency
    groups: tuple[int, ...]  # group sizes, GPUs
    times: Mapping[str, list[list[float]]]  # seconds by kind, then [volume][group]

    def plot(self, path: str | Path) -> None:
        """Draw the times into a file; its suffix is the image format."""
        from dsx.pictures.figure import save
        from dsx.pictures.scaling import collectives

        title = f"collectives on {self.name}, under {self.assumptions}"
        save(collectives(title, dict(self.times), self.groups, _VOLUMES), path)

    def _tiers(self) -> list[Data]:
        return [
            {name: getattr(tier, name) for name in ("name", "size", "bandwidth", "latency")}
            | {"size": tier.size or None, "oversubscription": self.network.oversubscription(number)}
            for number, tier in enumerate(self.network.tiers)
        ]

    def _data(self) -> Data:
        return {
            "cluster": self.name,
            "assumptions": self.assumptions,
            "tiers": self._tiers(),
            "collectives": [
                {"kind": kind, "num_gpus": group, "bytes": volume, "time_s": seconds}
                for kind, rows in self.times.items()
                for volume, row in zip(_VOLUMES, rows, strict=True)
                for group, seconds in zip(self.groups, row, strict=True)
            ],
        }

    def __str__(self) -> str:
        tiers: list[list[str]] = []
        for tier in self._tiers():
            link = [format_quantity(tier["bandwidth"], "bytes/s"), format_quantity(tier["latency"], "s")]
            tiers.append([tier["name"], str(tier["size"] or "any"), *link, f"{tier['oversubscription']:.3g}"])
        header = ["tier", "GPUs", "bandwidth\nper GPU", "latency", "over-\nsubscription"]
        parts = [printable(f"{self.name}: {self.description}"), table(header, tiers)]
        for kind, times in self.times.items():
            rows = [
                [format_quantity(volume, "bytes"), *(format_quantity(seconds, "s") for seconds in row)]
                for volume, row in zip(_VOLUMES, times, strict=True)
            ]
            head = f"{kind} by group size in GPUs, under {self.assumptions}"
            parts.append(f"{head}\n{table(['bytes', *map(str, self.groups)], rows, text=())}")
        return paragraphs(parts)


def cluster_times(
    cluster: Given, assumptions: Given = DEFAULT_ASSUMPTIONS, *, set: Fields | None = None
) -> ClusterTimes:
    """Show the tiers of a cluster, and the times of collectives.

    The collectives are an all-reduce and an all-to-all.

        dsx.cluster_times("perlmutter", set={"cluster.network.net.bandwidth": "50 GB/s"}).plot("times.png")

    A group fills the tiers from the innermost one outwards. Sizes are those of the tensor on each GPU.

    Args:
        cluster: a name, a path, the content of a cluster file, or the `cluster` of a job.
        assumptions: the assumption set.
        set: overridden fields of the cluster and the assumptions.

    Raises UnknownNameError for an unknown name, SpecError for an invalid file.
    """
    by_target = split(assignments("set", set))
    for target in ("model", "sweep"):
        for path, value in by_target[target]:
            reads = f"clusters show reads no {target}; it has cluster.* and assumptions.*"
            raise InputError(f"--set {target}.{path}={value_text(value)}: {reads}")
    spec = load_cluster(cluster, by_target["cluster"])
    assumed = load_assumptions(assumptions, by_target["assumptions"])
    network = cluster_from_spec(spec).network
    groups = group_sizes(network)
    times = {
        kind: collective_times(kind, network, assumptions_from_spec(assumed), groups, _VOLUMES).tolist()
        for kind in (ALL_REDUCE, ALL_TO_ALL)
    }
    return ClusterTimes(spec.name, spec.description, assumed.name, network, groups, times)
