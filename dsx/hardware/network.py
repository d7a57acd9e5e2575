"""The network: its tiers, from the fast domain of a few GPUs to the outermost one, which joins all GPUs.

Not modelled: routes that share a link by chance, failed links.
"""

from typing import Any

from dsx.records import record, static


@record
class Tier:
    """A network level, as one GPU sees it; a leaf is a float, or an [H] array of hardware points."""

    bandwidth: Any  # bytes/s, per GPU and direction, when all GPUs send at once
    latency: Any  # s, of one message that crosses it
    name: str = static()
    size: int = static()  # GPUs of one unit of this tier; 0 = unlimited
    peers: int = static(default=0)  # other units of the tier below to which a unit has direct links; 0 = a switch
    chain: int = static(default=0)  # units of the tier below in a row, linked to their neighbours alone; 0 = a switch
    wraps: bool = static(default=False)  # whether the first and the last unit of the row are linked: a ring


@record
class Network:
    """The tiers, innermost first; the first one is the fast domain."""

    tiers: tuple[Tier, ...]
    linked: int = static(default=1)  # tiers with direct links of the GPUs; the outer tiers use NICs
    gpus_per_nic: float = static(default=1.0)  # bandwidth of a NIC over one GPU's share of it
    nics: float = static(default=1.0)  # of a unit of GPUs with direct links, if GPUs share them

    @property
    def nvs(self) -> Tier:
        """The tier inside a fast domain."""
        return self.tiers[0]

    @property
    def net(self) -> Tier:
        """The first tier that uses NICs."""
        return self.tiers[self.linked]

    @property
    def middle(self) -> tuple[Tier, ...]:
        """The tiers between the fast domain and the outermost one; empty for a network of two tiers."""
        return self.tiers[1:-1]

    def oversubscription(self, tier: int) -> float:
        """Return the bandwidth of the NICs over that of a tier; 1 inside the tiers without NICs."""
        return self.net.bandwidth / self.tiers[tier].bandwidth if tier >= self.linked else 1.0
