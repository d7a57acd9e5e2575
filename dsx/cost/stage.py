"""The costs of a stage: its seconds for a microbatch, its memory, and what it adds to the end of a step.

Each cost is a sum over the layers of the stage, memory nearly so. The even cut, a layer layout and the search for the
optimal cut all take the costs of their stages from here, so equal stages have equal costs.

Values are computed on first use: JAX does not trace what a caller does not need.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dsx import arrays as xp
from dsx.config.assumption_set import MUON
from dsx.cost.context import Assumptions, StepChoices, pick
from dsx.cost.groups import Group, may_contend
from dsx.cost.layer import LayerCosts
from dsx.cost.memory import (
    Divided,
    Memory,
    after_head,
    divided_layers,
    heads_done,
    held,
    largest_transients,
    stage_memory,
    stage_weights,
    updated_matrices,
)
from dsx.cost.muon import orthogonal_s
from dsx.cost.offload import (
    ACTIVATIONS,
    OPTIMIZER,
    Remaining,
    always_split,
    exposed_transfer_s,
    host_orthogonal_s,
    host_update_s,
    kept_layers,
    offload_codes,
    offloaded,
    remaining,
    transfer_s,
    uses_host,
    weights_wait,
    with_transfers,
)
from dsx.cost.pipeline import in_flight, in_flight_of_embedding_and_head, put_off
from dsx.cost.recomputation import ByMode, Recompute, recompute_of
from dsx.cost.reduction import LayerReduction, ReducedLayer, in_passes, layer_reduction, reduction, waits_beside
from dsx.cost.shapes import PerGroup, PerPlan
from dsx.cost.shards import dp_groups, weight_shards
from dsx.cost.stages import Layers, Stack, Stage, even_first, over_layers
from dsx.hardware.cluster import Cluster
from dsx.notation.model import divides
from dsx.plans.choices import NONE_CODE
from dsx.plans.codes import SearchedCodes
from dsx.schedules.order import IN_ROUNDS, StageChunks
from dsx.schedules.schedules import PutOff


@dataclass(frozen=True)
class StageCosts:
    """The costs of any stage of some plans; values per kind of layer broadcast with the layers of a stage."""

    kinds: Sequence[LayerCosts]
    choices: StepChoices
    stack: Stack
    searched: SearchedCodes
    cluster: Cluster
    assumptions: Assumptions

    def load_s(self, stage: Stage) -> PerPlan:
        """Return the seconds of one microbatch on a stage, forward and backward."""
        return over_layers(stage.layers, self.forward_backward_s)

    def forward_and_inputs_s(self, stage: Stage) -> tuple[PerPlan, PerPlan]:
        """Return the seconds of one microbatch on a stage, forward, and backward without gradients that are put off.

        The backward has what outlasts it.
        """
        forward_s, backward_s = (over_layers(stage.layers, passes) for passes in self.passes_s)
        if (waiting := weights_wait(self.choices, self.searched)) is None:
            return forward_s, backward_s
        weights_s = over_layers(stage.layers, [costs.weight_gradient_s for costs in self.kinds])
        return forward_s, xp.where(waiting, backward_s - weights_s, backward_s)

    def memory(self, stage: Stage, microbatches: PerPlan, transients: bool = True) -> Memory:
        """Return the memory of a stage's GPU; it is affine in `microbatches`, the number in flight.

        Without `transients`, the working memory of the largest layer, a layer that comes back from the host, and what
        waits for gradients of weights, it is affine in the layers too, but for offloaded activations.
        """
        saved = self._saved_bytes(stage.layers, self.choices.vpp)
        whole = saved.of_each * microbatches
        of_running = None
        if transients and (waits := self._put_off(stage.position)) is not None:
            running = xp.minimum(waits.waiting, xp.ones_like(waits.waiting))
            recomputed, of_layer = self._recomputed_bytes(stage.layers)
            of_running = running * (recomputed - of_layer)
            whole = whole + (waits.waiting - running) * recomputed
        held = in_flight_of_embedding_and_head(microbatches, self.choices, self.searched)
        if held is not None:
            for kinds, own in zip((self.stack.first, self.stack.last), held, strict=True):
                for kind in kinds:
                    whole = whole + stage.layers[kind] * self._stash_bytes[kind] * (own - microbatches)
        return self._memory(stage, whole, saved.in_transfer if transients else None, microbatches, of_running)

    def peak_memory(self, stage: Stage, holds: StageChunks) -> Memory:
        """Return the memory of a stage's GPU with the most microbatches in flight."""
        choices, searched = self.choices, self.searched
        if holds.in_rounds:
            return self.memory(stage, in_flight(stage.position, choices, searched))
        around, one = stage.chunks_around, xp.ones_like(choices.pp)
        first, last = (self._saved_bytes(layers, one) for layers in (around.first, around.last))
        of_first, of_last = (
            saved.of_each * in_flight(stage.position, choices, searched, is_last)
            for saved, is_last in ((first, False), (last, True))
        )
        again = holds.two_chunks(choices.pp)
        in_transfer = xp.maximum(first.in_transfer, again * last.in_transfer)
        whole = of_first + again * of_last
        of_running = None
        if (waits := self._put_off(stage.position)) is not None:
            running = xp.minimum(waits.waiting, one)
            parts = (self._recomputed_bytes(layers) for layers in (around.first, around.last))
            (recomputed, of_layer), (in_last, in_last_layer) = parts
            # Either most microbatches are held, or gradients of weights of most are put off.
            of_running = running * xp.maximum(recomputed - of_layer, in_last - in_last_layer)
            held_then = waits.held * first.of_each + waits.held_of_last * last.of_each
            put_off_bytes = waits.waiting * recomputed + waits.waiting_of_last * in_last - running * of_layer
            whole = xp.maximum(whole, held_then + put_off_bytes - of_running)
        return self._memory(stage, whole, in_transfer, one, of_running)

    def _put_off(self, position: PerPlan) -> PutOff | None:
        """Return what stages hold for gradients of weights that are put off; None if nothing of it is recomputed."""
        if self.searched.recompute == (NONE_CODE,):
            return None
        return put_off(position, self.choices, self.searched)

    def _recomputed_bytes(self, layers: Layers) -> tuple[PerPlan, PerPlan]:
        """Return what the backward of a microbatch recomputes of some layers, and of one of them.

        That of the layer whose backward runs is part of its working memory.
        """
        of_kinds = zip(self.kinds, self._stash_bytes, strict=True)
        whole = over_layers(layers, [costs.under("stash_bytes", NONE_CODE) - kept for costs, kept in of_kinds])
        body = functools.reduce(xp.add, [layers[kind] for kind in layers if kind not in self._recompute.never])
        return whole, whole / xp.maximum(body, xp.ones_like(body))

    def _memory(
        self,
        stage: Stage,
        saved: PerPlan,
        in_transfer: PerPlan | None,
        microbatches: PerPlan,
        recomputed: PerPlan | None,
    ) -> Memory:
        """Return the memory of a stage's GPU; without transients if `in_transfer` is None.

        Of the microbatch whose backward runs, `recomputed` bytes are there beside `saved`, but not yet for the head.
        """
        ranks, _ = self.shards
        transients = None
        if in_transfer is not None:
            done = heads_done(microbatches, self.choices, self.searched)
            working = with_transfers(self.working_bytes, in_transfer, self._recompute.never)
            working = after_head(working, stage.layers, self._stash_bytes, self.stack, done)
            if recomputed is not None:
                working = [own if kind in self.stack.last else own + recomputed for kind, own in enumerate(working)]
            transients = largest_transients(stage.layers, working, self.divided, self._recompute.never)
        layers = self.kinds, self._held_bytes, ranks, saved, transients
        return stage_memory(*layers, stage, self.choices, self.searched, self.assumptions)

    @cached_property
    def _held_bytes(self) -> list[PerGroup]:
        """Per kind and weight group, the weights that a stage holds for a layer."""
        return [held(costs, self.choices, self.searched, self.stack) for costs in self.kinds]

    @cached_property
    def divided(self) -> Divided | None:
        """What ZeRO divides and layers have whole while they run."""
        transients = self._largest("scattered_bytes"), self.working_bytes
        given = (self._recompute.never, self.choices, self.searched, self.assumptions)
        return divided_layers(self.kinds, self.shards[0], *transients, *given)

    def reduction_s(self, stage: Stage, pipeline_s: PerPlan | None = None) -> PerPlan:
        """Return the exposed seconds of the reduction of a first stage, once a step.

        With the seconds of the pipeline, of interleaved stages it hides behind what passes wait for too. The sum of
        both grows with `pipeline_s`.
        """
        (body, *_), *_ = self.stack.segments
        layers, given = self._reduced, (self.choices, self.searched, self.cluster, self.assumptions)
        waits_s = None
        if pipeline_s is not None:
            waits_s = waits_beside(pipeline_s, functools.partial(self.load_s, stage), self.choices, self.searched)

        def exposed_s(exposed_kind: int) -> PerPlan:
            return reduction(layers, stage, exposed_kind, waits_s, *given)

        exposed = exposed_s(body)
        if (stage.even and self.stack.divided) or not self.stack.first:
            return exposed
        # A stage with only the embedding gathers it first and reduces it last.
        return xp.where(stage.layers[body] > 0, exposed, exposed_s(self.stack.first[-1]))

    @cached_property
    def _reduced(self) -> list[ReducedLayer]:
        none = [None] * len(self.kinds)
        stalls = none if self.stalls_s is None else [*zip(*self.stalls_s, strict=True)]
        share = kept_layers(self.choices, self.stack, self.searched).share
        ends = [xp.zeros_like(share) if kind in self.stack.embedding_and_head else share for kind in range(len(none))]
        apart = always_split(self.choices, self.searched)
        splits = [None if kind in self.stack.last else apart for kind in range(len(none))]
        of_passes = self.backward_s, stalls, self.contended_s or none
        by_kind = zip(self.kinds, self._held_bytes, *self.shards, *of_passes, ends, splits, none, strict=True)
        found = [ReducedLayer(*values) for values in by_kind]
        after = found[self.stack.segments[0][0]]
        return [
            layer._replace(neighbour=after) if kind in self.stack.first else layer for kind, layer in enumerate(found)
        ]

    @cached_property
    def pass_reductions_s(self) -> tuple[Sequence[PerPlan], Sequence[PerPlan]] | None:
        """Per kind, the exposed collectives of weights in each forward and in each backward of a pipeline.

        None if no plan has any.
        """
        if self._in_passes is None:
            return None
        forwards, backwards = self._in_passes
        exposed = [found.exposed for found in self._layer_reductions]
        return [forwards * own for own, _, _ in exposed], [backwards * own for _, own, _ in exposed]

    @cached_property
    def _in_passes(self) -> tuple[PerPlan, PerPlan] | None:
        there = in_passes(self.choices, self.searched)
        return there if there is not None and any(map(xp.may_hold, there)) else None

    @cached_property
    def _layer_reductions(self) -> list[LayerReduction]:
        given = (self.choices, self.searched, self.cluster, self.assumptions)
        return [layer_reduction(layer, *given) for layer in self._reduced]

    @cached_property
    def weight_gradient_s(self) -> Sequence[PerPlan]:
        """Per kind, the seconds of a layer's gradients of weights, where a schedule splits the backward.

        What outlasts a whole backward counts with them, as gradients of inputs need not wait for it.
        """
        found: list[PerPlan] = [costs.weight_gradient_s for costs in self.kinds]
        if self._in_passes is not None:
            _, backwards = self._in_passes
            outlasts = [reduced.outlasts_s for reduced in self._layer_reductions]
            found = [weights + backwards * late for weights, late in zip(found, outlasts, strict=True)]
        if self.stalls_s is None:
            return found
        # Where the backward is always split, gradients of inputs alone hide a transfer, and wait for the rest.
        apart, (_, late_s) = always_split(self.choices, self.searched), self.stalls_s
        if apart is not None:
            late_s = [xp.where(apart, xp.zeros_like(late), late) for late in late_s]
        return [weights + late for weights, late in zip(found, late_s, strict=True)]

    def _updated_weights(self, stage: Stage) -> PerPlan:
        """Return the bytes of the weights that a rank of a stage updates."""
        ranks, _ = self.shards
        whole, sharded = stage_weights(self._held_bytes, ranks, stage)
        stages = self.searched.zero_stage
        parts = {stage: sharded if divides(stage, "optimizer") else whole for stage in stages}
        return pick(stages, self.choices.zero_stage, parts)

    def _updated_matrices(self, stage: Stage) -> PerPlan:
        """Return the bytes of the weights that a rank of a stage updates with Muon."""
        return updated_matrices(self.kinds, self.shards[0], stage, self.choices, self.searched)

    def update_s(self, stage: Stage) -> PerPlan:
        """Return the seconds of the optimizer update of a stage: traffic of its state, and the multiplies of Muon."""
        updated = self._updated_weights(stage)
        device, assumptions = self.cluster.device, self.assumptions
        traffic = assumptions.optimizer_traffic_per_parameter / assumptions.weight_bytes
        on_gpu = updated * (traffic / (assumptions.hbm_efficiency * device.hbm_bandwidth))

        def on_host() -> PerPlan:
            return host_update_s(updated / assumptions.weight_bytes, self.choices.num_gpus, self.cluster, assumptions)

        if assumptions.optimizer != MUON:
            return offloaded(OPTIMIZER, self.choices, self.searched, on_host, on_gpu)
        parameters = self._updated_matrices(stage) / assumptions.weight_bytes
        more = parameters * (assumptions.muon_traffic_per_parameter - assumptions.optimizer_traffic_per_parameter)
        muon_s = over_layers(stage.layers, self.orthogonal_s)
        return muon_s + offloaded(
            OPTIMIZER,
            self.choices,
            self.searched,
            lambda: on_host() + host_orthogonal_s(parameters, more, self.choices.num_gpus, self.cluster, assumptions),
            on_gpu + more / (assumptions.hbm_efficiency * device.hbm_bandwidth),
        )

    @cached_property
    def orthogonal_s(self) -> list[PerPlan]:
        """Per kind, the seconds in which an update orthogonalises a layer's matrices, gathers included."""
        mean = {kind: count / self.choices.pp for kind, count in self.stack.totals().items()}
        flops = over_layers(mean, [costs.orthogonal_flops[0] for costs in self.kinds])
        largest = functools.reduce(xp.maximum, [costs.largest_matrix_flops[0] for costs in self.kinds])
        given = (flops / largest, self.choices, self.searched, self.cluster, self.assumptions)
        return [
            orthogonal_s(costs.orthogonal_s[0], costs.matrix_bytes[0], ranks, *given)
            for costs, ranks in zip(self.kinds, self.shards[0], strict=True)
        ]

    @property
    def uses_host(self) -> bool:
        """Whether any plan of the search offloads."""
        return uses_host(self.searched)

    def host_bytes(self, stage: Stage, microbatches: PerPlan) -> PerPlan:
        """Return the memory of the host that a stage's GPU needs, with so many microbatches in flight.

        It is affine in the layers and in the microbatches. All layers of the body count as stored.
        """
        return self._host_bytes(stage, self._body_stash_bytes(stage.layers) * microbatches)

    def peak_host_bytes(self, stage: Stage, holds: StageChunks) -> PerPlan:
        """Return the memory of the host that a stage's GPU needs with the most microbatches in flight."""
        choices, searched, position = self.choices, self.searched, stage.position
        if holds.in_rounds:
            return self.host_bytes(stage, in_flight(position, choices, searched))
        around = stage.chunks_around
        of_first, of_last = (
            self._body_stash_bytes(layers) * in_flight(position, choices, searched, last)
            for layers, last in ((around.first, False), (around.last, True))
        )
        return self._host_bytes(stage, of_first + holds.two_chunks(choices.pp) * of_last)

    def _body_stash_bytes(self, layers: Layers) -> PerPlan:
        body = {kind: count for kind, count in layers.items() if kind not in self._recompute.never}
        return over_layers(body, self._stash_bytes)

    def _host_bytes(self, stage: Stage, stash: PerPlan) -> PerPlan:
        assumptions, nothing = self.assumptions, xp.zeros_like(stash)
        of_parameter = assumptions.optimizer_bytes_per_parameter + assumptions.host_gradient_bytes

        def state() -> PerPlan:
            held = self._updated_weights(stage) * (of_parameter / assumptions.weight_bytes)
            if assumptions.optimizer != MUON:
                return held
            more = assumptions.muon_bytes_per_parameter - assumptions.optimizer_bytes_per_parameter
            return held + self._updated_matrices(stage) * (more / assumptions.weight_bytes)

        optimizer = offloaded(OPTIMIZER, self.choices, self.searched, state, nothing)
        return optimizer + offloaded(ACTIVATIONS, self.choices, self.searched, lambda: stash, nothing)

    def reduction_and_update_s(
        self, first: Stage, holds: StageChunks = IN_ROUNDS, pipeline_s: PerPlan | None = None
    ) -> tuple[PerPlan, PerPlan]:
        """Return the seconds of the reduction and of the update that a cut with this first stage adds to a step.

        They are those of the first stage, whose backward ends last, and at least those of the first stage of the most
        even cut: if a cut gives the first stage fewer layers, another stage has more and may end last.
        """
        own = self.reduction_s(first, pipeline_s), self.update_s(first)
        if first.even:
            return own
        share = even_first(self.stack, self.choices.pp, self.choices.vpp, holds)
        return xp.maximum(own[0], self.reduction_s(share, pipeline_s)), xp.maximum(own[1], self.update_s(share))

    @cached_property
    def recompute_s(self) -> list[PerPlan]:
        """Per kind, the seconds in which the backward of a layer recomputes activations."""
        return self._on_average("recompute_s")

    @cached_property
    def backward_s(self) -> list[PerPlan]:
        """Per kind, the seconds of a layer's backward, with recomputation."""
        return [costs.backward_s + seconds for costs, seconds in zip(self.kinds, self.recompute_s, strict=True)]

    @cached_property
    def contended_s(self) -> list[tuple[PerPlan, PerPlan]]:
        """Per kind, the seconds of forward and backward in which a layer uses an oversubscribed tier.

        Empty if no tier can be oversubscribed.
        """
        if not may_contend(self.cluster.network):
            return []
        return [
            (costs.contended_s[0], self._recompute.mean(kind, costs.contended_backward_s))
            for kind, costs in enumerate(self.kinds)
        ]

    @cached_property
    def forward_backward_s(self) -> Sequence[PerPlan]:
        """Per kind, the seconds of a layer's forward and backward of one microbatch, stalls included."""
        passes = [forward + back for forward, back in zip(*self._bare_passes_s, strict=True)]
        if self.pass_reductions_s is None:
            return passes
        exposed = zip(*self.pass_reductions_s, strict=True)
        return [seconds + forward + back for seconds, (forward, back) in zip(passes, exposed, strict=True)]

    @cached_property
    def passes_s(self) -> tuple[Sequence[PerPlan], Sequence[PerPlan]]:
        """Per kind, the seconds of a layer's forward, and of its backward with recomputation, stalls included.

        Both have the collectives of weights that they wait for.
        """
        forward, _ = self._bare_passes_s
        if self.pass_reductions_s is not None:
            forward = [seconds + own for seconds, own in zip(forward, self.pass_reductions_s[0], strict=True)]
        return forward, [both - there for both, there in zip(self.forward_backward_s, forward, strict=True)]

    @cached_property
    def _bare_passes_s(self) -> tuple[Sequence[PerPlan], Sequence[PerPlan]]:
        """Per kind, the seconds of a layer's forward and backward with stalls, without collectives of weights."""
        passes = [costs.forward_s for costs in self.kinds], self.backward_s
        if self.stalls_s is None:
            return passes
        forward, back = (
            [seconds + stall for seconds, stall in zip(*pair, strict=True)]
            for pair in zip(passes, self.stalls_s, strict=True)
        )
        return forward, back

    @property
    def stall_s(self) -> list[PerPlan] | None:
        """Per kind, the seconds that a layer stalls for host transfers, one microbatch; None if no plan offloads."""
        return None if self.stalls_s is None else [forward + back for forward, back in zip(*self.stalls_s, strict=True)]

    @cached_property
    def stalls_s(self) -> tuple[list[PerPlan], list[PerPlan]] | None:
        """Per kind, the seconds that a layer stalls in its forward and in its backward; None if no plan offloads."""
        if not offload_codes(ACTIVATIONS, self.searched):
            return None
        kept = kept_layers(self.choices, self.stack, self.searched)

        def of(kind: int, pass_s: ByMode) -> PerPlan:
            costs, nothing = self.kinds[kind], xp.zeros_like(self.kinds[kind].forward_s)

            def under(mode: int) -> PerPlan:
                stash = costs.under("stash_bytes", mode)
                one_way_s = transfer_s(stash, self.choices.num_gpus, self.cluster, self.assumptions)
                return exposed_transfer_s(one_way_s, pass_s(mode))

            stall = self._recompute.mean_of_transferred(kind, under, kept.share, kept.chunks)
            return offloaded(ACTIVATIONS, self.choices, self.searched, lambda: stall, nothing)

        apart = always_split(self.choices, self.searched)

        def backward_s(costs: LayerCosts, mode: int) -> PerPlan:
            whole = costs.backward_s + costs.under("recompute_s", mode)
            return whole if apart is None else xp.where(apart, whole - costs.weight_gradient_s, whole)

        return (
            [of(kind, lambda mode, costs=costs: costs.forward_s) for kind, costs in enumerate(self.kinds)],
            [of(kind, functools.partial(backward_s, costs)) for kind, costs in enumerate(self.kinds)],
        )

    @cached_property
    def shards(self) -> tuple[Sequence[Sequence[Group]], Sequence[Sequence[Group]]]:
        """Per kind and weight group, the ranks over which ZeRO divides, and those that hold the same shard."""
        dp_shard, dp_replicas = dp_groups(self.choices, self.searched)
        # Kinds with the same weight groups have the same groups of ranks, on the same stages.
        found: dict[tuple[int, ...], tuple[list[Group], list[Group]]] = {}
        alike = [(kind in self.stack.embedding_and_head, *_ranks_of(costs)) for kind, costs in enumerate(self.kinds)]
        for costs, key in zip(self.kinds, alike, strict=True):
            if key not in found:
                given = (dp_shard, dp_replicas, self.choices, self.searched)
                found[key] = weight_shards(costs, *given, at_ends=key[0])
        shards, replicas = zip(*(found[key] for key in alike), strict=True)
        return shards, replicas

    @cached_property
    def _recompute(self) -> Recompute:
        return recompute_of(self.choices, self.stack, self.searched)

    @cached_property
    def _stash_bytes(self) -> list[PerPlan]:
        return self._on_average("stash_bytes")

    @cached_property
    def largest_stash_bytes(self) -> list[PerPlan]:
        """Per kind, the activations that a layer saves of one microbatch; of the layer that saves most."""
        return self._largest("stash_bytes")

    @cached_property
    def working_bytes(self) -> list[PerPlan]:
        """Per kind, what the backward of a layer needs beside its stash; of the layer that needs most."""
        return self._largest("working_bytes")

    def _on_average(self, name: str) -> list[PerPlan]:
        """Return, per kind, the mean over its layers of a cost that depends on the recompute mode."""
        return [
            self._recompute.mean(kind, functools.partial(costs.under, name)) for kind, costs in enumerate(self.kinds)
        ]

    def _largest(self, name: str) -> list[PerPlan]:
        return [
            self._recompute.largest(kind, functools.partial(costs.under, name)) for kind, costs in enumerate(self.kinds)
        ]

    def _saved_bytes(self, layers: Layers, chunks: PerPlan) -> Remaining:
        """Return the stash on the GPU of a stage with these layers of so many chunks."""
        if not offload_codes(ACTIVATIONS, self.searched):
            stash = over_layers(layers, self._stash_bytes)
            return Remaining(stash, xp.zeros_like(stash))
        stash, largest, never = self._stash_bytes, self.largest_stash_bytes, self._recompute.never
        return remaining(layers, stash, largest, never, self.choices, self.searched, chunks)


def _ranks_of(costs: LayerCosts) -> tuple[int, ...]:
    """Return a key that kinds of layers share if they have the very same weight groups."""
    fields = (costs.group_size, costs.group_share, costs.group_ep, *costs.group_outer)
    return tuple(id(field) for field in fields)
