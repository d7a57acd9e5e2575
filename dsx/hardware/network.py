"""The network: tiers, from a fast domain of a few GPUs to what joins all of them.

Not modelled: routes that share a link by chance, failed links.
"""

from typing import Any

from dsx.records import record, static


@record
class Tier:
    """A network level, as one GPU sees it; a leaf is a float, or an [H] array of hardware points."""

    bandwidth: Any  # bytes/s, per GPU and direction, where all GPUs send at once
    latency: Any  # s, of one message that crosses it
    name: str = static()
    size: int = static()  # GPUs that share it; 0 = unbounded
    peers: int = static(default=0)  # units of the tier below that each one has links of its own to; 0 = a switch
    chain: int = static(default=0)  # such units in a row, linked to their neighbours alone; 0 = a switch
    wraps: bool = static(default=False)  # whether the ends of the row are linked: a ring


@record
class Network:
    """The tiers, innermost first; the first one is the fast domain."""

    tiers: tuple[Tier, ...]
    linked: int = static(default=1)  # tiers whose links are the GPUs' own; those beyond lie behind NICs
    gpus_per_nic: float = static(default=1.0)  # bandwidth of a NIC over one GPU's share of it

    @property
    def nvs(self) -> Tier:
        """The tier inside a fast domain."""
        return self.tiers[0]

    @property
    def net(self) -> Tier:
        """The first tier behind the NICs."""
        return self.tiers[self.linked]

    @property
    def middle(self) -> tuple[Tier, ...]:
        """The tiers between the fast domain and the outermost one; none where there are two."""
        return self.tiers[1:-1]

    def oversubscription(self, tier: int) -> float:
        """Return what GPUs can send into a tier over what it carries; 1 where it carries all."""
        return self.net.bandwidth / self.tiers[tier].bandwidth if tier >= self.linked else 1.0
