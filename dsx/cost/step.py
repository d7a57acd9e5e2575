"""The cost of a step: layer costs combined by the choices that do not change them.

A stage takes the layers that an even cut gives it; the step is what the pipeline makes of the slowest stage,
what the data-parallel reduction leaves exposed, and the optimizer's update. Time columns are means over the
stages, and waiting for the slowest is part of the bubble; memory columns are those of the worst stage.

Arrays broadcast: layer costs are [U, 1] (or [U]) and choices [1, G] (or [U]), so the same function prices
a block of keys times choices, a list of plans, or one plan.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices, pick
from dsx.cost.collectives import send
from dsx.cost.columns import StepCosts
from dsx.cost.groups import Group
from dsx.cost.layer import LayerCosts
from dsx.cost.memory import stage_memory, worst
from dsx.cost.offload import (
    ACTIVATIONS,
    OPTIMIZER,
    exposed_s,
    host_update_s,
    moves,
    offloaded,
    remaining_bytes,
)
from dsx.cost.pipeline import in_flight, pipeline
from dsx.cost.recompute import Recompute, recompute_of
from dsx.cost.reduction import reduction
from dsx.cost.shards import replicas, shards
from dsx.cost.stages import Stack, Stage, stages
from dsx.hardware.cluster import Cluster
from dsx.records import record
from dsx.space.codes import Open


@record
class Workload:
    """What is trained, as far as a step's cost depends on it."""

    stack: Stack
    sequence_length: Any
    forward_flops: Any  # matrix FLOPs of one sequence through all layers, unsharded
    train_tokens: Any  # NaN where not given
    open: Open


