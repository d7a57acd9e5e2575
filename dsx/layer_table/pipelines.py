"""The partition problem, and every pipeline that can run its layers, with the segments of a chain as stages.

A segment holds the layers first..last. Arrays over all segments are [N, N] with axes last, first, and undefined where
last < first. Stages are numbered s from the end of the pipeline: the last stage is 1. m microbatches pass each stage.

    load(s)   = sum of forward (twice, if recomputed) and backward times, + the transfers from and to its neighbours
    memory(s) = states * P + A + (min(s, m) - 1) * (bytes of its input if recomputed, else A)
    states    = 1 / (d if z = 3) + 1 / (d if z >= 2) + optimizer / (d if z >= 1)

P are the bytes of the segment's parameters, A the bytes that one microbatch saves, z the ZeRO stage over d replicas.
With z >= 2 and several microbatches, gradients are reduced after each microbatch. With z = 3, weights are gathered
before each forward and each backward. Each of these takes half an all-reduce of P, in addition to the load.

A pipeline is a plan without its cuts: width, stages, replicas, ZeRO, recomputation. With S stages, and m microbatches
for each replica, a cut takes

    step time = bottleneck * (m + S - 1) + synchronisation of the stage with most parameters

where the bottleneck is the largest load of a stage. Replicas need not divide the batch, and devices may stay idle. Not
modelled: overlap of transfers with work, and the memory of the runtime itself.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.collectives import Linear
from dsx.layer_table.instance import Hierarchy, Instance, LayerTable, NetworkLevels, TableChain, all_reduce, transfer_s
from dsx.pricing.problem import check_length
from dsx.records import Array, ArrayLike, record

STAGES = (0, 1, 2, 3)  # of ZeRO

# Bytes of optimizer state per byte of parameters: Adam in mixed precision keeps the weights and two moments in 4 bytes
# each, for weights of 2 bytes.
OPTIMIZER_FACTORS = {"none": 0.0, "adam": 6.0}


class TableSegments(NamedTuple):
    """All segments of a chain; each [N, N] with axes last layer, first layer."""

    work_s: Array  # of one microbatch, without transfers between stages
    parameter_bytes: Array
    resident_bytes: Array  # with one microbatch in flight
    stash_bytes: Array  # of each further microbatch in flight


class Links(NamedTuple):
    """The links of a stage to its neighbours, and the microbatches that it holds; each [S] for s = 1, 2, ..."""

    producer_latency: Array  # s
    producer_bandwidth: Array  # bytes/s
    consumer_latency: Array
    consumer_bandwidth: Array
    in_flight: Array  # microbatches


def state_factor(zero_stage: ArrayLike, optimizer_factor: float, num_replicas: ArrayLike) -> jax.Array:
    """Return the bytes of weights, gradients and optimizer state on a device, per byte of parameters.

    `optimizer_factor` is the bytes of optimizer state per byte of parameters, one of `OPTIMIZER_FACTORS`.
    """
    share = 1.0 / num_replicas
    divided = [jnp.where(zero_stage >= stage, share, jnp.ones_like(share)) for stage in STAGES[1:]]
    return optimizer_factor * divided[0] + (divided[1] + divided[2])


def segments(chain: TableChain, recomputed: ArrayLike, states: ArrayLike, per_microbatch: Linear) -> TableSegments:
    """Return the segments of a chain.

    `recomputed` is 0.0 or 1.0, `states` is from `state_factor`, and `per_microbatch` gives the seconds of collectives
    per microbatch by bytes of parameters.
    """
    parameters, saved = _sums(chain.parameter_bytes), _sums(chain.activation_bytes)
    work = _sums(chain.forward_s) * (1.0 + recomputed) + _sums(chain.backward_s)
    return TableSegments(
        work_s=work + per_microbatch(parameters),
        parameter_bytes=parameters,
        resident_bytes=states * parameters + saved,
        stash_bytes=jnp.where(recomputed > 0, chain.cut_bytes[None, :-1], saved),
    )


def load_s(stages: TableSegments, chain: TableChain, links: Links) -> Array:
    """Return [N, N] seconds of one microbatch on a stage with these links."""
    received = transfer_s(chain.cut_bytes[:-1], links.producer_latency, links.producer_bandwidth)
    sent = transfer_s(chain.cut_bytes[1:], links.consumer_latency, links.consumer_bandwidth)
    return stages.work_s + received[None, :] + sent[:, None]


def memory_bytes(stages: TableSegments, links: Links) -> Array:
    """Return [N, N] bytes on each device of a stage with these links and microbatches in flight."""
    return stages.resident_bytes + (links.in_flight - 1.0) * stages.stash_bytes


def _sums(values: Array) -> jax.Array:
    """Return [last, first] sums of [N] values."""
    running = jnp.concatenate([jnp.zeros_like(values[:1]), jnp.cumsum(values)])
    return running[1:, None] - running[None, :-1]


ROUNDING = 1e-12  # relative difference below which numbers count as equal
_LEAST_PADDED = 10  # bits of the smallest padded length


@dataclass(frozen=True, slots=True)
class PartitionProblem:
    """The layers, the machine, and the values of each choice."""

    widths: tuple[LayerTable, ...]  # of the same layers
    hierarchy: Hierarchy
    num_microbatches: int  # of a step, for all replicas together
    device_bytes: float  # memory of one device
    optimizer_factor: float  # bytes of optimizer state per byte of parameters
    zero_stages: tuple[int, ...] = STAGES
    recompute: tuple[bool, ...] = (False, True)

    @property
    def num_layers(self) -> int:
        """The number of layers of the chain."""
        return len(self.widths[0].chain.forward_s)

    @property
    def most_bytes(self) -> float:
        """Return the bytes that a stage may hold on a device, with a margin for rounding, as of thirds of a tensor."""
        return self.device_bytes * (1 + ROUNDING)


@record
class Pipelines:
    """Pipelines; [C] NumPy arrays."""

    width: np.ndarray  # position in the problem's widths
    recomputed: np.ndarray  # 0.0 or 1.0
    zero_stage: np.ndarray
    num_stages: np.ndarray
    num_replicas: np.ndarray
    num_microbatches: np.ndarray  # of one replica, float
    states: np.ndarray  # bytes of weights, gradients and optimizer state per byte of parameters
    per_microbatch: Linear  # s on top of a stage's work, by its bytes of parameters
    per_step: Linear  # s at the end of a step, likewise

    @property
    def bottlenecks(self) -> np.ndarray:
        """Return the step time without synchronisation, in bottlenecks."""
        return self.num_microbatches + self.num_stages - 1.0

    def rows(self, rows: np.ndarray | list[int]) -> "Pipelines":
        """Return the pipelines at these positions."""
        return jax.tree.map(lambda column: column[rows], self)


def pipelines(problem: PartitionProblem) -> Pipelines:
    """Return every pipeline that the devices can hold, except those with which more replicas synchronise as quickly.

    They are in the order of preference among equals: fewer stages, more replicas, a lower ZeRO stage, no
    recomputation, the first width.
    """
    devices = int(np.prod(problem.hierarchy.devices_per_level))
    counts = np.arange(1, problem.num_layers + 1)
    placed: list[tuple[np.ndarray, ...]] = []  # of each width: its position, and stages and replicas that fit
    for index, table in enumerate(problem.widths):
        most = np.minimum(devices // (counts * table.devices_per_stage), problem.num_microbatches)
        replicas = np.arange(most.sum()) - np.repeat(np.cumsum(most) - most, most) + 1
        placed.append((np.full(len(replicas), index), np.repeat(counts, most), replicas))
    width, stages, replicas = map(np.concatenate, zip(*placed, strict=True))
    zero, recomputed = (np.ravel(x) for x in np.meshgrid(problem.zero_stages, problem.recompute, indexing="ij"))
    choice, row = (np.ravel(x) for x in np.meshgrid(np.arange(len(zero)), np.arange(len(width)), indexing="ij"))
    # With one replica ZeRO has nothing to divide.
    proper = (zero[choice] == min(problem.zero_stages)) | (replicas[row] > 1)
    choice, row = choice[proper], row[proper]
    every = priced(problem, width[row], recomputed[choice], zero[choice], stages[row], replicas[row])
    # More replicas have no more microbatches each, and need no more memory.
    shared = np.stack([choice, every.width, every.num_stages, *every.per_step])
    kept = every.rows(np.append((shared[:, 1:] != shared[:, :-1]).any(axis=0), True)[: len(row)])
    return kept.rows(np.lexsort((kept.width, kept.recomputed, kept.zero_stage, -kept.num_replicas, kept.num_stages)))


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
    stride = num_stages * np.array([table.devices_per_stage for table in problem.widths])[width]
    size = len(width)
    # Fixed lengths, so that problems share compiled code.
    padding = (1 << max(_LEAST_PADDED, (size - 1).bit_length())) - size
    columns = [np.pad(of, (0, padding), constant_values=1) for of in (zero_stage, num_replicas, stride, microbatches)]
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
    hierarchy: Hierarchy,
    optimizer_factor: float,
    zero_stage: jax.Array,
    replicas: jax.Array,
    stride: jax.Array,
    microbatches: jax.Array,
) -> tuple[jax.Array, Linear, Linear]:
    """Return the states, and the seconds of collectives per microbatch and at the end of a step."""
    reduced = all_reduce(replicas, stride, hierarchy)
    # Reduce-scatters and all-gathers of the parameters, each half an all-reduce.
    several = jnp.where(microbatches > 1, 1.0, 0.0)
    per_microbatch = jnp.where(zero_stage >= 2, several, 0.0) + jnp.where(zero_stage == 3, 2.0, 0.0)
    per_step = jnp.where(zero_stage == 3, 1.0, 2.0)
    timed = [Linear(*(0.5 * passes * term for term in reduced)) for passes in (per_microbatch, per_step)]
    states = state_factor(zero_stage, optimizer_factor, replicas.astype(jnp.float64))
    return states, timed[0], timed[1]


def problem_of(
    instance: Instance,
    network: NetworkLevels,
    optimizer_factor: float,
    zero_stages: tuple[int, ...],
    recompute: tuple[bool, ...],
) -> PartitionProblem:
    """Return the problem of an instance, with all its widths, on a network; SpecError if it has too many layers."""
    check_length(
        len(instance.layer_ids), instance.file, "merge neighbouring layers into one row, adding their times and bytes"
    )
    links = (np.array(column, np.float64) for column in (network.bandwidth, network.latency))
    return PartitionProblem(
        widths=instance.tables,
        hierarchy=Hierarchy(np.array(network.devices_per_level), *links),
        num_microbatches=instance.num_microbatches,
        device_bytes=instance.device_bytes,
        optimizer_factor=optimizer_factor,
        zero_stages=zero_stages,
        recompute=recompute,
    )
