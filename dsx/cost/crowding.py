"""Oversubscribed tiers, which the axes of a job share.

Beyond the NICs a tier may carry less for a GPU than its NIC sends, and one collective that crosses it takes all of
that. So of two that run at once one waits: what hides behind the passes of a layer (the reduction, the sends of a
pipeline) proceeds only while the layer's own collectives leave the tier alone. A message outward crosses all tiers on
its way, so those that cross any oversubscribed one meet on the innermost of them. On NICs that are not oversubscribed
how much is hidden is a belief of the assumption set, fitted to runs whose axes shared them.
"""

import jax.numpy as jnp

from dsx.cost.groups import Group
from dsx.cost.shapes import PerPlan
from dsx.hardware.network import Network


def may_crowd(network: Network) -> bool:
    """Return whether there are tiers that can be oversubscribed."""
    return len(network.tiers) > network.linked + 1


def crosses(members: Group, network: Network) -> PerPlan:
    """Return 1.0 where a group crosses a tier that carries less than NICs send, else 0.0, as its fields broadcast."""
    found = jnp.zeros_like(members.size)
    for below, tier in enumerate(network.tiers[network.linked + 1 :], network.linked):
        oversubscribed = tier.bandwidth < network.net.bandwidth
        beyond = members.lying[below].domains > jnp.ones_like(found)
        found = jnp.where(oversubscribed & beyond, jnp.ones_like(found), found)
    return found