def step_costs(
    kinds: Sequence[LayerCosts], choices: StepChoices, workload: Workload, cluster: Cluster, assumptions: Assumptions
) -> StepCosts:
    """Price steps; `kinds` has the costs of each layer kind; every result has the broadcast shape of all."""
    stack, known = workload.stack, workload.open
    microbatches = choices.num_microbatches
    again, every = recompute_of(choices, stack, known), range(len(kinds))

    def on_average(name: str) -> list[Any]:
        """Return what a layer of each kind has of a leaf of the recompute modes on average."""
        return [again.mean(kind, getattr(kinds[kind], name).__getitem__) for kind in every]

    recompute, stash = on_average("recompute_s"), on_average("stash_bytes")
    backward = [kinds[kind].backward_s + recompute[kind] for kind in every]
    passes = [kinds[kind].forward_s + backward[kind] for kind in every]
    waiting = _waiting(kinds, again, choices, known, cluster, assumptions)
    if waiting is not None:
        passes = [working + waited for working, waited in zip(passes, waiting, strict=True)]
    held = stages(stack, choices.pp, choices.vpp)
    first = held[0]

    def on(stage: Stage, values: Sequence[Any]) -> Any:
        return functools.reduce(jnp.add, [layers * values[kind] for kind, layers in stage.layers.items()])

    totals = stack.totals()
    mean = first.layers if stack.uniform else {kind: count / choices.pp for kind, count in totals.items()}

    def busy(values: Sequence[Any]) -> Any:
        """Return the seconds that all microbatches of a step take on the mean stage."""
        return functools.reduce(jnp.add, [(microbatches * layers) * values[kind] for kind, layers in mean.items()])

    def column(name: str) -> Any:
        return busy([getattr(costs, name) for costs in kinds])

    slowest_s = functools.reduce(jnp.maximum, [on(stage, passes) for stage in held])
    mean_s = slowest_s if stack.uniform else on(Stage(first.index, mean), passes)
    slowest_s = jnp.maximum(slowest_s, mean_s)
    spare_s = on(
        Stage(first.index, mean),
        [costs.weight_gradient_s for costs in kinds],
    )
    boundary = kinds[stack.segments[0][0]].boundary_bytes
    between = send(choices.pp, choices.pp_nvs, cluster.network, assumptions, choices.pp_wider)
    send_s = 2.0 * jnp.where(choices.pp > 1, between(boundary), jnp.zeros_like(boundary))
    send_s = send_s - assumptions.pp_overlap * jnp.minimum(send_s, mean_s)
    pipe = pipeline(slowest_s, mean_s, spare_s, send_s, choices, known)
    divided, copies = replicas(choices, known)
    ranks, held_alike = zip(*(shards(costs, divided, copies, known) for costs in kinds), strict=True)
    edge = stack.segments[0][0]
    dp_comm = reduction(kinds, ranks, held_alike, backward, first, edge, choices, known, cluster, assumptions)
    working = [again.largest(kind, kinds[kind].working_bytes.__getitem__) for kind in every]

    def saved(stage: Stage) -> Any:
        """Return the saved bytes of one microbatch on a GPU of a stage."""

        def remaining() -> Any:
            largest = [again.largest(kind, kinds[kind].stash_bytes.__getitem__) for kind in every]
            return remaining_bytes(stage, stash, largest, again.ends)

        return offloaded(ACTIVATIONS, choices, known, remaining, on(stage, stash))

    memory = worst(
        [
            stage_memory(
                kinds,
                ranks,
                saved(stage),
                working,
                stage,
                in_flight(stage.index, choices, known),
                choices,
                known,
                assumptions,
            )
            for stage in held
        ]
    )
    peak = memory.peak_bytes
    update = _update(kinds, first, ranks, choices, known, cluster, assumptions)
    recompute_s = busy(recompute)
    step = busy(passes) + pipe.pp_comm_s + pipe.bubble_s + dp_comm + update
    tokens = choices.global_batch_size * workload.sequence_length / step
    model_flops = 3.0 * workload.forward_flops * choices.global_batch_size
    one = jnp.ones_like(step)
    return StepCosts(
        compute_s=column("compute_s"),
        memory_s=column("memory_s") if waiting is None else column("memory_s") + busy(waiting),
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


def _waiting(
    kinds: Sequence[LayerCosts],
    again: Recompute,
    choices: StepChoices,
    known: Open,
    cluster: Cluster,
    assumptions: Assumptions,
) -> list[Any] | None:
    """Return, per kind, the seconds that a layer's passes of a microbatch wait for the host; None if no plan's do."""
    if not moves(ACTIVATIONS, known):
        return None

    def under(costs: LayerCosts, mode: int) -> Any:
        backward_s = costs.backward_s + costs.recompute_s[mode]
        return exposed_s(costs.stash_bytes[mode], costs.forward_s, backward_s, cluster.device, assumptions)

    found: list[Any] = []
    for kind, costs in enumerate(kinds):
        nothing = jnp.zeros_like(costs.forward_s)
        moved = again.mean(kind, functools.partial(under, costs)) if kind not in again.ends else nothing
        found.append(offloaded(ACTIVATIONS, choices, known, lambda moved=moved: moved, nothing))
    return found


def _update(
    kinds: Sequence[LayerCosts],
    stage: Stage,
    shards: Sequence[Sequence[Group]],
    choices: StepChoices,
    known: Open,
    cluster: Cluster,
    assumptions: Assumptions,
) -> Any:
    """Return the seconds in which the optimizer of a stage reads and writes its state."""
    whole = divided = 0.0
    for kind, layers in stage.layers.items():
        for index, members in enumerate(shards[kind]):
            held = layers * kinds[kind].weight_bytes[index]
            whole, divided = whole + held, divided + held * members.per_gpu
    updated = pick(known.zero_stage, choices.zero_stage, [whole, divided, divided, divided])
    traffic = assumptions.optimizer_traffic_per_parameter / assumptions.weight_bytes
    on_gpu = updated * (traffic / (assumptions.hbm_efficiency * cluster.device.hbm_bandwidth))
    return offloaded(
        OPTIMIZER,
        choices,
        known,
        lambda: host_update_s(updated / assumptions.weight_bytes, cluster.device, assumptions),
        on_gpu,
    )
