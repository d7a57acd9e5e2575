"""The network: a fast domain of a few GPUs, and a slower tier between the domains.

Not modelled: more tiers, contention between the groups of one job, a topology inside a tier.
"""

from typing import Any

from dsx.records import record, static


@record
class Tier:
    """A network level, as one GPU sees it; a leaf is a float, or an [H] array of hardware points."""

    bandwidth: Any  # bytes/s, per GPU and direction
    latency: Any  # s, of one hop
    name: str = static()
    size: int = static()  # GPUs that share it; 0 = unbounded


@record
class Network:
    """The two tiers."""

    nvs: Tier  # inside a fast domain
    net: Tier  # between fast domains
