"""Offload to host memory, over a full-duplex link.

Optimizer: the host keeps the state and runs the update (Ren et al., ZeRO-Offload, 2021, section 4). Gradients go to the
host, the host updates the shard of the rank, and new weights come back. Nothing overlaps.

The GPUs of a node transfer at once, so each moves no more than its share of the bandwidth of the host's memory, and its
share of the memory holds what it offloads. A node counts as if each of its GPUs were of the stage that needs most.

Activations: the saved activations of a body layer go to the host during the forward of the next layer and come back
during the backward. The GPU stalls for transfer time that these do not hide. For each microbatch in flight two layers
remain on the GPU: the one that is written or read, and the one in transfer (Rhu et al., vDNN, 2016). Activations of
embedding and head are not offloaded.
"""

import functools
from collections.abc import Callable, Sequence

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StageChoices, StepChoices, pick
from dsx.cost.shapes import PerPlan
from dsx.cost.stages import Layers, over_layers
from dsx.hardware.cluster import Cluster, Node
from dsx.space.choices import CODES
from dsx.space.codes import Searched

OPTIMIZER, ACTIVATIONS, BOTH = "optimizer", "activations", "both"


def offload_codes(state: str, searched: Searched) -> tuple[int, ...]:
    """Return the codes of a search under which `state`, optimizer or activations, is offloaded."""
    return tuple(code for code in searched.offload if CODES["offload"][code] in (state, BOTH))


def offloaded(
    state: str, choices: StepChoices | StageChoices, searched: Searched, on_host: Callable[[], PerPlan], on_gpu: PerPlan
) -> PerPlan:
    """Return `on_host()` for plans that offload `state`, and `on_gpu` for the others.

    `on_host` is not called if no plan offloads it.
    """
    codes = offload_codes(state, searched)
    if not codes:
        return on_gpu
    value = on_host()
    return pick(
        searched.offload, choices.offload, {code: value if code in codes else on_gpu for code in searched.offload}
    )


def of_node(num_gpus: PerPlan, node: Node) -> PerPlan:
    """Return the GPUs of a job that share the memory of a host."""
    return xp.minimum(num_gpus, node.gpus * xp.ones_like(num_gpus))


def usable_host_bytes(num_gpus: PerPlan, node: Node, assumptions: Assumptions) -> PerPlan:
    """Return the most bytes that a GPU may keep on the host."""
    return assumptions.host_memory_share * node.host_memory / of_node(num_gpus, node)


def host_memory_rate(num_gpus: PerPlan, node: Node, assumptions: Assumptions) -> PerPlan:
    """Return the bytes/s of the host's memory that each GPU gets while all of a node use it."""
    return assumptions.host_memory_efficiency * node.host_memory_bandwidth / of_node(num_gpus, node)


def transfer_s(num_bytes: PerPlan, num_gpus: PerPlan, cluster: Cluster, assumptions: Assumptions) -> PerPlan:
    """Return the seconds of a transfer to the host or back, by the slower of the link and the host's memory."""
    memory_rate = host_memory_rate(num_gpus, cluster.node, assumptions)
    link_rate = assumptions.host_efficiency * cluster.device.host_bandwidth
    return num_bytes / xp.minimum(memory_rate, link_rate * xp.ones_like(memory_rate))


def exposed_transfer_s(one_way_s: PerPlan, forward_s: PerPlan, backward_s: PerPlan) -> PerPlan:
    """Return the seconds that the forward and backward of a layer stall for its stash, one microbatch, both ways."""
    nothing = xp.zeros_like(one_way_s)
    return xp.maximum(one_way_s - forward_s, nothing) + xp.maximum(one_way_s - backward_s, nothing)


def host_update_s(num_parameters: PerPlan, num_gpus: PerPlan, cluster: Cluster, assumptions: Assumptions) -> PerPlan:
    """Return the seconds of an update of `num_parameters` on the host, with transfers of gradients and weights."""
    transferred = assumptions.gradient_bytes + assumptions.weight_bytes
    update_s = assumptions.optimizer_traffic_per_parameter / host_memory_rate(num_gpus, cluster.node, assumptions)
    return num_parameters * (transfer_s(transferred, num_gpus, cluster, assumptions) + update_s)


def host_orthogonal_s(
    num_parameters: PerPlan, more_traffic: PerPlan, num_gpus: PerPlan, cluster: Cluster, assumptions: Assumptions
) -> PerPlan:
    """Return what an update on the host takes longer for parameters of matrices that the GPU orthogonalises.

    `more_traffic` are the bytes that Muon reads and writes beyond those of Adam. The momentum goes to the GPU, and what
    is orthogonalised comes back.
    """
    both_ways_s = transfer_s(2.0 * assumptions.muon_bytes, num_gpus, cluster, assumptions) * num_parameters
    return both_ways_s + more_traffic / host_memory_rate(num_gpus, cluster.node, assumptions)


def remaining_bytes(
    layers: Layers, stash_bytes: Sequence[PerPlan], largest_bytes: Sequence[PerPlan], not_body: frozenset[int]
) -> PerPlan:
    """Return the stash of one microbatch that stays on the GPU of a stage whose body layers are offloaded, bytes.

    Per kind, `stash_bytes` is the mean over the layers and `largest_bytes` the largest. `not_body` has the kinds that
    are not offloaded, embedding and head.
    """
    body = {kind: count for kind, count in layers.items() if kind not in not_body}
    whole = over_layers(body, stash_bytes)
    # A kind without layers on the stage keeps nothing.
    present = [xp.minimum(count, xp.ones_like(count)) * largest_bytes[kind] for kind, count in body.items()]
    kept = xp.minimum(whole, 2.0 * functools.reduce(xp.maximum, present))
    of_others = [count * stash_bytes[kind] for kind, count in layers.items() if kind in not_body]
    return functools.reduce(xp.add, of_others, kept)
