"""Contention of the axes of a job for oversubscribed tiers.

Beyond the NICs a tier may give a GPU less bandwidth than its NIC has, and one collective that crosses the tier takes
all of it. So two collectives do not cross it at the same time. The data-parallel reduction and the sends of the
pipeline, which overlap with a layer, proceed only while no collective of the layer uses the tier. An outward message
crosses all tiers on its way, so collectives that cross any oversubscribed tier contend for the innermost one. Without
oversubscription the assumption set states the overlap, fitted to runs whose axes shared the NICs.
"""

from dsx.cost import xp
from dsx.cost.groups import Group
from dsx.cost.shapes import PerPlan
from dsx.hardware.network import Network


def may_contend(network: Network) -> bool:
    """Return whether the network has tiers that can be oversubscribed."""
    return len(network.tiers) > network.linked + 1


def crosses(members: Group, network: Network) -> PerPlan:
    """Return 1.0 where a group crosses an oversubscribed tier, else 0.0, in the broadcast shape of its fields."""
    found = xp.zeros_like(members.size)
    for below, tier in enumerate(network.tiers[network.linked + 1 :], network.linked):
        oversubscribed = tier.bandwidth < network.net.bandwidth
        beyond = members.by_tier[below].domains > xp.ones_like(found)
        found = xp.where(oversubscribed & beyond, xp.ones_like(found), found)
    return found
