"""Segments of a chain of layers as pipeline stages: the time of one microbatch, and the memory.

A segment holds the layers first..last. Arrays over all segments are [N, N] with axes last, first, and undefined where
last < first. Stages are numbered s from the end of the pipeline: the last stage is 1. m microbatches pass each stage.

    load(s)   = sum of forward (twice, if recomputed) and backward times, + the transfers from and to its neighbours
    memory(s) = states * P + A + (min(s, m) - 1) * (bytes of its input if recomputed, else A)
    states    = 1 / (d if z = 3) + 1 / (d if z >= 2) + optimizer / (d if z >= 1)

P are the bytes of the segment's parameters, A the bytes that one microbatch saves, z the ZeRO stage over d replicas.
With z >= 2 and several microbatches, gradients are reduced after each microbatch. With z = 3, weights are gathered
before each forward and each backward. Each of these takes half an all-reduce of P, in addition to the load. Not
modelled: overlap of transfers with work, and the memory of the runtime itself.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from dsx.cost.protocols import Linear
from dsx.layer_table.ring import transfer_s
from dsx.records import record

STAGES = (0, 1, 2, 3)  # of ZeRO

# Bytes of optimizer state per byte of parameters: Adam in mixed precision keeps the weights and two moments in 4 bytes
# each, for weights of 2 bytes.
OPTIMIZER_FACTORS = {"none": 0.0, "adam": 6.0}


@record
class Chain:
    """Layers in pipeline order, for one microbatch; there may be padding after the last layer."""

    forward_s: Any  # [N]
    backward_s: Any  # [N]
    parameter_bytes: Any  # [N]
    activation_bytes: Any  # [N] saved for the backward
    cut_bytes: Any  # [N + 1] across the cut before each layer, and 0 after the last


class Segments(NamedTuple):
    """All segments of a chain; each [N, N] with axes last layer, first layer."""

    work_s: Any  # of one microbatch, without transfers between stages
    parameter_bytes: Any
    resident_bytes: Any  # with one microbatch in flight
    stash_bytes: Any  # of each further microbatch in flight


class Links(NamedTuple):
    """The links of a stage to its neighbours, and the microbatches that it holds; each [S] for s = 1, 2, ..."""

    producer_latency: Any  # s
    producer_bandwidth: Any  # bytes/s
    consumer_latency: Any
    consumer_bandwidth: Any
    in_flight: Any  # microbatches


def state_factor(zero_stage: Any, optimizer_factor: Any, num_replicas: Any) -> Any:
    """Return the bytes of weights, gradients and optimizer state on a device, per byte of parameters.

    `optimizer_factor` is the bytes of optimizer state per byte of parameters, one of `OPTIMIZER_FACTORS`.
    """
    share = 1.0 / num_replicas
    divided = [jnp.where(zero_stage >= stage, share, jnp.ones_like(share)) for stage in STAGES[1:]]
    return optimizer_factor * divided[0] + (divided[1] + divided[2])


def passes_per_microbatch(zero_stage: Any, num_microbatches: Any) -> Any:
    """Return the number of reduce-scatters and all-gathers of the parameters per microbatch."""
    several = jnp.where(num_microbatches > 1, 1.0, 0.0)
    return jnp.where(zero_stage >= 2, several, 0.0) + jnp.where(zero_stage == 3, 2.0, 0.0)


def passes_per_step(zero_stage: Any) -> Any:
    """Return the number of reduce-scatters and all-gathers of the parameters at the end of a step."""
    return jnp.where(zero_stage == 3, 1.0, 2.0)


def segments(chain: Chain, recomputed: Any, states: Any, per_microbatch: Linear) -> Segments:
    """Return the segments of a chain.

    `recomputed` is 0.0 or 1.0, `states` is from `state_factor`, and `per_microbatch` gives the seconds of collectives
    per microbatch by bytes of parameters.
    """
    parameters, saved = _sums(chain.parameter_bytes), _sums(chain.activation_bytes)
    work = _sums(chain.forward_s) * (1.0 + recomputed) + _sums(chain.backward_s)
    return Segments(
        work_s=work + per_microbatch(parameters),
        parameter_bytes=parameters,
        resident_bytes=states * parameters + saved,
        stash_bytes=jnp.where(recomputed > 0, chain.cut_bytes[None, :-1], saved),
    )


def load_s(found: Segments, chain: Chain, links: Links) -> Any:
    """Return [N, N] seconds of one microbatch on a stage with these links."""
    received = transfer_s(chain.cut_bytes[:-1], links.producer_latency, links.producer_bandwidth)
    sent = transfer_s(chain.cut_bytes[1:], links.consumer_latency, links.consumer_bandwidth)
    return found.work_s + received[None, :] + sent[:, None]


def memory_bytes(found: Segments, links: Links) -> Any:
    """Return [N, N] bytes on each device of a stage with these links and microbatches in flight."""
    return found.resident_bytes + (links.in_flight - 1.0) * found.stash_bytes


def _sums(values: Any) -> Any:
    """Return [last, first] sums of [N] values."""
    running = jnp.concatenate([jnp.zeros_like(values[:1]), jnp.cumsum(values)])
    return running[1:, None] - running[None, :-1]
