"""The pipeline: what a schedule adds to the work of the stages (`dsx.space.schedules` has their closed forms).

A step of m microbatches takes m microbatches of the slowest stage, the bubble, and the sends. Of the microbatches in
flight the first chunk of the first stage, with the embedding, has 2p - 1 where stages are cut into chunks: p of the
warm-up's first round and p - 1 of its last; the last chunk of the last stage, with the head, has one.
"""

from typing import NamedTuple

import jax.numpy as jnp

from dsx.cost.choices import StepChoices, pick
from dsx.cost.shapes import PerPlan
from dsx.space.codes import Searched
from dsx.space.schedules import SCHEDULES


class Pipeline(NamedTuple):
    """The pipeline parts of a step, in seconds."""

    pp_comm_s: PerPlan
    bubble_s: PerPlan


def pipeline(
    slowest_s: PerPlan,
    mean_s: PerPlan,
    weight_gradient_s: PerPlan,
    send_s: PerPlan,
    choices: StepChoices,
    searched: Searched,
) -> Pipeline:
    """Return the pipeline parts for one microbatch's seconds on the slowest stage and on the mean one.

    `weight_gradient_s` is the part of the mean that only makes weight gradients; `send_s` are the sends of a
    microbatch between two neighbours, there and back.
    """
    others = choices.pp * mean_s - slowest_s
    waiting = choices.num_microbatches * (slowest_s - mean_s)
    nothing = jnp.zeros_like(others)
    fills = {code: others for code in searched.schedule} | {
        code: jnp.maximum(others - SCHEDULES[code].filled * (choices.pp - 1.0) * weight_gradient_s, nothing)
        for code in searched.schedule
        if SCHEDULES[code].filled
    }
    fill = pick(searched.schedule, choices.schedule, fills)
    if searched.vpp == (1,):
        return Pipeline(choices.num_microbatches * send_s, waiting + fill + (choices.pp - 1.0) * send_s)
    sends = choices.num_microbatches * choices.vpp * send_s
    return Pipeline(sends, waiting + fill / choices.vpp + (choices.pp - 1.0) * send_s)


def in_flight(index: PerPlan, choices: StepChoices, searched: Searched) -> PerPlan:
    """Return the microbatches whose activations stage `index` holds at most."""
    ahead = choices.pp - index
    most: dict[int, PerPlan] = {}
    for code in searched.schedule:
        schedule = SCHEDULES[code]
        most[code] = schedule.in_flight(ahead, choices.num_microbatches)
        if schedule.interleaved and searched.vpp != (1,):
            chunked = schedule.chunks_in_flight(ahead, choices.pp, choices.vpp)
            most[code] = jnp.where(choices.vpp > 1.0, chunked, most[code])
    return jnp.minimum(pick(searched.schedule, choices.schedule, most), choices.num_microbatches)


def weight_copies(choices: StepChoices, searched: Searched) -> PerPlan | None:
    """Return how many versions of its weights a stage keeps; None if one under every schedule that is searched."""
    copies = {code: jnp.asarray(1.0 * SCHEDULES[code].weight_copies, choices.pp.dtype) for code in searched.schedule}
    if all(SCHEDULES[code].weight_copies == 1 for code in searched.schedule):
        return None
    return pick(searched.schedule, choices.schedule, copies)


def in_flight_of_ends(microbatches: PerPlan, choices: StepChoices) -> tuple[PerPlan, PerPlan]:
    """Return the microbatches that embedding and head hold at most, of `microbatches` in flight on their stages."""
    chunked = choices.vpp > 1.0
    first = jnp.minimum(2.0 * choices.pp - 1.0, choices.num_microbatches)
    return jnp.where(chunked, first, microbatches), jnp.where(chunked, jnp.ones_like(first), microbatches)
