"""What a cluster's network does by itself: the time of a collective against its volume and the size of its group.

A group here fills the tiers from the innermost out, as ranks that follow each other do.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.assumptions import Assumptions
from dsx.cost.collectives import collective
from dsx.cost.groups import Group, group
from dsx.hardware.network import Network
from dsx.records import Float

_BEYOND = (2, 8)  # units of the tier below, of an outermost tier without a bound


def group_sizes(network: Network) -> tuple[int, ...]:
    """Return sizes of groups from one tier to the next: two units of the tier below, and the whole of each tier."""
    found: list[int] = []
    below = 1
    for tier in network.tiers:
        steps = (2 * below, tier.size) if tier.size else tuple(times * below for times in _BEYOND)
        found += [size for size in steps if below < size and (not tier.size or size <= tier.size)]
        below = tier.size or below
    return tuple(dict.fromkeys(found))


def filling(size: int, network: Network) -> Group:
    """Return the group of `size` ranks that follow each other; `size` is whole units of the tiers that it fills."""
    lying = [float(min(size, tier.size)) for tier in network.tiers[:-1]]
    return group(jnp.asarray(float(size)), *map(jnp.asarray, lying))


def collective_times(
    kind: str, network: Network, assumptions: Assumptions, groups: Sequence[int], volumes: Sequence[float]
) -> Float[np.ndarray, "volumes groups"]:
    """Return the [V, G] seconds of a collective over each of `groups`, for each of `volumes` in bytes."""
    with jax.enable_x64(True):
        columns = [
            np.asarray(collective(kind, filling(size, network), network, assumptions)(jnp.asarray(volumes)))
            for size in groups
        ]
    return np.stack(columns, axis=1)
