"""Memory of a stage's GPU.

A stage has n_k layers of kind k, each with W_k bytes of weights and A_k bytes of saved activations, and f_k
microbatches in flight. Its memory is the weights, sum n_k W_k; the gradients, the same scaled to their element size;
the optimizer state; the activations, sum f_k n_k A_k; and the largest transient of one layer. The head has run its
backward, and freed what it saved, before another layer does. ZeRO divides over the ranks that hold the same parameters:
the optimizer state from stage 1 on, gradients from stage 2 on, weights in stage 3 (Rajbhandari et al., 2020; Narayanan
et al., SC21; arXiv 2410.00273, section 4). A layer's gradients are whole until they are scattered, and weights are
gathered of two layers at a time, the one that runs and the next one (Zhao et al., FSDP, 2023, section 3.3). Offloaded
tensors (dsx.cost.offload) do not count. The assumption set states what a framework adds: `overhead`, and
`fragmentation` as a fraction of the activations.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from dsx import arrays as xp
from dsx.arrays import PerGroup, PerPlan
from dsx.config.assumption_set import MUON
from dsx.cost.context import ChosenPlans, StepPlans
from dsx.cost.groups import Group
from dsx.cost.layer import LayerCosts
from dsx.cost.offload import (
    ACTIVATIONS,
    OPTIMIZER,
    Remaining,
    always_split,
    offload_codes,
    offloaded,
    remaining,
    uses_host,
    with_transfers,
)
from dsx.cost.pipeline import in_flight, in_flight_of_embedding_and_head, put_off
from dsx.cost.recomputation import Recompute, recompute_of
from dsx.cost.shards import dp_groups, weight_shards
from dsx.cost.stages import Layers, Stack, Stage, over_layers
from dsx.notation.model import State, divides
from dsx.plans.choices import NONE_CODE
from dsx.records import Array
from dsx.schedules.order import StageChunks
from dsx.schedules.schedules import PutOff


class Memory(NamedTuple):
    """The memory parts of a stage, in bytes."""

    weight_bytes: PerPlan
    gradient_bytes: PerPlan
    optimizer_bytes: PerPlan
    activation_bytes: PerPlan
    overhead_bytes: PerPlan

    @property
    def peak_bytes(self) -> PerPlan:
        """All parts together."""
        return sum(self[1:], self[0])


class Divided(NamedTuple):
    """What ZeRO divides and a layer has whole while it runs, from stage 2 on; bytes per kind."""

    weights: Sequence[PerPlan]  # that plans gather with every microbatch
    gradients: Sequence[PerPlan]  # that they scatter with every microbatch: what a layer needs more than without


class Transients(NamedTuple):
    """The most that the layers of a stage need beside what they hold all the time, bytes."""

    working: PerPlan  # activations, and gradients of weights before they are scattered
    gathered: PerPlan  # weights


@dataclass(frozen=True)
class StageMemory(StepPlans):
    """The memory of any stage of some plans; values per kind of layer broadcast with the layers of a stage."""

    kinds: Sequence[LayerCosts]

    def memory(self, stage: Stage, microbatches: PerPlan, transients: bool = True) -> Memory:
        """Return the memory of a stage's GPU; it is affine in `microbatches`, the number in flight.

        Without `transients`, the working memory of the largest layer, a layer that comes back from the host, and what
        waits for gradients of weights, it is affine in the layers too, but for offloaded activations.
        """
        saved = self._saved_bytes(stage.layers, self.choices.vpp)
        stash, of_running = saved.per_microbatch * microbatches, None
        if transients and (waits := self._put_off(stage.position)) is not None:
            running = xp.minimum(waits.waiting, xp.ones_like(waits.waiting))
            recomputed, of_layer = self._recomputed_bytes(stage.layers)
            of_running = running * (recomputed - of_layer)
            stash = stash + (waits.waiting - running) * recomputed
        if (of_ends := in_flight_of_embedding_and_head(microbatches, self)) is not None:
            for kinds, held in zip((self.stack.first, self.stack.last), of_ends, strict=True):
                for kind in kinds:
                    stash = stash + stage.layers[kind] * self.stash_bytes[kind] * (held - microbatches)
        return self._memory(stage, stash, saved.in_transfer if transients else None, microbatches, of_running)

    def peak_memory(self, stage: Stage, holds: StageChunks) -> Memory:
        """Return the memory of a stage's GPU with the most microbatches in flight."""
        if holds.in_rounds:
            return self.memory(stage, in_flight(stage.position, self))
        around, ones = stage.chunks_around, xp.ones_like(self.choices.pp)
        first, last = (self._saved_bytes(layers, ones) for layers in (around.first, around.last))
        of_first, of_last = (
            saved.per_microbatch * in_flight(stage.position, self, is_last)
            for saved, is_last in ((first, False), (last, True))
        )
        twice = holds.two_chunks(self.choices.pp)
        in_transfer = xp.maximum(first.in_transfer, twice * last.in_transfer)
        stash, of_running = of_first + twice * of_last, None
        if (waits := self._put_off(stage.position)) is not None:
            running = xp.minimum(waits.waiting, ones)
            parts = (self._recomputed_bytes(layers) for layers in (around.first, around.last))
            (recomputed, of_layer), (in_last, in_last_layer) = parts
            # Either most microbatches are held, or gradients of weights of most are put off.
            of_running = running * xp.maximum(recomputed - of_layer, in_last - in_last_layer)
            held_then = waits.held * first.per_microbatch + waits.held_of_last * last.per_microbatch
            put_off_bytes = waits.waiting * recomputed + waits.waiting_of_last * in_last - running * of_layer
            stash = xp.maximum(stash, held_then + put_off_bytes - of_running)
        return self._memory(stage, stash, in_transfer, ones, of_running)

    def _put_off(self, position: PerPlan) -> PutOff | None:
        """Return what stages hold for gradients of weights that are put off; None if nothing of it is recomputed."""
        return None if self.searched.recompute == (NONE_CODE,) else put_off(position, self)

    def _recomputed_bytes(self, layers: Layers) -> tuple[PerPlan, PerPlan]:
        """Return what the backward of a microbatch recomputes of some layers, and of one of them.

        That of the layer whose backward runs is part of its working memory.
        """
        of_kinds = zip(self.kinds, self.stash_bytes, strict=True)
        recomputed = over_layers(layers, [costs.under("stash_bytes", NONE_CODE) - kept for costs, kept in of_kinds])
        body = functools.reduce(xp.add, [layers[kind] for kind in layers if kind not in self.recompute.never])
        return recomputed, recomputed / xp.maximum(body, xp.ones_like(body))

    def _memory(
        self,
        stage: Stage,
        stash: PerPlan,
        in_transfer: PerPlan | None,
        microbatches: PerPlan,
        recomputed: PerPlan | None,
    ) -> Memory:
        """Return the memory of a stage's GPU with `stash` saved; without transients if `in_transfer` is None.

        Of the microbatch whose backward runs, `recomputed` bytes exist beside `stash`, but not yet for the head.
        """
        assumptions, zero = self.assumptions, xp.zeros_like(stash)
        per_weight_byte = 1.0 / assumptions.weight_bytes
        weights = self._divided_weights(self.held_bytes, stage)
        trained = weights if self.trained_bytes is self.held_bytes else self._divided_weights(self.trained_bytes, stage)
        held, gradients = weights("weight"), trained("gradient")
        state = trained("optimizer") * (assumptions.optimizer_bytes_per_parameter * per_weight_byte)
        if assumptions.optimizer == MUON:
            more = (assumptions.muon_bytes_per_parameter - assumptions.optimizer_bytes_per_parameter) * per_weight_byte
            state = state + self.updated_matrices(stage) * more
        optimizer, activations = offloaded(OPTIMIZER, self, lambda: zero, state), stash
        if in_transfer is not None:
            never = self.recompute.never
            working = with_transfers(self.working_bytes, in_transfer, never)
            working = after_head(working, stage.layers, self.stash_bytes, self.stack, heads_done(microbatches, self))
            if recomputed is not None:
                last = self.stack.last
                working = [of_kind if kind in last else of_kind + recomputed for kind, of_kind in enumerate(working)]
            transients = largest_transients(stage.layers, working, self.divided, never)
            activations, held = activations + transients.working, held + transients.gathered
        return Memory(
            weight_bytes=held,
            gradient_bytes=gradients * (assumptions.gradient_bytes * per_weight_byte),
            optimizer_bytes=optimizer,
            activation_bytes=activations,
            overhead_bytes=assumptions.overhead + assumptions.fragmentation * activations,
        )

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
        if holds.in_rounds:
            return self.host_bytes(stage, in_flight(stage.position, self))
        around = stage.chunks_around
        of_first, of_last = (
            self._body_stash_bytes(layers) * in_flight(stage.position, self, last)
            for layers, last in ((around.first, False), (around.last, True))
        )
        return self._host_bytes(stage, of_first + holds.two_chunks(self.choices.pp) * of_last)

    def _body_stash_bytes(self, layers: Layers) -> PerPlan:
        body = {kind: count for kind, count in layers.items() if kind not in self.recompute.never}
        return over_layers(body, self.stash_bytes)

    def _host_bytes(self, stage: Stage, stash: PerPlan) -> PerPlan:
        assumptions, zero = self.assumptions, xp.zeros_like(stash)
        of_parameter = assumptions.optimizer_bytes_per_parameter + assumptions.host_gradient_bytes

        def state() -> PerPlan:
            held = self.updated_weights(stage) * (of_parameter / assumptions.weight_bytes)
            if assumptions.optimizer != MUON:
                return held
            more = assumptions.muon_bytes_per_parameter - assumptions.optimizer_bytes_per_parameter
            return held + self.updated_matrices(stage) * (more / assumptions.weight_bytes)

        optimizer = offloaded(OPTIMIZER, self, state, zero)
        return optimizer + offloaded(ACTIVATIONS, self, lambda: stash, zero)

    def updated_weights(self, stage: Stage) -> PerPlan:
        """Return the bytes of the weights that a rank of a stage updates: its shard of them from ZeRO stage 1 on."""
        return self._divided_weights(self.trained_bytes, stage)("optimizer")

    def updated_matrices(self, stage: Stage) -> PerPlan:
        """Return the bytes of the weights that a rank of a stage updates with Muon."""
        return self._divided_weights([costs.matrix_bytes[0] for costs in self.kinds], stage)("optimizer")

    def _divided_weights(self, of_kinds: Sequence[Array], stage: Stage) -> Callable[[State], PerPlan]:
        """Return the bytes of a stage's weights that a rank has of a state, by the state.

        `of_kinds` has, per kind and weight group, the bytes of a layer. Weights that the same ranks hold are added up
        before they are divided, so that a search computes one sum over keys and choices instead of one for each kind.
        """
        terms: dict[tuple[int, int], list[PerPlan]] = {}
        for kind, layers in stage.layers.items():
            for index in range(len(self._dividing[kind])):
                terms.setdefault((self._first_with_ranks[kind], index), []).append(layers * of_kinds[kind][index])
        totals = {place: functools.reduce(xp.add, of_place) for place, of_place in terms.items()}
        weights = functools.reduce(xp.add, totals.values())
        shards = [total * self._dividing[kind][index].per_gpu for (kind, index), total in totals.items()]
        sharded = functools.reduce(xp.add, shards)
        return lambda state: self.by_code("zero_stage", lambda stage: sharded if divides(stage, state) else weights)

    @cached_property
    def shards(self) -> tuple[Sequence[Sequence[Group]], Sequence[Sequence[Group]]]:
        """Per kind and weight group, the ranks over which ZeRO divides, and those that hold the same shard."""
        return self._weight_groups(self.kinds)

    @cached_property
    def _dividing(self) -> Sequence[Sequence[Group]]:
        """Per kind and weight group, the ranks over which ZeRO divides, wherever they are: memory has no part in that.

        Where ranks are is most of the work of a bound of memory, which leaves out most plans of a search.
        """
        return self._weight_groups([replace(costs, rank_placement=()) for costs in self.kinds])[0]

    def _weight_groups(
        self, kinds: Sequence[LayerCosts]
    ) -> tuple[Sequence[Sequence[Group]], Sequence[Sequence[Group]]]:
        dp, ends = dp_groups(self), self.stack.embedding_and_head
        groups = {
            first: weight_shards(kinds[first], dp, self, at_ends=first in ends)
            for first in dict.fromkeys(self._first_with_ranks)
        }
        shards, replicas = zip(*(groups[first] for first in self._first_with_ranks), strict=True)
        return shards, replicas

    @cached_property
    def _first_with_ranks(self) -> list[int]:
        """Per kind, the first one with the very same weight groups on the same stages, so with the same ranks."""

        def ranks(kind: int) -> list[object]:
            costs = self.kinds[kind]
            return [costs.group_size, costs.group_share, costs.group_ep, *costs.group_outer]

        def same(kind: int, other: int) -> bool:
            if (kind in self.stack.embedding_and_head) != (other in self.stack.embedding_and_head):
                return False
            return all(group is same_group for group, same_group in zip(ranks(kind), ranks(other), strict=True))

        return [next(other for other in range(kind + 1) if same(kind, other)) for kind in range(len(self.kinds))]

    @cached_property
    def held_bytes(self) -> list[PerGroup]:
        """Per kind and weight group, the weights that a stage holds for a layer.

        A single stage has both layers of a tied weight, and holds the weight for the first of them alone (Megatron
        Core, LanguageModule.shared_embedding_or_output_weight). So does the stage with the first and the last chunk of
        a schedule that does not hold chunks in rounds.
        """

        def held(costs: LayerCosts) -> PerGroup:
            if not (costs.tied_bytes and self.stack.first):
                return costs.weight_bytes
            ones, zero = xp.ones_like(self.choices.pp), xp.zeros_like(self.choices.pp)
            of_schedule = self.by_schedule(lambda schedule: zero if schedule.holds.in_rounds else ones)
            together = xp.where(self.choices.pp > 1.0, of_schedule, ones)
            pairs = zip(costs.weight_bytes, costs.tied_bytes[0], strict=True)
            return xp.stack([weights - together * tied for weights, tied in pairs])

        return [held(costs) for costs in self.kinds]

    @cached_property
    def trained_bytes(self) -> list[PerGroup]:
        """Per kind and weight group, those of `held_bytes` that are trained, with gradients and optimizer states."""
        if not any(costs.frozen_bytes for costs in self.kinds):
            return self.held_bytes
        return [trained_of(held, costs) for held, costs in zip(self.held_bytes, self.kinds, strict=True)]

    @cached_property
    def divided(self) -> Divided | None:
        """What ZeRO divides and layers have whole; None if no plan of the search scatters with every microbatch.

        Where two passes run side by side, only one of them is in a layer of which a stage has one, embedding or head;
        the other one is in another layer. A pass for the gradients of weights alone gathers nothing: they take the
        place of the two layers gathered otherwise.
        """
        zero_stages, not_body = self.searched.zero_stage, self.recompute.never
        if not any(divides(stage, "gradient") for stage in zero_stages):
            return None
        per_weight_byte = self.assumptions.gradient_bytes / self.assumptions.weight_bytes
        apart = always_split(self)

        def of_dividing(state: State, divided: PerPlan) -> PerPlan:
            """Return what is whole of a state that ZeRO divides; 0 for plans that do not divide it."""
            dividing = [stage for stage in zero_stages if divides(stage, state)]
            if len(dividing) == len(zero_stages):
                return divided
            zero = xp.zeros_like(divided)
            return xp.where(self.choices.zero_stage >= min(dividing), divided, zero) if dividing else zero

        weights: list[PerPlan] = []
        gradients: list[PerPlan] = []
        by_kind = zip(self.kinds, self._dividing, self._largest("scattered_bytes"), self.working_bytes, strict=True)
        for kind, (costs, shards, scattered, working) in enumerate(by_kind):
            zero = xp.zeros_like(costs.boundary_bytes)

            def shared(of_groups: PerGroup, shards: Sequence[Group] = shards, zero: PerPlan = zero) -> PerPlan:
                pairs = zip(of_groups, shards, strict=True)
                whole = [xp.where(ranks.per_gpu < 1.0, size, xp.zeros_like(size)) for size, ranks in pairs]
                return functools.reduce(xp.add, whole, zero)

            weights.append(of_dividing("weight", of_all := shared(costs.weight_bytes)))
            of_trained = shared(trained_of(costs.weight_bytes, costs)) if costs.frozen_bytes else of_all
            more = xp.minimum(scattered - working, per_weight_byte * of_trained)
            if apart is not None and kind not in not_body:
                more = xp.where(apart, xp.maximum(more - 2.0 * weights[kind], zero), more)
            gradients.append(of_dividing("gradient", more))
        if self.stack.num_constant and self.stack.first_trained in (None, *self.stack.last):
            gradients = self._without_next_backward(weights, gradients)
        if not any(schedule.overlap for schedule in self.schedules):
            return Divided(weights, gradients)
        ones = xp.ones_like(self.choices.pp)
        sides = self.by_schedule(lambda schedule: (2.0 if schedule.overlap else 1.0) * ones)
        sides = xp.where(self.choices.pp > 1.0, sides, ones)

        def beside(kind: int) -> PerPlan:
            if kind not in not_body:
                return weights[kind]
            return functools.reduce(xp.maximum, [of_kind for other, of_kind in enumerate(weights) if other != kind])

        at_once = [of_kind + (sides - 1.0) * beside(kind) for kind, of_kind in enumerate(weights)]
        return Divided(at_once, gradients)

    def _without_next_backward(self, weights: Sequence[PerPlan], gradients: Sequence[PerPlan]) -> list[PerPlan]:
        """Return the gradients of `Divided` where the layers before the head have no backward.

        No weights are gathered for one while the head runs; those of the head are while a layer before it does. After
        a forward alone on a single stage, the next microbatch begins.
        """
        (first, *_), others = [*self.stack.first, 0], [*gradients]
        body = [kind for kinds, _ in self.stack.body for kind in kinds]
        beside = functools.reduce(xp.maximum, [weights[kind] for kind in body])
        of_body = functools.reduce(xp.maximum, [self.working_bytes[kind] + weights[kind] for kind in body])
        following = xp.zeros_like(beside)
        if self.stack.first_trained is None:
            following = xp.where(self.choices.pp > 1.0, following, weights[first])
        for kind in self.stack.last:
            working, before = self.working_bytes[kind], of_body - self.stash_bytes[kind]  # nothing is saved by then
            others[kind] = xp.maximum(working + gradients[kind] + following, before) - beside - working
        return others

    @cached_property
    def recompute(self) -> Recompute:
        """What the plans recompute."""
        return recompute_of(self)

    @cached_property
    def stash_bytes(self) -> list[PerPlan]:
        """Per kind, the activations that a layer saves of one microbatch, the mean over the layers."""
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
            self.recompute.mean(kind, functools.partial(costs.under, name)) for kind, costs in enumerate(self.kinds)
        ]

    def _largest(self, name: str) -> list[PerPlan]:
        return [
            self.recompute.largest(kind, functools.partial(costs.under, name)) for kind, costs in enumerate(self.kinds)
        ]

    def _saved_bytes(self, layers: Layers, chunks: PerPlan) -> Remaining:
        """Return the stash on the GPU of a stage with these layers of so many chunks."""
        if not offload_codes(ACTIVATIONS, self.searched):
            stash = over_layers(layers, self.stash_bytes)
            return Remaining(stash, xp.zeros_like(stash))
        return remaining(layers, self.stash_bytes, self.largest_stash_bytes, self.recompute.never, chunks, self)


