"""The devices of a cluster: its tiers as levels of links, with what a send between two devices takes there.

Latency and bandwidth are those of the cost model's sends (`dsx.cost.collectives`): the latency is that of a message
without bytes, the bandwidth that of a large one. A unit of a tier has the devices with consecutive numbers.

Not modelled: messages of middle size, which no protocol of a library serves as well.
"""

import numpy as np

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions, assumptions_from_spec
from dsx.cost.collectives import send
from dsx.errors import InputError
from dsx.hardware.cluster import cluster_from_spec
from dsx.hardware.network import Network
from dsx.operator_placement.devices import Devices, Link
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import ClusterSpec

_LARGE = 2.0**30  # bytes


def devices_of(cluster: ClusterSpec, assumptions: AssumptionsSpec, count: int) -> Devices:
    """Return the first `count` devices of a cluster, with all of their memory.

    Raises InputError for no devices, or more than the cluster has.
    """
    machine = cluster_from_spec(cluster)
    tiers = machine.network.tiers
    most = tiers[-1].size
    if count < 1 or (most and count > most):
        wanted = f"1 to {most} are wanted" if most else "1 or more are wanted"
        raise InputError(f"{count} devices of cluster {cluster.name!r}: {wanted}")
    numbers = assumptions_from_spec(assumptions)
    levels = 1 + sum(tier.size < count for tier in tiers[:-1])
    return Devices(
        speeds=(1.0,) * count,
        units=tuple(tier.size for tier in tiers[: levels - 1]),
        links=tuple(_link(level, machine.network, numbers) for level in range(levels)),
        memory_bytes=float(machine.device.hbm_capacity),
    )


@xp.unchecked
def _link(level: int, network: Network, assumptions: Assumptions) -> Link:
    """Return the link between two devices that no unit of a tier below `level` has both of."""
    shares = [np.array([2.0 if tier >= level else 1.0]) for tier in range(len(network.tiers) - 1)]
    between = send(np.array([2.0]), shares[0], network, assumptions, shares[1:])
    latency_s, once_s, twice_s = (float(between(np.array([size]))[0]) for size in (0.0, _LARGE, 2.0 * _LARGE))
    return Link(_LARGE / (twice_s - once_s), latency_s)
