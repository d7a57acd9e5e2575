"""The cost of a step: layer costs combined by the choices that do not change them.

Arrays broadcast: layer costs are [U, 1] (or [U]) and choices [1, G] (or [U]), so the same function prices
a block of keys times choices, a list of plans, or one plan.
"""

from typing import Any

import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.cost.collectives import Group, Linear, group, ring, send
from dsx.cost.columns import StepCosts
from dsx.cost.layer import LayerCosts
from dsx.cost.memory import stage_memory
from dsx.cost.pipeline import one_f_one_b
from dsx.hardware.cluster import Cluster
from dsx.records import record


@record
class StepChoices:
    """The choices that combine layer costs; [G] floats each, shaped to broadcast with the layer costs."""

    num_gpus: Any
    global_batch_size: Any
    pp: Any
    dp: Any
    num_microbatches: Any
    pp_nvs: Any
    dp_nvs: Any


@record
class Workload:
    """What is trained, as far as a step's cost depends on it."""

    num_layers: Any
    sequence_length: Any
    forward_flops: Any  # matrix FLOPs of one sequence through all layers, unsharded
    train_tokens: Any  # NaN where not given


def step_costs(
    layer: LayerCosts, choices: StepChoices, workload: Workload, cluster: Cluster, assumptions: Assumptions
) -> StepCosts:
    """Price steps; every result has the broadcast shape of `layer` and `choices`."""
    layers = jnp.floor(workload.num_layers / choices.pp)
    microbatches = choices.num_microbatches
    between = send(choices.pp, choices.pp_nvs, cluster.network, assumptions)
    send_s = 2.0 * jnp.where(choices.pp > 1, between(layer.boundary_bytes), jnp.zeros_like(layer.boundary_bytes))
    stage_s = layers * (layer.forward_s + layer.backward_s)
    pipeline = one_f_one_b(stage_s, send_s, choices.pp, microbatches)
    busy = layers * pipeline.busy_microbatches
    replicas = group(choices.dp, choices.dp_nvs)
    shards = [
        replicas.times(group(layer.group_size[index], layer.group_share[index]))
        for index in range(layer.group_size.shape[0])
    ]
    dp_comm = _reduction(layer, choices, layers, shards, cluster, assumptions)
    memory = stage_memory(layer, layers, jnp.minimum(choices.pp, microbatches), shards, assumptions)
    peak = sum(memory[1:], memory[0])
    update = _update(layer, layers, shards, cluster, assumptions)
    step = busy * (layer.forward_s + layer.backward_s) + pipeline.pp_comm_s + pipeline.bubble_s + dp_comm + update
    tokens = choices.global_batch_size * workload.sequence_length / step
    model_flops = 3.0 * workload.forward_flops * choices.global_batch_size
    one = jnp.ones_like(step)
    return StepCosts(
        compute_s=busy * layer.compute_s,
        memory_s=busy * layer.memory_s,
        tp_comm_s=busy * layer.tp_comm_s,
        cp_comm_s=busy * layer.cp_comm_s,
        ep_comm_s=busy * layer.ep_comm_s,
        pp_comm_s=pipeline.pp_comm_s * one,
        dp_comm_s=dp_comm * one,
        bubble_s=pipeline.bubble_s * one,
        recompute_s=jnp.zeros_like(step),
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


def _reduction(
    layer: LayerCosts,
    choices: StepChoices,
    layers: Any,
    shards: list[Group],
    cluster: Cluster,
    assumptions: Assumptions,
) -> Any:
    """Return the exposed reduction: gradients scattered behind the backward, weights gathered in the forward.

    The last layer's reduction has nothing to hide behind; each other one hides behind a layer of one
    microbatch (arXiv 2410.00273, section 3).
    """
    nothing = jnp.zeros_like(shards[0].size * layer.boundary_bytes)
    gather = scatter = nothing
    for index, members in enumerate(shards):
        link: Linear = ring(members, cluster.network, assumptions)
        held = layer.weight_bytes[index]
        per_weight_byte = assumptions.gradient_bytes / assumptions.weight_bytes
        # A group without weights, which another strategy of the search has, does not even cost its hops.
        gather = gather + jnp.where(held > 0, link(held), nothing)
        scatter = scatter + jnp.where(held > 0, link(held * per_weight_byte), nothing)
    behind_forward = jnp.maximum(gather - layer.forward_s, nothing)
    behind_backward = jnp.maximum(scatter - layer.backward_s, nothing)
    exposed = gather + scatter + (layers - 1.0) * (behind_forward + behind_backward)
    return exposed + layers * layer.replicated_gradient_s


def _update(layer: LayerCosts, layers: Any, shards: list[Group], cluster: Cluster, assumptions: Assumptions) -> Any:
    """Return the seconds in which the optimizer reads and writes its state."""
    traffic = assumptions.optimizer_traffic_per_parameter / assumptions.weight_bytes
    seconds_per_byte = 1.0 / (assumptions.hbm_efficiency * cluster.device.hbm_bandwidth)
    held = sum(layer.weight_bytes[index] * members.per_gpu for index, members in enumerate(shards))
    return layers * held * (traffic * seconds_per_byte)
