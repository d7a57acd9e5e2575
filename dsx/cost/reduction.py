"""The data-parallel reduction: gradients scattered during the backward, weights gathered before the forward.

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

Under ZeRO stage 3, where every backward gathers weights too, the collectives of a rank run one after the other: each
layer is gathered while the pass before it runs, and its gradients are scattered while the next one does
(`dsx.traces.pass_nodes`). No pass waits for a scatter, but the gather behind it does. So a collective hides behind the
pass that it is issued with, and not behind all of a microbatch. Of a chunk of n layers, with a gather of G seconds and
a scatter of S, there run

- with a forward G; with the first one S + G, as the last layer of the backward before it is scattered;
- with a whole backward S + G; with the first one G;
- with gradients of inputs alone G; with those of the last layer nothing;
- with gradients of weights alone S; with those of the first layer nothing, with those of the last one S + G, and G if
  that is the same layer.

The embedding is the first layer of its chunk, but hides nothing: its neighbour is gathered during its forward and
scattered during its backward.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dsx import arrays as xp
from dsx.arrays import PerGroup, PerPlan
from dsx.config.cluster_file import Cluster
from dsx.cost.collectives import collective
from dsx.cost.context import Assumptions, ChosenPlans, StepPlans
from dsx.cost.groups import Group, crosses, group
from dsx.cost.layer import LayerCosts
from dsx.cost.memory import trained_of
from dsx.cost.stages import Stage
from dsx.notation.graph import BACKWARD, FORWARD
from dsx.notation.model import MICROBATCH, OF_REPLICAS, OF_TIED, StepCollective, accompanying, divides, in_every_pass
from dsx.records import Array, Bool


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
    all_weights_s: PerPlan  # the part of the backward that only computes weight gradients

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
        return xp.minimum(self.all_weights_s, self.backward_s)

    @property
    def inputs_s(self) -> PerPlan:
        """The other part of the backward."""
        return self.backward_s - self.weights_s

    def beyond_last_weights_s(self, ends: PerPlan) -> PerPlan:
        """Return what outlasts the last gradients of weights of a chunk; of one layer they are the first ones too."""
        of_many, single = _beyond(self.both_s, self.weights_s), _beyond(self.gather_s, self.weights_s)
        return _mean(_single(ends), single, of_many)


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
    ones, zero = xp.ones_like(ends), xp.zeros_like(ends)
    inputs = (ones - ends) * _beyond(gather_s, layer.inputs_s)
    inner = xp.maximum(ones - 2.0 * ends, zero) * _beyond(layer.scatter_s, layer.weights_s)
    weights = inner + ends * layer.beyond_last_weights_s(ends)
    return Outlasting(forward, xp.where(apart, inputs + weights, backward), xp.where(apart, weights, backward))


def of_embedding(layer: Queued, following: Queued, ends: PerPlan, apart: Bool[Array, "*#plans"] | None) -> Outlasting:
    """Return what collectives outlast the passes of the embedding by, less what `outlasting` has for its neighbour.

    The neighbour, `following`, is not the first layer of the chunk: no scatter comes before its forward, and no gather
    of the next pass after its backward. Where gradients have several bytes a weight, a part of the former stays, so
    that a slower network never makes a chunk faster.
    """
    zero = xp.zeros_like(following.gather_s)
    share = xp.where(following.scatter_s > 0.0, xp.minimum(following.gather_s / following.scatter_s, 1.0), zero)
    gather_s, last_s = layer.gather_s, layer.gather_s + following.scatter_s

    def first(moved_s: PerPlan, pass_s: PerPlan, later_s: PerPlan) -> PerPlan:
        """Return what outlasts a pass of the embedding, less what its neighbour does not wait for."""
        return xp.maximum(_beyond(moved_s, pass_s) - later_s, zero)

    forward = first(layer.scatter_s + following.gather_s, layer.forward_s, share * following.after_backward_s)
    later_s = _beyond(following.both_s, following.backward_s) - _beyond(following.scatter_s, following.backward_s)
    backward = first(gather_s + last_s, layer.backward_s, later_s)
    if apart is None:
        return Outlasting(forward, backward, backward)
    inputs = _beyond(gather_s, layer.inputs_s)
    not_single = 1.0 - _single(ends)
    later_s = following.beyond_last_weights_s(ends) - not_single * _beyond(following.scatter_s, following.weights_s)
    weights = first(last_s, layer.weights_s, later_s)
    return Outlasting(forward, xp.where(apart, inputs + weights, backward), xp.where(apart, weights, backward))


def _single(ends: PerPlan) -> PerPlan:
    """Return the share of chunks that have one layer, where none has none."""
    return xp.maximum(2.0 - 1.0 / xp.maximum(ends, 0.5), xp.zeros_like(ends))


def _mean(share: PerPlan, of_share: PerPlan, of_remainder: PerPlan) -> PerPlan:
    return of_remainder + share * (of_share - of_remainder)


def _beyond(seconds: PerPlan, pass_s: PerPlan) -> PerPlan:
    return xp.maximum(seconds - pass_s, xp.zeros_like(seconds))


class ReducedLayer(NamedTuple):
    """A kind of layer whose gradients are reduced and whose weights are gathered."""

    costs: LayerCosts
    trained_bytes: PerGroup  # of its trained weights, without those that the stage holds and reduces with another layer
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

    def beside_s(self, cluster: Cluster) -> tuple[PerPlan, PerPlan]:
        """Return the seconds of a forward and a backward in which a reduction of the layer can proceed."""
        passes = self.costs.forward_s, self.backward_s
        if self.contended_s is None:
            return passes
        shared = functools.reduce(xp.maximum, [crosses(members, cluster.network) for members in self.shards])
        forward, backward = (
            xp.maximum(pass_s - shared * taken, xp.zeros_like(pass_s))
            for pass_s, taken in zip(passes, self.contended_s, strict=True)
        )
        return forward, backward

    def queued(self, gather_s: PerPlan, back_s: PerPlan, cluster: Cluster) -> Queued:
        """Return what hides collectives that are repeated with every pass: computation and stalls."""
        forward, backward = self.beside_s(cluster)
        if self.stalls_s is not None:
            forward, backward = forward + self.stalls_s[0], backward + self.stalls_s[1]
        return Queued(gather_s, back_s - gather_s, forward, backward, self.costs.weight_gradient_s)


class LayerReduction(NamedTuple):
    """The collectives of a layer's weights that accompany its passes, seconds."""

    gather_s: PerPlan  # before a forward
    last_s: PerPlan  # with the backward of the last microbatch, which reduces among replicas too
    # Of a forward, a backward and the last backward, what the passes of the layer do not hide.
    exposed: tuple[PerPlan, PerPlan, PerPlan]
    outlasts_s: PerPlan  # of the exposed part with a backward, what a longer backward would hide
    # Of that, what a step does once and could overlap with waits of interleaved stages; None if none are interleaved.
    could_hide_s: PerPlan | None


