"""A cluster as prices take it: one device type, the node and network around it, and what it costs while it runs.

A field that a cluster file states has its name, meaning and SI unit in `dsx.config.cluster_file`; 0 where the file
does not state it. The sweep states the number of devices. Assumptions say which share of its peaks a kernel reaches in
a training step (dsx.cost.roofline).

Operation changes no time of a step: a job pays for its GPUs and draws their full power from its first step to its last,
restarts included.

The network is tiers, from the fast domain of a few GPUs to the outermost one, which joins all GPUs.
`dsx.config.topology` says which levels a network has, and what a message that crosses one gets. The size of a tier is
the number of GPUs in one unit of it.

Not modelled: routes that share a link by chance, failed links; caches; power below the limit while GPUs wait, and the
power of hosts and switches, which `pue` may include.
"""

from dataclasses import replace
from typing import Any

from dsx.config.cluster_file import GENERATIONS, ClusterSpec
from dsx.config.topology import FullyConnectedSpec, Level, NetworkSpec, TorusSpec
from dsx.records import leaves, record, static


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


@record
class Device:
    """Peak rates of one GPU; a leaf is a float, or an [H] array of hardware points."""

    matrix_flops: float
    vector_flops: float
    hbm_bandwidth: float
    hbm_capacity: float
    fp8_flops: float  # as those below: 0 if such multiplies run at matrix_flops
    fp4_flops: float
    int8_flops: float
    sustained_share: float  # 0: that of the assumptions
    fp8_sustained_share: float
    attention_forward: tuple[float, ...]  # by generation of fused kernels; 0: it has none of it
    attention_backward: tuple[float, ...]
    power_share: float  # power limit over the power of its data sheet
    host_bandwidth: float
    num_sms: float  # 1 if unknown, so that every wave of tiles is full
    name: str = static()


@record
class DeviceOperation:
    """Facts of the operation of one GPU."""

    price: float
    site_power: float  # W that the site draws for it: the most that a GPU draws, times `pue`
    mtbf: float
    restart: float
    checkpoint: float


@record
class Node:
    """A host and the GPUs that share its memory; a leaf is a float, or an [H] array of hardware points."""

    gpus: float
    gpus_per_host_link: float
    host_memory: float
    host_memory_bandwidth: float


@record
class Cluster:
    """A machine of equal GPUs."""

    device: Device
    network: Network
    node: Node
    operation: DeviceOperation
    name: str = static()
    label: str = static()  # the name, with what a GPU is where that is not plain

    @property
    def node_size(self) -> int:
        """The GPUs of a node where nodes fill a fast domain; else 1, as a domain does not say which nodes it takes."""
        node = int(self.node.gpus)
        return 1 if self.network.nvs.size % node else node


_HOST_BANDWIDTH = 32e9  # bytes/s of PCIe 4 x16, for a cluster file that states none


def cluster_from_spec(spec: ClusterSpec) -> Cluster:
    """Return the cluster that a cluster file describes; its leaves are Python floats in SI units."""
    device = spec.device
    kernels = [device.attention.get(generation) for generation in GENERATIONS]
    resolved: dict[str, Any] = {
        "fp8_sustained_share": device.fp8_sustained_share or device.sustained_share or 0.0,
        "attention_forward": tuple(kernel.forward if kernel else 0.0 for kernel in kernels),
        "attention_backward": tuple(kernel.backward if kernel else 0.0 for kernel in kernels),
        "power_share": (device.power or 1.0) / (device.full_power or device.power or 1.0),
        "host_bandwidth": device.host_bandwidth or _HOST_BANDWIDTH,
        "num_sms": float(device.num_sms or 1),
    }
    money = {"price": spec.price or 0.0, "site_power": (device.power or 0.0) * (spec.pue or 1.0)}
    return Cluster(
        device=Device(**(_numbers(Device, device) | resolved), name=device.name),
        network=network_from_spec(spec.network),
        node=Node(**_numbers(Node, spec.node)),
        operation=DeviceOperation(**(_numbers(DeviceOperation, spec.failures) | money)),
        name=spec.name,
        label=spec.label,
    )


def _numbers(record: type, spec: object) -> dict[str, Any]:
    """Return the leaves of a record by the fields of a spec that have their names; 0 for what it does not state."""
    return {name: float(getattr(spec, name, None) or 0.0) for name in leaves(record)}


def anonymous(cluster: Cluster) -> Cluster:
    """Return the cluster without names and sizes, so that clusters share compiled functions."""
    unnamed = tuple(replace(tier, name="", size=0) for tier in cluster.network.tiers)
    device, network = replace(cluster.device, name=""), replace(cluster.network, tiers=unnamed)
    return replace(cluster, device=device, network=network, name="", label="")


def network_from_spec(spec: NetworkSpec) -> Network:
    """Return the network that a cluster file describes; without a topology two tiers, the outer of unlimited size."""
    nvs, net, topology = spec.nvs, spec.net, spec.topology
    torus = topology if isinstance(topology, TorusSpec) else None
    wraps, size = bool(torus and torus.wrap), nvs.size
    peers, chain = (size - 1 if nvs.mesh else 0), (size if torus else 0)
    tiers = [Tier(nvs.bandwidth, nvs.latency, "nvs", size, peers, chain, wraps)]
    outermost = Level("net", None, net.bandwidth, net.latency)
    for name, units, bandwidth, latency in topology.levels_outside(nvs, net) if topology else (outermost,):
        size *= units or 0
        peers = units - 1 if units and isinstance(topology, FullyConnectedSpec) else 0
        chain = units if units and torus else 0
        tiers.append(Tier(bandwidth, latency, name, size, peers, chain, wraps and units is not None))
    linked = len(torus.shape) if torus else 1
    gpus_per_nic = (net.nic_bandwidth or net.bandwidth) / net.bandwidth
    nics = tiers[linked - 1].size / gpus_per_nic if gpus_per_nic > 1.0 else 1.0
    return Network(tiers=tuple(tiers), linked=linked, gpus_per_nic=gpus_per_nic, nics=nics)
