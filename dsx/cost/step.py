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
from dsx.cost.groups import Group, group
from dsx.cost.layer import LayerCosts
from dsx.cost.memory import stage_memory, worst
from dsx.cost.pipeline import in_flight, pipeline
from dsx.cost.reduction import reduction
from dsx.cost.stages import Stack, Stage, stages
from dsx.hardware.cluster import Cluster
from dsx.records import record
from dsx.space.codes import RECOMPUTE, Open

NONE = RECOMPUTE.index("none")


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
    """Price steps; `kinds` has the costs of each layer kind; every result has the broadcast shape of all.

    Layers of the ends are never made again: recomputation is of body layers.
    """
    stack, known = workload.stack, workload.open
    microbatches = choices.num_microbatches
    ends = {*stack.first, *stack.last}
    made_again = [NONE if kind in ends else choices.recompute for kind in range(len(kinds))]

    def under(name: str, kind: int) -> Any:
        """Return a leaf of the recompute modes under the mode of the plan."""
        leaf = getattr(kinds[kind], name)
        values = (NONE,) if kind in ends else known.recompute
        return pick(values, made_again[kind], [leaf[mode] for mode in range(len(RECOMPUTE))])

    every = range(len(kinds))
    recompute = [under("recompute_s", kind) for kind in every]
    backward = [kinds[kind].backward_s + recompute[kind] for kind in every]
    passes = [kinds[kind].forward_s + backward[kind] for kind in every]
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
    between = send(choices.pp, choices.pp_nvs, cluster.network, assumptions)
    send_s = 2.0 * jnp.where(choices.pp > 1, between(boundary), jnp.zeros_like(boundary))
    send_s = send_s - assumptions.pp_overlap * jnp.minimum(send_s, mean_s)
    pipe = pipeline(slowest_s, mean_s, spare_s, send_s, choices, known)
    shards = [_shards(costs, choices, known) for costs in kinds]
    dp_comm = reduction(kinds, shards, backward, first, stack.segments[0][0], choices, known, cluster, assumptions)
    stash = [under("stash_bytes", kind) for kind in every]
    working = [under("working_bytes", kind) for kind in every]
    memory = worst(
        [
            stage_memory(
                kinds,
                shards,
                stash,
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
    update = _update(kinds, first, shards, choices, known, cluster, assumptions)
    recompute_s = busy(recompute)
    step = busy(passes) + pipe.pp_comm_s + pipe.bubble_s + dp_comm + update
    tokens = choices.global_batch_size * workload.sequence_length / step
    model_flops = 3.0 * workload.forward_flops * choices.global_batch_size
    one = jnp.ones_like(step)
    return StepCosts(
        compute_s=column("compute_s"),
        memory_s=column("memory_s"),
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


def _shards(layer: LayerCosts, choices: StepChoices, known: Open) -> list[Group]:
    """Return, per weight group, the ranks that hold the same parameters."""
    replicas = group(choices.dp, choices.dp_nvs)
    found = [
        replicas.times(group(layer.group_size[index], layer.group_share[index]))
        for index in range(layer.group_size.shape[0])
    ]
    # An ep group that spans several replicas leaves a fraction of a rank in each.
    return found if known.ep == (1,) else [members.whole() for members in found]


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
    return updated * (traffic / (assumptions.hbm_efficiency * cluster.device.hbm_bandwidth))
