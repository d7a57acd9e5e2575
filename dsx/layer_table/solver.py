"""The best plan of a chain of layers, including its cuts: an exact solver by scans and bounds.

The min-max scans of `dsx.pricing.optimal_cut` over the segments of a chain, for many pipelines at once.

A question states a pipeline, the quantity of its stages to minimise (load, parameters or memory), and limits of all
three. One compiled function answers questions for every number of stages. Chains are padded, so that chains of similar
length share compiled code.

Lower bounds of the step time of all pipelines, before any of them is solved.

The bounds are min-max scans of a relaxed problem: the number of replicas is rounded up to a power of two, so a device
holds no more than it really does. One scan finds the best cuts into every number of stages, and pipelines whose numbers
of replicas round to the same power share it. What does not fit in the relaxed problem does not fit at all.

The best plan of a chain of layers, including its cuts: an exact solver.

Bottleneck and synchronisation conflict: the cut with the least bottleneck may put more parameters on one stage than
another cut does. So the solver bounds the parameters of a stage. One min-max scan finds the least bottleneck under a
bound, a second one the fewest parameters that this bottleneck allows; the next bound is below these.

Pipelines are taken in the order of a lower bound of their step time, which each pair of scans raises, until no bound is
below the best plan found. So no better plan is missed.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.collectives import Linear
from dsx.layer_table.levels import Hierarchy, joining_level, path_bandwidth
from dsx.layer_table.pipelines import (
    ROUNDING,
    Links,
    PartitionProblem,
    Pipelines,
    TableChain,
    TableSegments,
    load_s,
    memory_bytes,
    pipelines,
    priced,
    segments,
)
from dsx.pricing.optimal_cut import Maxima, first_layers, least_maxima

_BATCH = 16  # questions in one call
_PADDED = 8  # layers: the length of a chain is padded to a multiple

UNLIMITED = 1e300  # finite, since infinite means that nothing fits

# The quantity to minimise.
LOAD, PARAMETERS, MEMORY = np.eye(3)


class ScannedTables(NamedTuple):
    """The data that all questions share: W widths of N layers, padded."""

    chains: TableChain  # [W, N], [W, N + 1]
    devices_per_stage: Any  # [W]
    hierarchy: Hierarchy
    num_layers: Any


class ScanQuestion(NamedTuple):
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


class TableCut(NamedTuple):
    """The stages of one pipeline, numbered from the end; [S], undefined past the pipeline's number of stages."""

    first_layer: Any
    last_layer: Any
    load_s: Any
    memory_bytes: Any
    parameter_bytes: Any
    producer_level: Any


