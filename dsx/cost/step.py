"""The cost of a step: layer costs combined by the choices that do not change them.

A cut gives each stage its layers. The step time is that of the pipeline, which the slowest stage determines, plus the
exposed data-parallel reduction and the optimizer update. Time columns are means over the stages; the stall for the
slowest stage is part of the bubble. Memory columns are those of the worst stage.

Arrays broadcast: layer costs are [U, 1] (or [U]) and choices [1, G] (or [U]), so the same function prices a block of
keys times choices, a list of plans, or one plan.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dsx import arrays as xp
from dsx.arrays import Column, PerPlan
from dsx.config.cluster_file import Cluster
from dsx.cost.collectives import FastestAlgorithm, neighbours, pipeline_nic_shares, send
from dsx.cost.context import Assumptions, ChosenPlans, StepChoices, StepCosts, of_plans, of_steps
from dsx.cost.groups import crosses, group
from dsx.cost.interval import run_columns
from dsx.cost.layer import COMM_COLUMN, LayerCosts
from dsx.cost.memory import Memory
from dsx.cost.offload import always_split
from dsx.cost.pipeline import Cut, LayerSeconds, Pipeline, pipeline
from dsx.cost.sends import LinkSends, MeanSends, OwnWay, Sends, slow_senders
from dsx.cost.stage import StageCosts
from dsx.cost.stages import Stack, Stage, first_back, over_layers, stages, stages_between
from dsx.plans.choices import STEP_COLUMNS
from dsx.plans.enumerate import SearchedCodes
from dsx.records import Array, Float, columns, record, tree_map
from dsx.schedules.order import IN_ROUNDS, StageChunks

MEAN = "mean"  # of `pipeline_sends`
T = TypeVar("T")


@record
class Workload:
    """The training run, as far as the cost of a step depends on it."""

    stack: Stack
    sequence_length: PerPlan
    forward_flops: PerPlan  # matrix FLOPs of one sequence through all layers, unsharded
    gradient_flops: PerPlan  # those of the gradients of all operands that have one, without what is recomputed
    train_tokens: PerPlan  # NaN where not given
    searched: SearchedCodes

    @property
    def model_flops(self) -> PerPlan:
        """Matrix FLOPs of one sequence in a step by the model, of which recomputation is no part."""
        return self.forward_flops + self.gradient_flops


@xp.unchecked
def step_costs(
    kinds: Sequence[LayerCosts],
    choices: StepChoices,
    workload: Workload,
    cluster: Cluster,
    assumptions: Assumptions,
    boundaries: Float[Array, "rounds boundaries *each"] | None = None,
) -> StepCosts:
    """Price steps; `kinds` has the costs of each layer kind; every result has the broadcast shape of the arguments.

    The cut is even unless [R, S + 1, N] `boundaries` are given for [N] plans (`dsx.cost.stages.stages_between`). Where
    chunks of a stage are unlike, the order of their passes is replayed, but not in compiled code.
    """
    microbatches = choices.num_microbatches
    kinds = with_effects(kinds, choices, workload.stack, workload.searched, assumptions)
    costs = StageCosts(choices, workload.searched, workload.stack, cluster, assumptions, kinds)
    cuts = even_cuts(costs) if boundaries is None else cuts_at(costs, boundaries, isinstance(boundaries, np.ndarray))
    mean = next(iter(cuts.values())).mean

    def busy(values: Sequence[PerPlan]) -> Column:
        """Return the seconds of all microbatches of a step on the mean stage, from those of a layer of each kind."""
        layers = mean.layers.items()
        return functools.reduce(xp.add, [(microbatches * count) * values[kind] for kind, count in layers])

    def column(name: str) -> Column:
        return busy([getattr(layer, name) for layer in kinds])

    pipe = pipeline_of(costs, cuts)

    def column_besides_hidden(name: str) -> Column:
        axes = [axis for axis in pipe.hidden_s if COMM_COLUMN[axis] == name]
        return column(name) - sum((pipe.hidden_s[axis] for axis in axes), 0.0)

    of_cuts: dict[StageChunks, tuple[PerPlan, PerPlan, Memory, PerPlan, PerPlan]] = {}
    for holds, cut in cuts.items():
        memories = [costs.peak_memory(stage, holds) for stage in cut.held]
        memory = functools.reduce(_larger, memories) if boundaries is None else _worst_stage(*memories)
        # It equals the sum of `memory`; as a maximum, a search for the peak alone need not select the parts.
        peak = cut.largest([stage.peak_bytes for stage in memories])
        host = (
            cut.largest([costs.peak_host_bytes(stage, holds) for stage in cut.held])
            if costs.uses_host
            else xp.zeros_like(peak)
        )
        reduction_s, update_s = costs.reduction_and_update_s(cut.first, holds, pipe.step_s)
        if workload.stack.num_constant:  # the last backward may be that of another stage
            of_stages = [costs.reduction_s(stage, pipe.step_s) for stage in cut.stages]
            reduction_s = xp.maximum(reduction_s, cut.largest(of_stages))
            update_s = xp.maximum(update_s, cut.largest([costs.update_s(stage) for stage in cut.stages]))
        of_cuts[holds] = reduction_s, update_s, memory, peak, host
    dp_comm, update, memory, peak, host = _selected(of_cuts, costs)
    in_passes = [busy(exposed) for exposed in costs.pass_reductions_s or ()]
    recompute_s = busy(costs.recompute_s)
    stall = costs.stall_s
    step = pipe.step_s + dp_comm + update
    tokens = choices.global_batch_size * workload.sequence_length / step
    model_flops = workload.model_flops * choices.global_batch_size
    ones = xp.ones_like(step)
    return StepCosts(
        compute_s=column("compute_s"),
        memory_s=column("memory_s") if stall is None else column("memory_s") + busy(stall),
        **{name: column_besides_hidden(name) for name in dict.fromkeys(COMM_COLUMN.values())},
        pp_comm_s=pipe.pp_comm_s * ones,
        dp_comm_s=functools.reduce(xp.add, in_passes, dp_comm) * ones,
        bubble_s=pipe.bubble_s * ones,
        recompute_s=recompute_s * ones,
        optimizer_s=update * ones,
        step_time_s=xp.asarray(step),
        **{name: getattr(memory, name) * ones for name in Memory._fields},
        peak_bytes=peak * ones,
        host_bytes=host * ones,
        mfu=model_flops / (step * choices.num_gpus * cluster.device.matrix_flops),
        tokens_per_s=tokens,
        **run_columns(tokens, choices.num_gpus, workload.train_tokens, cluster.operation),
    )


def step_of_phases(phases: Sequence[tuple[str, StepCosts]]) -> StepCosts:
    """Return the costs of a step whose phases, each of a model, follow each other on the same GPUs and tokens.

    Times add up, and so do what they cost in money and energy. While a phase runs, the weights and optimizer states of
    every model are there, once for all phases of a model; of the rest of the memory that of the worst phase counts.
    """
    costs, columns_of = [of_phase for _, of_phase in phases], columns(StepCosts)
    added = [name for name, (unit, _) in columns_of.items() if unit in ("s", "days", "h", "USD", "kWh")]
    total = {name: functools.reduce(xp.add, [getattr(of_phase, name) for of_phase in costs]) for name in added}
    by_model: dict[str, list[StepCosts]] = {}
    for model, of_phase in phases:
        by_model.setdefault(model, []).append(of_phase)

    def of_models(name: str) -> Column:
        """Return the bytes that all models together have of something, each those of its phase with most."""
        largest = [functools.reduce(xp.maximum, [getattr(own, name) for own in group]) for group in by_model.values()]
        return functools.reduce(xp.add, largest)

    resident = {name: of_models(name) for name in ("weight_bytes", "optimizer_bytes")}
    memories = [Memory(**{name: getattr(of_phase, name) for name in Memory._fields} | resident) for of_phase in costs]
    memory = functools.reduce(_larger, memories)
    step_time_s = total["step_time_s"]
    tokens = costs[0].tokens_per_s * costs[0].step_time_s / step_time_s
    return StepCosts(
        **total,
        **memory._asdict(),
        peak_bytes=xp.asarray(memory.peak_bytes),
        host_bytes=of_models("host_bytes"),
        mfu=functools.reduce(xp.add, [of_phase.mfu * of_phase.step_time_s for of_phase in costs]) / step_time_s,
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=tokens / (costs[0].tokens_per_s / costs[0].tokens_per_s_per_gpu),
        goodput=costs[0].goodput,
    )


def with_effects(
    kinds: Sequence[LayerCosts], choices: StepChoices, stack: Stack, searched: SearchedCodes, assumptions: Assumptions
) -> list[LayerCosts]:
    """Return the costs of each layer kind with the effects (`dsx.cost.context`) and the passes that each plan has.

    The backward of the head is never split (`dsx.schedules.order`).
    """
    conditions = of_steps(assumptions.conditions, searched)
    of_step = {name: getattr(choices, name) for name in STEP_COLUMNS}
    chosen = [kind.of_effects(of_plans(kind.lacked, conditions, of_step)) for kind in kinds]
    apart = always_split(ChosenPlans(choices, searched))
    body = chosen if apart is None else [costs.split(apart) for costs in chosen]
    return [costs.unsplit() if kind in stack.last else body[kind] for kind, costs in enumerate(chosen)]


def pipeline_of(costs: StageCosts, cuts: Mapping[StageChunks, Cut]) -> Pipeline:
    """Return the seconds of the pipeline; `cuts` has the cut for each placement of chunks."""
    axes = {axis for schedule in costs.schedules if schedule.overlap for axis in schedule.overlap.axes}
    layers = LayerSeconds(
        *costs.passes_s,
        costs.weight_gradient_s,
        {axis: [getattr(layer, COMM_COLUMN[axis]) for layer in costs.kinds] for axis in sorted(axes)},
    )
    return pipeline(cuts, layers, sends_of(costs, next(iter(cuts.values())).mean), costs)


@xp.unchecked
def pipeline_at(costs: StageCosts, boundaries: Float[Array, "rounds boundaries *each"]) -> Pipeline:
    """Return the seconds of the pipelines of [N] plans with [R, S + 1, N] boundaries of their chunks.

    Where the chunks of a stage are unlike it is a bound below them: nothing is replayed.
    """
    return pipeline_of(costs, cuts_at(costs, boundaries, replayed=False))


def sends_of(costs: StageCosts, mean: Stage) -> Sends:
    """Return the sends of a microbatch between neighbours, which overlap with a microbatch on a mean chunk.

    Where frozen weights leave layers without a gradient, they have no sends back: which chunks send any, a cut decides.
    """
    none_back = 2.0 * costs.choices.pp * costs.choices.vpp if costs.stack.num_constant else None
    choices, assumptions, network = costs.choices, costs.assumptions, costs.cluster.network
    boundary = costs.kinds[costs.stack.segments[0][0]].boundary_bytes
    per_unit = (choices.pp_nvs, *choices.pp_outer)
    shared = crosses(group(choices.pp, *per_unit), network) if costs.contended_s else None

    def beside(pass_s: PerPlan, contended_s: Callable[[], Sequence[PerPlan]]) -> PerPlan:
        """Return what of the passes of a mean chunk a send overlaps with."""
        if shared is None:
            return pass_s
        taken = over_layers(mean.layers, contended_s())
        return xp.maximum(pass_s - shared * taken, xp.zeros_like(pass_s))

    mean_s = beside(costs.load_s(mean), lambda: [forward + backward for forward, backward in costs.contended_s])
    overlap = costs.overlap("pp_overlap")

    def one_way_s(between: FastestAlgorithm) -> PerPlan:
        return xp.where(choices.pp > 1, between(boundary), xp.zeros_like(boundary))

    if assumptions.pipeline_sends == MEAN:
        send_s = 2.0 * one_way_s(send(choices.pp, choices.pp_nvs, network, assumptions, choices.pp_outer))
        hidden_s = overlap * xp.minimum(send_s, mean_s / choices.vpp)
        return MeanSends(send_s - hidden_s, hidden_s, none_back)
    links = neighbours(per_unit, pipeline_nic_shares(per_unit, network), network, assumptions)
    of_tier, own_way = tuple(map(one_way_s, links)), None
    sending_own_way = costs.scheduled(lambda schedule: schedule.sends_own_way)
    if sending_own_way is not None or costs.interleaved:
        plans = choices.pp < 0.0
        plans = plans if sending_own_way is None else xp.maximum(plans, sending_own_way)
        passes_s = (
            beside(pass_s, lambda way=way: [taken[way] for taken in costs.contended_s])
            for way, pass_s in enumerate(costs.forward_and_inputs_s(mean))
        )
        own_way = OwnWay(plans, *passes_s)
    hidden = overlap * xp.ones_like(mean_s) if xp.may_hold(overlap) else None
    return LinkSends(of_tier, per_unit, hidden, mean_s, own_way, none_back)


def even_cuts(costs: StageCosts) -> dict[StageChunks, Cut]:
    """Return the even cuts of plans, for each placement of chunks."""
    senders = []
    if costs.assumptions.pipeline_sends != MEAN:
        both_sides = any(not schedule.optimal_cut for schedule in costs.schedules)
        senders = slow_senders(costs.choices, both_sides)
    return {holds: _even(costs, holds, every_end, senders) for holds, every_end in _placements(costs).items()}


def cuts_at(
    costs: StageCosts, boundaries: Float[Array, "rounds boundaries *each"], replayed: bool
) -> dict[StageChunks, Cut]:
    """Return the cuts of plans at [R, S + 1, N] boundaries, for each placement of chunks.

    With `replayed` they have the chunks of which unlike ones are replayed; then arrays are those of NumPy.
    """
    cuts = {holds: _cut_at(costs, boundaries, holds) for holds in _placements(costs)}
    return cuts if replayed else {holds: cut._replace(chunks=None) for holds, cut in cuts.items()}


def _placements(plans: ChosenPlans) -> dict[StageChunks, bool]:
    """Return the placements of chunks under the schedules of a search, and whether every end of equal stages counts.

    Closed forms need them, or the last of equal stages holds most. The first one is that of plans of one stage, if any
    schedule places chunks otherwise.
    """
    placements: dict[StageChunks, bool] = {}
    for schedule in plans.schedules:
        every_end = schedule.by_waves or schedule.put_off is not None
        placements[schedule.holds] = placements.get(schedule.holds, False) or every_end
    if {*placements} == {IN_ROUNDS}:
        return placements
    return {IN_ROUNDS: placements.pop(IN_ROUNDS, False), **placements}


def _selected(of_placements: Mapping[StageChunks, T], plans: ChosenPlans) -> T:
    """Return what plans have under the placement of chunks of their schedules, of the values for each placement.

    One stage has the first placement, since it has no schedule.
    """
    (_, chosen), *further = of_placements.items()
    for holds, values in further:
        placed = plans.pipelines(lambda schedule, holds=holds: schedule.holds is holds)
        chosen = tree_map(functools.partial(xp.where, placed), values, chosen)
    return chosen


def _even(costs: StageCosts, holds: StageChunks, every_end: bool, senders: Sequence[PerPlan]) -> Cut:
    stack, choices = costs.stack, costs.choices
    priced = stages(stack, choices.pp, choices.vpp, holds, every_end, senders)
    first, last, *_ = priced.slowest
    if stack.uniform and holds.in_rounds:
        mean, all_layers = first, {kind: choices.pp * count for kind, count in first.layers.items()}
    else:
        mean, all_layers = stack.mean_stage(choices.pp, first.position), stack.totals()
    positions = [stage.position for stage in priced.slowest]

    def largest(values: Sequence[PerPlan]) -> PerPlan:
        return functools.reduce(xp.maximum, values)

    def of_others(values: Sequence[PerPlan], counts: Callable[[PerPlan, PerPlan], PerPlan]) -> list[PerPlan]:
        """Return for each stage the largest of the values of those that count."""
        pairs = [*zip(positions, values, strict=True)]
        return [
            largest([xp.where(counts(other, position), value, -np.inf) for other, value in pairs])
            for position in positions
        ]

    return Cut(
        stages=priced.slowest,
        held=priced.largest,
        first=first,
        last=last,
        mean=mean,
        all_layers=all_layers,
        largest=largest,
        of_earlier=lambda values: of_others(values, lambda other, position: other < position),
        of_later=lambda values: of_others(values, lambda other, position: other > position),
        first_back=first_back(stack, choices.pp, choices.vpp, holds),
    )


def _cut_at(costs: StageCosts, boundaries: Float[Array, "rounds boundaries *each"], holds: StageChunks) -> Cut:
    stack, pp = costs.stack, costs.choices.pp
    cut = stages_between(stack, boundaries, pp, holds)
    num_stages = xp.maximum(pp / holds.num_chains, xp.ones_like(pp))
    final = (num_stages - 1.0).astype("int32")[None]

    def row(leaf: Column) -> PerPlan:
        """Return the values of the last stage of each plan."""
        return xp.take_along_axis(xp.broadcast_to(leaf, (len(leaf), *final.shape[1:])), final, axis=0)[0]

    def stage(of_stage: Callable[[Column], PerPlan]) -> Stage:
        position, layers, around = tree_map(of_stage, (cut.position, cut.layers, cut.around))
        return Stage(position, layers, even=False, around=around)

    first, constant = stage(lambda leaf: leaf[0]), None
    exists = cut.position < num_stages  # plans with fewer stages are padded with empty ones

    if stack.num_constant:
        without = (boundaries[:, 1:] <= stack.num_constant) & (cut.position < pp)
        constant = without.astype(pp.dtype).sum(axis=(0, 1))

    def of_earlier(values: Sequence[PerPlan]) -> list[PerPlan]:
        (of_stages,) = (xp.where(exists, value, -np.inf) for value in values)
        return [xp.concatenate([xp.full_like(of_stages[:1], -np.inf), xp.running_maximum(of_stages)[:-1]])]

    def of_later(values: Sequence[PerPlan]) -> list[PerPlan]:
        (of_stages,) = (xp.where(exists, value, -np.inf) for value in values)
        largest = xp.running_maximum(of_stages[::-1])[::-1]
        return [xp.concatenate([largest[1:], xp.full_like(of_stages[:1], -np.inf)])]

    return Cut(
        stages=[cut],
        held=[cut],
        first=first,
        last=stage(row),
        mean=stack.mean_stage(pp, first.position),
        all_layers=stack.totals(),
        largest=lambda values: xp.where(exists, values[0], 0.0).max(axis=0),
        of_earlier=of_earlier,
        of_later=of_later,
        chunks=cut.chunks,
        first_back=constant,
    )


def _larger(memory: Memory, other: Memory) -> Memory:
    """Return the memory with the higher peak, for each plan."""
    is_other = other.peak_bytes > memory.peak_bytes
    return Memory(*(xp.where(is_other, b, a) for a, b in zip(memory, other, strict=True)))


def _worst_stage(memory: Memory) -> Memory:
    """Return the memory of the stage that needs most, for each plan; the stages are the first axis."""
    at = xp.argmax(memory.peak_bytes, axis=0)[None]
    return Memory(*(xp.take_along_axis(part, at, axis=0)[0] for part in xp.broadcast_arrays(*memory)))