def layer_reduction(layer: ReducedLayer, plans: StepPlans) -> LayerReduction:
    """Return the collectives that accompany the passes of a layer."""
    once = plans.overlap("dp_overlap")
    of_gather, of_back = (_overlap(direction, plans) for direction in (FORWARD, BACKWARD))
    gather, back = (_accompanying_s(direction, layer, plans) for direction in (FORWARD, BACKWARD))
    last = back
    if layer.replicas:
        shards = [weights * ranks.per_gpu for weights, ranks in zip(layer.trained_bytes, layer.shards, strict=True)]
        last = back + _seconds(OF_REPLICAS, shards, layer.replicas, layer, plans)
    (forward, backward), stalls = layer.beside_s(plans.cluster), layer.stalls_s
    gathers, reduces = (_once(direction, plans) for direction in (FORWARD, BACKWARD))
    if (more := _chunks_beside(plans)) is not None:
        passes_beside = 1.0 + gathers * more, 1.0 + reduces * more
        forward, backward = forward * passes_beside[0], backward * passes_beside[1]
        if stalls is not None:
            stalls = stalls[0] * passes_beside[0], stalls[1] * passes_beside[1]
    # What runs while the GPU stalls is hidden, whatever of it could overlap with computing.
    left_gather, left_back, left_last = gather, back, last
    if stalls is not None:
        stalled = ((gather, stalls[0]), (back, stalls[1]), (last, stalls[1]))
        left_gather, left_back, left_last = (_beyond(seconds, stall) for seconds, stall in stalled)
    beside = xp.minimum(left_back, backward)
    hidden_gather, hidden_back, outlasts = xp.minimum(left_gather, forward), beside, left_back - beside
    dividing = [stage for stage in plans.searched.zero_stage if divides(stage, "weight")]
    if dividing:
        # These pipelines gather weights in every backward too.
        has = [plans.choices.zero_stage == stage for stage in dividing]
        queues = (plans.choices.pp > 1.0) & functools.reduce(xp.maximum, has)
        queued = layer.queued(gather, back, plans.cluster)
        late = outlasting(queued, layer.chunk_ends, layer.apart)
        if (neighbour := layer.neighbour) is not None:
            gather_s, back_s = (_accompanying_s(direction, neighbour, plans) for direction in (FORWARD, BACKWARD))
            following = neighbour.queued(gather_s, back_s, plans.cluster)
            late = of_embedding(queued, following, neighbour.chunk_ends, layer.apart)
        # No backward comes before the first forward.
        first = outlasting(queued, xp.zeros_like(layer.chunk_ends), layer.apart)
        share = 1.0 - 1.0 / plans.choices.num_microbatches
        late = Outlasting(*(_mean(share, later_s, first_s) for later_s, first_s in zip(late, first, strict=True)))
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
    return LayerReduction(gather, last, exposed, of_back * outlasts, could_hide_s)


