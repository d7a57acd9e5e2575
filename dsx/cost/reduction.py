"""The data-parallel reduction: gradients scattered during the backward, weights gathered before the forward.

Gathers that wait for scatters: what collectives of weights outlast the passes of a layer by under ZeRO 3.

Where every backward gathers weights too, the collectives of a rank run one after the other: each layer is gathered
while the pass before it runs, and its gradients are scattered while the next one does (`dsx.traces.pass_nodes`). No
pass waits for a scatter, but the gather behind it does. So a collective hides behind the pass that it is issued with,
and not behind all of a microbatch. Of a chunk of n layers, with a gather of G seconds and a scatter of S, there run

- with a forward G; with the first one S + G, as the last layer of the backward before it is scattered;
- with a whole backward S + G; with the first one G;
- with gradients of inputs alone G; with those of the last layer nothing;
- with gradients of weights alone S; with those of the first layer nothing, with those of the last one S + G, and G if
  that is the same layer.

The embedding is the first layer of its chunk, but hides nothing: its neighbour is gathered during its forward and
scattered during its backward.

The data-parallel reduction: gradients scattered during the backward, weights gathered before the forward.

Once a step, the gradients of a layer are reduced and its weights gathered over the ranks that hold the same parameters.
The first gathered layer and the last reduced layer overlap with nothing. Every other layer overlaps with the compute of
one layer for one microbatch, of interleaved stages with that of more (`_chunks_beside`; arXiv 2410.00273, section 3),
as far as the framework overlaps them: `dp_overlap` for what a step does once, `fsdp_overlap` for what every microbatch
repeats, as stage 2's scatter does. Of interleaved stages it overlaps with what these passes wait for sends too
(`waits_beside`). `dsx.notation.model` says what each ZeRO stage communicates and how often. Gradients of
replicated parameters and of a tied weight overlap with nothing.

While a collective of the layer itself uses an oversubscribed tier, a reduction that crosses the tier does not proceed
(`dsx.cost.groups`).

The reduction is that of the first stage, whose backward ends last: later stages reduce while the first one computes.
What stages 2 and 3 communicate with every microbatch makes each pass of a pipeline longer, so it is part of the passes
(`in_passes`), and of the bubble.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dsx import arrays as xp
from dsx.cost.collectives import collective
from dsx.cost.context import Assumptions, StepChoices, of_step, pick
from dsx.cost.groups import Group, crosses, group
from dsx.cost.layer import LayerCosts
from dsx.cost.shapes import PerGroup, PerPlan
from dsx.cost.stages import Stage
from dsx.hardware.cluster import Cluster
from dsx.notation.graph import BACKWARD, FORWARD
from dsx.notation.model import MICROBATCH, OF_REPLICAS, OF_TIED, StepCollective, accompanying, divides, in_every_pass
from dsx.plans.codes import SearchedCodes
from dsx.records import Array, Bool
from dsx.schedules.schedules import SCHEDULES


class Outlasting(NamedTuple):
    """What collectives outlast the passes of a layer by, seconds, the mean over the layers of a chunk."""

    forward_s: PerPlan
    backward_s: PerPlan
    weights_s: PerPlan  # of the backward, what gradients of inputs do not wait for


class Queued(NamedTuple):
    """The collectives of a layer's weights and what they hide behind, seconds."""

    gather_s: PerPlan
    scatter_s: PerPlan
    forward_s: PerPlan
    backward_s: PerPlan
    whole_weights_s: PerPlan  # the part of the backward that only computes weight gradients

    @property
    def after_backward_s(self) -> PerPlan:
        """What the first forward of a chunk waits longer by if a backward came before."""
        return _beyond(self.both_s, self.forward_s) - _beyond(self.gather_s, self.forward_s)

    @property
    def both_s(self) -> PerPlan:
        """Both collectives."""
        return self.gather_s + self.scatter_s

    @property
    def weights_s(self) -> PerPlan:
        """That part, as far as it hides anything."""
        return xp.minimum(self.whole_weights_s, self.backward_s)

    @property
    def inputs_s(self) -> PerPlan:
        """The rest of the backward."""
        return self.backward_s - self.weights_s


