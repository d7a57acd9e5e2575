"""``dsx clusters show``: the tiers of a cluster's network, and what its collectives take."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.output import print_json, print_table
from dsx.errors import InputError
from dsx.printable import printable
from dsx.units import format_quantity

if TYPE_CHECKING:
    from dsx.hardware.network import Network

app = typer.Typer(name="clusters", help="Look at a cluster.", no_args_is_help=True, rich_markup_mode=None)

_VOLUMES = tuple(10.0**power for power in range(3, 10))  # bytes


@app.callback()
def clusters() -> None:
    """Look at a cluster."""


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Cluster: a name (dsx list clusters) or a YAML file.")],
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the times too; the suffix decides the format.")
    ] = None,
    sets: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Print the tiers of a cluster, and the time of an all-reduce and an all-to-all on them.

    A group fills the tiers from the innermost out. A size is that of the tensor on each GPU.
    """
    from dsx.cost.assumptions import assumptions_from_spec
    from dsx.cost.cluster_times import collective_times, group_sizes
    from dsx.graph.match import ALL_REDUCE, ALL_TO_ALL
    from dsx.hardware.cluster import cluster_from_spec
    from dsx.results.plot.file import image_format, save
    from dsx.spec.assumptions import load_assumptions
    from dsx.spec.cluster import load_cluster
    from dsx.spec.overrides import split

    by_target = split(sets or ())
    for target in ("model", "sweep"):
        for path, value in by_target[target]:
            raise InputError(
                f"--set {target}.{path}={value}: clusters show reads no {target}; it has cluster.* and assumptions.*"
            )
    spec = load_cluster(name, by_target["cluster"])
    beliefs = load_assumptions(assumptions, by_target["assumptions"])
    if plot is not None:
        image_format(plot)
    network = cluster_from_spec(spec).network
    groups = group_sizes(network)
    times = {
        kind: collective_times(kind, network, assumptions_from_spec(beliefs), groups, _VOLUMES).tolist()
        for kind in (ALL_REDUCE, ALL_TO_ALL)
    }
    if plot is not None:
        from dsx.results.plot.collectives import collectives

        save(collectives(f"collectives on {spec.name}, under {beliefs.name}", times, groups, _VOLUMES), plot)
    if as_json:
        print_json(_as_data(spec.name, beliefs.name, network, times, groups))
        return
    print(printable(f"{spec.name}: {spec.description}"))
    print()
    _print_tiers(network)
    for kind, table in times.items():
        print()
        print(f"{kind} over groups of so many GPUs, under {beliefs.name}")
        rows = [
            [format_quantity(volume, "bytes"), *(format_quantity(seconds, "s") for seconds in row)]
            for volume, row in zip(_VOLUMES, table, strict=True)
        ]
        print_table(["bytes", *map(str, groups)], rows, text=())


def _tiers(network: "Network") -> list[dict[str, Any]]:
    return [
        {
            "name": tier.name,
            "size": tier.size or None,
            "bandwidth": tier.bandwidth,
            "latency": tier.latency,
            "oversubscription": network.oversubscription(number),
        }
        for number, tier in enumerate(network.tiers)
    ]


def _as_data(
    cluster: str, assumptions: str, network: "Network", times: dict[str, list[list[float]]], groups: tuple[int, ...]
) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "assumptions": assumptions,
        "tiers": _tiers(network),
        "collectives": [
            {"kind": kind, "num_gpus": group, "bytes": volume, "time_s": seconds}
            for kind, table in times.items()
            for volume, row in zip(_VOLUMES, table, strict=True)
            for group, seconds in zip(groups, row, strict=True)
        ],
    }


def _print_tiers(network: "Network") -> None:
    rows = [
        [
            tier["name"],
            str(tier["size"] or "any"),
            format_quantity(tier["bandwidth"], "bytes/s"),
            format_quantity(tier["latency"], "s"),
            f"{tier['oversubscription']:.3g}",
        ]
        for tier in _tiers(network)
    ]
    print_table(["tier", "GPUs", "bandwidth\nper GPU", "latency", "over-\nsubscription"], rows)
