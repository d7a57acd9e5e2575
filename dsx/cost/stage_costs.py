"""What a stage costs: its seconds for a microbatch, its memory, and what it adds to the end of a step.

All of it is a sum over the layers that the stage holds, or, for memory, little more than that. Whoever cuts a pipeline
asks here, be it for the stages of an even cut or for every segment of a chain of layers, so one cut has one cost.

Values are made when they are first asked for: what a caller does not need is not traced.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices, pick
from dsx.cost.crowding import may_crowd
from dsx.cost.groups import Group
from dsx.cost.layer import LayerCosts
from dsx.cost.memory import Memory, stage_memory, stage_weights
from dsx.cost.offload import (
    ACTIVATIONS,
    OPTIMIZER,
    exposed_s,
    host_update_s,
    moves,
    offloaded,
    remaining_bytes,
)
from dsx.cost.pipeline import in_flight_of_ends
from dsx.cost.recompute import Recompute, recompute_of
from dsx.cost.reduction import reduction
from dsx.cost.shapes import PerPlan
from dsx.cost.shards import replicas, shards
from dsx.cost.stages import Stack, Stage, even_first
from dsx.hardware.cluster import Cluster
from dsx.space.codes import Searched


@dataclass(frozen=True)
class StageCosts:
    """The costs of any stage of some plans; values by kind broadcast with the layers of a stage."""

    kinds: Sequence[LayerCosts]
    choices: StepChoices
    stack: Stack
    searched: Searched
    cluster: Cluster
    assumptions: Assumptions

    def load_s(self, stage: Stage) -> PerPlan:
        """Return the seconds of one microbatch on a stage, forward and backward."""
        return on(stage, self.passes_s)

    def memory(self, stage: Stage, microbatches: PerPlan) -> Memory:
        """Return the memory of a stage's GPU with so many microbatches in flight, in which it is affine."""
        saved = self._saved_bytes(stage) * microbatches
        if self.searched.vpp != (1,):
            # With several chunks the ends are in one of them, which holds other microbatches than the stage on average.
            ends = self.stack.first, self.stack.last
            for kinds, held in zip(ends, in_flight_of_ends(microbatches, self.choices), strict=True):
                for kind in kinds:
                    saved = saved + stage.layers[kind] * self._stash_bytes[kind] * (held - microbatches)
        ranks, _ = self.shards
        return stage_memory(
            self.kinds, ranks, saved, self._working_bytes, stage, self.choices, self.searched, self.assumptions
        )

    def reduction_s(self, stage: Stage) -> PerPlan:
        """Return what the reduction of a first stage leaves exposed, once a step."""
        ranks, copies = self.shards
        (body, *_), *_ = self.stack.segments

        def behind(edge: int) -> PerPlan:
            costs = (self.kinds, ranks, copies, self.backward_s, self.crowded_s)
            return reduction(*costs, stage, edge, self.choices, self.searched, self.cluster, self.assumptions)

        exposed = behind(body)
        if stage.even or not self.stack.first:
            return exposed
        # A stage that is nothing but an embedding has only that to gather first and to reduce last.
        return jnp.where(stage.layers[body] > 0, exposed, behind(self.stack.first[-1]))

    def update_s(self, stage: Stage) -> PerPlan:
        """Return the seconds in which the optimizer of a stage reads and writes its state."""
        ranks, _ = self.shards
        whole, divided = stage_weights(self.kinds, ranks, stage)
        updated = pick(self.searched.zero_stage, self.choices.zero_stage, [whole, divided, divided, divided])
        device, assumptions = self.cluster.device, self.assumptions
        traffic = assumptions.optimizer_traffic_per_parameter / assumptions.weight_bytes
        on_gpu = updated * (traffic / (assumptions.hbm_efficiency * device.hbm_bandwidth))
        return offloaded(
            OPTIMIZER,
            self.choices,
            self.searched,
            lambda: host_update_s(updated / assumptions.weight_bytes, device, assumptions),
            on_gpu,
        )

    def at_end_s(self, first: Stage) -> tuple[PerPlan, PerPlan]:
        """Return the seconds of the reduction and of the update that a cut with this first stage adds to a step.

        They are those of the first stage, whose backward ends last. Of a cut that gives it less than its share they are
        those of the share: what it is spared another stage has more of, which may then be the last one to end.
        """
        own = self.reduction_s(first), self.update_s(first)
        if first.even:
            return own
        share = even_first(self.stack, self.choices.pp)
        return jnp.maximum(own[0], self.reduction_s(share)), jnp.maximum(own[1], self.update_s(share))

    @cached_property
    def recompute_s(self) -> list[PerPlan]:
        """Per kind, the seconds in which the backward of a layer makes again what was not saved."""
        return self._on_average("recompute_s")

    @cached_property
    def backward_s(self) -> list[PerPlan]:
        """Per kind, the seconds of a layer's backward, with what is made again."""
        return [costs.backward_s + again for costs, again in zip(self.kinds, self.recompute_s, strict=True)]

    @cached_property
    def crowded_s(self) -> list[tuple[PerPlan, PerPlan]]:
        """Per kind, the seconds of a forward and a backward in which a layer takes an oversubscribed tier.

        None, if no tier can be.
        """
        if not may_crowd(self.cluster.network):
            return []
        return [
            (costs.crowded_s[0], self._again.mean(kind, costs.crowded_s[1:].__getitem__))
            for kind, costs in enumerate(self.kinds)
        ]

    @cached_property
    def passes_s(self) -> Sequence[PerPlan]:
        """Per kind, the seconds of a layer's passes of one microbatch."""
        passes = [costs.forward_s + back for costs, back in zip(self.kinds, self.backward_s, strict=True)]
        if self.stall_s is None:
            return passes
        return [seconds + stall for seconds, stall in zip(passes, self.stall_s, strict=True)]

    @cached_property
    def stall_s(self) -> list[PerPlan] | None:
        """Per kind, the seconds that a layer's passes of a microbatch wait for the host; None if no plan's do."""
        if not moves(ACTIVATIONS, self.searched):
            return None

        def under(costs: LayerCosts, mode: int) -> PerPlan:
            backward_s = costs.backward_s + costs.recompute_s[mode]
            stash = costs.stash_bytes[mode]
            return exposed_s(stash, costs.forward_s, backward_s, self.cluster.device, self.assumptions)

        found: list[PerPlan] = []
        for kind, costs in enumerate(self.kinds):
            nothing = jnp.zeros_like(costs.forward_s)
            again = self._again
            moved = again.mean(kind, functools.partial(under, costs)) if kind not in again.ends else nothing
            found.append(offloaded(ACTIVATIONS, self.choices, self.searched, lambda moved=moved: moved, nothing))
        return found

    @cached_property
    def shards(self) -> tuple[Sequence[Sequence[Group]], Sequence[Sequence[Group]]]:
        """Per kind and weight group, the ranks over which ZeRO divides, and those that hold the same shard."""
        divided, copies = replicas(self.choices, self.searched)
        # Kinds whose weights the same ranks hold have the same groups.
        made: dict[tuple[int, ...], tuple[list[Group], list[Group]]] = {}
        for costs in self.kinds:
            if _ranks_of(costs) not in made:
                made[_ranks_of(costs)] = shards(costs, divided, copies, self.searched)
        ranks, held_alike = zip(*(made[_ranks_of(costs)] for costs in self.kinds), strict=True)
        return ranks, held_alike

    @cached_property
    def _again(self) -> Recompute:
        return recompute_of(self.choices, self.stack, self.searched)

    @cached_property
    def _stash_bytes(self) -> list[PerPlan]:
        return self._on_average("stash_bytes")

    @cached_property
    def _working_bytes(self) -> list[PerPlan]:
        return self._largest("working_bytes")

    def _on_average(self, name: str) -> list[PerPlan]:
        """Return what a layer of each kind has of a leaf of the recompute modes on average."""
        return [self._again.mean(kind, getattr(costs, name).__getitem__) for kind, costs in enumerate(self.kinds)]

    def _largest(self, name: str) -> list[PerPlan]:
        return [self._again.largest(kind, getattr(costs, name).__getitem__) for kind, costs in enumerate(self.kinds)]

    def _saved_bytes(self, stage: Stage) -> PerPlan:
        """Return the saved bytes of one microbatch on a GPU of a stage."""

        def remaining() -> PerPlan:
            return remaining_bytes(stage, self._stash_bytes, self._largest("stash_bytes"), self._again.ends)

        here = on(stage, self._stash_bytes)
        return offloaded(ACTIVATIONS, self.choices, self.searched, remaining, here)


def on(stage: Stage, values: Sequence[PerPlan]) -> PerPlan:
    """Return what the layers of a stage have together; `values` are those of a layer of each kind."""
    return functools.reduce(jnp.add, [layers * values[kind] for kind, layers in stage.layers.items()])


def _ranks_of(costs: LayerCosts) -> tuple[int, ...]:
    """Return what is equal for kinds of layers that were given the very same weight groups."""
    return id(costs.group_size), id(costs.group_share), *(id(share) for share in costs.group_outer)
