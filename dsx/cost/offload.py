"""Offload to host memory, over a full-duplex link.

Optimizer: the host keeps the state and runs the update (Ren et al., ZeRO-Offload, 2021, section 4). Gradients go to the
host, the host updates the shard of the rank, and new weights come back. Nothing overlaps.

The GPUs of a node transfer at once, so each moves no more than its share of the bandwidth of the host's memory and of a
link that several GPUs share, and its share of the memory holds what it offloads. A node counts as if each of its GPUs
were of the stage that needs most.

Activations: of each microbatch the last body layer of a chunk stays on the GPU, since its backward begins next or soon.
What the other body layers save goes to the host during the forward of the next layer and comes back during the backward
of the layer before it in the backward (Rhu et al., vDNN, 2016; Transformer Engine's `get_cpu_offload_context` keeps the
last layer too). The GPU stalls for transfer time that these do not hide, and has one more layer: the one in transfer.
Activations of embedding and head are not offloaded.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dsx import arrays as xp
from dsx.arrays import PerPlan
from dsx.config.cluster_file import Cluster, Node
from dsx.cost.context import Assumptions, ChosenPlans
from dsx.cost.stages import Layers, Stack, over_layers
from dsx.plans.choices import CODES
from dsx.plans.enumerate import SearchedCodes
from dsx.records import Array, Bool

_OfPlans = Bool[Array, "*#plans"]

OPTIMIZER, ACTIVATIONS, BOTH = "optimizer", "activations", "both"


def offload_codes(state: str, searched: SearchedCodes) -> tuple[int, ...]:
    """Return the codes of a search under which `state`, optimizer or activations, is offloaded."""
    return tuple(code for code in searched.offload if CODES["offload"][code] in (state, BOTH))


def uses_host(searched: SearchedCodes) -> bool:
    """Return whether any plan of a search offloads."""
    return any(offload_codes(state, searched) for state in (OPTIMIZER, ACTIVATIONS))


def offloaded(state: str, plans: ChosenPlans, on_host: Callable[[], PerPlan], on_gpu: PerPlan) -> PerPlan:
    """Return `on_host()` for plans that offload `state`, and `on_gpu` for the others.

    `on_host` is not called if no plan offloads it.
    """
    codes = offload_codes(state, plans.searched)
    if not codes:
        return on_gpu
    value = on_host()
    return plans.by_code("offload", lambda code: value if code in codes else on_gpu)


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
    """Return the seconds of a transfer to the host or back, by the slower of the link and the host's memory.

    GPUs of a job that share a link are neighbours, as ranks are numbered, and of one node.
    """
    memory_rate = host_memory_rate(num_gpus, cluster.node, assumptions)
    sharing = xp.minimum(of_node(num_gpus, cluster.node), cluster.node.gpus_per_host_link * xp.ones_like(num_gpus))
    link_rate = assumptions.host_efficiency * cluster.device.host_bandwidth / sharing
    return num_bytes / xp.minimum(memory_rate, link_rate)


def always_split(plans: ChosenPlans) -> _OfPlans | None:
    """Return which plans compute gradients of inputs and of weights apart in every backward; None if none do."""
    return plans.pipelines(lambda schedule: schedule.always_splits)


class KeptLayers(NamedTuple):
    """The body layers whose stash stays on the GPU: one of each chunk, in the mean."""

    share: PerPlan  # of all body layers
    chunks: PerPlan  # of a stage


def kept_layers(plans: ChosenPlans, stack: Stack) -> KeptLayers:
    """Return the body layers whose stash stays on the GPU."""
    pp, vpp = plans.choices.pp, plans.choices.vpp
    ones = xp.ones_like(pp)
    chunks = xp.where(pp > 1, plans.by_schedule(lambda schedule: schedule.holds.count(pp, vpp) * ones), ones)
    return KeptLayers(xp.minimum(chunks / stack.num_body_layers, ones), chunks / pp)


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


class Remaining(NamedTuple):
    """The stash on the GPU of a stage whose body layers are offloaded, bytes."""

    per_microbatch: PerPlan  # of each microbatch in flight
    in_transfer: PerPlan  # during the backward of a body layer: the next one, which comes back


def remaining(
    layers: Layers,
    stash_bytes: Sequence[PerPlan],
    largest_bytes: Sequence[PerPlan],
    not_body: frozenset[int],
    chunks: PerPlan,
    plans: ChosenPlans,
) -> Remaining:
    """Return the stash that stays on the GPU of a stage with these layers of so many `chunks`.

    Per kind, `stash_bytes` is the mean over the layers and `largest_bytes` the largest. `not_body` has the kinds that
    are not offloaded, embedding and head. Where gradients of weights wait, what they read is back and stays.
    """
    body = {kind: count for kind, count in layers.items() if kind not in not_body}
    stash = over_layers(body, stash_bytes)
    # A kind without layers on the stage keeps nothing.
    present = [xp.minimum(count, xp.ones_like(count)) * largest_bytes[kind] for kind, count in body.items()]
    largest = functools.reduce(xp.maximum, present)
    kept = xp.minimum(stash, chunks * largest)
    if (waiting := plans.pipelines(lambda schedule: schedule.weights_wait)) is not None:
        kept = xp.where(waiting, stash, kept)
    kept = offloaded(ACTIVATIONS, plans, lambda: kept, stash)
    of_ends = [count * stash_bytes[kind] for kind, count in layers.items() if kind in not_body]
    return Remaining(functools.reduce(xp.add, of_ends, kept), xp.minimum(stash - kept, largest))


def with_transfers(
    working_bytes: Sequence[PerPlan], in_transfer: PerPlan, not_body: frozenset[int]
) -> Sequence[PerPlan]:
    """Return, per kind, the transient of a layer with the stash that is in transfer during its backward."""
    return [bytes_ if kind in not_body else bytes_ + in_transfer for kind, bytes_ in enumerate(working_bytes)]
