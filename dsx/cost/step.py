"""The cost of a step: layer costs combined by the choices that do not change them.

A cut gives each stage its layers. The step time is that of the pipeline, which the slowest stage determines, plus the
exposed data-parallel reduction and the optimizer update. Time columns are means over the stages; the stall for the
slowest stage is part of the bubble. Memory columns are those of the worst stage.

Arrays broadcast: layer costs are [U, 1] (or [U]) and choices [1, G] (or [U]), so the same function prices a block of
keys times choices, a list of plans, or one plan.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices
from dsx.cost.collectives import send
from dsx.cost.columns import StepCosts
from dsx.cost.contention import crosses
from dsx.cost.groups import group
from dsx.cost.layer import LayerCosts
from dsx.cost.memory import Memory, worst
from dsx.cost.pipeline import Pipeline, in_flight, pipeline
from dsx.cost.shapes import Column, PerPlan
from dsx.cost.stage_costs import StageCosts, sum_over_layers
from dsx.cost.stages import Stack, Stage, stages, stages_between
from dsx.hardware.cluster import Cluster
from dsx.records import Array, Float, record
from dsx.space.codes import Searched


@record
class Workload:
    """The training run, as far as the cost of a step depends on it."""

    stack: Stack
    sequence_length: PerPlan
    forward_flops: PerPlan  # matrix FLOPs of one sequence through all layers, unsharded
    train_tokens: PerPlan  # NaN where not given
    searched: Searched


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

    The cut is even unless [R, S + 1, N] `boundaries` are given for [N] plans (`dsx.cost.stages.stages_between`).
    """
    stack, searched = workload.stack, workload.searched
    microbatches = choices.num_microbatches
    costs = StageCosts(kinds, choices, stack, searched, cluster, assumptions)
    recompute, forward_backward = costs.recompute_s, costs.forward_backward_s
    cut = _even(stack, choices) if boundaries is None else _cut_at(stack, choices, boundaries)
    first, mean = cut.first, cut.mean

    def busy(values: Sequence[PerPlan]) -> Column:
        """Return the seconds of all microbatches of a step on the mean stage, from those of a layer of each kind."""
        layers = mean.layers.items()
        return functools.reduce(xp.add, [(microbatches * count) * values[kind] for kind, count in layers])

    def column(name: str) -> Column:
        return busy([getattr(layer, name) for layer in kinds])

    slowest_s = cut.largest([costs.load_s(stage) for stage in cut.priced])
    mean_s = slowest_s if mean is first else costs.load_s(mean)
    pipe = pipeline_of(costs, mean, mean_s, slowest_s)
    dp_comm, update = costs.reduction_and_update_s(first)
    memories = [costs.memory(stage, in_flight(stage.position, choices, searched)) for stage in cut.priced]
    memory = cut.worst(memories)
    # It equals the sum of `memory`; as a maximum, a search for the peak alone need not select the parts.
    peak = cut.largest([stage.peak_bytes for stage in memories])
    recompute_s = busy(recompute)
    stall = costs.stall_s
    step = busy(forward_backward) + pipe.pp_comm_s + pipe.bubble_s + dp_comm + update
    tokens = choices.global_batch_size * workload.sequence_length / step
    model_flops = 3.0 * workload.forward_flops * choices.global_batch_size
    one = xp.ones_like(step)
    return StepCosts(
        compute_s=column("compute_s"),
        memory_s=column("memory_s") if stall is None else column("memory_s") + busy(stall),
        tp_comm_s=column("tp_comm_s"),
        cp_comm_s=column("cp_comm_s"),
        ep_comm_s=column("ep_comm_s"),
        pp_comm_s=pipe.pp_comm_s * one,
        dp_comm_s=dp_comm * one,
        bubble_s=pipe.bubble_s * one,
        recompute_s=recompute_s * one,
        optimizer_s=update * one,
        step_time_s=step,
        weight_bytes=memory.weight_bytes * one,
        gradient_bytes=memory.gradient_bytes * one,
        optimizer_bytes=memory.optimizer_bytes * one,
        activation_bytes=memory.activation_bytes * one,
        overhead_bytes=memory.overhead_bytes * one,
        peak_bytes=peak * one,
        mfu=model_flops / (step * choices.num_gpus * cluster.device.matrix_flops),
        tokens_per_s=tokens,
        training_days=workload.train_tokens / tokens / 86400.0,
    )