def machine_of(problem: PartitionProblem) -> ScannedTables:
    """Return the stacked, padded chains of a problem, and its machine, as NumPy arrays."""
    padding = -problem.num_layers % _PADDED
    chains = [jax.tree.map(lambda column: np.pad(column, (0, padding)), width.chain) for width in problem.widths]
    return ScannedTables(
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
) -> ScanQuestion:
    """Return a question about each of [B] pipelines; a limit is one number or [B]."""
    size = len(found.width)
    return ScanQuestion(
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


def least(machine: ScannedTables, asked: ScanQuestion, deepest: np.ndarray) -> np.ndarray:
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


def cut(machine: ScannedTables, asked: ScanQuestion, num_stages: int) -> TableCut:
    """Return the cut that answers one question; `asked` has shape [1]."""
    only = jax.tree.map(lambda column: column[0], asked)
    return jax.tree.map(np.asarray, _cut(machine, only, num_stages))


@jax.jit
def _least(machine: ScannedTables, asked: ScanQuestion, deepest: Any) -> Any:
    return jax.vmap(lambda one: _maxima(machine, one, deepest).least[:, 0])(asked)


@jax.jit
def _cut(machine: ScannedTables, asked: ScanQuestion, num_stages: Any) -> TableCut:
    first = first_layers(_maxima(machine, asked, num_stages), num_stages)
    last = jnp.concatenate([jnp.full_like(first[:1], machine.num_layers), first[:-1]]) - 1
    chain, found = _segments(machine, asked)
    levels, links = _links(machine, asked)

    def of_stage(link: Links, first: Any, last: Any) -> tuple[Any, Any]:
        return load_s(found, chain, link)[last, first], memory_bytes(found, link)[last, first]

    load, memory = jax.vmap(of_stage)(links, first, last)
    return TableCut(first, last, load, memory, found.parameter_bytes[last, first], levels)


def _maxima(machine: ScannedTables, asked: ScanQuestion, deepest: Any) -> Maxima:
    chain, found = _segments(machine, asked)
    small = found.parameter_bytes < asked.below_parameters

    def cost(link: Links) -> Any:
        load, memory = load_s(found, chain, link), memory_bytes(found, link)
        fits = small & (load <= asked.most_load_s) & (memory <= asked.most_bytes)
        wanted = asked.goal[0] * load + asked.goal[1] * found.parameter_bytes + asked.goal[2] * memory
        return jnp.where(fits, wanted, jnp.inf)

    return least_maxima(cost, _links(machine, asked)[1], machine.num_layers, deepest)


def _segments(machine: ScannedTables, asked: ScanQuestion) -> tuple[TableChain, TableSegments]:
    chain = jax.tree.map(lambda column: column[asked.width], machine.chains)
    return chain, segments(chain, asked.recomputed, asked.states, asked.per_microbatch)


def _links(machine: ScannedTables, asked: ScanQuestion) -> tuple[Any, Links]:
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


def by_stages(machine: ScannedTables, found: Pipelines, goal: np.ndarray, most_bytes: float) -> np.ndarray:
    """Return [C] the least maximum of each pipeline; pipelines that differ only in their stages share a scan."""
    shared = np.stack([found.width, found.recomputed, found.states, found.num_microbatches, *found.per_microbatch])
    _, first, which = np.unique(shared, axis=1, return_index=True, return_inverse=True)
    deepest = np.zeros(len(first), np.int64)
    np.maximum.at(deepest, which, found.num_stages)
    return least(machine, question(found.rows(first), goal, most_bytes), deepest)[which, found.num_stages - 1]


def fewest_parameters(machine: ScannedTables, found: Pipelines) -> np.ndarray:
    """Return [C] the least bytes of parameters, over all cuts of each pipeline, of the stage with most of them."""
    zero = np.zeros_like(found.states)
    simplified = replace(found, recomputed=zero, states=zero, num_microbatches=zero, per_microbatch=Linear(zero, zero))
    return by_stages(machine, simplified, PARAMETERS, UNLIMITED)


def first_bounds(problem: PartitionProblem, machine: ScannedTables, found: Pipelines, fewest: np.ndarray) -> np.ndarray:
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


_ROUND = 16  # pipelines that are solved together


@dataclass(frozen=True, slots=True)
class TableStage:
    """One stage of a partition."""

    first_layer: int
    num_layers: int
    first_device: int  # of the first replica
    load_s: float  # one microbatch, forward and backward
    memory_bytes: float  # of one device
    parameter_bytes: float
    producer_level: int | None  # network level that joins it with the previous stage; None for the first stage


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A plan and its step time."""

    step_time_s: float
    bottleneck_s: float
    stages: tuple[TableStage, ...]  # in pipeline order
    width: int
    devices_per_stage: int
    num_replicas: int
    zero_stage: int
    recompute: bool


@dataclass(frozen=True, slots=True)
class Smallest:
    """The plan that needs the least memory."""

    memory_bytes: float  # of the fullest device
    width: int
    num_stages: int
    num_replicas: int
    zero_stage: int
    recompute: bool


def solve(problem: PartitionProblem) -> TablePlan | None:
    """Return the plan with the least step time; None if no plan fits, or if there are too few devices.

    Among equally fast plans it has the fewest stages, then the most replicas.
    """
    found = pipelines(problem)
    if not len(found.width):
        return None
    with jax.enable_x64(True):
        machine = machine_of(problem)
        fewest = fewest_parameters(machine, found)
        bound = first_bounds(problem, machine, found, fewest)
        below_parameters = np.full(len(bound), UNLIMITED)
        best_s, best_row, best_load = np.inf, -1, np.inf
        while len(rows := _competing(bound, best_s, best_row)):
            batch = found.rows(rows)
            stages = np.arange(len(rows)), batch.num_stages - 1
            asked = question(batch, LOAD, problem.most_bytes, below_parameters=below_parameters[rows])
            load = least(machine, asked, batch.num_stages)[stages]
            most_load = load * (1 + ROUNDING)
            asked = question(batch, PARAMETERS, problem.most_bytes, most_load)
            fits = np.isfinite(load)
            parameters = np.where(fits, least(machine, asked, batch.num_stages)[stages], 0)
            time = load * batch.bottlenecks + batch.per_step(parameters)
            for row, seconds, row_load in sorted(zip(rows.tolist(), time.tolist(), most_load.tolist(), strict=True)):
                if seconds < best_s * (1 - ROUNDING) or (seconds <= best_s * (1 + ROUNDING) and row < best_row):
                    best_s, best_row, best_load = seconds, row, row_load
            below_parameters[rows] = parameters
            raised = load * batch.bottlenecks + batch.per_step(fewest[rows])
            bound[rows] = np.where(fits & (parameters > fewest[rows]), raised, np.inf)
        return None if best_row < 0 else _plan(problem, machine, found.rows([best_row]), best_load)


def smallest(problem: PartitionProblem) -> Smallest | None:
    """Return the plan that needs the least memory on its fullest device; None if there are too few devices for any."""
    found = pipelines(problem)
    if not len(found.width):
        return None
    # For each number of stages, the most replicas and the highest ZeRO stage need the least memory.
    order = np.lexsort((found.zero_stage, found.num_replicas, found.num_stages, found.recomputed, found.width))
    shared = np.stack([found.width, found.recomputed, found.num_stages])[:, order]
    last = found.rows(order[np.append((shared[:, 1:] != shared[:, :-1]).any(axis=0), True)])
    with jax.enable_x64(True):
        machine = machine_of(problem)
        needed = by_stages(machine, last, MEMORY, UNLIMITED)
    row = int(np.argmin(needed))
    return Smallest(
        memory_bytes=float(needed[row]),
        width=problem.widths[last.width[row]].width,
        num_stages=int(last.num_stages[row]),
        num_replicas=int(last.num_replicas[row]),
        zero_stage=int(last.zero_stage[row]),
        recompute=bool(last.recomputed[row]),
    )


def _competing(bound: np.ndarray, best_s: float, best_row: int) -> np.ndarray:
    """Return the pipelines to solve next: the lowest bounds that may beat the best or, if preferred, equal it."""
    preferred = np.arange(len(bound)) < best_row
    rows = np.flatnonzero((bound < best_s * (1 - ROUNDING)) | (preferred & (bound <= best_s * (1 + ROUNDING))))
    return rows[np.argsort(bound[rows], kind="stable")][:_ROUND]


def _plan(problem: PartitionProblem, machine: ScannedTables, row: Pipelines, most_load_s: float) -> TablePlan:
    """Return the plan of one pipeline: the cut within this load that has the fewest parameters on a stage."""
    (num_stages,) = row.num_stages.tolist()
    width = problem.widths[row.width[0]]
    best = cut(machine, question(row, PARAMETERS, problem.most_bytes, most_load_s), num_stages)
    stages = tuple(
        TableStage(
            first_layer=int(best.first_layer[place]),
            num_layers=int(best.last_layer[place] - best.first_layer[place] + 1),
            first_device=place * width.devices_per_stage,
            load_s=float(best.load_s[place]),
            memory_bytes=float(best.memory_bytes[place]),
            parameter_bytes=float(best.parameter_bytes[place]),
            producer_level=int(best.producer_level[place]) if place < num_stages - 1 else None,
        )
        for place in reversed(range(num_stages))
    )
    bottleneck = max(stage.load_s for stage in stages)
    (passes,), (sync,) = row.bottlenecks, np.asarray(row.per_step(max(stage.parameter_bytes for stage in stages)))
    return TablePlan(
        step_time_s=float(bottleneck * passes + sync),
        bottleneck_s=bottleneck,
        stages=stages,
        width=width.width,
        devices_per_stage=width.devices_per_stage,
        num_replicas=int(row.num_replicas[0]),
        zero_stage=int(row.zero_stage[0]),
        recompute=bool(row.recomputed[0]),
    )
