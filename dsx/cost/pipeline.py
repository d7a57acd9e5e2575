"""The pipeline: what a schedule adds to the work of the stages (`dsx.space.schedules` has the closed forms).

A step of m microbatches takes m times the slowest stage's microbatch, the bubble, and the sends. With several chunks
per stage, the first chunk of the first stage, which has the embedding, holds 2p - 1 microbatches in flight: p of the
first round of the warm-up and p - 1 of its last. The last chunk of the last stage, which has the head, holds one.
"""

from typing import NamedTuple

import numpy as np

from dsx.cost import xp
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
    """Return the pipeline parts of a step from the seconds of one microbatch on the slowest and on the mean stage.

    `weight_gradient_s` is the part of the mean that only computes weight gradients; `send_s` is the time of a
    microbatch's two sends between neighbours, forward and backward.
    """
    others = choices.pp * mean_s - slowest_s
    stall = choices.num_microbatches * (slowest_s - mean_s)
    nothing = xp.zeros_like(others)
    fills = {code: others for code in searched.schedule} | {
        code: xp.maximum(others - SCHEDULES[code].filled * (choices.pp - 1.0) * weight_gradient_s, nothing)
        for code in searched.schedule
        if SCHEDULES[code].filled
    }
    fill = pick(searched.schedule, choices.schedule, fills)
    if searched.vpp == (1,):
        return Pipeline(choices.num_microbatches * send_s, stall + fill + (choices.pp - 1.0) * send_s)
    sends = choices.num_microbatches * choices.vpp * send_s
    return Pipeline(sends, stall + fill / choices.vpp + (choices.pp - 1.0) * send_s)


def in_flight(index: PerPlan, choices: StepChoices, searched: Searched) -> PerPlan:
    """Return the largest number of microbatches whose activations stage `index` holds."""
    ahead = choices.pp - index
    most: dict[int, PerPlan] = {}
    for code in searched.schedule:
        schedule = SCHEDULES[code]
        most[code] = schedule.in_flight(ahead, choices.num_microbatches)
        if schedule.interleaved and searched.vpp != (1,):
            chunked = schedule.chunks_in_flight(ahead, choices.pp, choices.vpp)
            most[code] = xp.where(choices.vpp > 1.0, chunked, most[code])
    return xp.minimum(pick(searched.schedule, choices.schedule, most), choices.num_microbatches)


def weight_versions(choices: StepChoices, searched: Searched) -> PerPlan | None:
    """Return the number of versions of its weights that a stage keeps; None if all searched schedules keep one."""
    versions = {code: np.asarray(SCHEDULES[code].weight_versions, choices.pp.dtype) for code in searched.schedule}
    if all(SCHEDULES[code].weight_versions == 1 for code in searched.schedule):
        return None
    return pick(searched.schedule, choices.schedule, versions)


def in_flight_of_embedding_and_head(microbatches: PerPlan, choices: StepChoices) -> tuple[PerPlan, PerPlan]:
    """Return the largest numbers of microbatches that embedding and head hold; their stages hold `microbatches`."""
    chunked = choices.vpp > 1.0
    first = xp.minimum(2.0 * choices.pp - 1.0, choices.num_microbatches)
    return xp.where(chunked, first, microbatches), xp.where(chunked, xp.ones_like(first), microbatches)