def outlasting(layer: Queued, ends: PerPlan, apart: Bool[Array, "*#plans"] | None) -> Outlasting:
    """Return what collectives of a layer outlast its passes by.

    `ends` is the share of layers that end a chunk; where it is 0 each pass hides its own collectives. Plans in `apart`
    compute gradients of weights in a pass of their own; None if none do.
    """
    gather_s = layer.gather_s
    forward = _beyond(gather_s, layer.forward_s) + ends * layer.after_backward_s
    backward = _mean(ends, _beyond(gather_s, layer.backward_s), _beyond(layer.both_s, layer.backward_s))
    if apart is None:
        return Outlasting(forward, backward, backward)
    one, none = xp.ones_like(ends), xp.zeros_like(ends)
    inputs = (one - ends) * _beyond(gather_s, layer.inputs_s)
    inner = xp.maximum(one - 2.0 * ends, none) * _beyond(layer.scatter_s, layer.weights_s)
    weights = inner + ends * _beyond_last_weights(layer, ends)
    return Outlasting(forward, xp.where(apart, inputs + weights, backward), xp.where(apart, weights, backward))


def of_embedding(layer: Queued, after: Queued, ends: PerPlan, apart: Bool[Array, "*#plans"] | None) -> Outlasting:
    """Return what collectives outlast the passes of the embedding by, less what `outlasting` has for its neighbour.

    The neighbour is not the first layer of the chunk: no scatter comes before its forward, and no gather of the next
    pass after its backward. Where gradients have several bytes a weight, a part of the former stays, so that a slower
    network never makes a chunk faster.
    """
    none, single = xp.zeros_like(after.gather_s), _single(ends)
    share = xp.where(after.scatter_s > 0.0, xp.minimum(after.gather_s / after.scatter_s, 1.0), none)
    gather_s, last_s = layer.gather_s, layer.gather_s + after.scatter_s

    def first(moved_s: PerPlan, pass_s: PerPlan, later_s: PerPlan) -> PerPlan:
        """Return what outlasts a pass of the embedding, less what its neighbour does not wait for."""
        return xp.maximum(_beyond(moved_s, pass_s) - later_s, none)

    forward = first(layer.scatter_s + after.gather_s, layer.forward_s, share * after.after_backward_s)
    later_s = _beyond(after.both_s, after.backward_s) - _beyond(after.scatter_s, after.backward_s)
    whole = first(gather_s + last_s, layer.backward_s, later_s)
    if apart is None:
        return Outlasting(forward, whole, whole)
    inputs = _beyond(gather_s, layer.inputs_s)
    later_s = _beyond_last_weights(after, ends) - (1.0 - single) * _beyond(after.scatter_s, after.weights_s)
    weights = first(last_s, layer.weights_s, later_s)
    return Outlasting(forward, xp.where(apart, inputs + weights, whole), xp.where(apart, weights, whole))


def mean(share: PerPlan, some: Outlasting, others: Outlasting) -> Outlasting:
    """Return the mean of passes of which a share are `some`."""
    return Outlasting(*(_mean(share, one, other) for one, other in zip(some, others, strict=True)))


def _beyond_last_weights(layer: Queued, ends: PerPlan) -> PerPlan:
    """Return what outlasts the last gradients of weights of a chunk; of one layer they are the first ones too."""
    single = _single(ends)
    of_many, alone = _beyond(layer.both_s, layer.weights_s), _beyond(layer.gather_s, layer.weights_s)
    return _mean(single, alone, of_many)


def _single(ends: PerPlan) -> PerPlan:
    """Return the share of chunks that have one layer, where none has none."""
    return xp.maximum(2.0 - 1.0 / xp.maximum(ends, 0.5), xp.zeros_like(ends))


def _mean(share: PerPlan, some: PerPlan, others: PerPlan) -> PerPlan:
    return others + share * (some - others)


def _beyond(seconds: PerPlan, pass_s: PerPlan) -> PerPlan:
    return xp.maximum(seconds - pass_s, xp.zeros_like(seconds))


