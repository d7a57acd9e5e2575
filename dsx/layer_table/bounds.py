"""Lower bounds of the step time of all pipelines, before any of them is solved.

The bounds are min-max scans of a relaxed problem: the number of replicas is rounded up to a power of two, so a device
holds no more than it really does. One scan finds the best cuts into every number of stages, and pipelines whose numbers
of replicas round to the same power share it. What does not fit in the relaxed problem does not fit at all.
"""

from dataclasses import replace

import numpy as np

from dsx.cost.protocols import Linear
from dsx.layer_table.partition_problem import PartitionProblem, Pipelines, priced
from dsx.layer_table.scans import LOAD, PARAMETERS, UNLIMITED, Machine, least, question


def by_stages(machine: Machine, found: Pipelines, goal: np.ndarray, most_bytes: float) -> np.ndarray:
    """Return [C] the least maximum of each pipeline; pipelines that differ only in their stages share a scan."""
    shared = np.stack([found.width, found.recomputed, found.states, found.num_microbatches, *found.per_microbatch])
    _, first, which = np.unique(shared, axis=1, return_index=True, return_inverse=True)
    deepest = np.zeros(len(first), np.int64)
    np.maximum.at(deepest, which, found.num_stages)
    return least(machine, question(found.rows(first), goal, most_bytes), deepest)[which, found.num_stages - 1]


def fewest_parameters(machine: Machine, found: Pipelines) -> np.ndarray:
    """Return [C] the least bytes of parameters, over all cuts of each pipeline, of the stage with most of them."""
    zero = np.zeros_like(found.states)
    simplified = replace(found, recomputed=zero, states=zero, num_microbatches=zero, per_microbatch=Linear(zero, zero))
    return by_stages(machine, simplified, PARAMETERS, UNLIMITED)


def first_bounds(problem: PartitionProblem, machine: Machine, found: Pipelines, fewest: np.ndarray) -> np.ndarray:
    """Return [C] lower bounds of the step time over all cuts of each pipeline; infinite if no cut fits."""
    zero = np.zeros_like(found.states)
    more_replicas = 2 ** np.ceil(np.log2(found.num_replicas)).astype(np.int64)
    relaxed = priced(problem, found.width, found.recomputed, found.zero_stage, found.num_stages, more_replicas)
    relaxed = replace(relaxed, per_microbatch=Linear(zero, zero))
    load = by_stages(machine, relaxed, LOAD, problem.most_bytes)
    chains, collectives = machine.chains, found.per_microbatch
    # Every stage has a layer, one stage has at least the fewest parameters, and the largest load is at least the mean.
    lightest = np.array([width.chain.parameter_bytes.min() for width in problem.widths])[found.width]
    forward, backward, parameters = (
        column.sum(axis=1)[found.width] for column in (chains.forward_s, chains.backward_s, chains.parameter_bytes)
    )
    work = forward * (1 + found.recomputed) + backward + collectives.seconds_per_byte * parameters
    mean = work / found.num_stages + collectives.latency_s
    load = np.maximum(load + collectives(lightest), np.maximum(collectives(fewest), mean))
    return load * found.bottlenecks + found.per_step(fewest)
