"""Lower bounds of the step time of pipelines, before any of them is looked at by itself.

They are min-max scans with one thing relaxed. With the memory of more replicas, where a device holds less, one scan
finds the best cuts into every number of stages, and few numbers of replicas have to be told apart. What does not fit
even so fits in no way.
"""

from dataclasses import replace

import numpy as np

from dsx.cost.protocols import Linear
from dsx.layer_table.problem import PartitionProblem, Pipelines, priced
from dsx.layer_table.scans import LOAD, PARAMETERS, UNLIMITED, Machine, least, question


def by_stages(machine: Machine, found: Pipelines, goal: np.ndarray, most_bytes: float) -> np.ndarray:
    """Return [C] the least maximum of each pipeline; those that differ in their number of stages alone share a scan."""
    told = np.stack([found.width, found.recomputed, found.states, found.num_microbatches, *found.per_microbatch])
    _, first, which = np.unique(told, axis=1, return_index=True, return_inverse=True)
    deepest = np.zeros(len(first), np.int64)
    np.maximum.at(deepest, which, found.num_stages)
    return least(machine, question(found.rows(first), goal, most_bytes), deepest)[which, found.num_stages - 1]


def fewest_parameters(machine: Machine, found: Pipelines) -> np.ndarray:
    """Return [C] bytes of parameters that some stage of each pipeline has at least."""
    nothing = np.zeros_like(found.states)
    alike = replace(
        found, recomputed=nothing, states=nothing, num_microbatches=nothing, per_microbatch=Linear(nothing, nothing)
    )
    return by_stages(machine, alike, PARAMETERS, UNLIMITED)


def first_bounds(problem: PartitionProblem, machine: Machine, found: Pipelines, fewest: np.ndarray) -> np.ndarray:
    """Return [C] step times that no cut of each pipeline goes below; infinite where none fits."""
    nothing = np.zeros_like(found.states)
    more = 2 ** np.ceil(np.log2(found.num_replicas)).astype(np.int64)
    relaxed = priced(problem, found.width, found.recomputed, found.zero_stage, found.num_stages, more)
    relaxed = replace(relaxed, per_microbatch=Linear(nothing, nothing))
    load = by_stages(machine, relaxed, LOAD, problem.most_bytes)
    chains, waited = machine.chains, found.per_microbatch
    # Every stage has a layer, one has the fewest parameters that are possible, and none is below the mean.
    lightest = np.array([width.chain.parameter_bytes.min() for width in problem.widths])[found.width]
    forward, backward, parameters = (
        column.sum(axis=1)[found.width] for column in (chains.forward_s, chains.backward_s, chains.parameter_bytes)
    )
    work = forward * (1 + found.recomputed) + backward + waited.seconds_per_byte * parameters
    mean = work / found.num_stages + waited.latency_s
    load = np.maximum(load + waited(lightest), np.maximum(waited(fewest), mean))
    return load * found.bottlenecks + found.per_step(fewest)
