"""The data-parallel reduction: gradients scattered during the backward, weights gathered before the forward.

Once a step, the gradients of a layer are reduced and its weights gathered over the ranks that hold the same parameters.
The first gathered layer and the last reduced layer overlap with nothing. Every other layer overlaps with the compute of
one layer for one microbatch (arXiv 2410.00273, section 3), as far as the framework overlaps them (`dp_overlap`, in
stage 3 `fsdp_overlap`). The ZeRO stage decides what is communicated and how often (Rajbhandari et al., 2020, section
7): stage 0 all-reduces gradients once; stage 1 scatters gradients once and gathers weights once; stage 2 scatters
gradients with every microbatch; stage 3 also gathers weights with every forward and every backward.

With replicas of shards, the gradients of a shard are all-reduced among its replicas once a step, during the last
microbatch (Zhang et al., MiCS, 2022, section 3.4).

While a collective of the layer itself uses an oversubscribed tier, a reduction that crosses the tier does not proceed
(`dsx.cost.contention`).

The reduction is that of the first stage, whose backward ends last: later stages reduce while the first one computes.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices, pick
from dsx.cost.collectives import collective
from dsx.cost.contention import crosses
from dsx.cost.groups import Group
from dsx.cost.layer import LayerCosts
from dsx.cost.shapes import PerPlan
from dsx.cost.stages import Stage
from dsx.graph.match import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from dsx.hardware.cluster import Cluster
from dsx.space.codes import Searched


class ReducedLayer(NamedTuple):
    """A kind of layer whose gradients are reduced and whose weights are gathered."""

    costs: LayerCosts
    shards: Sequence[Group]  # per weight group, the ranks over which ZeRO divides
    replicas: Sequence[Group]  # per weight group, the ranks that hold the same shard; empty if no shard has replicas
    backward_s: PerPlan  # with recomputation
    # Seconds of forward and backward in which the layer uses an oversubscribed tier; None if no tier can be.
    contended_s: tuple[PerPlan, PerPlan] | None


def reduction(
    kinds: Sequence[ReducedLayer],
    stage: Stage,
    exposed_kind: int,
    choices: StepChoices,
    searched: Searched,
    cluster: Cluster,
    assumptions: Assumptions,
) -> PerPlan:
    """Return the exposed seconds of the reduction of `stage` in one step.

    `exposed_kind` is the kind of the layer that overlaps with nothing.
    """
    of_gradients = assumptions.gradient_bytes / assumptions.weight_bytes
    once = assumptions.dp_overlap
    overlap = pick(searched.zero_stage, choices.zero_stage, {0: once, 1: once, 2: once, 3: assumptions.fsdp_overlap})
    once_forward = once_backward = repeated_forward = repeated_backward = replicated = among_replicas = 0.0
    for kind, layers in stage.layers.items():
        layer = kinds[kind]
        gather = _seconds(ALL_GATHER, 1.0, layer, cluster, assumptions)
        scatter = _seconds(REDUCE_SCATTER, of_gradients, layer, cluster, assumptions)
        by_stage = {1: scatter, 2: scatter, 3: gather + scatter}
        if 0 in searched.zero_stage:
            by_stage[0] = _seconds(ALL_REDUCE, of_gradients, layer, cluster, assumptions)
        back = pick(searched.zero_stage, choices.zero_stage, by_stage)
        forward, backward = layer.costs.forward_s, layer.backward_s
        if layer.contended_s is not None:
            shared = functools.reduce(xp.maximum, [crosses(members, cluster.network) for members in layer.shards])
            forward, backward = (
                xp.maximum(whole - shared * taken, xp.zeros_like(whole))
                for whole, taken in zip((forward, backward), layer.contended_s, strict=True)
            )
        exposed_forward = gather - overlap * xp.minimum(gather, forward)
        exposed_backward = exposed_last = back - overlap * xp.minimum(back, backward)
        if layer.replicas:
            back = back + _seconds_of_replicas(of_gradients, layer, cluster, assumptions)
            exposed_last = back - overlap * xp.minimum(back, backward)
            among_replicas = among_replicas + layers * (exposed_last - exposed_backward)
        repeated_forward = repeated_forward + layers * exposed_forward
        repeated_backward = repeated_backward + layers * exposed_backward
        if kind == exposed_kind:
            once_forward, once_backward = gather - exposed_forward, back - exposed_last
        replicated = replicated + layers * layer.costs.replicated_gradient_s
    microbatches = choices.num_microbatches
    one, none = xp.ones_like(microbatches), xp.zeros_like(microbatches)
    forwards = pick(searched.zero_stage, choices.zero_stage, {0: none, 1: one, 2: one, 3: microbatches})
    backwards = pick(searched.zero_stage, choices.zero_stage, {0: one, 1: one, 2: microbatches, 3: microbatches})
    gathers = xp.minimum(forwards, one) * once_forward + forwards * repeated_forward
    total = gathers + once_backward + backwards * repeated_backward + replicated
    return total + among_replicas if any(layer.replicas for layer in kinds) else total


def _seconds(
    kind: str, bytes_per_weight_byte: PerPlan, layer: ReducedLayer, cluster: Cluster, assumptions: Assumptions
) -> PerPlan:
    """Return the seconds of a collective on a layer's weights, one call for each weight group."""
    costs = layer.costs
    total = nothing = xp.zeros_like(layer.shards[0].size * costs.boundary_bytes)
    for index, members in enumerate(layer.shards):
        weights = costs.weight_bytes[index]
        time = collective(kind, members, cluster.network, assumptions)(weights * bytes_per_weight_byte)
        # A group without weights, which another strategy of the search has, costs nothing, not even latency.
        total = total + xp.where(weights > 0, time, nothing)
    return total


def _seconds_of_replicas(
    bytes_per_weight_byte: PerPlan, layer: ReducedLayer, cluster: Cluster, assumptions: Assumptions
) -> PerPlan:
    """Return the seconds of all-reducing a layer's shards among their replicas."""
    times: list[PerPlan] = []
    for index, (members, replicas) in enumerate(zip(layer.shards, layer.replicas, strict=True)):
        shard_bytes = layer.costs.weight_bytes[index] * members.per_gpu
        time = collective(ALL_REDUCE, replicas, cluster.network, assumptions)(shard_bytes * bytes_per_weight_byte)
        times.append(xp.where(shard_bytes > 0, time, xp.zeros_like(shard_bytes)))
    return functools.reduce(xp.add, times)
