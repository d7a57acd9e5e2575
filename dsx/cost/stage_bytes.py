"""The memory of any stage of some plans as sums over kinds of layers, for those who look at very many stages.

The numbers are those of `StageCosts.memory`, which is asked once for a single layer of each kind: it is affine in the
layers and in the microbatches in flight, but for transients and for offloaded activations.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsx.cost import xp
from dsx.cost.choices import StageChoices
from dsx.cost.memory import Divided, after_head, heads_done, largest_transients, per_activation_byte
from dsx.cost.offload import ACTIVATIONS, offload_codes, remaining, with_transfers
from dsx.cost.shapes import PerPlan
from dsx.cost.stage_costs import StageCosts
from dsx.cost.stages import Layers, Stack, Stage, over_layers
from dsx.space.codes import Searched


class StageBytes(NamedTuple):
    """Bytes of the stages of [N] plans; sequences have one [N] for each kind of layer."""

    fixed: PerPlan  # without layers
    per_activation: PerPlan  # of memory for each byte of activations
    state: Sequence[PerPlan]  # of a layer, with no microbatch in flight
    stash: Sequence[PerPlan]  # activations that a layer saves of a microbatch in flight, the mean over the layers
    largest: Sequence[PerPlan]  # of them, those of the layer that saves most
    working: Sequence[PerPlan]  # the transient of a layer
    divided: Divided | None
    # Of the host, of a layer: with no microbatch in flight, and for each. None if no plan of the search offloads.
    host_state: Sequence[PerPlan] | None
    host_stash: Sequence[PerPlan] | None

    def peak(self, layers: Layers, microbatches: PerPlan, stack: Stack, choices: StageChoices, searched: Searched) -> (
        PerPlan
    ):  # fmt: skip
        """Return the memory of a stage's GPU with so many microbatches in flight."""
        saved, working_bytes = over_layers(layers, self.stash), self.working
        if offload_codes(ACTIVATIONS, searched):
            never = frozenset(stack.embedding_and_head)
            left = remaining(layers, self.stash, self.largest, never, choices, searched, choices.vpp)
            saved, working_bytes = left.of_each, with_transfers(self.working, left.in_transfer, never)
        done = heads_done(microbatches, choices, searched)
        working_bytes = after_head(working_bytes, layers, self.stash, stack, done)
        more = largest_transients(layers, working_bytes, self.divided, stack.embedding_and_head)
        activations = saved * microbatches + more.working
        return self.fixed + over_layers(layers, self.state) + self.per_activation * activations + more.gathered

    def on_host(self, layers: Layers, microbatches: PerPlan) -> PerPlan | None:
        """Return the memory of the host that a stage's GPU needs, with so many microbatches in flight; as above."""
        if self.host_state is None or self.host_stash is None:
            return None
        return over_layers(layers, self.host_state) + over_layers(layers, self.host_stash) * microbatches


def stage_bytes(costs: StageCosts) -> StageBytes:
    """Return the bytes of the stages of [N] plans."""
    one, none = xp.ones_like(costs.choices.pp), xp.zeros_like(costs.choices.pp)
    kinds = range(len(costs.kinds))

    def single(kind: int) -> Stage:
        return Stage(none, {other: one if other == kind else none for other in kinds}, even=False)

    def of_layers(of_kind: Sequence[PerPlan]) -> list[PerPlan]:
        return [xp.broadcast_to(xp.asarray(bytes_of_layer), np.shape(one)) for bytes_of_layer in of_kind]

    empty = Stage(none, {kind: none for kind in kinds}, even=False)
    fixed = costs.memory(empty, none, transients=False).peak_bytes
    states = [costs.memory(single(kind), none, transients=False) for kind in kinds]
    held = [costs.memory(single(kind), one, transients=False) for kind in kinds]
    stash = [more.activation_bytes - state.activation_bytes for more, state in zip(held, states, strict=True)]
    host_state = host_stash = None
    if costs.uses_host:
        host_state = of_layers([costs.host_bytes(single(kind), none) for kind in kinds])
        host_held = [costs.host_bytes(single(kind), one) for kind in kinds]
        host_stash = of_layers([more - state for more, state in zip(host_held, host_state, strict=True)])
    return StageBytes(
        fixed=fixed,
        per_activation=per_activation_byte(costs.assumptions) * one,
        state=of_layers([state.peak_bytes - fixed for state in states]),
        stash=of_layers(stash),
        largest=of_layers(costs.largest_stash_bytes),
        working=of_layers(costs.working_bytes),
        divided=costs.divided and Divided(*map(of_layers, costs.divided)),
        host_state=host_state,
        host_stash=host_stash,
    )
