"""Bounds that no cut of a plan beats: the least step time, and the least memory of the fullest GPU.

The slowest stage takes at least as long as the mean stage, and as the largest single layer. A cut adds at least the
reduction and the update of the most even first stage (`StageCosts.reduction_and_update_s`). The fullest GPU holds at
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
from dsx.cost.pipeline import in_flight
from dsx.cost.shapes import Column, PerPlan
from dsx.cost.stage_costs import StageCosts
from dsx.cost.stages import even_first
from dsx.cost.step import Workload, mean_stage, pipeline_of
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
    mean_s = costs.load_s(mean)
    pipe = pipeline_of(costs, mean, mean_s, _largest_layer_s(costs))
    busy_s = choices.num_microbatches * mean_s
    step_s = busy_s + pipe.pp_comm_s + pipe.bubble_s + costs.reduction_s(share) + costs.update_s(share)
    if offload_codes(ACTIVATIONS, searched):  # what stays on a GPU is not affine in the layers
        return step_s, xp.zeros_like(step_s)
    held = costs.memory(mean, in_flight(last, choices, searched), transients=False)
    return step_s, held.peak_bytes


def _largest_layer_s(costs: StageCosts) -> Column:
    """Return the seconds of a microbatch on the largest single layer; alternating kinds count as their mix."""
    seconds = costs.forward_backward_s
    single = [seconds[kind] for kind in (*costs.stack.first, *costs.stack.last)]
    for of_segment, counts in zip(costs.stack.segments, costs.stack.counts, strict=True):
        whole = sum(counts)
        mixed = [seconds[kind] * (count / whole) for kind, count in zip(of_segment, counts, strict=True)]
        single.append(functools.reduce(xp.add, mixed))
    return functools.reduce(xp.maximum, single)