def trained_of(of_groups: PerGroup, costs: LayerCosts) -> PerGroup:
    """Return the bytes of each weight group that is trained, and 0 of a frozen one."""
    if not costs.frozen_bytes:
        return of_groups
    return xp.where(costs.frozen_bytes[0] > 0.0, xp.zeros_like(of_groups), of_groups)


def largest_transients(
    layers: Layers, working_bytes: Sequence[PerPlan], divided: Divided | None, not_body: Collection[int]
) -> Transients:
    """Return the largest transients of a stage; per kind, `working_bytes` has the activations that a layer needs.

    A layer of the body runs before and after any other: it is the next one whose weights are gathered. `not_body` has
    the other kinds. What is gathered is that of the layer with most, and the other bytes what the largest sum leaves.
    """
    present = {kind: xp.minimum(count, xp.ones_like(count)) for kind, count in layers.items()}

    def largest(of_kinds: Mapping[int, PerPlan]) -> PerPlan:
        return functools.reduce(xp.maximum, [present[kind] * value for kind, value in of_kinds.items()])

    if divided is None:
        working = largest({kind: working_bytes[kind] for kind in layers})
        return Transients(working, xp.zeros_like(working))
    gathered = largest({kind: divided.weights[kind] for kind in layers})
    beside = largest({kind: divided.weights[kind] for kind in layers if kind not in not_body})
    sums = {kind: working_bytes[kind] + divided.gradients[kind] + divided.weights[kind] for kind in layers}
    return Transients(largest(sums) - gathered, gathered + beside)


def after_head(
    working_bytes: Sequence[PerPlan], layers: Layers, stash_bytes: Sequence[PerPlan], stack: Stack, done: PerPlan
) -> Sequence[PerPlan]:
    """Return, per kind, the transient of a layer without what the head saved, where its backward is `done` before: 1.

    The head has freed its stash of the microbatch, which counts as held.
    """
    if not stack.last:
        return working_bytes
    freed = done * over_layers({kind: layers[kind] for kind in stack.last}, stash_bytes)
    return [of_kind if kind in stack.last else of_kind - freed for kind, of_kind in enumerate(working_bytes)]


def heads_done(microbatches: PerPlan, plans: ChosenPlans) -> PerPlan:
    """Return whether the head has freed a microbatch before another layer runs its backward: 1.0, else 0.0.

    It has if any of the `microbatches` are in flight, but under schedules of which other passes run beside.
    """
    freed = xp.minimum(microbatches, xp.ones_like(microbatches)) * xp.ones_like(plans.choices.pp)
    if not any(schedule.overlap for schedule in plans.schedules):
        return freed
    of_schedule = plans.by_schedule(lambda schedule: (0.0 if schedule.overlap else 1.0) * freed)
    return xp.where(plans.choices.pp > 1.0, of_schedule, freed)
