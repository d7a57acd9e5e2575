"""The network: a fast domain of a few GPUs, and a slower tier between the domains.

Not modelled: more tiers, a topology inside a tier beyond links of each GPU to each other.
"""

from typing import Any

from dsx.records import record, static


@record
class Tier:
    """A network level, as one GPU sees it; a leaf is a float, or an [H] array of hardware points."""

    bandwidth: Any  # bytes/s, per GPU and direction, where all GPUs send at once
    latency: Any  # s, of one hop
    name: str = static()
    size: int = static()  # GPUs that share it; 0 = unbounded


@record
class Network:
    """The two tiers."""

    nvs: Tier  # inside a fast domain
    net: Tier  # between fast domains
    peers: int = static(default=0)  # GPUs of its domain that each one has links of its own to; 0 = a switch
    gpus_per_nic: float = static(default=1.0)  # bandwidth of a NIC over one GPU's share of it