def _overlap(direction: int, plans: StepPlans) -> PerPlan:
    """Return the fraction of the collectives of a direction that overlaps.

    What every microbatch repeats is issued ahead, layer by layer (`fsdp_overlap`); what a step does once is issued in
    buckets (`dp_overlap`).
    """
    once, repeated = plans.overlap("dp_overlap"), plans.assumptions.fsdp_overlap
    return plans.by_code("zero_stage", lambda stage: repeated if in_every_pass(stage, direction) else once)


def _chunks_beside(plans: ChosenPlans) -> PerPlan | None:
    """Return the passes of a layer, beyond its own, that what a step does once overlaps with; None if there are none.

    Interleaved stages run their chunks one after the other, each for a group of up to pp microbatches. A chunk's
    gradients are reduced while the chunks before it run their last group, its weights gathered while they run their
    first one. So all chunks of a stage but one have that many passes beside (Narayanan et al., SC21, figure 4;
    Megatron-LM, `grad_sync_func` and `param_sync_func`, which act on a chunk).
    """
    if not plans.interleaved or not any(schedule.interleaved for schedule in plans.schedules):
        return None
    choices = plans.choices
    more = (1.0 - 1.0 / choices.vpp) * (xp.minimum(choices.pp, choices.num_microbatches) - 1.0)
    zero = xp.zeros_like(more)
    return plans.by_schedule(lambda schedule: more if schedule.interleaved else zero)


def waits_beside(pipeline_s: PerPlan, stage_s: Callable[[], PerPlan], plans: ChosenPlans) -> PerPlan | None:
    """Return the seconds that the passes of interleaved stages wait beside what a step does once; None without any.

    Passes that wait for sends, or for a slower stage, make a pipeline longer than (m + (p - 1) / v) microbatches on the
    first stage, of `stage_s()` each. Of the m passes of a layer, `_chunks_beside` says how many are beside its
    reduction, and so is the same share of the waits.
    """
    if (more := _chunks_beside(plans)) is None:
        return None
    choices, zero = plans.choices, xp.zeros_like(more)
    microbatches = choices.num_microbatches
    waits_s = pipeline_s - (microbatches + (choices.pp - 1.0) / choices.vpp) * stage_s()
    return xp.where(more > 0.0, (1.0 + more) / microbatches, zero) * xp.maximum(waits_s, zero)


