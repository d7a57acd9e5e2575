"""The pipeline of a step: its stages as the closed form of a schedule sees them, and what it adds to their work.

`dsx.schedules.closed_forms` has the closed forms, and `dsx.cost.sends` what sends add to the passes of a stage. With
several chunks per stage, the first chunk of the first stage, which has the embedding, holds 2p - 1 microbatches in
flight: p of the first round of the warm-up and p - 1 of its last. The last chunk of the last stage, which has the head,
holds one. So does the head under a schedule that puts off the gradients of weights: a stage holds more microbatches
then, but those that only wait for these need little of the head.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.arrays import PerPlan
from dsx.cost.context import ChosenPlans, StepChoices, StepPlans, pick
from dsx.cost.sends import Sends, StageSends
from dsx.cost.stages import Layers, Stage, over_layers
from dsx.schedules.closed_forms import AnyCut, Delays, Passes, PipelineView, StageView
from dsx.schedules.order import IN_ROUNDS, StageChunks
from dsx.schedules.schedules import SCHEDULES, Overlap, PutOff, Schedule, replayed_s

NO_SENDS = Passes(0.0, 0.0)


class Pipeline(NamedTuple):
    """The seconds of all passes of a step: the work of the mean stage, the sends that stages wait for, the bubble."""

    step_s: PerPlan
    pp_comm_s: PerPlan
    bubble_s: PerPlan
    hidden_s: Mapping[str, PerPlan]  # by axis, communication of the mean stage that passes side by side hide


class Cut(NamedTuple):
    """The stages of a cut of which one determines the step, and how to combine their values."""

    stages: Sequence[Stage]  # that may be the slowest
    held: Sequence[Stage]  # that may need most memory
    first: Stage
    last: Stage
    mean: Stage
    all_layers: Layers  # of all stages
    largest: Callable[[Sequence[PerPlan]], PerPlan]
    of_earlier: Callable[
        [Sequence[PerPlan]], Sequence[PerPlan]
    ]  # for each stage the maximum over earlier ones, or -inf
    of_later: Callable[[Sequence[PerPlan]], Sequence[PerPlan]]
    chunks: Layers | None = None  # [R, S, N] of each chunk, in rounds, if unlike ones are replayed
    first_back: PerPlan | None = None  # as of `LinkSends`


class LayerSeconds(NamedTuple):
    """The seconds of one microbatch on a layer of each kind."""

    forward_s: Sequence[PerPlan]
    backward_s: Sequence[PerPlan]
    weight_gradient_s: Sequence[PerPlan]  # the part of the backward that only computes weight gradients
    comm_s: Mapping[str, Sequence[PerPlan]]  # by axis, the exposed part of its collectives, forward and backward

    def hidden_s(self, axes: Sequence[str]) -> list[PerPlan]:
        """Return what a forward and a backward hide that run side by side.

        The collectives of `axes` in either hide behind the other work of both.
        """
        hidden = [xp.zeros_like(forward) for forward in self.forward_s]
        for axis in axes:
            for kind, comm_s in enumerate(self.comm_s[axis]):
                beside_s = self.forward_s[kind] + self.backward_s[kind] - comm_s
                hidden[kind] = hidden[kind] + xp.minimum(comm_s, beside_s)
        return hidden


def pipeline(cuts: Mapping[StageChunks, Cut], layers: LayerSeconds, sends: Sends, plans: StepPlans) -> Pipeline:
    """Return the seconds of the pipeline; `cuts` has the cut for each placement of chunks."""
    choices, interleaved = plans.choices, plans.interleaved
    mean = next(iter(cuts.values())).mean.layers
    microbatches, zero = choices.num_microbatches, xp.zeros_like(choices.num_microbatches)
    busy_s = microbatches * (over_layers(mean, layers.forward_s) + over_layers(mean, layers.backward_s))
    steps, exposed, hidden = {}, {}, {}
    views: dict[tuple[StageChunks, Overlap | None], PipelineView] = {}
    for code in plans.searched.schedule:
        schedule = SCHEDULES[code]
        sends = sends._replace(first_back=cuts[schedule.holds].first_back)
        key = schedule.holds, schedule.overlap
        if key not in views:
            views[key] = _view(cuts[schedule.holds], layers, sends, schedule, plans)
        steps[code] = schedule.step_s(views[key])
        if schedule.interleaved_s and interleaved:
            interleaved_s = schedule.interleaved_s(views[key])
            if (chunks := cuts[schedule.holds].chunks) is not None:
                interleaved_s = np.maximum(interleaved_s, _unlike_chunks_s(schedule, chunks, layers, sends, choices))
            steps[code] = xp.where(choices.vpp > 1, interleaved_s, steps[code])
        sends_wait = not (schedule.overlap and schedule.overlap.sends)
        exposed[code] = (microbatches if sends_wait else zero) * sends.exposed_s(choices, schedule.holds, interleaved)
        if schedule.overlap:
            pairs = xp.where(choices.pp > 1, schedule.overlap.num_pairs(choices.pp, microbatches), zero)
            of_axes = {axis: over_layers(mean, layers.hidden_s([axis])) for axis in schedule.overlap.axes}
            hidden[code] = {axis: pairs * seconds for axis, seconds in of_axes.items()}
    axes = sorted({axis for of_axes in hidden.values() for axis in of_axes})
    hidden_s = {
        axis: plans.by_code("schedule", lambda code, axis=axis: hidden.get(code, {}).get(axis, zero * busy_s))
        for axis in axes
    }
    # A pipeline of one stage is that stage, also in rounding.
    step_s = xp.where(choices.pp > 1, plans.by_code("schedule", steps.__getitem__), busy_s)
    sends_s = plans.by_code("schedule", exposed.__getitem__)
    work_s = busy_s - sum(hidden_s.values(), 0.0)
    return Pipeline(step_s, sends_s, xp.maximum(step_s - work_s - sends_s, xp.zeros_like(busy_s)), hidden_s)


def _unlike_chunks_s(
    schedule: Schedule, chunks: Layers, layers: LayerSeconds, sends: Sends, choices: StepChoices
) -> PerPlan:
    """Return the [N] seconds of pipelines interleaved under a schedule, by a replay; -inf where all chunks are alike.

    Embedding and head are beside a chunk, or they replace a layer of it. The closed form has both.
    """
    pp, vpp, microbatches = map(np.asarray, (choices.pp, choices.vpp, choices.num_microbatches))
    counts = np.add.reduce([np.asarray(of_kind) for of_kind in chunks.values()])
    number = np.arange(len(counts))[:, None, None] * pp + np.arange(counts.shape[1])[:, None]
    inner = (np.arange(counts.shape[1])[:, None] < pp) & (number < pp * vpp) & (number > 0) & (number < pp * vpp - 1)
    least = np.min(counts, axis=(0, 1), where=inner, initial=np.inf)
    most = np.max(counts, axis=(0, 1), where=inner, initial=-np.inf)
    first, last = counts[0, 0], np.max(counts, axis=(0, 1), where=number == pp * vpp - 1, initial=0.0)
    equal = (least == most) & (first == last) & ((first == least) | (first == least + 1.0))
    rows = np.flatnonzero(~equal & (vpp > 1) & (pp > 1))
    seconds = np.full(len(pp), -np.inf)
    if len(rows):

        def of_rows(values: PerPlan) -> np.ndarray:
            return np.broadcast_to(values, (*np.shape(values)[:-1], len(pp)))[..., rows]

        stage = np.arange(float(counts.shape[1]))[:, None]
        around = sends.around(stage, choices, IN_ROUNDS, interleaved=True)
        hops_s = np.concatenate([*map(of_rows, sends.hops_s(stage, choices))])
        layers_of = {kind: np.asarray(layer)[:, :, rows] for kind, layer in chunks.items()}
        # The last chunk of all sends nothing forward, and those up to the first with a gradient nothing back.
        first_back = 0 if sends.first_back is None else sends.first_back
        forward_s, backward_s = (
            np.asarray(over_layers(layers_of, [*map(of_rows, of_kinds)]) + of_rows(np.where(sent, sent_s, 0.0)))
            for of_kinds, sent, sent_s in (
                (layers.forward_s, number < pp * vpp - 1, around.first.forward),
                (layers.backward_s, number > first_back, around.last.backward),
            )
        )
        sizes = np.stack([pp, vpp, microbatches])[:, rows]
        seconds[rows] = replayed_s(schedule, forward_s, backward_s, hops_s, sizes)
    return seconds


def through_stage_s(
    position: PerPlan, stage: Passes, later: Passes, model: Passes, sends: Sends, plans: ChosenPlans
) -> PerPlan:
    """Return the seconds of a pipeline of which stage `position` is the slowest; a cut takes the largest of its stages.

    `stage`, `later` and `model` are one microbatch on the stage, on the later stages and on all stages, without sends.
    Only schedules whose optimal cut is known count.
    """
    choices = plans.choices
    around = sends.around(position, choices, IN_ROUNDS, interleaved=False)
    sends_s = sends.all_s(choices, IN_ROUNDS, interleaved=False)
    delays, bare_s = None, model.both
    if around.delays:
        neighbour_s, waits, longest = around.delays
        delays = Delays(stage.both, neighbour_s, stage.plus(waits), longest)
    passes, later = stage.plus(around.chunks), later.plus(around.later)
    slowest = StageView(position, passes, passes, passes, earlier=passes, later=later, delays=delays)
    view = PipelineView(
        stages=[slowest],
        first=slowest,
        last=slowest,
        microbatch=model.plus(sends_s),
        bare_s=bare_s,
        middle_s=0.0,
        weights_s=0.0,
        pp=choices.pp,
        vpp=choices.vpp,
        num_microbatches=choices.num_microbatches,
        largest=lambda values: values[0],
        of_earlier=lambda values: values,
        of_later=lambda values: values,
        returns=_returns(sends),
    )
    codes = tuple(code for code in plans.searched.schedule if SCHEDULES[code].optimal_cut)
    return pick(codes, choices.schedule, {code: SCHEDULES[code].step_s(view) for code in codes})


def least_pipeline_s(mean_s: PerPlan, largest_s: PerPlan, last_s: PerPlan, sends: Sends, plans: ChosenPlans) -> PerPlan:
    """Return a bound below the seconds of the pipeline of any cut, for the schedules whose optimal cut is known.

    One microbatch takes `mean_s` on the mean stage, `largest_s` on the largest layer, and `last_s` on the layers that
    only the last stage has.
    """
    choices, interleaved = plans.choices, plans.interleaved
    exposed_s, (least_s, of_last_s) = sends.exposed_s(choices, IN_ROUNDS, interleaved), sends.ends_s(choices)
    model_s = choices.pp * mean_s + sends.all_s(choices, IN_ROUNDS, interleaved).both
    largest_s, last_s = largest_s + least_s, last_s + of_last_s
    returns, microbatches = sends.first_back is None, choices.num_microbatches
    cut = AnyCut(model_s, mean_s + exposed_s, largest_s, last_s, choices.pp, microbatches, returns)
    bounds = {code: bound(cut) for code in plans.searched.schedule if (bound := SCHEDULES[code].any_cut_s)}
    least = pick(tuple(bounds), choices.schedule, bounds)
    if not interleaved:
        return least
    # With several chunks per stage, some stage runs all microbatches on the mean of all layers.
    return xp.where(choices.vpp > 1, choices.num_microbatches * (mean_s + exposed_s), least)


def _view(cut: Cut, kinds: LayerSeconds, sends: Sends, schedule: Schedule, plans: ChosenPlans) -> PipelineView:
    """Return the pipeline of a cut as a schedule sees it, and others that hold chunks and overlap passes likewise.

    If any schedule of the search needs them, passes have the seconds of weight gradients apart.
    """
    choices, holds, overlap, interleaved = plans.choices, schedule.holds, schedule.overlap, plans.interleaved
    split = any(other.by_waves for other in plans.schedules)
    sends = sends.hidden() if overlap and overlap.sends else sends
    side_by_side_s = kinds.hidden_s(overlap.axes) if overlap else None

    def passes(layers: Layers, sent: Passes) -> Passes:
        forward_s, backward_s = (
            over_layers(layers, seconds) + sent_s for seconds, sent_s in zip(kinds[:2], sent[:2], strict=True)
        )
        if not split:
            return Passes(forward_s, backward_s)
        weights_s = over_layers(layers, kinds.weight_gradient_s)
        saved_s = 0.0 if side_by_side_s is None else 0.5 * over_layers(layers, side_by_side_s)
        return Passes(forward_s, backward_s, weights_s, saved_s)

    def delays(stage: Stage, sent: StageSends) -> Delays | None:
        if sent.delays is None:
            return None
        neighbour_s, waits, longest = sent.delays
        earlier = None if stage.begins else passes(stage.chunks_around.first, waits)
        return Delays(passes(stage.layers, NO_SENDS).both, neighbour_s, earlier, longest)

    def view(stage: Stage) -> StageView:
        around = stage.chunks_around
        position = xp.minimum(stage.position, choices.pp - 1.0)
        sent = sends.around(position, choices, holds, interleaved)
        return StageView(
            position=position,
            chunks=passes(stage.layers, sent.chunks),
            first=passes(around.first, sent.first),
            last=passes(around.last, sent.last),
            earlier=passes(around.earlier, sent.earlier),
            later=passes(around.later, sent.later),
            sends_s=sent.earlier.forward if sends.first_back is None else sent.later.backward,
            delays=delays(stage, sent),
            ends=stage.ends,
        )

    return PipelineView(
        stages=[view(stage) for stage in cut.stages],
        first=view(cut.first),
        last=view(cut.last),
        microbatch=passes(cut.all_layers, sends.all_s(choices, holds, interleaved)),
        bare_s=passes(cut.all_layers, NO_SENDS).both,
        middle_s=sends.middle_s(choices),
        weights_s=over_layers(cut.mean.layers, kinds.weight_gradient_s),
        pp=choices.pp,
        vpp=choices.vpp,
        num_microbatches=choices.num_microbatches,
        largest=cut.largest,
        of_earlier=cut.of_earlier,
        of_later=cut.of_later,
        returns=_returns(sends),
    )


def _returns(sends: Sends) -> PerPlan | None:
    """Return whether gradients come back to the first stage; None if they do for all plans."""
    return None if sends.first_back is None else sends.first_back < 1.0


def in_flight(index: PerPlan, plans: ChosenPlans, last: bool = False) -> PerPlan:
    """Return the largest number of microbatches whose activations stage `index` holds.

    Where a stage holds two chunks that are not in rounds, they are those of its first chunk, or of its `last` one.
    """
    pp, microbatches = plans.choices.pp, plans.choices.num_microbatches
    ahead = pp - index

    def of_schedule(schedule: Schedule) -> PerPlan:
        of_chain = microbatches / schedule.holds.num_chains
        count = (last and schedule.in_flight_of_last) or schedule.in_flight
        most = xp.minimum(count(ahead, pp, microbatches), of_chain)
        if count(1.0, 1.0, 2.0) > 1.0 or schedule.holds.num_chains > 1:
            # A single stage has no schedule: each microbatch ends before the next one starts.
            most = xp.where(pp > 1.0, most, xp.ones_like(of_chain))
        if schedule.interleaved and plans.interleaved:
            vpp = plans.choices.vpp
            chunked = xp.minimum(schedule.chunks_in_flight(ahead, pp, vpp), of_chain)
            most = xp.where(vpp > 1.0, chunked, most)
        return most

    return plans.by_schedule(of_schedule)


def put_off(position: PerPlan, plans: ChosenPlans) -> PutOff | None:
    """Return what stages hold while they have put off most gradients of weights; zeros for plans that put none off.

    None if no schedule of a search does.
    """
    if not any(schedule.put_off for schedule in plans.schedules):
        return None
    pp, microbatches = plans.choices.pp, plans.choices.num_microbatches
    zero = xp.zeros_like(position * microbatches)

    def picked(name: str) -> PerPlan:
        def most(schedule: Schedule) -> PerPlan:
            if schedule.put_off is None:
                return zero
            return xp.minimum(zero + getattr(schedule.put_off(position, pp), name), microbatches)

        return xp.where(pp > 1.0, plans.by_schedule(most), zero)

    return PutOff(*map(picked, PutOff._fields))


def in_flight_of_embedding_and_head(microbatches: PerPlan, plans: ChosenPlans) -> tuple[PerPlan, PerPlan] | None:
    """Return the largest numbers of microbatches that embedding and head hold; their stages hold `microbatches`.

    None if these are the same for all plans.
    """
    choices, first, last = plans.choices, microbatches, microbatches
    ones = xp.ones_like(choices.num_microbatches)
    if (waiting := plans.pipelines(lambda schedule: schedule.weights_wait)) is not None:
        last = xp.where(waiting, ones, last)
    if plans.interleaved:
        of_chunk = xp.minimum(2.0 * choices.pp - 1.0, choices.num_microbatches)
        first, last = (xp.where(choices.vpp > 1.0, held, other) for held, other in ((of_chunk, first), (ones, last)))
    return None if last is microbatches else (first, last)
