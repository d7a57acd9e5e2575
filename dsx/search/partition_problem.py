"""What a chain of layers is cut for, and every pipeline that may run it: width, stages, replicas, ZeRO, recomputation.

A pipeline is everything about a plan but the cuts. With m microbatches of each of d replicas and S stages a cut takes

    step time = bottleneck * (m + S - 1) + synchronisation of the stage with most parameters

where the bottleneck is the largest load of a stage. Replicas need not divide the batch, and devices may stay idle.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dsx.cost.hierarchical_ring import all_reduce
from dsx.cost.protocols import Linear
from dsx.cost.segments import STAGES, Chain, passes_per_microbatch, passes_per_step, state_copies
from dsx.hardware.hierarchy import Hierarchy
from dsx.records import record


@dataclass(frozen=True, slots=True)
class Width:
    """The layers as one tensor-parallel configuration runs them."""

    width: int
    devices_per_stage: int
    chain: Chain  # NumPy float64, without padding


@dataclass(frozen=True, slots=True)
class PartitionProblem:
    """Layers, machine, and what may be chosen."""

    widths: tuple[Width, ...]  # of the same layers
    hierarchy: Hierarchy
    num_microbatches: int  # of a step, for all replicas together
    device_bytes: float  # memory of one device
    optimizer_factor: float  # bytes of optimizer state per byte of parameters
    zero_stages: tuple[int, ...] = STAGES
    recompute: tuple[bool, ...] = (False, True)

    @property
    def num_layers(self) -> int:
        """Return the layers of the chain."""
        return len(self.widths[0].chain.forward_s)


@record
class Pipelines:
    """Pipelines; [C] NumPy arrays."""

    width: Any  # position in the problem's widths
    recomputed: Any  # 0.0 or 1.0
    zero_stage: Any
    num_stages: Any
    num_replicas: Any
    num_microbatches: Any  # of one replica, float
    states: Any  # bytes of weights, gradients and optimizer state per byte of parameters
    per_microbatch: Linear  # s on top of a stage's work, by its bytes of parameters
    per_step: Linear  # s at the end of a step, likewise

    @property
    def bottlenecks(self) -> Any:
        """Return how many times its bottleneck a step takes."""
        return self.num_microbatches + self.num_stages - 1.0

    def rows(self, rows: Any) -> "Pipelines":
        """Return some of the pipelines."""
        return jax.tree.map(lambda column: column[rows], self)


def pipelines(problem: PartitionProblem) -> Pipelines:
    """Return every pipeline for which there are devices, but for those that one with more replicas makes needless.

    They come in the order of preference among equals: fewer stages, more replicas, a lower ZeRO stage, nothing
    recomputed, the first width.
    """
    found = np.concatenate([_of_width(problem, index) for index in range(len(problem.widths))], axis=1)
    width, stages, replicas, zero, recomputed = found
    order = np.lexsort((width, recomputed, zero, -replicas, stages))
    width, stages, replicas, zero, recomputed = found[:, order]
    stride = stages * np.array([each.devices_per_stage for each in problem.widths])[width]
    microbatches = -(-problem.num_microbatches // replicas)
    with jax.enable_x64(True):
        reduced = all_reduce(replicas, stride, problem.hierarchy)
        waited = passes_per_microbatch(zero, microbatches), passes_per_step(zero)
        # A reduce-scatter or an all-gather is half an all-reduce.
        timed = [Linear(*(0.5 * np.asarray(passes) * np.asarray(term) for term in reduced)) for passes in waited]
        states = state_copies(zero, problem.optimizer_factor, replicas.astype(np.float64))
    return Pipelines(
        width=width,
        recomputed=recomputed.astype(np.float64),
        zero_stage=zero,
        num_stages=stages,
        num_replicas=replicas,
        num_microbatches=microbatches.astype(np.float64),
        states=np.asarray(states),
        per_microbatch=timed[0],
        per_step=timed[1],
    )


def _of_width(problem: PartitionProblem, index: int) -> np.ndarray:
    """Return [5, C] width, stages, replicas, ZeRO stage and recomputation of the pipelines of one width."""
    per_stage, batch = problem.widths[index].devices_per_stage, problem.num_microbatches
    counts = np.arange(1, problem.num_layers + 1)
    most = np.minimum(problem.hierarchy.num_devices // (counts * per_stage), batch)
    stages = np.repeat(counts, most)
    replicas = np.arange(len(stages)) - np.repeat(np.cumsum(most) - most, most) + 1
    with jax.enable_x64(True):
        reduced = all_reduce(replicas, stages * per_stage, problem.hierarchy)
    # As many microbatches and as quick an all-reduce with more replicas: then memory is no larger either.
    told = np.stack([stages, -(-batch // replicas), *map(np.asarray, reduced)])
    kept = np.append((told[:, 1:] != told[:, :-1]).any(axis=0), True)[: len(stages)]
    parts = []
    for zero in sorted(problem.zero_stages):
        # One replica has nothing to divide.
        rows = kept if zero == min(problem.zero_stages) else kept & (replicas > 1)
        for recomputed in sorted(problem.recompute):
            choice = np.array([[index, zero, recomputed]]).T * np.ones(np.count_nonzero(rows), np.int64)
            parts.append(np.stack([choice[0], stages[rows], replicas[rows], choice[1], choice[2]]))
    return np.concatenate(parts, axis=1)
