"""Bounds that no cut of a plan beats: the least step time, and the least memory of the fullest GPU.

A pipeline takes at least as long as one of mean stages, and as its largest single layer causes
(`dsx.space.critical_path`). A cut adds at least the reduction and the update of the most even first stage
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

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import PipelineChoices, StepChoices
from dsx.cost.layer import COMM_COLUMN, LayerCosts
from dsx.cost.offload import ACTIVATIONS, offloaded
from dsx.cost.pipeline import LayerSeconds, in_flight, least_pipeline_s
from dsx.cost.recompute import NONE
from dsx.cost.sends import MeanSends
from dsx.cost.shapes import Column, PerPlan
from dsx.cost.stage_costs import StageCosts
from dsx.cost.stages import Stack, Stage, even_first
from dsx.cost.step import Workload, even_cuts, mean_stage, pipeline_of, sends_of
from dsx.hardware.cluster import Cluster
from dsx.space.codes import Searched, with_values
from dsx.space.plan_rules import optimal_cut_covers
from dsx.space.schedules import SCHEDULES

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
    needs least bytes per second; and none that alone makes the pipeline too long (`dsx.space.critical_path`). All
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


def key_seconds(kinds: Sequence[LayerCosts], stack: Stack, searched: Searched) -> KeySeconds:
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


def least_microbatch_s(kinds: Sequence[LayerCosts], stack: Stack, searched: Searched) -> np.ndarray:
    """Return the seconds of one microbatch of [U] shard keys through all layers, without recomputation."""
    seconds = [costs.forward_s + costs.backward_s for costs in kinds]
    return _all_layers_s(_overlapped_s(kinds, seconds, searched), stack)


def _all_layers_s(seconds: Sequence[PerPlan], stack: Stack) -> np.ndarray:
    return np.asarray(functools.reduce(np.add, [count * seconds[kind] for kind, count in stack.totals().items()]))


def _overlapped_s(kinds: Sequence[LayerCosts], seconds: Sequence[PerPlan], searched: Searched) -> list[PerPlan]:
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
LooseBound = Callable[[KeySeconds, np.ndarray, PipelineChoices, Searched], np.ndarray]


@xp.unchecked
def least_passes_s(seconds: KeySeconds, keys: np.ndarray, choices: PipelineChoices, searched: Searched) -> np.ndarray:
    """Return bounds below the step times [s] of N plans with any cut, whose keys are at `keys` [N] in `seconds`.

    Choices broadcast with the keys. The bounds grow with the seconds of a key and with the microbatches.
    """
    whole, largest, last, *_ = _of_plans(seconds, keys, choices, searched)
    sends = MeanSends(np.zeros_like(whole), np.zeros_like(whole))
    return np.asarray(least_pipeline_s(whole / choices.pp, largest, last, sends, choices, searched))


def least_even_s(seconds: KeySeconds, keys: np.ndarray, choices: PipelineChoices, searched: Searched) -> np.ndarray:
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
    seconds: KeySeconds, keys: np.ndarray, choices: PipelineChoices, searched: Searched
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
