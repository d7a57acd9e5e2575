"""Bounds that no cut of a plan beats: the least step time, and the least memory of the fullest GPU.

A pipeline takes at least as long as one of mean stages, and as its largest single layer causes
(`dsx.schedules.closed_forms`). A cut adds at least the reduction and the update of the most even first stage
(`StageCosts.reduction_and_update_s`). The fullest GPU holds at least the mean of all stages, each with the fewest
microbatches in flight that one has, those of the last stage.
Transients are left out of the memory: they are not affine in the layers, so their mean is no bound. So are activations
that are offloaded.

A looser bound leaves out sends, reduction and update, so it needs the seconds of a shard key's layers alone. The
loosest is the work of a step, shared by all GPUs: no plan of a key is faster, whatever its pipeline.

For those who look at very many stages, `FirstStage` has what a first stage adds to the end of a step, and `StageBytes`
the memory of any stage, as sums over kinds of layers. The numbers are those of `StageCosts.reduction_and_update_s` and
`StageCosts.memory`, which are asked once for a few stages. Both are affine in the layers, memory in the microbatches in
flight too, but one layer is reduced and gathered alone, the embedding of a stage without body layers; transients and
offloaded activations are not.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.arrays import Column, PerPlan
from dsx.cost.context import ChosenPlans, PipelineChoices
from dsx.cost.layer import COMM_COLUMN, LayerCosts
from dsx.cost.memory import Divided, after_head, heads_done, largest_transients
from dsx.cost.offload import ACTIVATIONS, kept_layers, offload_codes, offloaded, remaining, with_transfers
from dsx.cost.pipeline import LayerSeconds, in_flight, least_pipeline_s
from dsx.cost.recomputation import NONE
from dsx.cost.sends import MeanSends
from dsx.cost.stage import StageCosts
from dsx.cost.stages import Layers, Stack, Stage, even_first, over_layers
from dsx.cost.step import even_cuts, pipeline_of, sends_of
from dsx.plans.enumerate import SearchedCodes, with_values
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
    embedding = stack.first[-1] if stack.first else body
    # A body layer, another layer of each kind besides, and the last layer before the body alone.
    unit = np.eye(len(kinds))
    layers = np.stack([unit[body], *(unit[body] + unit), unit[embedding]])[:, :, None] * xp.ones_like(pp)
    stages = Stage(xp.zeros_like(layers[:, 0]), {kind: layers[:, kind] for kind in kinds}, even=False)
    reduction_s, update_s = (xp.asarray(seconds) for seconds in (costs.reduction_s(stages), costs.update_s(stages)))
    of_kinds, updates = reduction_s[1:-1] - reduction_s[0], update_s[1:-1] - update_s[0]
    once_s, share = reduction_s[0] - of_kinds[body], even_first(stack, pp, costs.choices.vpp).layers
    least = {kind: share[kind] for kind in kinds}
    return FirstStage(
        once_s=once_s,
        once_without_body_s=reduction_s[-1] - of_kinds[embedding],
        reduction_s=[*of_kinds],
        update_s=[*updates],
        # With the same rounding as those of other stages.
        least_reduction_s=once_s + over_layers(least, [*of_kinds]),
        least_update_s=over_layers(least, [*updates]),
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

    def peak(self, layers: Layers, microbatches: PerPlan, stack: Stack, plans: ChosenPlans) -> PerPlan:
        """Return the memory of a stage's GPU with so many microbatches in flight."""
        saved, working_bytes = over_layers(layers, self.stash), self.working
        if offload_codes(ACTIVATIONS, plans.searched):
            never = frozenset(stack.embedding_and_head)
            kept = remaining(layers, self.stash, self.largest, never, plans.choices.vpp, plans)
            saved, working_bytes = kept.per_microbatch, with_transfers(self.working, kept.in_transfer, never)
        working_bytes = after_head(working_bytes, layers, self.stash, stack, heads_done(microbatches, plans))
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
    ones, zero = xp.ones_like(costs.choices.pp), xp.zeros_like(costs.choices.pp)
    kinds = range(len(costs.kinds))

    def of_layers(of_kind: Sequence[PerPlan]) -> list[PerPlan]:
        return [xp.broadcast_to(xp.asarray(bytes_of_layer), np.shape(ones)) for bytes_of_layer in of_kind]

    empty, *single = (
        Stage(zero, {other: ones if other == kind else zero for other in kinds}, even=False) for kind in (None, *kinds)
    )
    fixed = costs.memory(empty, zero, transients=False).peak_bytes
    states = [costs.memory(stage, zero, transients=False) for stage in single]
    held = [costs.memory(stage, ones, transients=False) for stage in single]
    stash = [more.activation_bytes - state.activation_bytes for more, state in zip(held, states, strict=True)]
    host_state = host_stash = None
    if costs.uses_host:
        host_state = of_layers([costs.host_bytes(stage, zero) for stage in single])
        host_held = [costs.host_bytes(stage, ones) for stage in single]
        host_stash = of_layers([more - state for more, state in zip(host_held, host_state, strict=True)])
    return StageBytes(
        fixed=fixed,
        # Some is lost to fragmentation.
        per_activation=(1.0 + costs.assumptions.fragmentation) * ones,
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
        largest_s, last_s = _largest_and_last_s(costs.forward_backward_s, costs.stack)
        return least_pipeline_s(costs.load_s(self._mean), largest_s, last_s, sends_of(costs, self._mean), costs)

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
        fewest = self._fewest_in_flight
        if not offload_codes(ACTIVATIONS, self.costs.searched):
            return self.costs.memory(self._mean, fewest, transients=False).peak_bytes
        # What stays on a GPU of offloaded activations is affine in the layers only where gradients of weights wait.
        zero, waiting = xp.zeros_like(fewest), self.costs.pipelines(lambda schedule: schedule.weights_wait)
        of_offloaded = zero if waiting is None else xp.where(waiting, fewest, zero)
        affine = offloaded(ACTIVATIONS, self.costs, lambda: of_offloaded, fewest)
        kept = offloaded(ACTIVATIONS, self.costs, lambda: self._kept_bytes * (fewest - of_offloaded), zero)
        return self.costs.memory(self._mean, affine, transients=False).peak_bytes + kept

    @property
    def _kept_bytes(self) -> PerPlan:
        """The bound of what the mean stage of a pipeline keeps of a microbatch whose activations are offloaded.

        Each chunk keeps a layer of the body, unless it has only embedding or head.
        """
        costs, ends = self.costs, self.costs.stack.embedding_and_head
        body = [kind for kinds, _ in costs.stack.body for kind in kinds]
        pipelined = xp.where(costs.choices.pp > 1, xp.ones_like(costs.choices.pp), 0.0)
        if len(body) > len(costs.stack.body):
            return 0.0 * pipelined  # alternating kinds, of which a chunk may have a part of a layer
        chunks, zero = kept_layers(costs, costs.stack).chunks, xp.zeros_like(costs.choices.pp)
        layers = xp.maximum(chunks - len(ends) / costs.choices.pp, zero)
        least = functools.reduce(xp.minimum, [costs.stash_bytes[kind] for kind in body])
        return pipelined * (1.0 + costs.assumptions.fragmentation) * layers * least

    @cached_property
    @xp.unchecked
    def host_bytes(self) -> PerPlan:
        """The bound of the memory of the host that a GPU needs: that of the mean stage."""
        return self.costs.host_bytes(self._mean, self._fewest_in_flight)

    @property
    def _fewest_in_flight(self) -> PerPlan:
        return in_flight(self.costs.choices.pp - 1.0, self.costs)

    @property
    def _mean(self) -> Stage:
        pp = self.costs.choices.pp
        return self.costs.stack.mean_stage(pp, pp - 1.0)

    @property
    def _share(self) -> Stage:
        return even_first(self.costs.stack, self.costs.choices.pp, self.costs.choices.vpp)


@xp.unchecked
def stages_hold_all(costs: StageCosts, most_s: np.ndarray, most_bytes: np.ndarray) -> np.ndarray:
    """Return whether N plans may have a cut of which the pipeline takes `most_s` and each GPU has `most_bytes`, [N].

    A stage holds no more seconds of body layers than its memory has room for, if all its layers were of the kind that
    needs least bytes per second; and none that alone makes the pipeline too long (`dsx.schedules.closed_forms`). All
    stages together must hold the whole body. They must hold the layers of each kind too, of which a stage has a whole
    number. Plans with several chunks per stage always may.
    """
    choices, totals, seconds = costs.choices, costs.stack.totals(), costs.forward_backward_s
    all_layers_s = functools.reduce(np.add, [count * seconds[kind] for kind, count in totals.items()])
    index = np.arange(int(choices.pp.max(initial=1)), dtype=float)[:, None]
    later = choices.pp - 1.0 - index
    # The others than one microbatch, which goes through all stages, and those that run while it is on later stages.
    alone = choices.num_microbatches - 1.0 - later
    with np.errstate(divide="ignore"):
        slow_s = np.where(alone >= 1.0, (most_s - all_layers_s) / alone, np.inf)
    held = np.where(later >= 0, in_flight(np.minimum(index, choices.pp - 1.0), costs), 1.0)
    held = offloaded(ACTIVATIONS, costs, lambda: np.zeros_like(held), held)
    room_s = np.zeros_like(all_layers_s)
    hold = choices.vpp > 0
    for kinds, counts in costs.stack.body:
        rooms: list[np.ndarray] = []
        for kind in kinds:
            single = Stage(choices.pp - 1.0, {other: np.full_like(all_layers_s, other == kind) for other in totals})
            empty = costs.memory(single, np.zeros_like(all_layers_s), transients=False)
            stash = costs.memory(single, np.ones_like(all_layers_s), transients=False).peak_bytes - empty.peak_bytes
            state = empty.peak_bytes - empty.overhead_bytes
            rooms.append(np.asarray(seconds[kind] * (most_bytes - empty.overhead_bytes) / (state + held * stash)))
        room_s = functools.reduce(np.maximum, rooms, room_s)
        # Alternating kinds count as their mix, so only layers of a single kind come in whole numbers.
        if len(kinds) == 1:
            layers = np.floor(np.minimum(rooms[0], slow_s) / seconds[kinds[0]] * (1.0 + _SLACK))
            hold &= np.where(later >= 0, layers, 0.0).sum(axis=0) >= counts[0]
    of_stages = np.where(later >= 0, np.minimum(room_s, slow_s), 0.0).sum(axis=0)
    ends = costs.stack.embedding_and_head
    body_s = functools.reduce(np.add, [count * seconds[kind] for kind, count in totals.items() if kind not in ends])
    return (choices.vpp > 1) | (hold & (of_stages >= body_s * (1.0 - _SLACK)))


class KeySeconds(NamedTuple):
    """The least seconds of one microbatch of any plan of a key, under each searched recomputation; [values, U]."""

    model: np.ndarray  # through all layers
    largest: np.ndarray  # through the largest single layer
    last: np.ndarray  # through the layers that the last stage always has
    body: np.ndarray  # through all layers but embedding and head
    # The same where a forward and a backward run side by side, under the searched schedule that hides most of them.
    overlapped_model: np.ndarray
    overlapped_body: np.ndarray


def key_seconds(kinds: Sequence[LayerCosts], stack: Stack, searched: SearchedCodes) -> KeySeconds:
    """Return the seconds of [U] shard keys; `kinds` has their layer costs at one hardware point."""
    ends = stack.embedding_and_head
    of_codes: list[tuple[Column, ...]] = []
    for code in sorted(searched.recompute):
        # A stage may store the activations of some layers, so that they are not recomputed.
        of_body = code if searched.stored_layers == (0,) else NONE
        seconds = [
            costs.forward_s + costs.backward_s + costs.under("recompute_s", NONE if kind in ends else of_body)
            for kind, costs in enumerate(kinds)
        ]
        overlapped = _overlapped_s(kinds, seconds, searched)
        in_all = [_all_layers_s(of_layers, stack) for of_layers in (seconds, overlapped)]
        in_body = [
            functools.reduce(np.subtract, [of_layers[kind] for kind in ends], of_all)
            for of_layers, of_all in zip((seconds, overlapped), in_all, strict=True)
        ]
        of_codes.append((in_all[0], *_largest_and_last_s(seconds, stack), in_body[0], in_all[1], in_body[1]))
    return KeySeconds(*(np.stack(of_values) for of_values in zip(*of_codes, strict=True)))


def least_microbatch_s(kinds: Sequence[LayerCosts], stack: Stack, searched: SearchedCodes) -> np.ndarray:
    """Return the seconds of one microbatch of [U] shard keys through all layers, without recomputation."""
    seconds = [costs.forward_s + costs.backward_s for costs in kinds]
    return _all_layers_s(_overlapped_s(kinds, seconds, searched), stack)


def _all_layers_s(seconds: Sequence[PerPlan], stack: Stack) -> np.ndarray:
    return np.asarray(functools.reduce(np.add, [count * seconds[kind] for kind, count in stack.totals().items()]))


def _overlapped_s(kinds: Sequence[LayerCosts], seconds: Sequence[PerPlan], searched: SearchedCodes) -> list[PerPlan]:
    """Return the seconds of a forward and a backward under the searched schedule that hides most of them."""
    least = list(seconds)
    for overlap in {overlap for code in searched.schedule if (overlap := SCHEDULES[code].overlap)}:
        comm_s = {axis: [getattr(costs, COMM_COLUMN[axis]) for costs in kinds] for axis in overlap.axes}
        hidden_s = LayerSeconds(seconds, [0.0 * of_kind for of_kind in seconds], [], comm_s).hidden_s(overlap.axes)
        less = [of_kind - hidden for of_kind, hidden in zip(seconds, hidden_s, strict=True)]
        least = [xp.minimum(*pair) for pair in zip(least, less, strict=True)]
    return least


# Bounds [s] of plans from the seconds of their keys: `least_passes_s` or `least_even_s`.
LooseBound = Callable[[KeySeconds, np.ndarray, PipelineChoices, SearchedCodes], np.ndarray]


@xp.unchecked
def least_passes_s(
    seconds: KeySeconds, keys: np.ndarray, choices: PipelineChoices, searched: SearchedCodes
) -> np.ndarray:
    """Return bounds below the step times [s] of N plans with any cut, whose keys are at `keys` [N] in `seconds`.

    Choices broadcast with the keys. The bounds grow with the seconds of a key and with the microbatches.
    """
    model, largest, last, *_ = _of_plans(seconds, keys, choices, searched)
    sends, plans = MeanSends(np.zeros_like(model), np.zeros_like(model)), ChosenPlans(choices, searched)
    return np.asarray(least_pipeline_s(model / choices.pp, largest, last, sends, plans))


def least_even_s(
    seconds: KeySeconds, keys: np.ndarray, choices: PipelineChoices, searched: SearchedCodes
) -> np.ndarray:
    """Return bounds below the step times [s] of N plans with an even cut, under any schedule.

    The mean stage runs all microbatches, under some schedules a forward and a backward side by side. Interleaved,
    the first forward of the last stage waits for one chunk of each earlier stage, and so does the end of the step for
    the backwards of these. A bound of any cut, where it is known, holds too. Arguments are those of `least_passes_s`.
    """
    model, _, _, body, *side_by_side = _of_plans(seconds, keys, choices, searched)
    if overlaps := [code for code in searched.schedule if SCHEDULES[code].overlap]:
        overlapping = np.isin(choices.schedule, overlaps)
        model, body = (
            np.where(overlapping, less, apart) for less, apart in zip(side_by_side, (model, body), strict=True)
        )
    interleaved = np.isin(choices.schedule, [code for code in searched.schedule if SCHEDULES[code].interleaved])
    earlier = np.where((choices.vpp > 1) & interleaved, (choices.pp - 1) / choices.vpp, 0.0)
    microbatches = choices.num_microbatches
    least = np.maximum(microbatches * model / choices.pp, (microbatches + earlier) * body / choices.pp)
    covered = optimal_cut_covers(np.asarray(choices.schedule))
    if not covered.any():
        return least
    return np.where(covered, np.maximum(least, least_passes_s(seconds, keys, choices, searched)), least)


class StoringSeconds(NamedTuple):
    """The least seconds of a microbatch of a key whose body layers store their activations, or recompute them.

    Those with transfers are of layers whose activations are offloaded.
    """

    stored: np.ndarray  # through the body, [U]
    stored_moved: np.ndarray  # with transfers
    recomputed: np.ndarray  # under each searched recomputation, [values, U]
    recomputed_moved: np.ndarray
    hidden: np.ndarray  # the most that a forward and a backward side by side hide, [U]
    bare: KeySeconds  # of all layers, without recomputation and transfers, [1, U]
    stack: Stack

    def of_plans(
        self,
        keys: np.ndarray,
        choices: PipelineChoices,
        stored: np.ndarray,
        offloads: np.ndarray,
        searched: SearchedCodes,
    ) -> KeySeconds:
        """Return the seconds of N plans, [1, N], of which a share `stored` of the body layers store activations.

        `offloads`, [N], says which plans offload activations, and so wait for transfers.
        They are the least with any place of the stored layers in their stage. As a function of the share they are
        linear between 0, `turning_share` and 1.
        """
        value = np.searchsorted(sorted(searched.recompute), choices.recompute)
        recomputed_s, stored_s = self.recomputed[value, keys], self.stored[keys]
        of_recomputed = np.where(offloads, self.recomputed_moved[value, keys] - recomputed_s, 0.0)
        of_stored = np.where(offloads, self.stored_moved[keys] - stored_s, 0.0)
        # Of layers that stay on the GPU, as many as can be store activations, which take longer to transfer.
        kept = kept_layers(ChosenPlans(choices, searched), self.stack)
        kept_stored = np.minimum(stored * kept.share + kept.share / kept.chunks, stored)
        recomputing = 1.0 - stored - (kept.share - kept_stored)
        body = (1.0 - stored) * recomputed_s + stored * stored_s
        body = body + recomputing * np.minimum(of_recomputed, of_stored) + (stored - kept_stored) * of_stored
        model = self.bare.model[0, keys] - self.bare.body[0, keys] + body
        of_all, of_body = ((seconds[None], (seconds - self.hidden[keys])[None]) for seconds in (model, body))
        bare = KeySeconds(*(column[:, keys] for column in self.bare))
        return KeySeconds(of_all[0], bare.largest, bare.last, of_body[0], of_all[1], of_body[1])

    def turning_share(self, choices: PipelineChoices, searched: SearchedCodes) -> np.ndarray:
        """Return the share of stored layers of plans up to which all of them stay on the GPU."""
        kept = kept_layers(ChosenPlans(choices, searched), self.stack)
        moved = np.maximum(1.0 - kept.share, _SLACK)
        return np.minimum(np.asarray(kept.share / kept.chunks / moved), 1.0)


def storing_seconds(
    kinds: Sequence[LayerCosts], stack: Stack, searched: SearchedCodes, one_way_s: Callable[[PerPlan], PerPlan]
) -> StoringSeconds:
    """Return the seconds of [U] shard keys; `one_way_s` returns those of the transfer of bytes to the host or back."""

    def body(code: int, moved: bool) -> np.ndarray:
        total = np.zeros_like(kinds[0].forward_s)
        for costs, count in of_body:
            forward_s, backward_s = costs.forward_s, costs.backward_s + costs.under("recompute_s", code)
            if moved:
                least_s = one_way_s(costs.under("stash_bytes", code))
                forward_s, backward_s = np.maximum(forward_s, least_s), np.maximum(backward_s, least_s)
            total = total + count * (forward_s + backward_s)
        return total

    ends = stack.embedding_and_head
    of_body = [(kinds[kind], count) for kind, count in stack.totals().items() if kind not in ends]
    recomputed, moved = (np.stack([body(code, way) for code in sorted(searched.recompute)]) for way in (False, True))
    axes = {axis for code in searched.schedule if (overlap := SCHEDULES[code].overlap) for axis in overlap.axes}
    comm_s = [[getattr(costs, COMM_COLUMN[axis]) for costs in kinds] for axis in axes]
    hidden = functools.reduce(np.add, [_all_layers_s(of_axis, stack) for of_axis in comm_s], 0.0 * recomputed[0])
    bare = key_seconds(kinds, stack, with_values(searched, {"recompute": (NONE,), "stored_layers": (0,)}))
    return StoringSeconds(body(NONE, False), body(NONE, True), recomputed, moved, hidden, bare, stack)


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
    for kinds, counts in stack.body:
        total = sum(counts)
        mixed = [seconds[kind] * (count / total) for kind, count in zip(kinds, counts, strict=True)]
        single.append(functools.reduce(xp.add, mixed))
    last = [seconds[kind] for kind in stack.last]
    return functools.reduce(xp.maximum, single), functools.reduce(xp.add, last, xp.zeros_like(single[0]))
