"""Ring collectives over a group that lies on two tiers, as latency and seconds per byte.

A group of n GPUs, t of them in each fast domain, forms N = n/t domains. A ring crosses N-1 slow and n-N
fast hops; its bandwidth is the fast link's inside one domain, the NIC's where every GPU is alone in its
domain, and else the slower of the fast link and the t NICs of a domain (arXiv 2410.00273, section 3,
with an all-reduce making two passes on every branch). Gathers, scatters and exchanges send (n-1)/n of
their volume, broadcasts and reduces all of it. Not modelled: trees, message sizes, contention.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.graph.match import ALL_REDUCE, BROADCAST, REDUCE
from dsx.hardware.network import Network


class Group(NamedTuple):
    """A group of GPUs on two tiers, as the factors that its collectives need.

    A group over several axes is the product of theirs. The reciprocals are kept because in the hot loop axes
    of a key meet axes of a choice, and a division for each pair would be most of the work.
    """

    size: Any  # GPUs
    domains: Any  # fast domains that it lies on
    per_gpu: Any  # 1 / size
    per_share: Any  # 1 / GPUs of it in one fast domain

    def times(self, other: "Group") -> "Group":
        """Return the group over the axes of both."""
        return Group(*(a * b for a, b in zip(self, other, strict=True)))


def group(size: Any, share: Any) -> Group:
    """Return the group of `size` GPUs, `share` of them in each fast domain; floats that broadcast."""
    return Group(size, size / share, 1.0 / size, 1.0 / share)


class Linear(NamedTuple):
    """A time that is linear in bytes: ``latency_s + seconds_per_byte * bytes``."""

    latency_s: Any
    seconds_per_byte: Any

    def __call__(self, num_bytes: Any) -> Any:
        """Return the seconds for `num_bytes`."""
        return self.latency_s + self.seconds_per_byte * num_bytes


def passes(kind: str) -> float:
    """Return how often the ring is run through: an all-reduce scatters and then gathers."""
    return 2.0 if kind == ALL_REDUCE else 1.0


def sends_all(kind: str) -> bool:
    """Return whether all of the volume crosses each link, not (n-1)/n of it."""
    return kind in (BROADCAST, REDUCE)


def ring(
    members: Group,
    network: Network,
    assumptions: Assumptions,
    num_passes: float = 1.0,
    whole: bool = False,
) -> Linear:
    """Return the time of a ring collective over groups of GPUs.

    The fields of `members` broadcast; for `num_passes` and `whole` see `passes` and `sends_all`.
    """
    one = jnp.ones_like(members.size)
    slow = 1.0 / (assumptions.network_efficiency * network.net.bandwidth)
    fast = 1.0 / (assumptions.network_efficiency * network.nvs.bandwidth)
    per_byte = jnp.where(
        members.domains == members.size,
        slow * one,
        jnp.where(members.domains == one, fast * one, jnp.maximum(slow * members.per_share, fast * one)),
    )
    hops = members.domains - one
    latency = network.net.latency * hops + network.nvs.latency * (members.size - members.domains)
    part = jnp.where(members.size > one, one, jnp.zeros_like(one)) if whole else one - members.per_gpu
    return Linear(num_passes * latency, num_passes * part * per_byte)


def send(size: Any, share: Any, network: Network, assumptions: Assumptions) -> Linear:
    """Return the mean time between neighbours of a pipeline of `size` stages, `share` of them per domain.

    Of its size-1 links, size/share - 1 are slow.
    """
    one = jnp.ones_like(size)
    links = jnp.maximum(size - one, one)
    slow_links = jnp.floor(size / share) - one
    fast_links = size - one - slow_links
    slow = 1.0 / (assumptions.network_efficiency * network.net.bandwidth)
    fast = 1.0 / (assumptions.network_efficiency * network.nvs.bandwidth)
    return Linear(
        (fast_links * network.nvs.latency + slow_links * network.net.latency) / links,
        (fast_links * fast + slow_links * slow) / links,
    )