class ReducedLayer(NamedTuple):
    """A kind of layer whose gradients are reduced and whose weights are gathered."""

    costs: LayerCosts
    held_bytes: PerGroup  # of its weights, without those that the stage holds and communicates once with another layer
    shards: Sequence[Group]  # per weight group, the ranks over which ZeRO divides
    replicas: Sequence[Group]  # per weight group, the ranks that hold the same shard; empty if no shard has replicas
    backward_s: PerPlan  # with recomputation
    stalls_s: tuple[PerPlan, PerPlan] | None  # of forward and backward for transfers to the host; None if none offloads
    # Seconds of forward and backward in which the layer uses an oversubscribed tier; None if no tier can be.
    contended_s: tuple[PerPlan, PerPlan] | None
    # The share of body layers that end a chunk, and plans that compute gradients of weights apart; None if none do.
    chunk_ends: PerPlan
    apart: Bool[Array, "*#plans"] | None
    neighbour: "ReducedLayer | None"  # of the embedding, the layer after it; None of others


class LayerReduction(NamedTuple):
    """The collectives of a layer's weights that accompany its passes, seconds."""

    gather_s: PerPlan  # before a forward
    back_s: PerPlan  # with a backward
    last_s: PerPlan  # with the backward of the last microbatch, which reduces among replicas too
    exposed: tuple[PerPlan, PerPlan, PerPlan]  # of these, what the passes of the layer do not hide
    outlasts_s: PerPlan  # of the exposed part with a backward, what a longer backward would hide
    # Of that, what a step does once and could overlap with waits of interleaved stages; None if none are interleaved.
    could_hide_s: PerPlan | None


def layer_reduction(
    layer: ReducedLayer, choices: StepChoices, searched: SearchedCodes, cluster: Cluster, assumptions: Assumptions
) -> LayerReduction:
    """Return the collectives that accompany the passes of a layer."""
    once = of_step(assumptions, "dp_overlap", choices, searched)
    of_gather, of_back = (_overlap(direction, choices, searched, assumptions) for direction in (FORWARD, BACKWARD))
    given = (choices, searched, cluster, assumptions)
    gather, back = (_accompanying_s(direction, layer, *given) for direction in (FORWARD, BACKWARD))
    last = back + _seconds_of_replicas(layer, cluster, assumptions) if layer.replicas else back
    (forward, backward), stalls = _beside_s(layer, cluster), layer.stalls_s
    gathers, reduces = (_once(direction, choices, searched) for direction in (FORWARD, BACKWARD))
    if (more := _chunks_beside(choices, searched)) is not None:
        passes_beside = 1.0 + gathers * more, 1.0 + reduces * more
        forward, backward = forward * passes_beside[0], backward * passes_beside[1]
        if stalls is not None:
            stalls = stalls[0] * passes_beside[0], stalls[1] * passes_beside[1]
    # What runs while the GPU stalls is hidden, whatever of it could overlap with computing.
    left_gather, left_back, left_last = gather, back, last
    if stalls is not None:
        forward_stall, backward_stall = stalls
        left_gather, left_back, left_last = (
            xp.maximum(whole - stall, xp.zeros_like(whole))
            for whole, stall in ((gather, forward_stall), (back, backward_stall), (last, backward_stall))
        )
    beside = xp.minimum(left_back, backward)
    hidden_gather, hidden_back, outlasts = xp.minimum(left_gather, forward), beside, left_back - beside
    if (queues := _gathers_again(choices, searched)) is not None:
        queued = _queued(layer, gather, back, cluster)
        late = outlasting(queued, layer.chunk_ends, layer.apart)
        if (after := layer.neighbour) is not None:
            gather_s, back_s = (_accompanying_s(direction, after, *given) for direction in (FORWARD, BACKWARD))
            neighbour = _queued(after, gather_s, back_s, cluster)
            late = of_embedding(queued, neighbour, after.chunk_ends, layer.apart)
        # No backward comes before the first forward.
        first = outlasting(queued, xp.zeros_like(layer.chunk_ends), layer.apart)
        late = mean(1.0 - 1.0 / choices.num_microbatches, late, first)
        hidden_gather = xp.where(queues, left_gather - late.forward_s, hidden_gather)
        hidden_back = xp.where(queues, left_back - late.backward_s, hidden_back)
        outlasts = xp.where(queues, late.weights_s, outlasts)
    exposed_back = left_back - of_back * hidden_back
    exposed_last = exposed_back
    if layer.replicas:
        more_s = left_last - left_back
        exposed_last = exposed_back + more_s - once * xp.minimum(more_s, backward - beside)
    exposed = left_gather - of_gather * hidden_gather, exposed_back, exposed_last
    could_hide_s = None
    if more is not None:
        never = 1.0 - once
        could_hide_s = gathers * (exposed[0] - never * left_gather) + reduces * (exposed_last - never * left_last)
    return LayerReduction(gather, back, last, exposed, of_back * outlasts, could_hide_s)