def _once(direction: int, plans: ChosenPlans) -> PerPlan:
    """Return 1.0 for plans that have the collectives of a direction once a step, 0.0 for others."""
    ones = xp.ones_like(plans.choices.pp)
    return plans.by_code("zero_stage", lambda stage: (0.0 if in_every_pass(stage, direction) else 1.0) * ones)


def in_passes(plans: ChosenPlans) -> tuple[PerPlan, PerPlan] | None:
    """Return 1.0 for plans of pipelines whose forwards, or backwards, each have collectives of weights, else 0.0.

    Such a pass is longer by what these leave exposed, on every stage. None if no plan of the search has any. A single
    stage has no bubble, so its passes need not have them.
    """
    ways = FORWARD, BACKWARD
    if not any(in_every_pass(stage, way) for stage in plans.searched.zero_stage for way in ways):
        return None
    ones, zero = xp.ones_like(plans.choices.pp), xp.zeros_like(plans.choices.pp)
    pipelined = xp.where(plans.choices.pp > 1, ones, zero)
    forwards, backwards = (
        pipelined * plans.by_code("zero_stage", lambda stage, way=way: float(in_every_pass(stage, way)) * ones)
        for way in ways
    )
    return forwards, backwards


def reduction(
    kinds: Sequence[ReducedLayer], stage: Stage, exposed_kind: int, waits_s: PerPlan | None, plans: StepPlans
) -> PerPlan:
    """Return the exposed seconds of the reduction of `stage` in one step, without those in the passes of a pipeline.

    `exposed_kind` is the kind of the layer that overlaps with nothing. `waits_s` has what `waits_beside` returns.
    """
    once_forward = once_backward = repeated_forward = repeated_backward = replicated = among_replicas = 0.0
    could_hide_s = 0.0
    for kind, layers in stage.layers.items():
        layer = kinds[kind]
        reduced = layer_reduction(layer, plans)
        exposed_forward, exposed_backward, exposed_last = reduced.exposed
        if layer.replicas:
            among_replicas = among_replicas + layers * (exposed_last - exposed_backward)
        repeated_forward = repeated_forward + layers * exposed_forward
        repeated_backward = repeated_backward + layers * exposed_backward
        if reduced.could_hide_s is not None:
            could_hide_s = could_hide_s + (layers - 1.0 if kind == exposed_kind else layers) * reduced.could_hide_s
        if kind == exposed_kind:
            once_forward, once_backward = reduced.gather_s - exposed_forward, reduced.last_s - exposed_last
        replicated = replicated + layers * layer.costs.replicated_gradient_s
    ones = xp.ones_like(plans.choices.num_microbatches)
    forwards, backwards = (_times(direction, plans) for direction in (FORWARD, BACKWARD))
    gathers = xp.minimum(forwards, ones) * once_forward
    if (of_passes := in_passes(plans)) is not None:
        forwards, backwards = (
            times * (ones - has) for times, has in zip((forwards, backwards), of_passes, strict=True)
        )
    gathers = gathers + forwards * repeated_forward
    total = gathers + once_backward + backwards * repeated_backward + replicated
    total = total + among_replicas if any(layer.replicas for layer in kinds) else total
    if waits_s is not None:
        total = total - xp.minimum(could_hide_s, plans.overlap("dp_overlap") * waits_s)
    tied = [layer for layer in kinds if layer.costs.tied_bytes]
    return functools.reduce(xp.add, [_tied_s(layer, plans) for layer in tied], total)


