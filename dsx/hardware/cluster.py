"""A cluster: one device type, and the network that joins the devices. The sweep states their number."""

from dataclasses import replace
from typing import Any

from dsx.hardware.device import Device
from dsx.hardware.network import Network
from dsx.hardware.operation import Operation, operation_from_spec
from dsx.hardware.tiers import linked_tiers, tiers
from dsx.records import record, static
from dsx.spec.attention_kernels import GENERATIONS
from dsx.spec.cluster import ClusterSpec, NetworkSpec

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
    operation: Operation
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
