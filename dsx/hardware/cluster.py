"""A cluster: one device type, what it costs while it runs, and the network. The sweep states the number of devices.

One GPU: its peak compute rates and its memory.

Assumptions say which share of the peaks a kernel reaches in a training step (dsx.cost.roofline).

Not modelled: caches.

What a GPU costs while it runs: money, power, and the failures of a long run.

None of it changes the time of a step. A job pays for its GPUs and draws their full power from its first step to its
last, restarts included.

Not modelled: power below the limit while GPUs wait, and the power of hosts and switches, which `pue` may include.

A cluster: one device type, and the network that joins the devices. The sweep states their number.
"""

from dataclasses import replace
from typing import Any

from dsx.config.cluster_file import GENERATIONS, ClusterSpec, NetworkSpec
from dsx.hardware.network import Network, linked_tiers, tiers
from dsx.records import record, static


@record
class Device:
    """Peak rates of one GPU; a leaf is a float, or an [H] array of hardware points."""

    matrix_flops: Any  # FLOP/s, dense matrix multiply at the precision of training
    vector_flops: Any  # FLOP/s, all other operators
    hbm_bandwidth: Any  # bytes/s
    hbm_capacity: Any  # bytes
    fp8_flops: Any  # FLOP/s, dense matrix multiply in 8 bits; 0: such multiplies run at matrix_flops
    fp4_flops: Any  # the same in 4 bits
    int8_flops: Any  # operations/s, the same of 8-bit integers
    sustained_share: Any  # of matrix_flops, by a large multiply; 0: that of the assumptions
    fp8_sustained_share: Any  # of fp8_flops
    attention_forward: tuple[Any, ...]  # share of matrix_flops by generation of fused kernels; 0: it has none of it
    attention_backward: tuple[Any, ...]
    power_share: Any  # power limit over the power of its data sheet
    host_bandwidth: Any  # bytes/s to the memory of the host, per direction
    num_sms: Any  # multiprocessors; 1 if unknown, so that every wave of tiles is full
    name: str = static()


@record
class DeviceOperation:
    """Facts of the operation of one GPU; 0 where the cluster file states none."""

    price: Any  # USD/s
    site_power: Any  # W that the site draws for it: the most that a GPU draws, times `pue`
    mtbf: Any  # s between failures of a GPU, in the mean
    restart: Any  # s from a failure until the job trains again
    checkpoint: Any  # s that the job stops for writing a checkpoint


def operation_from_spec(spec: ClusterSpec) -> DeviceOperation:
    """Return the operation that a cluster file describes."""
    failures = spec.failures
    return DeviceOperation(
        price=spec.price or 0.0,
        site_power=(spec.device.power or 0.0) * (spec.pue or 1.0),
        mtbf=failures.mtbf if failures else 0.0,
        restart=failures.restart if failures else 0.0,
        checkpoint=failures.checkpoint if failures else 0.0,
    )


_HOST_BANDWIDTH = 32e9  # bytes/s of PCIe 4 x16, for a cluster file that states none


@record
class Node:
    """A host and the GPUs that share its memory; a leaf is a float, or an [H] array of hardware points."""

    gpus: Any
    gpus_per_host_link: Any  # that share a link as fast as the device's host_bandwidth
    host_memory: Any  # bytes
    host_memory_bandwidth: Any  # bytes/s, reads and writes together


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


def cluster_from_spec(spec: ClusterSpec) -> Cluster:
    """Return the cluster that a cluster file describes; its leaves are Python floats in SI units."""
    kernels = [spec.device.attention.get(generation) for generation in GENERATIONS]
    device = Device(
        matrix_flops=spec.device.matrix_flops,
        vector_flops=spec.device.vector_flops,
        hbm_bandwidth=spec.device.hbm_bandwidth,
        hbm_capacity=spec.device.hbm_capacity,
        fp8_flops=spec.device.fp8_flops or 0.0,
        fp4_flops=spec.device.fp4_flops or 0.0,
        int8_flops=spec.device.int8_flops or 0.0,
        sustained_share=spec.device.sustained_share or 0.0,
        fp8_sustained_share=spec.device.fp8_sustained_share or spec.device.sustained_share or 0.0,
        attention_forward=tuple(kernel.forward if kernel else 0.0 for kernel in kernels),
        attention_backward=tuple(kernel.backward if kernel else 0.0 for kernel in kernels),
        power_share=(spec.device.power or 1.0) / (spec.device.full_power or spec.device.power or 1.0),
        host_bandwidth=spec.device.host_bandwidth or _HOST_BANDWIDTH,
        num_sms=float(spec.device.num_sms or 1),
        name=spec.device.name,
    )
    node = Node(
        gpus=float(spec.node.gpus),
        gpus_per_host_link=float(spec.node.gpus_per_host_link),
        host_memory=spec.node.host_memory,
        host_memory_bandwidth=spec.node.host_memory_bandwidth,
    )
    network = network_from_spec(spec.network)
    return Cluster(
        device=device,
        network=network,
        node=node,
        operation=operation_from_spec(spec),
        name=spec.name,
        label=spec.label,
    )


def network_from_spec(spec: NetworkSpec) -> Network:
    """Return the network that a cluster file describes."""
    found, linked = tiers(spec), linked_tiers(spec.topology)
    gpus_per_nic = (spec.net.nic_bandwidth or spec.net.bandwidth) / spec.net.bandwidth
    nics = found[linked - 1].size / gpus_per_nic if gpus_per_nic > 1.0 else 1.0
    return Network(tiers=found, linked=linked, gpus_per_nic=gpus_per_nic, nics=nics)


def anonymous(cluster: Cluster) -> Cluster:
    """Return the cluster without names and sizes, so that clusters share compiled functions."""
    unnamed = tuple(replace(tier, name="", size=0) for tier in cluster.network.tiers)
    device, network = replace(cluster.device, name=""), replace(cluster.network, tiers=unnamed)
    return replace(cluster, device=device, network=network, name="", label="")
