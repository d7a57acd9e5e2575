"""The pipeline: what a schedule adds to the work of the stages.

A step of m microbatches over p stages of v chunks takes m microbatches of the slowest stage, the fill and
drain of the others, and the sends. In 1F1B and GPipe one microbatch passes all other stages once; with v
chunks it waits for a chunk of each only (Narayanan et al., SC21, section 2.2). Zero-bubble H1 fills the drain
with weight gradients: of the bubble (p-1)(T_F + T_B) with T_B the whole backward, 2(p-1)T_W goes (Qi et al.,
2024, table 2, which counts T_W apart from T_B); H2 begins so many more forwards that (p-1)T_W more goes.
Microbatches in flight on stage i: all m in GPipe; p - i in 1F1B and H1; 2(p-i) - 1 in H2; with v chunks,
2(p-i-1) + (v-1)p + 1 chunks (Korthikanti et al., 2022, section 4). Of these the first chunk of the first stage, with
the embedding, has 2p - 1: p of the warm-up's first round and p - 1 of its last; the last chunk of the last stage, with
the head, has one.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from dsx.cost.choices import StepChoices, pick
from dsx.space.codes import SCHEDULES, Open

GPIPE = SCHEDULES.index("gpipe")
ZERO_BUBBLE = {SCHEDULES.index("zb-h1"): 2.0, SCHEDULES.index("zb-h2"): 3.0}  # weight gradients in the bubble
H2 = SCHEDULES.index("zb-h2")


class Pipeline(NamedTuple):
    """The pipeline parts of a step, in seconds."""

    pp_comm_s: Any
    bubble_s: Any


def pipeline(
    slowest_s: Any, mean_s: Any, weight_gradient_s: Any, send_s: Any, choices: StepChoices, known: Open
) -> Pipeline:
    """Return the pipeline parts for one microbatch's seconds on the slowest stage and on the mean one.

    `weight_gradient_s` is the part of the mean that only makes weight gradients; `send_s` are the sends of a
    microbatch between two neighbours, there and back.
    """
    others = choices.pp * mean_s - slowest_s
    waiting = choices.num_microbatches * (slowest_s - mean_s)
    nothing = jnp.zeros_like(others)
    fills = dict.fromkeys(range(len(SCHEDULES)), others) | {
        schedule: jnp.maximum(others - times * (choices.pp - 1.0) * weight_gradient_s, nothing)
        for schedule, times in ZERO_BUBBLE.items()
        if schedule in known.schedule
    }
    fill = pick(known.schedule, choices.schedule, fills)
    if known.vpp == (1,):
        return Pipeline(choices.num_microbatches * send_s, waiting + fill + (choices.pp - 1.0) * send_s)
    sends = choices.num_microbatches * choices.vpp * send_s
    return Pipeline(sends, waiting + fill / choices.vpp + (choices.pp - 1.0) * send_s)


def in_flight(index: Any, choices: StepChoices, known: Open) -> Any:
    """Return the microbatches whose activations stage `index` holds at most."""
    behind = choices.pp - index
    ahead = 2.0 * behind - 1.0
    if known.vpp != (1,):
        chunks = ahead + (choices.vpp - 1.0) * choices.pp
        behind = jnp.where(choices.vpp > 1.0, chunks / choices.vpp, behind)
    most = dict.fromkeys(range(len(SCHEDULES)), behind) | {GPIPE: choices.num_microbatches, H2: ahead}
    return jnp.minimum(pick(known.schedule, choices.schedule, most), choices.num_microbatches)


def in_flight_of_ends(microbatches: Any, choices: StepChoices) -> tuple[Any, Any]:
    """Return the microbatches that embedding and head hold at most, of `microbatches` in flight on their stages."""
    chunked = choices.vpp > 1.0
    first = jnp.minimum(2.0 * choices.pp - 1.0, choices.num_microbatches)
    return jnp.where(chunked, first, microbatches), jnp.where(chunked, jnp.ones_like(first), microbatches)