def pipeline_of(costs: StageCosts, mean: Stage, mean_s: PerPlan, slowest_s: PerPlan) -> Pipeline:
    """Return the pipeline parts of a step whose mean and slowest stages take these seconds for a microbatch."""
    choices = costs.choices
    # A single stage is the mean stage, also in rounding.
    slowest_s = xp.where(choices.pp > 1, xp.maximum(slowest_s, mean_s), mean_s)
    weight_gradient_s = sum_over_layers(mean, [layer.weight_gradient_s for layer in costs.kinds])
    send_s = exposed_send_s(costs, mean, mean_s)
    return pipeline(slowest_s, mean_s, weight_gradient_s, send_s, choices, costs.searched)


def exposed_send_s(costs: StageCosts, mean: Stage, mean_s: PerPlan) -> PerPlan:
    """Return the exposed seconds of a microbatch's two sends between neighbours, forward and backward.

    `mean_s` is the time of the microbatch on the mean stage, which sends overlap with.
    """
    choices, assumptions = costs.choices, costs.assumptions
    boundary = costs.kinds[costs.stack.segments[0][0]].boundary_bytes
    between = send(choices.pp, choices.pp_nvs, costs.cluster.network, assumptions, choices.pp_outer)
    send_s = 2.0 * xp.where(choices.pp > 1, between(boundary), xp.zeros_like(boundary))
    if costs.contended_s:
        shared = crosses(group(choices.pp, choices.pp_nvs, *choices.pp_outer), costs.cluster.network)
        taken = sum_over_layers(mean, [forward + backward for forward, backward in costs.contended_s])
        mean_s = xp.maximum(mean_s - shared * taken, xp.zeros_like(mean_s))
    return send_s - assumptions.pp_overlap * xp.minimum(send_s, mean_s)


class _Cut(NamedTuple):
    """The priced stages of a cut, and how to combine their values."""

    priced: list[Stage]
    first: Stage
    mean: Stage
    largest: Callable[[list[PerPlan]], PerPlan]
    worst: Callable[[list[Memory]], Memory]


def _even(stack: Stack, choices: StepChoices) -> _Cut:
    priced = stages(stack, choices.pp, choices.vpp)
    first, *_ = priced
    mean = first if stack.uniform else mean_stage(stack, choices, first.position)
    return _Cut(priced, first, mean, lambda values: functools.reduce(xp.maximum, values), worst)


def _cut_at(stack: Stack, choices: StepChoices, boundaries: Float[Array, "rounds boundaries *each"]) -> _Cut:
    found = stages_between(stack, boundaries)
    position, layers = jax.tree.map(lambda leaf: leaf[0], (found.position, found.layers))
    first = Stage(position, layers, even=False)

    def worst_of(memories: list[Memory]) -> Memory:
        (memory,) = memories
        at = xp.argmax(memory.peak_bytes, axis=0)[None]
        return Memory(*(xp.take_along_axis(part, at, axis=0)[0] for part in xp.broadcast_arrays(*memory)))

    return _Cut(
        [found], first, mean_stage(stack, choices, first.position), lambda values: values[0].max(axis=0), worst_of
    )


def mean_stage(stack: Stack, choices: StepChoices, position: PerPlan) -> Stage:
    """Return a stage with the mean of the layers of all stages, at a position."""
    return Stage(position, {kind: count / choices.pp for kind, count in stack.totals().items()})