def _beside_s(layer: ReducedLayer, cluster: Cluster) -> tuple[PerPlan, PerPlan]:
    """Return the seconds of a forward and a backward in which a reduction of the layer can proceed."""
    passes = layer.costs.forward_s, layer.backward_s
    if layer.contended_s is None:
        return passes
    shared = functools.reduce(xp.maximum, [crosses(members, cluster.network) for members in layer.shards])
    forward, backward = (
        xp.maximum(whole - shared * taken, xp.zeros_like(whole))
        for whole, taken in zip(passes, layer.contended_s, strict=True)
    )
    return forward, backward


def _queued(layer: ReducedLayer, gather_s: PerPlan, back_s: PerPlan, cluster: Cluster) -> Queued:
    """Return what hides collectives that are repeated with every pass: computation and stalls."""
    forward, backward = _beside_s(layer, cluster)
    if layer.stalls_s is not None:
        forward, backward = forward + layer.stalls_s[0], backward + layer.stalls_s[1]
    return Queued(gather_s, back_s - gather_s, forward, backward, layer.costs.weight_gradient_s)


def _overlap(direction: int, choices: StepChoices, searched: SearchedCodes, assumptions: Assumptions) -> PerPlan:
    """Return the fraction of the collectives of a direction that overlaps.

    What every microbatch repeats is issued ahead, layer by layer (`fsdp_overlap`); what a step does once is issued in
    buckets (`dp_overlap`).
    """
    once = of_step(assumptions, "dp_overlap", choices, searched)
    of_stage = {
        stage: assumptions.fsdp_overlap if in_every_pass(stage, direction) else once for stage in searched.zero_stage
    }
    return pick(searched.zero_stage, choices.zero_stage, of_stage)


def _chunks_beside(choices: StepChoices, searched: SearchedCodes) -> PerPlan | None:
    """Return the passes of a layer, beyond its own, that what a step does once overlaps with; None if there are none.

    Interleaved stages run their chunks one after the other, each for a group of up to pp microbatches. A chunk's
    gradients are reduced while the chunks before it run their last group, its weights gathered while they run their
    first one. So all chunks of a stage but one have that many passes beside (Narayanan et al., SC21, figure 4;
    Megatron-LM, `grad_sync_func` and `param_sync_func`, which act on a chunk).
    """
    interleaved = [code for code in searched.schedule if SCHEDULES[code].interleaved]
    if not interleaved or searched.vpp == (1,):
        return None
    group = xp.minimum(choices.pp, choices.num_microbatches)
    more = (1.0 - 1.0 / choices.vpp) * (group - 1.0)
    nothing = xp.zeros_like(more)
    return pick(
        searched.schedule,
        choices.schedule,
        {code: more if code in interleaved else nothing for code in searched.schedule},
    )


def waits_beside(
    pipeline_s: PerPlan, stage_s: Callable[[], PerPlan], choices: StepChoices, searched: SearchedCodes
) -> PerPlan | None:
    """Return the seconds that the passes of interleaved stages wait beside what a step does once; None without any.

    Passes that wait for sends, or for a slower stage, make a pipeline longer than (m + (p - 1) / v) microbatches on the
    first stage, of `stage_s()` each. Of the m passes of a layer, `_chunks_beside` says how many are beside its
    reduction, and so is the same share of the waits.
    """
    if (more := _chunks_beside(choices, searched)) is None:
        return None
    many, none = choices.num_microbatches, xp.zeros_like(more)
    waits_s = pipeline_s - (many + (choices.pp - 1.0) / choices.vpp) * stage_s()
    return xp.where(more > 0.0, (1.0 + more) / many, none) * xp.maximum(waits_s, none)


def _once(direction: int, choices: StepChoices, searched: SearchedCodes) -> PerPlan:
    """Return 1.0 for plans that have the collectives of a direction once a step, 0.0 for others."""
    one = xp.ones_like(choices.pp)
    of_stage = {stage: (0.0 if in_every_pass(stage, direction) else 1.0) * one for stage in searched.zero_stage}
    return pick(searched.zero_stage, choices.zero_stage, of_stage)


