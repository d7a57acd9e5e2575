"""The min-max scans of `dsx.pricing.chain` over the segments of a chain, for many pipelines at once.

A question states a pipeline, the quantity of its stages to minimise (load, parameters or memory), and limits of all
three. One compiled function answers questions for every number of stages. Chains are padded, so that chains of similar
length share compiled code.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.protocols import Linear
from dsx.layer_table.hierarchy import Hierarchy
from dsx.layer_table.partition_problem import PartitionProblem, Pipelines
from dsx.layer_table.ring import joining_level, path_bandwidth
from dsx.layer_table.segments import Chain, Links, Segments, load_s, memory_bytes, segments
from dsx.pricing.chain import Maxima, first_layers, least_maxima

_BATCH = 16  # questions in one call
_PADDED = 8  # layers: the length of a chain is padded to a multiple

UNLIMITED = 1e300  # finite, since infinite means that nothing fits

# The quantity to minimise.
LOAD, PARAMETERS, MEMORY = np.eye(3)


class Machine(NamedTuple):
    """The data that all questions share: W widths of N layers, padded."""

    chains: Chain  # [W, N], [W, N + 1]
    devices_per_stage: Any  # [W]
    hierarchy: Hierarchy
    num_layers: Any


class Question(NamedTuple):
    """A pipeline, the quantity to minimise, and the limits; [B] of each."""

    width: Any
    recomputed: Any
    states: Any
    num_microbatches: Any
    per_microbatch: Linear
    goal: Any  # [B, 3] LOAD, PARAMETERS or MEMORY
    most_load_s: Any
    below_parameters: Any  # bytes; every stage must have fewer
    most_bytes: Any  # of memory


class Cut(NamedTuple):
    """The stages of one pipeline, numbered from the end; [S], undefined past the pipeline's number of stages."""

    first_layer: Any
    last_layer: Any
    load_s: Any
    memory_bytes: Any
    parameter_bytes: Any
    producer_level: Any


def machine_of(problem: PartitionProblem) -> Machine:
    """Return the stacked, padded chains of a problem, and its machine, as NumPy arrays."""
    padding = -problem.num_layers % _PADDED
    chains = [jax.tree.map(lambda column: np.pad(column, (0, padding)), width.chain) for width in problem.widths]
    return Machine(
        chains=jax.tree.map(lambda *columns: np.stack(columns), *chains),
        devices_per_stage=np.array([width.devices_per_stage for width in problem.widths]),
        hierarchy=problem.hierarchy,
        num_layers=problem.num_layers,
    )


def question(
    found: Pipelines,
    goal: np.ndarray,
    most_bytes: float,
    most_load_s: Any = UNLIMITED,
    below_parameters: Any = UNLIMITED,
) -> Question:
    """Return a question about each of [B] pipelines; a limit is one number or [B]."""
    size = len(found.width)
    return Question(
        width=found.width,
        recomputed=found.recomputed,
        states=found.states,
        num_microbatches=found.num_microbatches,
        per_microbatch=found.per_microbatch,
        goal=np.broadcast_to(goal, (size, 3)),
        **{
            name: np.broadcast_to(np.asarray(limit, np.float64), size)
            for name, limit in (
                ("most_load_s", most_load_s),
                ("below_parameters", below_parameters),
                ("most_bytes", most_bytes),
            )
        },
    )


def least(machine: Machine, asked: Question, deepest: np.ndarray) -> np.ndarray:
    """Return [B, S] the least maximum over 1, 2, ... stages; infinite where nothing fits.

    `deepest` [B] is the largest number of stages of interest; beyond it the answer may be infinite.
    """
    answer = np.empty((len(deepest), machine.chains.forward_s.shape[1]))
    order = np.argsort(deepest, kind="stable")
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        filled = np.pad(rows, (0, _BATCH - len(rows)), mode="edge")
        batch = jax.tree.map(lambda column, filled=filled: column[filled], asked)
        answer[rows] = np.asarray(_least(machine, batch, int(deepest[rows[-1]])))[: len(rows)]
    return answer


def cut(machine: Machine, asked: Question, num_stages: int) -> Cut:
    """Return the cut that answers one question; `asked` has shape [1]."""
    only = jax.tree.map(lambda column: column[0], asked)
    return jax.tree.map(np.asarray, _cut(machine, only, num_stages))


@jax.jit
def _least(machine: Machine, asked: Question, deepest: Any) -> Any:
    return jax.vmap(lambda one: _maxima(machine, one, deepest).least[:, 0])(asked)


@jax.jit
def _cut(machine: Machine, asked: Question, num_stages: Any) -> Cut:
    first = first_layers(_maxima(machine, asked, num_stages), num_stages)
    last = jnp.concatenate([jnp.full_like(first[:1], machine.num_layers), first[:-1]]) - 1
    chain, found = _segments(machine, asked)
    levels, links = _links(machine, asked)

    def of_stage(link: Links, first: Any, last: Any) -> tuple[Any, Any]:
        return load_s(found, chain, link)[last, first], memory_bytes(found, link)[last, first]

    load, memory = jax.vmap(of_stage)(links, first, last)
    return Cut(first, last, load, memory, found.parameter_bytes[last, first], levels)


def _maxima(machine: Machine, asked: Question, deepest: Any) -> Maxima:
    chain, found = _segments(machine, asked)
    small = found.parameter_bytes < asked.below_parameters

    def cost(link: Links) -> Any:
        load, memory = load_s(found, chain, link), memory_bytes(found, link)
        fits = small & (load <= asked.most_load_s) & (memory <= asked.most_bytes)
        wanted = asked.goal[0] * load + asked.goal[1] * found.parameter_bytes + asked.goal[2] * memory
        return jnp.where(fits, wanted, jnp.inf)

    return least_maxima(cost, _links(machine, asked)[1], machine.num_layers, deepest)


def _segments(machine: Machine, asked: Question) -> tuple[Chain, Segments]:
    chain = jax.tree.map(lambda column: column[asked.width], machine.chains)
    return chain, segments(chain, asked.recomputed, asked.states, asked.per_microbatch)


def _links(machine: Machine, asked: Question) -> tuple[Any, Links]:
    """Return [S] the level that joins each stage with the previous one, and the links; stages count from the end."""
    num_stages = machine.chains.forward_s.shape[1]
    devices = machine.devices_per_stage[asked.width]
    first = devices * jnp.arange(num_stages)
    level = joining_level(first, first + devices, machine.hierarchy)
    latency, bandwidth = jnp.asarray(machine.hierarchy.latency)[level], path_bandwidth(machine.hierarchy)[level]
    # The last stage sends nothing, so its link to a consumer can be any.
    consumer = [jnp.concatenate([column[:1], column[:-1]]) for column in (latency, bandwidth)]
    in_flight = jnp.minimum(jnp.arange(1.0, num_stages + 1.0), asked.num_microbatches)
    return level, Links(latency, bandwidth, consumer[0], consumer[1], in_flight)
