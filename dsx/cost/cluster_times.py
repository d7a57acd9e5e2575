"""The time of a collective on a cluster's network, by its volume and the size of its group.

A group has consecutive ranks here, so it fills the tiers from the innermost outwards.
"""

from collections.abc import Sequence

import numpy as np

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.cost.collectives import collective
from dsx.cost.groups import Group, group
from dsx.hardware.network import Network
from dsx.records import Float

_UNBOUNDED = (2, 8)  # groups on an outermost tier without a size, in units of the tier below


def group_sizes(network: Network) -> tuple[int, ...]:
    """Return the sizes of groups to price: for each tier, two units of the tier below, and one whole unit."""
    found: list[int] = []
    below = 1
    for tier in network.tiers:
        steps = (2 * below, tier.size) if tier.size else tuple(times * below for times in _UNBOUNDED)
        found += [size for size in steps if below < size and (not tier.size or size <= tier.size)]
        below = tier.size or below
    return tuple(dict.fromkeys(found))


def filling(size: int, network: Network) -> Group:
    """Return the group of `size` consecutive ranks; `size` is a whole number of units of each tier that it fills."""
    shares = [float(min(size, tier.size)) for tier in network.tiers[:-1]]
    return group(np.array([float(size)]), *(np.array([share]) for share in shares))


@xp.unchecked
def collective_times(
    kind: str, network: Network, assumptions: Assumptions, groups: Sequence[int], volumes: Sequence[float]
) -> Float[np.ndarray, "volumes groups"]:
    """Return the [V, G] seconds of a collective over each of `groups`, for each of `volumes` in bytes."""
    columns = [
        collective(kind, filling(size, network), network, assumptions)(np.array(volumes, dtype=np.float64))
        for size in groups
    ]
    return np.stack(columns, axis=1)