def _accompanying_s(direction: int, layer: ReducedLayer, plans: StepPlans) -> PerPlan:
    """Return the seconds of the collectives that accompany a pass of a layer, once."""
    times: dict[StepCollective, PerPlan] = {}

    def of_stage(stage: int) -> PerPlan:
        seconds = xp.zeros_like(layer.costs.boundary_bytes)
        for moved in accompanying(stage, direction):
            costs = layer.costs
            every = moved.every if costs.tied_bytes or costs.frozen_bytes else "step"
            key = replace(moved, direction=FORWARD, every=every)
            if key not in times:
                weights = layer.trained_bytes  # what a step does once: their gradients, and those that it has updated
                if moved.every == MICROBATCH:  # every use of a tied weight has its own
                    weights = costs.weight_bytes
                    weights = trained_of(weights, costs) if moved.of == "gradients" else weights
                times[key] = _seconds(moved, weights, layer.shards, layer, plans)
            of_pass = times[key]
            if costs.frozen_bytes and direction == BACKWARD:  # a layer may have none
                of_pass = xp.where(layer.backward_s > 0.0, of_pass, xp.zeros_like(of_pass))
            seconds = seconds + of_pass
        return seconds

    return plans.by_code("zero_stage", of_stage)


def _times(direction: int, plans: ChosenPlans) -> PerPlan:
    """Return how often in a step a layer has the collectives of a direction."""
    microbatches = plans.choices.num_microbatches

    def of_stage(stage: int) -> PerPlan:
        if in_every_pass(stage, direction):
            return microbatches
        return xp.full_like(microbatches, 1.0 if accompanying(stage, direction) else 0.0)

    return plans.by_code("zero_stage", of_stage)


def _per_weight_byte(moved: StepCollective, assumptions: Assumptions) -> PerPlan:
    return assumptions.gradient_bytes / assumptions.weight_bytes if moved.of == "gradients" else 1.0


def _seconds(
    moved: StepCollective, of_groups: Iterable[PerPlan], ranks: Sequence[Group], layer: ReducedLayer, plans: StepPlans
) -> PerPlan:
    """Return the seconds of a collective on a layer's weights, one call for each weight group."""
    total = zero = xp.zeros_like(layer.shards[0].size * layer.costs.boundary_bytes)
    for weights, members in zip(of_groups, ranks, strict=True):
        time = collective(moved.kind, members, plans.cluster.network, plans.assumptions)
        seconds = time(weights * _per_weight_byte(moved, plans.assumptions))
        # A group without weights, which another strategy of the search has, costs nothing, not even latency.
        total = total + xp.where(weights > 0, seconds, zero)
    return total


def _tied_s(layer: ReducedLayer, plans: StepPlans) -> PerPlan:
    """Return the seconds of all-reducing the gradient of a tied weight between the first and the last stage.

    Where one stage has the first and the last chunk, it holds the weight once.
    """
    choices, assumptions = plans.choices, plans.assumptions
    (of_groups,) = layer.costs.tied_bytes
    of_groups = trained_of(of_groups, layer.costs)
    weights = of_groups.sum(axis=0)
    shards = [num_bytes * members.per_gpu for num_bytes, members in zip(of_groups, layer.shards, strict=True)]
    shard = functools.reduce(xp.add, shards)
    held = plans.by_code("zero_stage", lambda stage: shard if divides(stage, "gradient") else weights)
    tied_bytes = _per_weight_byte(OF_TIED, assumptions) * held
    ones, units = xp.ones_like(choices.pp), (choices.pp_nvs, *choices.pp_outer)

    def seconds_apart(tier: int) -> PerPlan:
        """Return the seconds if the two stages are together in a unit of this tier, and in none of a tier below."""
        together = [ones if below < tier else 2.0 * ones for below in range(len(units))]
        return collective(OF_TIED.kind, group(2.0 * ones, *together), plans.cluster.network, assumptions)(tied_bytes)

    seconds = seconds_apart(len(units))
    for tier in reversed(range(len(units))):
        seconds = xp.where(choices.pp <= units[tier], seconds_apart(tier), seconds)
    zero = xp.zeros_like(seconds)
    if layer.costs.frozen_bytes:
        seconds = xp.where(weights > 0.0, seconds, zero)
    apart = plans.by_schedule(lambda schedule: seconds if schedule.holds.in_rounds else zero)
    return xp.where(choices.pp > 1, apart, zero)
