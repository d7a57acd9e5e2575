"""Memory of the worst stage's GPU.

With L layers on a stage, a layer's weights W bytes, its saved activations A bytes, and f microbatches in
flight: weights L*W, gradients L*W scaled to their element size, optimizer state over its group (ZeRO
stage 1: the ranks that hold the same parameters), activations L*A*f with f = min(pp, microbatches) in
1F1B (Narayanan et al., SC21; arXiv 2410.00273, section 4). Not modelled: embedding, head, fragmentation.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.cost.collectives import Group
from dsx.cost.layer import LayerCosts


class Memory(NamedTuple):
    """The memory parts of a step, in bytes."""

    weight_bytes: Any
    gradient_bytes: Any
    optimizer_bytes: Any
    activation_bytes: Any
    overhead_bytes: Any


def stage_memory(
    layer: LayerCosts, layers: Any, in_flight: Any, shards: Sequence[Group], assumptions: Assumptions
) -> Memory:
    """Return the memory of a stage of `layers` layers with `in_flight` microbatches.

    `shards` has one entry per weight group: the ranks that its optimizer state is divided over.
    """
    per_weight_byte = 1.0 / assumptions.weight_bytes
    optimizer = jnp.zeros_like(layers * layer.stash_bytes)
    weights = jnp.zeros_like(optimizer)
    for index, members in enumerate(shards):
        held = layers * layer.weight_bytes[index]
        weights = weights + held
        optimizer = optimizer + held * (per_weight_byte * assumptions.optimizer_bytes_per_parameter) * members.per_gpu
    return Memory(
        weight_bytes=weights,
        gradient_bytes=weights * (assumptions.gradient_bytes * per_weight_byte),
        optimizer_bytes=optimizer,
        activation_bytes=layers * layer.stash_bytes * in_flight,
        overhead_bytes=assumptions.overhead * jnp.ones_like(optimizer),
    )
