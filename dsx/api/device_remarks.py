"""What an assumption set supposes of a device beyond what its cluster file states, and what it was not made for.

Not modelled: how far off the numbers of one maker's devices are on those of another.
"""

import math

from dsx.space.divisors import divisors
from dsx.space.plan_rules import nearest_of
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import GPU_SOFTWARE, ClusterSpec, DeviceSpec, NodeSpec
from dsx.units import exact_quantity


def device_remarks(device: DeviceSpec, assumptions: AssumptionsSpec) -> list[str]:
    """Return what to say once where a problem of this device is priced with this set, a sentence each."""
    said: list[str] = []
    if assumptions.matrix_ceiling == "sustained" and device.sustained_share is None:
        said.append(
            f"device {device.name} states no sustained_share: {assumptions.sustained_share:g} of its peak is assumed"
        )
    if (precision := assumptions.linear_dtype) != "bf16" and getattr(device, f"{precision}_flops") is None:
        said.append(
            f"device {device.name} states no {precision}_flops: multiplies in {precision} take as long as in "
            f"{device.half_format}"
        )
    if assumptions.attention_kernels and not device.attention:
        reached = f"{assumptions.attention_efficiency:g} of what other multiplies reach"
        said.append(f"device {device.name} states no attention: {reached} is assumed of fused kernels")
    if assumptions.wave_quantisation and device.software in GPU_SOFTWARE and device.num_sms is None:
        said.append(f"device {device.name} states no num_sms: every wave of tiles is taken as full")
    if assumptions.trained_on.generation and device.generation is None:
        said.append(f"device {device.name} states no generation: it counts as one of which nothing was measured")
    if assumptions.platforms and device.software not in assumptions.platforms:
        said.append(
            f"device {device.name} is programmed with {device.software}, and the numbers of assumption set "
            f"{assumptions.name!r} are from devices of {', '.join(assumptions.platforms)}"
        )
    return said


def cluster_remarks(cluster: ClusterSpec, assumptions: AssumptionsSpec) -> list[str]:
    """Return what to say once where a problem of this cluster is priced with this set, a sentence each."""
    of_node = [*_straddled(cluster), *_shared_links(cluster), *_node_remarks(cluster, assumptions)]
    return [*device_remarks(cluster.device, assumptions), *of_node]


def _straddled(cluster: ClusterSpec) -> list[str]:
    """Return what to say once of nodes that fast domains cut; nothing if one is a whole number of the others."""
    node, domain = cluster.node.gpus, cluster.network.nvs.size
    if "gpus" in cluster.node.assumed or node % domain == 0 or domain % node == 0:
        return []
    return [
        f"cluster {cluster.name} has node.gpus={node} and network.nvs.size={domain}: fast domains cut nodes, since "
        f"neither divides the other; nearest: node.gpus={nearest_of(divisors(domain), node)}"
    ]


def _shared_links(cluster: ClusterSpec) -> list[str]:
    """Return what to say once of a link to the host that more GPUs share than a node has."""
    node = cluster.node
    if node.gpus_per_host_link <= node.gpus:
        return []
    return [
        f"cluster {cluster.name} has node.gpus_per_host_link={node.gpus_per_host_link} and node.gpus={node.gpus}: all "
        f"GPUs of a node are taken to share one link; nearest: node.gpus_per_host_link={node.gpus}"
    ]


def _node_remarks(cluster: ClusterSpec, assumptions: AssumptionsSpec) -> list[str]:
    """Return what to say once of a node that a cluster file does not state, where plans may offload to its host."""
    node = cluster.node
    if not node.assumed or assumptions.fixed.get("offload") == "none":
        return []
    assumed = ", ".join(f"{name}={value}" for name, value in _texts(node).items() if name in node.assumed)
    return [f"cluster {cluster.name} states no node.{node.assumed[0]}: for offload to the host {assumed} is assumed"]


def _texts(node: NodeSpec) -> dict[str, str]:
    memory, rate = exact_quantity(node.host_memory, "bytes"), exact_quantity(node.host_memory_bandwidth, "bytes/s")
    return {
        "gpus": str(node.gpus),
        "gpus_per_host_link": str(node.gpus_per_host_link),
        "host_memory": memory,
        "host_memory_bandwidth": rate,
    }


def unfilled_domain(num_gpus: int, domain: int) -> list[str]:
    """Return what to say once of a job whose GPUs do not fill fast domains of `domain` GPUs; nothing if they do."""
    rest = num_gpus % domain
    if num_gpus < domain or not rest:
        return []
    down, up = num_gpus - rest, num_gpus - rest + domain
    return [
        f"{num_gpus:,} GPUs do not fill fast domains of {domain}: one after the other, the last has {rest}; "
        f"{down:,} or {up:,} GPUs would fill them, if the batch suits that number"
    ]


def replicas_left_out(num_gpus: int, global_batch_size: int) -> list[str]:
    """Return what to say once of a job whose batch no number of replicas divides that its GPUs could have.

    dp divides both. So what they do not share, powers of two apart, has to be tensor, context or pipeline parallel.
    """
    odd = _odd(num_gpus)
    if global_batch_size % odd == 0:
        return []
    # A batch like the stated one, and the most GPUs of which it leaves nothing out.
    step = num_gpus if global_batch_size >= num_gpus else odd
    while step * 8 <= global_batch_size < num_gpus:
        step *= 2
    batch = -(-global_batch_size // step) * step
    fewer = next(number for number in range(num_gpus, 0, -1) if global_batch_size % _odd(number) == 0)
    return [
        f"{num_gpus:,} GPUs and a batch of {global_batch_size:,}: dp divides both, so it can be at most "
        f"{math.gcd(num_gpus, global_batch_size):,}; a batch of {batch:,} would allow "
        f"{math.gcd(num_gpus, batch):,}, and {fewer:,} GPUs {math.gcd(fewer, global_batch_size):,}"
    ]


def _odd(number: int) -> int:
    """Return a number without its factors of two."""
    return number // (number & -number)
