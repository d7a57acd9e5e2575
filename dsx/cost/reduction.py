"""The data-parallel reduction: gradients scattered behind the backward, weights gathered before the forward.

Once a step, a layer's gradients are reduced and its weights gathered over the ranks that hold the same
parameters. The first layer to be gathered and the last one to be reduced have nothing to hide behind; each
other one hides behind a layer of one microbatch (arXiv 2410.00273, section 3), as far as the framework overlaps the two
(`dp_overlap`, in stage 3 `fsdp_overlap`). ZeRO decides what is moved and
how often (Rajbhandari et al., 2020, section 7): without it gradients are all-reduced once; in stage 1 they are
scattered once and the weights gathered once; in stage 2 they are scattered with every microbatch; in stage 3
weights are also gathered with every forward and every backward.

Where copies of the divided state remain, the gradients of a shard are all-reduced among them once a step, behind
the last microbatch (Zhang et al., MiCS, 2022, section 3.4).

An oversubscribed tier that both cross is not there for it while a layer's own collectives take it
(`dsx.cost.crowding`).

It is counted on the first stage, whose backward ends last: later stages reduce while it still computes.
"""

import functools
from collections.abc import Sequence

import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices, pick
from dsx.cost.collectives import collective
from dsx.cost.crowding import crosses
from dsx.cost.groups import Group
from dsx.cost.layer import LayerCosts
from dsx.cost.shapes import PerPlan
from dsx.cost.stages import Stage
from dsx.graph.match import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from dsx.hardware.cluster import Cluster
from dsx.space.codes import Searched


def reduction(
    kinds: Sequence[LayerCosts],
    shards: Sequence[Sequence[Group]],
    copies: Sequence[Sequence[Group]],
    backward_s: Sequence[PerPlan],
    crowded_s: Sequence[tuple[PerPlan, PerPlan]],
    stage: Stage,
    edge: int,
    choices: StepChoices,
    searched: Searched,
    cluster: Cluster,
    assumptions: Assumptions,
) -> PerPlan:
    """Return the exposed seconds of the reduction of `stage` in one step.

    `shards` are the ranks over which ZeRO divides, per kind and weight group, and `copies` those that hold the same
    shard; without copies there are none. `backward_s` has the backward of each kind with what is made again, and
    `crowded_s` the seconds of its forward and backward in which it takes an oversubscribed tier, if one can be. `edge`
    is the kind of the layer that has nothing to hide behind.
    """
    of_gradients = assumptions.gradient_bytes / assumptions.weight_bytes
    once = assumptions.dp_overlap
    overlap = pick(searched.zero_stage, choices.zero_stage, {0: once, 1: once, 2: once, 3: assumptions.fsdp_overlap})
    once_forward = once_backward = repeated_forward = repeated_backward = replicated = among_copies = 0.0
    for kind, layers in stage.layers.items():
        held = (kinds[kind], shards[kind], cluster, assumptions)
        gather = _seconds(ALL_GATHER, 1.0, *held)
        scatter = _seconds(REDUCE_SCATTER, of_gradients, *held)
        moved = {1: scatter, 2: scatter, 3: gather + scatter}
        if 0 in searched.zero_stage:
            moved[0] = _seconds(ALL_REDUCE, of_gradients, *held)
        back = pick(searched.zero_stage, choices.zero_stage, moved)
        forward, backward = kinds[kind].forward_s, backward_s[kind]
        if crowded_s:
            shared = functools.reduce(jnp.maximum, [crosses(members, cluster.network) for members in shards[kind]])
            forward, backward = (
                jnp.maximum(whole - shared * taken, jnp.zeros_like(whole))
                for whole, taken in zip((forward, backward), crowded_s[kind], strict=True)
            )
        behind_forward = gather - overlap * jnp.minimum(gather, forward)
        behind_backward = behind_last = back - overlap * jnp.minimum(back, backward)
        if copies[kind]:
            back = back + _seconds_of_copies(
                of_gradients, kinds[kind], shards[kind], copies[kind], cluster, assumptions
            )
            behind_last = back - overlap * jnp.minimum(back, backward)
            among_copies = among_copies + layers * (behind_last - behind_backward)
        repeated_forward = repeated_forward + layers * behind_forward
        repeated_backward = repeated_backward + layers * behind_backward
        if kind == edge:
            once_forward, once_backward = gather - behind_forward, back - behind_last
        replicated = replicated + layers * kinds[kind].replicated_gradient_s
    microbatches = choices.num_microbatches
    one, none = jnp.ones_like(microbatches), jnp.zeros_like(microbatches)
    forwards = pick(searched.zero_stage, choices.zero_stage, {0: none, 1: one, 2: one, 3: microbatches})
    backwards = pick(searched.zero_stage, choices.zero_stage, {0: one, 1: one, 2: microbatches, 3: microbatches})
    gathers = jnp.minimum(forwards, one) * once_forward + forwards * repeated_forward
    total = gathers + once_backward + backwards * repeated_backward + replicated
    return total + among_copies if any(copies) else total


def _seconds(
    kind: str,
    bytes_per_weight_byte: PerPlan,
    layer: LayerCosts,
    shards: Sequence[Group],
    cluster: Cluster,
    assumptions: Assumptions,
) -> PerPlan:
    """Return the seconds of a collective over a layer's weights, one for all that are reduced over the same ranks."""
    total = nothing = jnp.zeros_like(shards[0].size * layer.boundary_bytes)
    for index, members in enumerate(shards):
        held = layer.weight_bytes[index]
        time = collective(kind, members, cluster.network, assumptions)(held * bytes_per_weight_byte)
        # A group without weights, which another strategy of the search has, does not even cost its hops.
        total = total + jnp.where(held > 0, time, nothing)
    return total


def _seconds_of_copies(
    bytes_per_weight_byte: PerPlan,
    layer: LayerCosts,
    shards: Sequence[Group],
    copies: Sequence[Group],
    cluster: Cluster,
    assumptions: Assumptions,
) -> PerPlan:
    """Return the seconds of all-reducing a layer's shards among their copies."""
    times: list[PerPlan] = []
    for index, (members, holders) in enumerate(zip(shards, copies, strict=True)):
        held = layer.weight_bytes[index] * members.per_gpu
        time = collective(ALL_REDUCE, holders, cluster.network, assumptions)(held * bytes_per_weight_byte)
        times.append(jnp.where(held > 0, time, jnp.zeros_like(held)))
    return functools.reduce(jnp.add, times)
