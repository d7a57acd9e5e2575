"""The network as tiers, from the fast domain of a few GPUs to the outermost one, which joins all GPUs.

`dsx.config.topology` says which levels a network has, and what a message that crosses one gets. The size of a tier is
the number of GPUs in one unit of it.

Not modelled: routes that share a link by chance, failed links.
"""

from dsx.config.topology import FullyConnectedSpec, NetworkSpec, TorusSpec
from dsx.records import record, static


@record
class Tier:
    """A network level, as one GPU sees it; a leaf is a float, or an [H] array of hardware points."""

    bandwidth: float  # bytes/s, per GPU and direction, when all GPUs send at once
    latency: float  # s, of one message that crosses it
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


def network_from_spec(spec: NetworkSpec) -> Network:
    """Return the network that a cluster file describes; without a topology two tiers, the outer of unlimited size."""
    nvs, net, topology = spec.nvs, spec.net, spec.topology
    torus = topology if isinstance(topology, TorusSpec) else None
    wraps, size = bool(torus and torus.wrap), nvs.size
    tiers = [
        Tier(
            bandwidth=nvs.bandwidth,
            latency=nvs.latency,
            name="nvs",
            size=size,
            peers=size - 1 if nvs.mesh else 0,
            chain=size if torus else 0,
            wraps=wraps,
        )
    ]
    if topology is None:
        tiers.append(Tier(bandwidth=net.bandwidth, latency=net.latency, name="net", size=0))
    else:
        speeds = topology.level_speeds(nvs, net)
        for (name, units), (bandwidth, latency) in zip(topology.level_units(nvs.size), speeds, strict=True):
            size *= units or 0
            tier = Tier(
                bandwidth=bandwidth,
                latency=latency,
                name=name,
                size=size,
                peers=units - 1 if units and isinstance(topology, FullyConnectedSpec) else 0,
                chain=units if units and torus else 0,
                wraps=wraps and units is not None,
            )
            tiers.append(tier)
    linked = len(torus.shape) if torus else 1
    gpus_per_nic = (net.nic_bandwidth or net.bandwidth) / net.bandwidth
    nics = tiers[linked - 1].size / gpus_per_nic if gpus_per_nic > 1.0 else 1.0
    return Network(tiers=tuple(tiers), linked=linked, gpus_per_nic=gpus_per_nic, nics=nics)
