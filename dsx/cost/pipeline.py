"""The pipeline of a step: its stages as the closed form of a schedule sees them, and what it adds to their work.

`dsx.schedules.closed_forms` has the closed forms, and `dsx.cost.sends` what sends add to the passes of a stage. With
several chunks per stage, the first chunk of the first stage, which has the embedding, holds 2p - 1 microbatches in
flight: p of the first round of the warm-up and p - 1 of its last. The last chunk of the last stage, which has the head,
holds one. So does the head under a schedule that puts off the gradients of weights: a stage holds more microbatches
then, but those that only wait for these need little of the head.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.cost.context import PipelineChoices, StageChoices, StepChoices, pick
from dsx.cost.sends import Sends, StageSends
from dsx.cost.shapes import PerPlan
from dsx.cost.stages import Layers, Stage, over_layers
from dsx.plans.codes import SearchedCodes
from dsx.schedules.closed_forms import AnyCut, Delays, Passes, PipelineView, StageView
from dsx.schedules.order import IN_ROUNDS, StageChunks
from dsx.schedules.schedules import SCHEDULES, Overlap, PutOff, replayed_s

NO_SENDS = Passes(0.0, 0.0)
_EXTREMES = ((np.min, np.inf), (np.max, -np.inf))


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
    whole: Layers  # of all stages
    largest: Callable[[list[PerPlan]], PerPlan]
    of_earlier: Callable[[list[PerPlan]], list[PerPlan]]  # for each stage the maximum over the earlier ones, or -inf
    of_later: Callable[[list[PerPlan]], list[PerPlan]]
    chunks: Layers | None = None  # [R, S, N] of each chunk, in rounds, if unlike ones are replayed


class LayerSeconds(NamedTuple):
    """The seconds of one microbatch on a layer of each kind."""

    forward_s: Sequence[PerPlan]
    backward_s: Sequence[PerPlan]
    weight_gradient_s: Sequence[PerPlan]  # the part of the backward that only computes weight gradients
    comm_s: Mapping[str, Sequence[PerPlan]]  # by axis, the exposed part of its collectives, forward and backward

    def hidden_s(self, axes: Sequence[str]) -> list[PerPlan]:
        """Return what a forward and a backward hide that run side by side.

        The collectives of `axes` in either hide behind the rest of both.
        """
        found = [xp.zeros_like(forward) for forward in self.forward_s]
        for axis in axes:
            for kind, comm_s in enumerate(self.comm_s[axis]):
                rest_s = self.forward_s[kind] + self.backward_s[kind] - comm_s
                found[kind] = found[kind] + xp.minimum(comm_s, rest_s)
        return found


def pipeline(
    cuts: Mapping[StageChunks, Cut], layers: LayerSeconds, sends: Sends, choices: StepChoices, searched: SearchedCodes
) -> Pipeline:
    """Return the seconds of the pipeline; `cuts` has the cut for each placement of chunks."""
    mean = next(iter(cuts.values())).mean.layers
    many, none = choices.num_microbatches, xp.zeros_like(choices.num_microbatches)
    busy_s = many * (over_layers(mean, layers.forward_s) + over_layers(mean, layers.backward_s))
    steps, exposed, hidden = {}, {}, {}
    interleaved = searched.vpp != (1,)
    views: dict[tuple[StageChunks, Overlap | None], PipelineView] = {}
    for code in searched.schedule:
        schedule = SCHEDULES[code]
        alike = schedule.holds, schedule.overlap
        if alike not in views:
            split = any(SCHEDULES[other].by_waves for other in searched.schedule)
            views[alike] = _view(cuts[schedule.holds], layers, sends, choices, *alike, split, interleaved)
        view = views[alike]
        steps[code] = schedule.step_s(view)
        if schedule.interleaved_s and interleaved:
            interleaved_s = schedule.interleaved_s(view)
            chunks = cuts[schedule.holds].chunks
            if chunks is not None:
                interleaved_s = np.maximum(interleaved_s, _unlike_chunks_s(code, chunks, layers, sends, choices))
            steps[code] = xp.where(choices.vpp > 1, interleaved_s, steps[code])
        sends_wait = not (schedule.overlap and schedule.overlap.sends)
        exposed[code] = (many if sends_wait else none) * sends.exposed_s(choices, schedule.holds, interleaved)
        if schedule.overlap:
            pairs = xp.where(choices.pp > 1, schedule.overlap.num_pairs(choices.pp, many), none)
            of_axes = {axis: over_layers(mean, layers.hidden_s([axis])) for axis in schedule.overlap.axes}
            hidden[code] = {axis: pairs * seconds for axis, seconds in of_axes.items()}

    def picked(found: Mapping[int, PerPlan]) -> PerPlan:
        return pick(searched.schedule, choices.schedule, found)

    axes = sorted({axis for of_axes in hidden.values() for axis in of_axes})
    hidden_s = {axis: picked({c: hidden.get(c, {}).get(axis, none * busy_s) for c in steps}) for axis in axes}
    # A pipeline of one stage is that stage, also in rounding.
    step_s = xp.where(choices.pp > 1, picked(steps), busy_s)
    sends_s = picked(exposed)
    work_s = busy_s - sum(hidden_s.values(), 0.0)
    return Pipeline(step_s, sends_s, xp.maximum(step_s - work_s - sends_s, xp.zeros_like(busy_s)), hidden_s)


def _unlike_chunks_s(
    schedule: int, chunks: Layers, layers: LayerSeconds, sends: Sends, choices: StepChoices
) -> PerPlan:
    """Return the [N] seconds of pipelines interleaved under a schedule, by a replay; -inf where all chunks are alike.

    Embedding and head are beside a chunk, or they replace a layer of it. The closed form has both.
    """
    pp, vpp, many = map(np.asarray, (choices.pp, choices.vpp, choices.num_microbatches))
    counts = np.add.reduce([np.asarray(of_kind) for of_kind in chunks.values()])
    number = np.arange(len(counts))[:, None, None] * pp + np.arange(counts.shape[1])[:, None]
    there = (np.arange(counts.shape[1])[:, None] < pp) & (number < pp * vpp)
    inner = there & (number > 0) & (number < pp * vpp - 1)
    least, most = (function(counts, axis=(0, 1), where=inner, initial=initial) for function, initial in _EXTREMES)
    first, last = counts[0, 0], np.max(counts, axis=(0, 1), where=number == pp * vpp - 1, initial=0.0)
    alike = (least == most) & (first == last) & ((first == least) | (first == least + 1.0))
    rows = np.flatnonzero(~alike & (vpp > 1) & (pp > 1))
    found = np.full(len(pp), -np.inf)
    if len(rows):

        def of_rows(values: PerPlan) -> np.ndarray:
            return np.broadcast_to(values, (*np.shape(values)[:-1], len(pp)))[..., rows]

        stage = np.arange(float(counts.shape[1]))[:, None]
        around = sends.around(stage, choices, IN_ROUNDS, interleaved=True)
        hops_s = np.concatenate([*map(of_rows, sends.hops_s(stage, choices))])
        # The last chunk of all sends nothing forward, and the first one nothing back.
        middle = number < pp * vpp - 1, number > 0
        exposed_s = [
            of_rows(np.where(sent, own, 0.0))
            for sent, own in zip(middle, (around.first.forward, around.last.backward), strict=True)
        ]
        layers_of = {kind: np.asarray(layer)[:, :, rows] for kind, layer in chunks.items()}
        forward_s, backward_s = (
            np.asarray(over_layers(layers_of, [*map(of_rows, seconds)]) + sent_s)
            for seconds, sent_s in zip((layers.forward_s, layers.backward_s), exposed_s, strict=True)
        )
        sizes = pp[rows], vpp[rows], many[rows]
        found[rows] = replayed_s(SCHEDULES[schedule], forward_s, backward_s, hops_s, *sizes)
    return found


def through_stage_s(
    position: PerPlan,
    own: Passes,
    after: Passes,
    whole: Passes,
    sends: Sends,
    choices: StepChoices | StageChoices,
    searched: SearchedCodes,
) -> PerPlan:
    """Return the seconds of a pipeline of which stage `position` is the slowest; a cut takes the largest of its stages.

    `own`, `after` and `whole` are one microbatch on the stage, on the later stages and on all stages, without sends.
    Only schedules whose optimal cut is known count.
    """
    around = sends.around(position, choices, IN_ROUNDS, interleaved=False)
    whole_s = sends.whole_s(choices, IN_ROUNDS, interleaved=False)
    delays, bare_s = None, whole.both
    if around.delays:
        neighbour_s, waits, longest_s = around.delays
        delays = Delays(own.both, neighbour_s, own.plus(waits), longest_s)
    own, after, whole = own.plus(around.own), after.plus(around.after), whole.plus(Passes(whole_s, whole_s))
    stage = StageView(position, own, own, own, before=own, after=after, delays=delays)
    view = PipelineView(
        stages=[stage],
        first=stage,
        last=stage,
        whole=whole,
        bare_s=bare_s,
        middle_s=0.0,
        weights_s=0.0,
        pp=choices.pp,
        vpp=choices.vpp,
        num_microbatches=choices.num_microbatches,
        largest=lambda values: values[0],
        of_earlier=lambda values: values,
        of_later=lambda values: values,
    )
    codes = tuple(code for code in searched.schedule if SCHEDULES[code].optimal_cut)
    return pick(codes, choices.schedule, {code: SCHEDULES[code].step_s(view) for code in codes})


def least_pipeline_s(
    mean_s: PerPlan,
    largest_s: PerPlan,
    last_s: PerPlan,
    sends: Sends,
    choices: StepChoices | PipelineChoices,
    searched: SearchedCodes,
) -> PerPlan:
    """Return a bound below the seconds of the pipeline of any cut, for the schedules whose optimal cut is known.

    One microbatch takes `mean_s` on the mean stage, `largest_s` on the largest layer, and `last_s` on the layers that
    only the last stage has.
    """
    interleaved = searched.vpp != (1,)
    exposed_s, (least_s, of_last_s) = sends.exposed_s(choices, IN_ROUNDS, interleaved), sends.ends_s(choices)
    whole_s = choices.pp * mean_s + 2.0 * sends.whole_s(choices, IN_ROUNDS, interleaved)
    largest_s, last_s = largest_s + least_s, last_s + of_last_s
    cut = AnyCut(whole_s, mean_s + exposed_s, largest_s, last_s, choices.pp, choices.num_microbatches)
    found = {code: SCHEDULES[code].any_cut_s for code in searched.schedule}
    bounds = {code: bound(cut) for code, bound in found.items() if bound}
    bound = pick(tuple(bounds), choices.schedule, bounds)
    if not interleaved:
        return bound
    # With several chunks per stage, some stage runs all microbatches on the mean of all layers.
    return xp.where(choices.vpp > 1, choices.num_microbatches * (mean_s + exposed_s), bound)


def _view(
    cut: Cut,
    kinds: LayerSeconds,
    sends: Sends,
    choices: StepChoices,
    holds: StageChunks,
    overlap: Overlap | None,
    split: bool,
    interleaved: bool,
) -> PipelineView:
    """Return the pipeline of a cut; with `split` its passes have the seconds of weight gradients apart."""
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
        neighbour_s, waits, longest_s = sent.delays
        earlier = None if stage.begins else passes(stage.chunks_around.first, waits)
        return Delays(passes(stage.layers, NO_SENDS).both, neighbour_s, earlier, longest_s)

    def view(stage: Stage) -> StageView:
        around = stage.chunks_around
        position = xp.minimum(stage.position, choices.pp - 1.0)
        sent = sends.around(position, choices, holds, interleaved)
        return StageView(
            position=position,
            own=passes(stage.layers, sent.own),
            first=passes(around.first, sent.first),
            last=passes(around.last, sent.last),
            before=passes(around.before, sent.before),
            after=passes(around.after, sent.after),
            sends_s=sent.before.forward,
            delays=delays(stage, sent),
            ends=stage.ends,
        )

    whole_s = sends.whole_s(choices, holds, interleaved)
    return PipelineView(
        stages=[view(stage) for stage in cut.stages],
        first=view(cut.first),
        last=view(cut.last),
        whole=passes(cut.whole, Passes(whole_s, whole_s)),
        bare_s=passes(cut.whole, NO_SENDS).both,
        middle_s=sends.middle_s(choices),
        weights_s=over_layers(cut.mean.layers, kinds.weight_gradient_s),
        pp=choices.pp,
        vpp=choices.vpp,
        num_microbatches=choices.num_microbatches,
        largest=cut.largest,
        of_earlier=cut.of_earlier,
        of_later=cut.of_later,
    )


def in_flight(
    index: PerPlan, choices: StepChoices | StageChoices, searched: SearchedCodes, last: bool = False
) -> PerPlan:
    """Return the largest number of microbatches whose activations stage `index` holds.

    Where a stage holds two chunks that are not in rounds, they are those of its first chunk, or of its `last` one.
    """
    ahead = choices.pp - index
    most: dict[int, PerPlan] = {}
    for code in searched.schedule:
        schedule = SCHEDULES[code]
        of_chain = choices.num_microbatches / schedule.holds.num_chains
        count = (last and schedule.in_flight_of_last) or schedule.in_flight
        most[code] = xp.minimum(count(ahead, choices.pp, choices.num_microbatches), of_chain)
        if count(1.0, 1.0, 2.0) > 1.0 or schedule.holds.num_chains > 1:
            # A single stage has no schedule: each microbatch ends before the next one starts.
            most[code] = xp.where(choices.pp > 1.0, most[code], xp.ones_like(of_chain))
        if schedule.interleaved and searched.vpp != (1,):
            chunked = schedule.chunks_in_flight(ahead, choices.pp, choices.vpp)
            chunked = xp.minimum(chunked, of_chain)
            most[code] = xp.where(choices.vpp > 1.0, chunked, most[code])
    return pick(searched.schedule, choices.schedule, most)


def put_off(position: PerPlan, choices: StepChoices, searched: SearchedCodes) -> PutOff | None:
    """Return what stages hold while they have put off most gradients of weights; zeros for plans that put none off.

    None if no schedule of a search does.
    """
    found = {code: of(position, choices.pp) for code in searched.schedule if (of := SCHEDULES[code].put_off)}
    if not found:
        return None
    none = xp.zeros_like(position * choices.num_microbatches)

    def picked(name: str) -> PerPlan:
        counts = {code: getattr(found[code], name) if code in found else None for code in searched.schedule}
        most = {c: none if n is None else xp.minimum(none + n, choices.num_microbatches) for c, n in counts.items()}
        return xp.where(choices.pp > 1.0, pick(searched.schedule, choices.schedule, most), none)

    return PutOff(*map(picked, PutOff._fields))


def weight_versions(choices: StepChoices, searched: SearchedCodes) -> PerPlan | None:
    """Return the number of versions of its weights that a stage keeps; None if all searched schedules keep one."""
    versions = {code: np.asarray(SCHEDULES[code].weight_versions, choices.pp.dtype) for code in searched.schedule}
    if all(SCHEDULES[code].weight_versions == 1 for code in searched.schedule):
        return None
    return pick(searched.schedule, choices.schedule, versions)


def in_flight_of_embedding_and_head(
    microbatches: PerPlan, choices: StepChoices, searched: SearchedCodes
) -> tuple[PerPlan, PerPlan] | None:
    """Return the largest numbers of microbatches that embedding and head hold; their stages hold `microbatches`.

    None if these are the same for all plans.
    """
    first = last = microbatches
    one = xp.ones_like(choices.num_microbatches)
    waiting = [choices.schedule == code for code in searched.schedule if SCHEDULES[code].weights_wait]
    if waiting:
        last = xp.where((choices.pp > 1.0) & functools.reduce(xp.maximum, waiting), one, last)
    if searched.vpp != (1,):
        of_chunk = xp.minimum(2.0 * choices.pp - 1.0, choices.num_microbatches)
        first, last = (xp.where(choices.vpp > 1.0, held, other) for held, other in ((of_chunk, first), (one, last)))
    return None if last is microbatches else (first, last)