def _gathers_again(choices: StepChoices, searched: SearchedCodes) -> Bool[Array, "*#plans"] | None:
    """Return which pipelines gather weights in every backward too; None if none do."""
    stages = [stage for stage in searched.zero_stage if divides(stage, "weight")]
    if not stages:
        return None
    return (choices.pp > 1.0) & functools.reduce(xp.maximum, [choices.zero_stage == stage for stage in stages])


def in_passes(choices: StepChoices, searched: SearchedCodes) -> tuple[PerPlan, PerPlan] | None:
    """Return 1.0 for plans of pipelines whose forwards, or backwards, each have collectives of weights, else 0.0.

    Such a pass is longer by what these leave exposed, on every stage. None if no plan of the search has any. A single
    stage has no bubble, so its passes need not have them.
    """
    every = [{stage: float(in_every_pass(stage, way)) for stage in searched.zero_stage} for way in (FORWARD, BACKWARD)]
    if not any(value for of_stage in every for value in of_stage.values()):
        return None
    one, none = xp.ones_like(choices.pp), xp.zeros_like(choices.pp)
    pipelined = xp.where(choices.pp > 1, one, none)
    forwards, backwards = (
        pipelined * pick(searched.zero_stage, choices.zero_stage, {stage: value * one for stage, value in each.items()})
        for each in every
    )
    return forwards, backwards


def reduction(
    kinds: Sequence[ReducedLayer],
    stage: Stage,
    exposed_kind: int,
    waits_s: PerPlan | None,
    choices: StepChoices,
    searched: SearchedCodes,
    cluster: Cluster,
    assumptions: Assumptions,
) -> PerPlan:
    """Return the exposed seconds of the reduction of `stage` in one step, without those in the passes of a pipeline.

    `exposed_kind` is the kind of the layer that overlaps with nothing. `waits_s` has what `waits_beside` returns.
    """
    once_forward = once_backward = repeated_forward = repeated_backward = replicated = among_replicas = 0.0
    could_hide_s = 0.0
    for kind, layers in stage.layers.items():
        layer = kinds[kind]
        found = layer_reduction(layer, choices, searched, cluster, assumptions)
        exposed_forward, exposed_backward, exposed_last = found.exposed
        if layer.replicas:
            among_replicas = among_replicas + layers * (exposed_last - exposed_backward)
        repeated_forward = repeated_forward + layers * exposed_forward
        repeated_backward = repeated_backward + layers * exposed_backward
        if found.could_hide_s is not None:
            could_hide_s = could_hide_s + (layers - 1.0 if kind == exposed_kind else layers) * found.could_hide_s
        if kind == exposed_kind:
            once_forward, once_backward = found.gather_s - exposed_forward, found.last_s - exposed_last
        replicated = replicated + layers * layer.costs.replicated_gradient_s
    microbatches = choices.num_microbatches
    one = xp.ones_like(microbatches)
    forwards, backwards = (_times(direction, choices, searched) for direction in (FORWARD, BACKWARD))
    gathers = xp.minimum(forwards, one) * once_forward
    if (there := in_passes(choices, searched)) is not None:
        forwards, backwards = (times * (one - own) for times, own in zip((forwards, backwards), there, strict=True))
    gathers = gathers + forwards * repeated_forward
    total = gathers + once_backward + backwards * repeated_backward + replicated
    total = total + among_replicas if any(layer.replicas for layer in kinds) else total
    if waits_s is not None:
        once = of_step(assumptions, "dp_overlap", choices, searched)
        total = total - xp.minimum(could_hide_s, once * waits_s)
    tied = [layer for layer in kinds if layer.costs.tied_bytes]
    return functools.reduce(xp.add, [_tied_s(layer, choices, searched, cluster, assumptions) for layer in tied], total)


def _accompanying_s(
    direction: int,
    layer: ReducedLayer,
    choices: StepChoices,
    searched: SearchedCodes,
    cluster: Cluster,
    assumptions: Assumptions,
) -> PerPlan:
    """Return the seconds of the collectives that accompany a pass of a layer, once."""
    times: dict[StepCollective, PerPlan] = {}
    found: dict[int, PerPlan] = {}
    for stage in searched.zero_stage:
        found[stage] = xp.zeros_like(layer.costs.boundary_bytes)
        for one in accompanying(stage, direction):
            every = one.every if layer.costs.tied_bytes else "step"
            alike = replace(one, direction=FORWARD, every=every)
            if alike not in times:
                times[alike] = _seconds(one, layer, cluster, assumptions)
            found[stage] = found[stage] + times[alike]
    return pick(searched.zero_stage, choices.zero_stage, found)


