"""Bounds that no cut of a plan beats: the least step time, and the least memory of the fullest GPU.

What a first stage adds to the end of a step as sums over kinds of layers, for those who look at very many stages.

The numbers are those of `StageCosts.reduction_and_update_s`, which is asked once for a few stages: both parts are
affine in the layers, but one layer is reduced and gathered alone, the embedding of a stage without body layers.

The memory of any stage of some plans as sums over kinds of layers, for those who look at very many stages.

The numbers are those of `StageCosts.memory`, which is asked once for a single layer of each kind: it is affine in the
layers and in the microbatches in flight, but for transients and for offloaded activations.

Bounds that no cut of a plan beats: the least step time, and the least memory of the fullest GPU.

A pipeline takes at least as long as one of mean stages, and as its largest single layer causes
(`dsx.schedules.closed_forms`). A cut adds at least the reduction and the update of the most even first stage
(`StageCosts.reduction_and_update_s`). The fullest GPU holds at least the mean of all stages, each with the fewest
microbatches in flight that one has, those of the last stage.
Transients are left out of the memory: they are not affine in the layers, so their mean is no bound. So are activations
that are offloaded.

A looser bound leaves out sends, reduction and update, so it needs the seconds of a shard key's layers alone. The
loosest is the work of a step, shared by all GPUs: no plan of a key is faster, whatever its pipeline.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.cost.context import Assumptions, PipelineChoices, StageChoices, StepChoices
from dsx.cost.layer import COMM_COLUMN, LayerCosts
from dsx.cost.memory import Divided, after_head, heads_done, largest_transients, per_activation_byte
from dsx.cost.offload import ACTIVATIONS, offload_codes, offloaded, remaining, with_transfers
from dsx.cost.pipeline import LayerSeconds, in_flight, least_pipeline_s
from dsx.cost.recomputation import NONE
from dsx.cost.sends import MeanSends
from dsx.cost.shapes import Column, PerPlan
from dsx.cost.stage import StageCosts
from dsx.cost.stages import Layers, Stack, Stage, even_first, over_layers
from dsx.cost.step import Workload, even_cuts, mean_stage, pipeline_of, sends_of
from dsx.hardware.cluster import Cluster
from dsx.plans.codes import SearchedCodes, with_values
from dsx.plans.rules import optimal_cut_covers
from dsx.schedules.schedules import SCHEDULES


class FirstStage(NamedTuple):
    """Seconds of the first stages of [N] plans; sequences have one [N] for each kind of layer."""

    once_s: PerPlan  # of a reduction, whatever the layers
    once_without_body_s: PerPlan
    reduction_s: Sequence[PerPlan]
    update_s: Sequence[PerPlan]
    least_reduction_s: PerPlan  # that of the first stage of the most even cut
    least_update_s: PerPlan

    @property
    def least_s(self) -> PerPlan:
        """The seconds that no first stage goes below."""
        return self.least_reduction_s + self.least_update_s

    def added_s(self, layers: Layers, stack: Stack) -> PerPlan:
        """Return the seconds that a first stage with these layers adds to the end of a step."""
        body = stack.segments[0][0]
        once_s = xp.where(layers[body] > 0.0, self.once_s, self.once_without_body_s)
        reduction_s = xp.maximum(once_s + over_layers(layers, self.reduction_s), self.least_reduction_s)
        return reduction_s + xp.maximum(over_layers(layers, self.update_s), self.least_update_s)


def first_stage(costs: StageCosts) -> FirstStage:
    """Return what the first stages of [N] plans add to the end of a step."""
    stack, pp = costs.stack, costs.choices.pp
    body, kinds = stack.segments[0][0], range(len(costs.kinds))
    alone = stack.first[-1] if stack.first else body
    # A body layer, another layer of each kind besides, and the last layer before the body alone.
    unit = np.eye(len(kinds))
    asked = np.stack([unit[body], *(unit[body] + unit), unit[alone]])[:, :, None] * xp.ones_like(pp)
    stages = Stage(xp.zeros_like(asked[:, 0]), {kind: asked[:, kind] for kind in kinds}, even=False)
    reduction_s, update_s = (xp.asarray(seconds) for seconds in (costs.reduction_s(stages), costs.update_s(stages)))
    of_kinds, updates = reduction_s[1:-1] - reduction_s[0], update_s[1:-1] - update_s[0]
    share = even_first(stack, pp, costs.choices.vpp)
    least = Stage(share.position, {kind: share.layers[kind] for kind in kinds}, even=False)
    found = FirstStage(
        once_s=reduction_s[0] - of_kinds[body],
        once_without_body_s=reduction_s[-1] - of_kinds[alone],
        reduction_s=[*of_kinds],
        update_s=[*updates],
        least_reduction_s=xp.zeros_like(pp),
        least_update_s=xp.zeros_like(pp),
    )
    # With the same rounding as those of other stages.
    return found._replace(
        least_reduction_s=found.once_s + over_layers(least.layers, found.reduction_s),
        least_update_s=over_layers(least.layers, found.update_s),
    )


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

    def peak(
        self, layers: Layers, microbatches: PerPlan, stack: Stack, choices: StageChoices, searched: SearchedCodes
    ) -> PerPlan:
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


# Bounds and costs add up the same numbers in different orders.
ROUNDING = 1e-12
_SLACK = 1e-9  # of a quotient of such sums


@dataclass(frozen=True)
class CutBounds:
    """Bounds below the parts of a step [s] and the fullest GPU [bytes] of plans with any cut, or with the `even` one.

    Each is computed on first use. Schedules without an optimal cut share reduction and update in their own ways, so
    even cuts have no bound of these.
    """

    costs: StageCosts
    even: bool = False

    @property
    def step_s(self) -> PerPlan:
        """The bound of the whole step."""
        return self.step_behind_s(self.pipeline_s)

    @xp.unchecked
    def step_behind_s(self, pipeline_s: PerPlan) -> PerPlan:
        """Return the bound of the whole step whose pipeline takes no less than so many seconds."""
        if self.even:
            return pipeline_s
        return pipeline_s + self.costs.reduction_s(self._share, pipeline_s) + self.update_s

    @cached_property
    @xp.unchecked
    def pipeline_s(self) -> PerPlan:
        """The bound of the pipeline."""
        return self._pipeline_s(self.costs)

    @cached_property
    @xp.unchecked
    def pipeline_of_any_replicas_s(self) -> PerPlan:
        """The bound of the pipeline whatever ranks ZeRO shards over: without the reductions in its passes."""
        costs = self.costs
        if costs.pass_reductions_s is None:
            return self.pipeline_s
        return self._pipeline_s(replace(costs, searched=with_values(costs.searched, {"zero_stage": (0,)})))

    def _pipeline_s(self, costs: StageCosts) -> PerPlan:
        if self.even:
            return pipeline_of(costs, even_cuts(costs)).step_s
        return _least_pipeline_s(costs, self._mean)

    @cached_property
    @xp.unchecked
    def reduction_s(self) -> PerPlan:
        """The bound of the reduction of plans with one chunk per stage."""
        return xp.zeros_like(self.pipeline_s) if self.even else self.costs.reduction_s(self._share)

    @cached_property
    @xp.unchecked
    def update_s(self) -> PerPlan:
        """The bound of the optimizer update."""
        return xp.zeros_like(self.pipeline_s) if self.even else self.costs.update_s(self._share)

    @cached_property
    @xp.unchecked
    def peak_bytes(self) -> PerPlan:
        """The bound of the fullest GPU."""
        choices, searched = self.costs.choices, self.costs.searched
        fewest = in_flight(choices.pp - 1.0, choices, searched)
        # What stays on a GPU of offloaded activations is not affine in the layers.
        fewest = offloaded(ACTIVATIONS, choices, searched, lambda: xp.zeros_like(fewest), fewest)
        return self.costs.memory(self._mean, fewest, transients=False).peak_bytes

    @cached_property
    @xp.unchecked
    def host_bytes(self) -> PerPlan:
        """The bound of the memory of the host that a GPU needs: that of the mean stage."""
        choices, searched = self.costs.choices, self.costs.searched
        return self.costs.host_bytes(self._mean, in_flight(choices.pp - 1.0, choices, searched))

    @property
    def _mean(self) -> Stage:
        return mean_stage(self.costs.stack, self.costs.choices, self.costs.choices.pp - 1.0)

    @property
    def _share(self) -> Stage:
        return even_first(self.costs.stack, self.costs.choices.pp, self.costs.choices.vpp)


@xp.unchecked
def stages_hold_all(
    kinds: Sequence[LayerCosts],
    choices: StepChoices,
    workload: Workload,
    cluster: Cluster,
    assumptions: Assumptions,
    most_s: np.ndarray,
    most_bytes: np.ndarray,
) -> np.ndarray:
    """Return whether N plans may have a cut of which the pipeline takes `most_s` and each GPU has `most_bytes`, [N].

    A stage holds no more seconds of body layers than its memory has room for, if all its layers were of the kind that
    needs least bytes per second; and none that alone makes the pipeline too long (`dsx.schedules.closed_forms`). All
    stages together must hold the whole body. They must hold the layers of each kind too, of which a stage has a whole
    number. Plans with several chunks per stage always may.
    """
    stack, searched = workload.stack, workload.searched
    costs = StageCosts(kinds, choices, stack, searched, cluster, assumptions)
    totals = stack.totals()
    seconds = costs.forward_backward_s
    whole_s = functools.reduce(np.add, [count * seconds[kind] for kind, count in totals.items()])
    index = np.arange(int(choices.pp.max(initial=1)), dtype=float)[:, None]
    later = choices.pp - 1.0 - index
    # The others than one microbatch, which goes through all stages, and those that run while it is on later stages.
    alone = choices.num_microbatches - 1.0 - later
    with np.errstate(divide="ignore"):
        slow_s = np.where(alone >= 1.0, (most_s - whole_s) / alone, np.inf)
    held = np.where(later >= 0, in_flight(np.minimum(index, choices.pp - 1.0), choices, searched), 1.0)
    held = offloaded(ACTIVATIONS, choices, searched, lambda: np.zeros_like(held), held)
    room_s = np.zeros_like(whole_s)
    hold = choices.vpp > 0
    for of_segment, counts in zip(stack.segments, stack.counts, strict=True):
        rooms: list[np.ndarray] = []
        for kind in of_segment:
            one = Stage(choices.pp - 1.0, {other: np.full_like(whole_s, other == kind) for other in totals})
            nothing = costs.memory(one, np.zeros_like(whole_s), transients=False)
            stash = costs.memory(one, np.ones_like(whole_s), transients=False).peak_bytes - nothing.peak_bytes
            state = nothing.peak_bytes - nothing.overhead_bytes
            room = seconds[kind] * (most_bytes - nothing.overhead_bytes) / (state + held * stash)
            rooms.append(np.asarray(room))
        room_s = functools.reduce(np.maximum, rooms, room_s)
        # Alternating kinds count as their mix, so only layers of a single kind come in whole numbers.
        if len(of_segment) == 1:
            (kind,), (count,), (own_s,) = of_segment, counts, rooms
            layers = np.floor(np.minimum(own_s, slow_s) / seconds[kind] * (1.0 + _SLACK))
            hold &= np.where(later >= 0, layers, 0.0).sum(axis=0) >= count
    of_stages = np.where(later >= 0, np.minimum(room_s, slow_s), 0.0).sum(axis=0)
    never = stack.embedding_and_head
    body_s = functools.reduce(np.add, [count * seconds[kind] for kind, count in totals.items() if kind not in never])
    return (choices.vpp > 1) | (hold & (of_stages >= body_s * (1.0 - _SLACK)))


def _least_pipeline_s(costs: StageCosts, mean: Stage) -> PerPlan:
    largest_s, last_s = _largest_and_last_s(costs.forward_backward_s, costs.stack)
    sends = sends_of(costs, mean)
    return least_pipeline_s(costs.load_s(mean), largest_s, last_s, sends, costs.choices, costs.searched)


class KeySeconds(NamedTuple):
    """The least seconds of one microbatch of any plan of a key, under each searched recomputation; [values, U]."""

    whole: np.ndarray  # through all layers
    largest: np.ndarray  # through the largest single layer
    last: np.ndarray  # through the layers that the last stage always has
    body: np.ndarray  # through all layers but embedding and head
    # The same where a forward and a backward run side by side, under the searched schedule that hides most of them.
    overlapped_whole: np.ndarray
    overlapped_body: np.ndarray


def key_seconds(kinds: Sequence[LayerCosts], stack: Stack, searched: SearchedCodes) -> KeySeconds:
    """Return the seconds of [U] shard keys; `kinds` has their layer costs at one hardware point."""
    never = stack.embedding_and_head
    found = []
    for value in sorted(searched.recompute):
        # A stage may store the activations of some layers, so that they are not recomputed.
        of_body = value if searched.stored_layers == (0,) else NONE
        seconds = [
            costs.forward_s + costs.backward_s + costs.under("recompute_s", NONE if kind in never else of_body)
            for kind, costs in enumerate(kinds)
        ]
        overlapped = _overlapped_s(kinds, seconds, searched)
        in_all = [_all_layers_s(of_layers, stack) for of_layers in (seconds, overlapped)]
        in_body = [
            functools.reduce(np.subtract, [of_layers[kind] for kind in never], of_all)
            for of_layers, of_all in zip((seconds, overlapped), in_all, strict=True)
        ]
        found.append((in_all[0], *_largest_and_last_s(seconds, stack), in_body[0], in_all[1], in_body[1]))
    return KeySeconds(*(np.stack(of_values) for of_values in zip(*found, strict=True)))


def least_microbatch_s(kinds: Sequence[LayerCosts], stack: Stack, searched: SearchedCodes) -> np.ndarray:
    """Return the seconds of one microbatch of [U] shard keys through all layers, without recomputation."""
    seconds = [costs.forward_s + costs.backward_s for costs in kinds]
    return _all_layers_s(_overlapped_s(kinds, seconds, searched), stack)


def _all_layers_s(seconds: Sequence[PerPlan], stack: Stack) -> np.ndarray:
    return np.asarray(functools.reduce(np.add, [count * seconds[kind] for kind, count in stack.totals().items()]))


def _overlapped_s(kinds: Sequence[LayerCosts], seconds: Sequence[PerPlan], searched: SearchedCodes) -> list[PerPlan]:
    """Return the seconds of a forward and a backward under the searched schedule that hides most of them."""
    found = list(seconds)
    overlaps = {overlap for code in searched.schedule if (overlap := SCHEDULES[code].overlap)}
    for overlap in overlaps:
        comm_s = {axis: [getattr(costs, COMM_COLUMN[axis]) for costs in kinds] for axis in overlap.axes}
        hidden_s = LayerSeconds(seconds, [0.0 * one for one in seconds], [], comm_s).hidden_s(overlap.axes)
        less = [one - hidden for one, hidden in zip(seconds, hidden_s, strict=True)]
        found = [xp.minimum(one, other) for one, other in zip(found, less, strict=True)]
    return found


# Bounds [s] of plans from the seconds of their keys: `least_passes_s` or `least_even_s`.
LooseBound = Callable[[KeySeconds, np.ndarray, PipelineChoices, SearchedCodes], np.ndarray]


@xp.unchecked
def least_passes_s(
    seconds: KeySeconds, keys: np.ndarray, choices: PipelineChoices, searched: SearchedCodes
) -> np.ndarray:
    """Return bounds below the step times [s] of N plans with any cut, whose keys are at `keys` [N] in `seconds`.

    Choices broadcast with the keys. The bounds grow with the seconds of a key and with the microbatches.
    """
    whole, largest, last, *_ = _of_plans(seconds, keys, choices, searched)
    sends = MeanSends(np.zeros_like(whole), np.zeros_like(whole))
    return np.asarray(least_pipeline_s(whole / choices.pp, largest, last, sends, choices, searched))


def least_even_s(
    seconds: KeySeconds, keys: np.ndarray, choices: PipelineChoices, searched: SearchedCodes
) -> np.ndarray:
    """Return bounds below the step times [s] of N plans with an even cut, under any schedule.

    The mean stage runs all microbatches, under some schedules a forward and a backward side by side. Interleaved,
    the first forward of the last stage waits for one chunk of each earlier stage, and so does the end of the step for
    the backwards of these. A bound of any cut, where it is known, holds too. Arguments are those of `least_passes_s`.
    """
    whole, _, _, body, *side_by_side = _of_plans(seconds, keys, choices, searched)
    if overlaps := [code for code in searched.schedule if SCHEDULES[code].overlap]:
        overlapping = np.isin(choices.schedule, overlaps)
        whole, body = (
            np.where(overlapping, less, all_of_it) for less, all_of_it in zip(side_by_side, (whole, body), strict=True)
        )
    interleaved = np.isin(choices.schedule, [code for code in searched.schedule if SCHEDULES[code].interleaved])
    others = np.where((choices.vpp > 1) & interleaved, (choices.pp - 1) / choices.vpp, 0.0)
    many = choices.num_microbatches
    found = np.maximum(many * whole / choices.pp, (many + others) * body / choices.pp)
    covered = optimal_cut_covers(choices.schedule)
    if not covered.any():
        return found
    return np.where(covered, np.maximum(found, least_passes_s(seconds, keys, choices, searched)), found)


def _of_plans(
    seconds: KeySeconds, keys: np.ndarray, choices: PipelineChoices, searched: SearchedCodes
) -> tuple[np.ndarray, ...]:
    value = np.searchsorted(sorted(searched.recompute), choices.recompute)
    return tuple(column[value, keys] for column in seconds)


def _largest_and_last_s(seconds: Sequence[PerPlan], stack: Stack) -> tuple[Column, Column]:
    """Return the seconds of a microbatch on the largest single layer, and on the layers of the last stage alone.

    Alternating kinds count as their mix.
    """
    single = [seconds[kind] for kind in (*stack.first, *stack.last)]
    for of_segment, counts in zip(stack.segments, stack.counts, strict=True):
        whole = sum(counts)
        mixed = [seconds[kind] * (count / whole) for kind, count in zip(of_segment, counts, strict=True)]
        single.append(functools.reduce(xp.add, mixed))
    last = [seconds[kind] for kind in stack.last]
    return functools.reduce(xp.maximum, single), functools.reduce(xp.add, last, xp.zeros_like(single[0]))
