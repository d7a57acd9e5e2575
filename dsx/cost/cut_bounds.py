"""Bounds that no cut of a plan beats: the least step time, and the least memory of the fullest GPU.

A pipeline takes at least as long as one of mean stages, and as its largest single layer causes
(`dsx.space.critical_path`). A cut adds at least the reduction and the update of the most even first stage
(`StageCosts.reduction_and_update_s`). The fullest GPU holds at
least the mean of all stages, each with the fewest microbatches in flight that one has, those of the last stage.
Transients are left out of the memory: they are not affine in the layers, so their mean is no bound.
"""

import functools
from collections.abc import Sequence

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices
from dsx.cost.layer import LayerCosts
from dsx.cost.offload import ACTIVATIONS, offload_codes
from dsx.cost.pipeline import in_flight, least_pipeline_s
from dsx.cost.shapes import Column, PerPlan
from dsx.cost.stage_costs import StageCosts
from dsx.cost.stages import even_first
from dsx.cost.step import Workload, mean_stage, sends_of
from dsx.hardware.cluster import Cluster


@xp.unchecked
def cut_bounds(
    kinds: Sequence[LayerCosts],
    choices: StepChoices,
    workload: Workload,
    cluster: Cluster,
    assumptions: Assumptions,
) -> tuple[PerPlan, PerPlan]:
    """Return bounds below the step time [s] and the peak memory [bytes] of plans with any cut."""
    stack, searched = workload.stack, workload.searched
    costs = StageCosts(kinds, choices, stack, searched, cluster, assumptions)
    last = choices.pp - 1.0
    mean, share = mean_stage(stack, choices, last), even_first(stack, choices.pp, choices.vpp)
    send = sends_of(costs, mean)
    largest_s, last_s = _largest_and_last_s(costs)
    passes_s = least_pipeline_s(costs.load_s(mean), largest_s, last_s, send, choices, searched)
    step_s = passes_s + costs.reduction_s(share) + costs.update_s(share)
    if offload_codes(ACTIVATIONS, searched):  # what stays on a GPU is not affine in the layers
        return step_s, xp.zeros_like(step_s)
    held = costs.memory(mean, in_flight(last, choices, searched), transients=False)
    return step_s, held.peak_bytes


def _largest_and_last_s(costs: StageCosts) -> tuple[Column, Column]:
    """Return the seconds of a microbatch on the largest single layer, and on the layers of the last stage alone.

    Alternating kinds count as their mix.
    """
    seconds = costs.forward_backward_s
    single = [seconds[kind] for kind in (*costs.stack.first, *costs.stack.last)]
    for of_segment, counts in zip(costs.stack.segments, costs.stack.counts, strict=True):
        whole = sum(counts)
        mixed = [seconds[kind] * (count / whole) for kind, count in zip(of_segment, counts, strict=True)]
        single.append(functools.reduce(xp.add, mixed))
    last = [seconds[kind] for kind in costs.stack.last]
    return functools.reduce(xp.maximum, single), functools.reduce(xp.add, last, xp.zeros_like(single[0]))