def _times(direction: int, choices: StepChoices, searched: SearchedCodes) -> PerPlan:
    """Return how often in a step a layer has the collectives of a direction."""
    microbatches = choices.num_microbatches
    found: dict[int, PerPlan] = {}
    for stage in searched.zero_stage:
        once = xp.full_like(microbatches, 1.0 if accompanying(stage, direction) else 0.0)
        found[stage] = microbatches if in_every_pass(stage, direction) else once
    return pick(searched.zero_stage, choices.zero_stage, found)


def _per_weight_byte(one: StepCollective, assumptions: Assumptions) -> PerPlan:
    return assumptions.gradient_bytes / assumptions.weight_bytes if one.of == "gradients" else 1.0


def _seconds(one: StepCollective, layer: ReducedLayer, cluster: Cluster, assumptions: Assumptions) -> PerPlan:
    """Return the seconds of a collective on a layer's weights, one call for each weight group.

    Every use of a tied weight in a microbatch has its own; what a step does once is for the weights that are held.
    """
    costs = layer.costs
    of_groups = costs.weight_bytes if one.every == MICROBATCH else layer.held_bytes
    total = nothing = xp.zeros_like(layer.shards[0].size * costs.boundary_bytes)
    for index, members in enumerate(layer.shards):
        weights = of_groups[index]
        time = collective(one.kind, members, cluster.network, assumptions)
        seconds = time(weights * _per_weight_byte(one, assumptions))
        # A group without weights, which another strategy of the search has, costs nothing, not even latency.
        total = total + xp.where(weights > 0, seconds, nothing)
    return total


def _tied_s(
    layer: ReducedLayer, choices: StepChoices, searched: SearchedCodes, cluster: Cluster, assumptions: Assumptions
) -> PerPlan:
    """Return the seconds of all-reducing the gradient of a tied weight between the first and the last stage.

    Where one stage has the first and the last chunk, it holds the weight once.
    """
    (of_groups,) = layer.costs.tied_bytes
    whole = of_groups.sum(axis=0)
    shard = functools.reduce(
        xp.add, [own * members.per_gpu for own, members in zip(of_groups, layer.shards, strict=True)]
    )
    held = {stage: shard if divides(stage, "gradient") else whole for stage in searched.zero_stage}
    tied_bytes = _per_weight_byte(OF_TIED, assumptions) * pick(searched.zero_stage, choices.zero_stage, held)
    one = xp.ones_like(choices.pp)

    def seconds_apart(tier: int) -> PerPlan:
        """Return the seconds if the two stages are together in a unit of this tier, and in none of a tier below."""
        together = [one if below < tier else 2.0 * one for below in range(len(units))]
        return collective(OF_TIED.kind, group(2.0 * one, *together), cluster.network, assumptions)(tied_bytes)

    units = (choices.pp_nvs, *choices.pp_outer)
    seconds = seconds_apart(len(units))
    for tier in reversed(range(len(units))):
        seconds = xp.where(choices.pp <= units[tier], seconds_apart(tier), seconds)
    nothing = xp.zeros_like(seconds)
    apart = {code: seconds if SCHEDULES[code].holds.in_rounds else nothing for code in searched.schedule}
    return xp.where(choices.pp > 1, pick(searched.schedule, choices.schedule, apart), nothing)


def _seconds_of_replicas(layer: ReducedLayer, cluster: Cluster, assumptions: Assumptions) -> PerPlan:
    """Return the seconds of all-reducing a layer's shards among their replicas."""
    times: list[PerPlan] = []
    for index, (members, replicas) in enumerate(zip(layer.shards, layer.replicas, strict=True)):
        shard_bytes = layer.held_bytes[index] * members.per_gpu
        time = collective(OF_REPLICAS.kind, replicas, cluster.network, assumptions)
        seconds = time(shard_bytes * _per_weight_byte(OF_REPLICAS, assumptions))
        times.append(xp.where(shard_bytes > 0, seconds, xp.zeros_like(shard_bytes)))
    return functools.reduce(xp.add, times)
