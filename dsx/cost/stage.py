"""The costs of a stage: its seconds for a microbatch, and what it adds to the end of a step; `StageMemory` its memory.

Each cost is a sum over the layers of the stage, memory nearly so. The even cut, a layer layout and the search for the
optimal cut all take the costs of their stages from here, so equal stages have equal costs.

Values are computed on first use: JAX does not trace what a caller does not need.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dsx import arrays as xp
from dsx.arrays import PerPlan
from dsx.config.assumption_set import MUON
from dsx.cost.groups import may_contend
from dsx.cost.layer import LayerCosts
from dsx.cost.memory import StageMemory
from dsx.cost.muon import orthogonal_s
from dsx.cost.offload import (
    ACTIVATIONS,
    OPTIMIZER,
    always_split,
    host_orthogonal_s,
    host_update_s,
    kept_layers,
    offload_codes,
    offloaded,
    transfer_s,
)
from dsx.cost.recomputation import ByMode
from dsx.cost.reduction import LayerReduction, ReducedLayer, in_passes, layer_reduction, reduction, waits_beside
from dsx.cost.stages import Stage, even_first, over_layers
from dsx.schedules.order import IN_ROUNDS, StageChunks


@dataclass(frozen=True)
class StageCosts(StageMemory):
    """The costs of any stage of some plans; values per kind of layer broadcast with the layers of a stage."""

    def load_s(self, stage: Stage) -> PerPlan:
        """Return the seconds of one microbatch on a stage, forward and backward."""
        return over_layers(stage.layers, self.forward_backward_s)

    def forward_and_inputs_s(self, stage: Stage) -> tuple[PerPlan, PerPlan]:
        """Return the seconds of one microbatch on a stage, forward, and backward without gradients that are put off.

        The backward has what outlasts it.
        """
        forward_s, backward_s = (over_layers(stage.layers, passes) for passes in self.passes_s)
        if (waiting := self.pipelines(lambda schedule: schedule.weights_wait)) is None:
            return forward_s, backward_s
        weights_s = over_layers(stage.layers, [costs.weight_gradient_s for costs in self.kinds])
        return forward_s, xp.where(waiting, backward_s - weights_s, backward_s)

    def reduction_s(self, stage: Stage, pipeline_s: PerPlan | None = None) -> PerPlan:
        """Return the exposed seconds of the reduction of a first stage, once a step.

        With the seconds of the pipeline, of interleaved stages it hides behind what passes wait for too. The sum of
        both grows with `pipeline_s`.
        """
        (body, *_), *_ = self.stack.segments
        if self.stack.first_trained is not None:
            body = self.stack.first_trained
        waits_s = None
        if pipeline_s is not None:
            waits_s = waits_beside(pipeline_s, functools.partial(self.load_s, stage), self)
        exposed = reduction(self._reduced, stage, body, waits_s, self)
        if (stage.even and self.stack.divided) or not self.stack.first or self.stack.num_constant:
            return exposed
        # A stage with only the embedding gathers it first and reduces it last.
        of_embedding = reduction(self._reduced, stage, self.stack.first[-1], waits_s, self)
        return xp.where(stage.layers[body] > 0, exposed, of_embedding)

    @cached_property
    def _reduced(self) -> list[ReducedLayer]:
        nothing = [None] * len(self.kinds)
        stalls = nothing if self.stalls_s is None else [*zip(*self.stalls_s, strict=True)]
        share = kept_layers(self, self.stack).share
        ends = [
            xp.zeros_like(share) if kind in self.stack.embedding_and_head else share for kind in range(len(nothing))
        ]
        apart = always_split(self)
        splits = [None if kind in self.stack.last else apart for kind in range(len(nothing))]
        of_passes = self.backward_s, stalls, self.contended_s or nothing
        by_kind = zip(self.kinds, self.trained_bytes, *self.shards, *of_passes, ends, splits, nothing, strict=True)
        layers = [ReducedLayer(*values) for values in by_kind]
        following = layers[self.stack.segments[0][0]]
        return [
            layer._replace(neighbour=following) if kind in self.stack.first else layer
            for kind, layer in enumerate(layers)
        ]

    @cached_property
    def pass_reductions_s(self) -> tuple[Sequence[PerPlan], Sequence[PerPlan]] | None:
        """Per kind, the exposed collectives of weights in each forward and in each backward of a pipeline.

        None if no plan has any.
        """
        if self._in_passes is None:
            return None
        exposed = [reduced.exposed for reduced in self._layer_reductions]
        forwards, backwards = ([has * of_kind[way] for of_kind in exposed] for way, has in enumerate(self._in_passes))
        return forwards, backwards

    @cached_property
    def _in_passes(self) -> tuple[PerPlan, PerPlan] | None:
        has = in_passes(self)
        return has if has is not None and any(map(xp.may_hold, has)) else None

    @cached_property
    def _layer_reductions(self) -> list[LayerReduction]:
        return [layer_reduction(layer, self) for layer in self._reduced]

    @cached_property
    def weight_gradient_s(self) -> Sequence[PerPlan]:
        """Per kind, the seconds of a layer's gradients of weights, where a schedule splits the backward.

        What outlasts a whole backward counts with them, as gradients of inputs need not wait for it.
        """
        seconds: list[PerPlan] = [costs.weight_gradient_s for costs in self.kinds]
        if self._in_passes is not None:
            _, backwards = self._in_passes
            outlasts = [reduced.outlasts_s for reduced in self._layer_reductions]
            seconds = [weights + backwards * late for weights, late in zip(seconds, outlasts, strict=True)]
        if self.stalls_s is None:
            return seconds
        # Where the backward is always split, gradients of inputs alone hide a transfer, and wait for its other part.
        apart, (_, late_s) = always_split(self), self.stalls_s
        if apart is not None:
            late_s = [xp.where(apart, xp.zeros_like(late), late) for late in late_s]
        return [weights + late for weights, late in zip(seconds, late_s, strict=True)]

    def update_s(self, stage: Stage) -> PerPlan:
        """Return the seconds of the optimizer update of a stage: traffic of its state, and the multiplies of Muon."""
        updated = self.updated_weights(stage)
        device, assumptions, num_gpus = self.cluster.device, self.assumptions, self.choices.num_gpus
        traffic = assumptions.optimizer_traffic_per_parameter / assumptions.weight_bytes
        on_gpu = updated * (traffic / (assumptions.hbm_efficiency * device.hbm_bandwidth))

        def on_host() -> PerPlan:
            return host_update_s(updated / assumptions.weight_bytes, num_gpus, self.cluster, assumptions)

        if assumptions.optimizer != MUON:
            return offloaded(OPTIMIZER, self, on_host, on_gpu)
        parameters = self.updated_matrices(stage) / assumptions.weight_bytes
        more = parameters * (assumptions.muon_traffic_per_parameter - assumptions.optimizer_traffic_per_parameter)
        muon_s = over_layers(stage.layers, self.orthogonal_s)
        return muon_s + offloaded(
            OPTIMIZER,
            self,
            lambda: on_host() + host_orthogonal_s(parameters, more, num_gpus, self.cluster, assumptions),
            on_gpu + more / (assumptions.hbm_efficiency * device.hbm_bandwidth),
        )

    @cached_property
    def orthogonal_s(self) -> list[PerPlan]:
        """Per kind, the seconds in which an update orthogonalises a layer's matrices, gathers included."""
        mean = {kind: count / self.choices.pp for kind, count in self.stack.totals().items()}
        flops = over_layers(mean, [costs.orthogonal_flops[0] for costs in self.kinds])
        largest = functools.reduce(xp.maximum, [costs.largest_matrix_flops[0] for costs in self.kinds])
        num_matrices = flops / largest
        return [
            orthogonal_s(costs.orthogonal_s[0], costs.matrix_bytes[0], ranks, num_matrices, self)
            for costs, ranks in zip(self.kinds, self.shards[0], strict=True)
        ]

    def reduction_and_update_s(
        self, first: Stage, holds: StageChunks = IN_ROUNDS, pipeline_s: PerPlan | None = None
    ) -> tuple[PerPlan, PerPlan]:
        """Return the seconds of the reduction and of the update that a cut with this first stage adds to a step.

        They are those of the first stage, whose backward ends last, and at least those of the first stage of the most
        even cut: if a cut gives the first stage fewer layers, another stage has more and may end last.
        """
        reduction_s, update_s = self.reduction_s(first, pipeline_s), self.update_s(first)
        if first.even:
            return reduction_s, update_s
        share = even_first(self.stack, self.choices.pp, self.choices.vpp, holds)
        return (
            xp.maximum(reduction_s, self.reduction_s(share, pipeline_s)),
            xp.maximum(update_s, self.update_s(share)),
        )

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
            (costs.contended_s[0], self.recompute.mean(kind, costs.contended_backward_s))
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
            forward = [seconds + waits_s for seconds, waits_s in zip(forward, self.pass_reductions_s[0], strict=True)]
        return forward, [
            seconds - forward_s for seconds, forward_s in zip(self.forward_backward_s, forward, strict=True)
        ]

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
        kept, apart = kept_layers(self, self.stack), always_split(self)

        def stall_s(kind: int, pass_s: ByMode) -> PerPlan:
            costs, zero = self.kinds[kind], xp.zeros_like(self.kinds[kind].forward_s)

            def under(mode: int) -> PerPlan:
                stash = costs.under("stash_bytes", mode)
                one_way_s = transfer_s(stash, self.choices.num_gpus, self.cluster, self.assumptions)
                exposed_s = one_way_s - pass_s(mode)
                return xp.maximum(exposed_s, xp.zeros_like(one_way_s))

            stall = self.recompute.mean_of_transferred(kind, under, kept.share, kept.chunks)
            return offloaded(ACTIVATIONS, self, lambda: stall, zero)

        def backward_s(costs: LayerCosts, mode: int) -> PerPlan:
            seconds = costs.backward_s + costs.under("recompute_s", mode)
            return seconds if apart is None else xp.where(apart, seconds - costs.weight_gradient_s, seconds)

        return (
            [stall_s(kind, lambda mode, costs=costs: costs.forward_s) for kind, costs in enumerate(self.kinds)],
            [stall_s(kind, functools.partial(backward_s, costs)) for kind, costs in enumerate(self.kinds)],
        )
