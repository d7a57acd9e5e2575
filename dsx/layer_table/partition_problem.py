"""The partition problem, and every pipeline that can run its layers: width, stages, replicas, ZeRO, recomputation.

A pipeline is a plan without its cuts. With S stages, and m microbatches for each replica, a cut takes

    step time = bottleneck * (m + S - 1) + synchronisation of the stage with most parameters

where the bottleneck is the largest load of a stage. Replicas need not divide the batch, and devices may stay idle.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.protocols import Linear
from dsx.layer_table.hierarchy import Hierarchy
from dsx.layer_table.ring import all_reduce
from dsx.layer_table.segments import STAGES, Chain, passes_per_microbatch, passes_per_step, state_factor
from dsx.records import record

ROUNDING = 1e-12  # relative difference below which numbers count as equal
_LEAST_PADDED = 10  # bits of the smallest padded length


@dataclass(frozen=True, slots=True)
class Width:
    """The layers as one tensor-parallel configuration runs them."""

    width: int
    devices_per_stage: int
    chain: Chain  # NumPy float64, without padding


@dataclass(frozen=True, slots=True)
class PartitionProblem:
    """The layers, the machine, and the values of each choice."""

    widths: tuple[Width, ...]  # of the same layers
    hierarchy: Hierarchy
    num_microbatches: int  # of a step, for all replicas together
    device_bytes: float  # memory of one device
    optimizer_factor: float  # bytes of optimizer state per byte of parameters
    zero_stages: tuple[int, ...] = STAGES
    recompute: tuple[bool, ...] = (False, True)

    @property
    def num_layers(self) -> int:
        """Return the number of layers of the chain."""
        return len(self.widths[0].chain.forward_s)

    @property
    def most_bytes(self) -> float:
        """Return the bytes that a stage may hold on a device, with a margin for rounding, as of thirds of a tensor."""
        return self.device_bytes * (1 + ROUNDING)


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
        """Return the step time without synchronisation, in bottlenecks."""
        return self.num_microbatches + self.num_stages - 1.0

    def rows(self, rows: Any) -> "Pipelines":
        """Return the pipelines at these positions."""
        return jax.tree.map(lambda column: column[rows], self)


def pipelines(problem: PartitionProblem) -> Pipelines:
    """Return every pipeline that the devices can hold, except those with which more replicas synchronise as quickly.

    They are in the order of preference among equals: fewer stages, more replicas, a lower ZeRO stage, no
    recomputation, the first width.
    """
    width, stages, replicas = (np.concatenate(columns) for columns in zip(*_placed(problem), strict=True))
    zero, recomputed = (np.ravel(x) for x in np.meshgrid(problem.zero_stages, problem.recompute, indexing="ij"))
    choice, row = (np.ravel(x) for x in np.meshgrid(np.arange(len(zero)), np.arange(len(width)), indexing="ij"))
    # With one replica ZeRO has nothing to divide.
    proper = (zero[choice] == min(problem.zero_stages)) | (replicas[row] > 1)
    choice, row = choice[proper], row[proper]
    found = priced(problem, width[row], recomputed[choice], zero[choice], stages[row], replicas[row])
    # More replicas have no more microbatches each, and need no more memory.
    shared = np.stack([choice, found.width, found.num_stages, *found.per_step])
    found = found.rows(np.append((shared[:, 1:] != shared[:, :-1]).any(axis=0), True)[: len(row)])
    return found.rows(
        np.lexsort((found.width, found.recomputed, found.zero_stage, -found.num_replicas, found.num_stages))
    )


def priced(
    problem: PartitionProblem,
    width: np.ndarray,
    recomputed: np.ndarray,
    zero_stage: np.ndarray,
    num_stages: np.ndarray,
    num_replicas: np.ndarray,
) -> Pipelines:
    """Return the pipelines with these choices."""
    microbatches = -(-problem.num_microbatches // num_replicas)
    stride = num_stages * np.array([each.devices_per_stage for each in problem.widths])[width]
    size = len(width)
    # Fixed lengths, so that problems share compiled code.
    padding = (1 << max(_LEAST_PADDED, (size - 1).bit_length())) - size
    columns = (
        np.pad(column, (0, padding), constant_values=1) for column in (zero_stage, num_replicas, stride, microbatches)
    )
    with jax.enable_x64(True):
        priced_columns = _priced(problem.hierarchy, problem.optimizer_factor, *columns)
    states, per_microbatch, per_step = jax.tree.map(lambda column: np.asarray(column)[:size], priced_columns)
    return Pipelines(
        width=width,
        recomputed=recomputed.astype(np.float64),
        zero_stage=zero_stage,
        num_stages=num_stages,
        num_replicas=num_replicas,
        num_microbatches=microbatches.astype(np.float64),
        states=states,
        per_microbatch=per_microbatch,
        per_step=per_step,
    )


@jax.jit
def _priced(
    hierarchy: Hierarchy, optimizer_factor: Any, zero_stage: Any, replicas: Any, stride: Any, microbatches: Any
) -> tuple[Any, Linear, Linear]:
    reduced = all_reduce(replicas, stride, hierarchy)
    collectives = passes_per_microbatch(zero_stage, microbatches), passes_per_step(zero_stage)
    # A reduce-scatter or an all-gather is half an all-reduce.
    timed = [Linear(*(0.5 * passes * term for term in reduced)) for passes in collectives]
    states = state_factor(zero_stage, optimizer_factor, replicas.astype(jnp.float64))
    return states, timed[0], timed[1]


def _placed(problem: PartitionProblem) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield, for each width, its position, and the stages and replicas of pipelines that fit on the devices, [C]."""
    devices = int(np.prod(problem.hierarchy.devices_per_level))
    counts = np.arange(1, problem.num_layers + 1)
    for index, width in enumerate(problem.widths):
        most = np.minimum(devices // (counts * width.devices_per_stage), problem.num_microbatches)
        replicas = np.arange(most.sum()) - np.repeat(np.cumsum(most) - most, most) + 1
        yield np.full(len(replicas), index), np.repeat(counts, most), replicas
