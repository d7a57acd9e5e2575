"""The best plan of a chain of layers, including its cuts: an exact solver by scans and bounds.

Bottleneck and synchronisation conflict: the cut with the least bottleneck may put more parameters on one stage than
another cut does. So the solver bounds the parameters of a stage. One min-max scan finds the least bottleneck under a
bound, a second one the fewest parameters that this bottleneck allows; the next bound is below these.

Pipelines are taken in the order of a lower bound of their step time, which each pair of scans raises, until no bound is
below the best plan found. So no better plan is missed.

Min-max scans over the segments of a chain answer for many pipelines at once. A question states a pipeline, the quantity
of its stages to minimise (load, parameters or memory), and limits of all three; the scans of `dsx.pricing.optimal_cut`
answer it. One compiled function answers questions for every number of stages. Chains are padded, so that chains of
similar length share compiled code.

Lower bounds of the step time of all pipelines come before any of them is solved. They are min-max scans of a relaxed
problem: the number of replicas is rounded up to a power of two, so a device holds no more than it really does. One scan
finds the best cuts into every number of stages, and pipelines whose numbers of replicas round to the same power share
it. What does not fit in the relaxed problem does not fit at all.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.collectives import Linear
from dsx.layer_table.instance import Hierarchy, TableChain, joining_level, path_bandwidth
from dsx.layer_table.pipelines import (
    ROUNDING,
    Links,
    PartitionProblem,
    Pipelines,
    TableSegments,
    load_s,
    memory_bytes,
    pipelines,
    priced,
    segments,
)
from dsx.pricing.optimal_cut import Maxima, first_layers, least_maxima
from dsx.records import Array
from dsx.text import Data
from dsx.units import counted

_BATCH = 16  # questions in one call
_PADDED = 8  # layers: the length of a chain is padded to a multiple

UNLIMITED = 1e300  # finite, since infinite means that nothing fits

# The quantity to minimise.
LOAD, PARAMETERS, MEMORY = np.eye(3)


class ScannedTables(NamedTuple):
    """The data that all questions share: W widths of N layers, padded."""

    chains: TableChain  # [W, N], [W, N + 1]
    devices_per_stage: np.ndarray  # [W]
    hierarchy: Hierarchy
    num_layers: int


class ScanQuestion(NamedTuple):
    """B pipelines, the quantity to minimise, and the limits; [B] of each."""

    pipeline: Pipelines
    goal: np.ndarray  # [B, 3] LOAD, PARAMETERS or MEMORY
    most_load_s: np.ndarray
    below_parameters: np.ndarray  # bytes; every stage must have fewer
    most_bytes: np.ndarray  # of memory


class TableCut(NamedTuple):
    """The stages of one pipeline, numbered from the end; [S], undefined past the pipeline's number of stages."""

    first_layer: Array
    last_layer: Array
    load_s: Array
    memory_bytes: Array
    parameter_bytes: Array
    producer_level: Array


def machine_of(problem: PartitionProblem) -> ScannedTables:
    """Return the stacked, padded chains of a problem, and its machine, as NumPy arrays."""
    padding = -problem.num_layers % _PADDED
    chains = [jax.tree.map(lambda column: np.pad(column, (0, padding)), table.chain) for table in problem.widths]
    return ScannedTables(
        chains=jax.tree.map(lambda *columns: np.stack(columns), *chains),
        devices_per_stage=np.array([table.devices_per_stage for table in problem.widths]),
        hierarchy=problem.hierarchy,
        num_layers=problem.num_layers,
    )


def question(
    pipelines: Pipelines,
    goal: np.ndarray,
    most_bytes: float,
    most_load_s: float | np.ndarray = UNLIMITED,
    below_parameters: float | np.ndarray = UNLIMITED,
) -> ScanQuestion:
    """Return a question about each of [B] pipelines; a limit is one number or [B]."""
    size = len(pipelines.width)
    limits = (most_load_s, below_parameters, most_bytes)
    limits = (np.broadcast_to(np.asarray(limit, np.float64), size) for limit in limits)
    return ScanQuestion(pipelines, np.broadcast_to(goal, (size, 3)), *limits)


def least(machine: ScannedTables, questions: ScanQuestion, deepest: np.ndarray) -> np.ndarray:
    """Return [B, S] the least maximum over 1, 2, ... stages; infinite where nothing fits.

    `deepest` [B] is the largest number of stages of interest; beyond it the answer may be infinite.
    """
    answer = np.empty((len(deepest), machine.chains.forward_s.shape[1]))
    order = np.argsort(deepest, kind="stable")
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        filled = np.pad(rows, (0, _BATCH - len(rows)), mode="edge")
        batch = jax.tree.map(lambda column, filled=filled: column[filled], questions)
        answer[rows] = np.asarray(_least(machine, batch, int(deepest[rows[-1]])))[: len(rows)]
    return answer


def cut(machine: ScannedTables, questions: ScanQuestion, num_stages: int) -> TableCut:
    """Return the cut that answers one question; `questions` has shape [1]."""
    only = jax.tree.map(lambda column: column[0], questions)
    return jax.tree.map(np.asarray, _cut(machine, only, num_stages))


@jax.jit
def _least(machine: ScannedTables, questions: ScanQuestion, deepest: int | jax.Array) -> jax.Array:
    return jax.vmap(lambda question: _maxima(machine, question, deepest).least[:, 0])(questions)


@jax.jit
def _cut(machine: ScannedTables, questions: ScanQuestion, num_stages: int | jax.Array) -> TableCut:
    first = first_layers(_maxima(machine, questions, num_stages), num_stages)
    last = jnp.concatenate([jnp.full_like(first[:1], machine.num_layers), first[:-1]]) - 1
    chain, stages = _segments(machine, questions)
    levels, links = _links(machine, questions)

    def of_stage(link: Links, first: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
        return load_s(stages, chain, link)[last, first], memory_bytes(stages, link)[last, first]

    load, memory = jax.vmap(of_stage)(links, first, last)
    return TableCut(first, last, load, memory, stages.parameter_bytes[last, first], levels)


def _maxima(machine: ScannedTables, questions: ScanQuestion, deepest: int | jax.Array) -> Maxima:
    chain, stages = _segments(machine, questions)
    small = stages.parameter_bytes < questions.below_parameters

    def cost(link: Links) -> jax.Array:
        load, memory = load_s(stages, chain, link), memory_bytes(stages, link)
        fits = small & (load <= questions.most_load_s) & (memory <= questions.most_bytes)
        minimised = questions.goal[0] * load + questions.goal[1] * stages.parameter_bytes + questions.goal[2] * memory
        return jnp.where(fits, minimised, jnp.inf)

    return least_maxima(cost, _links(machine, questions)[1], machine.num_layers, deepest)


def _segments(machine: ScannedTables, questions: ScanQuestion) -> tuple[TableChain, TableSegments]:
    pipeline = questions.pipeline
    chain = jax.tree.map(lambda column: column[pipeline.width], machine.chains)
    return chain, segments(chain, pipeline.recomputed, pipeline.states, pipeline.per_microbatch)


def _links(machine: ScannedTables, questions: ScanQuestion) -> tuple[jax.Array, Links]:
    """Return [S] the level that joins each stage with the previous one, and the links; stages count from the end."""
    num_stages = machine.chains.forward_s.shape[1]
    devices = machine.devices_per_stage[questions.pipeline.width]
    first = devices * jnp.arange(num_stages)
    level = joining_level(first, first + devices, machine.hierarchy)
    latency, bandwidth = jnp.asarray(machine.hierarchy.latency)[level], path_bandwidth(machine.hierarchy)[level]
    # The last stage sends nothing, so its link to a consumer can be any.
    consumer = [jnp.concatenate([column[:1], column[:-1]]) for column in (latency, bandwidth)]
    in_flight = jnp.minimum(jnp.arange(1.0, num_stages + 1.0), questions.pipeline.num_microbatches)
    return level, Links(latency, bandwidth, consumer[0], consumer[1], in_flight)


def by_stages(machine: ScannedTables, pipelines: Pipelines, goal: np.ndarray, most_bytes: float) -> np.ndarray:
    """Return [C] the least maximum of each pipeline; pipelines that differ only in their stages share a scan."""
    apart = (pipelines.width, pipelines.recomputed, pipelines.states, pipelines.num_microbatches)
    shared = np.stack([*apart, *pipelines.per_microbatch])
    _, first, which = np.unique(shared, axis=1, return_index=True, return_inverse=True)
    deepest = np.zeros(len(first), np.int64)
    np.maximum.at(deepest, which, pipelines.num_stages)
    return least(machine, question(pipelines.rows(first), goal, most_bytes), deepest)[which, pipelines.num_stages - 1]


def fewest_parameters(machine: ScannedTables, pipelines: Pipelines) -> np.ndarray:
    """Return [C] the least bytes of parameters, over all cuts of each pipeline, of the stage with most of them."""
    zero = np.zeros_like(pipelines.states)
    same = {"recomputed": zero, "states": zero, "num_microbatches": zero, "per_microbatch": Linear(zero, zero)}
    return by_stages(machine, replace(pipelines, **same), PARAMETERS, UNLIMITED)


def first_bounds(
    problem: PartitionProblem, machine: ScannedTables, pipelines: Pipelines, fewest: np.ndarray
) -> np.ndarray:
    """Return [C] lower bounds of the step time over all cuts of each pipeline; infinite if no cut fits."""
    zero = np.zeros_like(pipelines.states)
    more_replicas = 2 ** np.ceil(np.log2(pipelines.num_replicas)).astype(np.int64)
    relaxed = priced(
        problem, pipelines.width, pipelines.recomputed, pipelines.zero_stage, pipelines.num_stages, more_replicas
    )
    relaxed = replace(relaxed, per_microbatch=Linear(zero, zero))
    load = by_stages(machine, relaxed, LOAD, problem.most_bytes)
    chains, collectives = machine.chains, pipelines.per_microbatch
    # Every stage has a layer, one stage has at least the fewest parameters, and the largest load is at least the mean.
    lightest = np.array([table.chain.parameter_bytes.min() for table in problem.widths])[pipelines.width]
    forward, backward, parameters = (
        column.sum(axis=1)[pipelines.width] for column in (chains.forward_s, chains.backward_s, chains.parameter_bytes)
    )
    work = forward * (1 + pipelines.recomputed) + backward + collectives.seconds_per_byte * parameters
    mean = work / pipelines.num_stages + collectives.latency_s
    load = np.maximum(load + collectives(lightest), np.maximum(collectives(fewest), mean))
    return load * pipelines.bottlenecks + pipelines.per_step(fewest)


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
class TableChoices:
    """The choices of a plan besides its cut."""

    width: int
    num_stages: int
    num_replicas: int
    zero_stage: int
    recompute: bool

    @property
    def recomputed(self) -> str:
        """Which layers are recomputed: "full" or "none"."""
        return "full" if self.recompute else "none"

    def __str__(self) -> str:
        sizes = f"{counted(self.num_stages, 'stage')} x {counted(self.num_replicas, 'replica')}, width={self.width}"
        return f"{sizes} zero_stage={self.zero_stage} recompute={self.recomputed}"


@dataclass(frozen=True, slots=True)
class TablePlan(TableChoices):
    """A plan and its step time."""

    step_time_s: float
    bottleneck_s: float
    stages: tuple[TableStage, ...]  # in pipeline order
    devices_per_stage: int


@dataclass(frozen=True, slots=True)
class Smallest(TableChoices):
    """The plan that needs the least memory."""

    memory_bytes: float  # of the fullest device


def _choices(problem: PartitionProblem, candidates: Pipelines, row: int) -> Data:
    """Return the fields of `TableChoices` of one of the pipelines."""
    sizes = {name: int(getattr(candidates, name)[row]) for name in ("num_stages", "num_replicas", "zero_stage")}
    return {"width": problem.widths[candidates.width[row]].width, "recompute": bool(candidates.recomputed[row])} | sizes


def solve(problem: PartitionProblem) -> TablePlan | None:
    """Return the plan with the least step time; None if no plan fits, or if there are too few devices.

    Among equally fast plans it has the fewest stages, then the most replicas.
    """
    candidates = pipelines(problem)
    if not len(candidates.width):
        return None
    with jax.enable_x64(True):
        machine = machine_of(problem)
        fewest = fewest_parameters(machine, candidates)
        bound = first_bounds(problem, machine, candidates, fewest)
        below_parameters = np.full(len(bound), UNLIMITED)
        best_s, best_row, best_load = np.inf, -1, np.inf
        while len(rows := _competing(bound, best_s, best_row)):
            batch = candidates.rows(rows)
            stages = np.arange(len(rows)), batch.num_stages - 1
            questions = question(batch, LOAD, problem.most_bytes, below_parameters=below_parameters[rows])
            load = least(machine, questions, batch.num_stages)[stages]
            most_load = load * (1 + ROUNDING)
            questions = question(batch, PARAMETERS, problem.most_bytes, most_load)
            fits = np.isfinite(load)
            parameters = np.where(fits, least(machine, questions, batch.num_stages)[stages], 0)
            time = load * batch.bottlenecks + batch.per_step(parameters)
            for row, seconds, row_load in sorted(zip(rows.tolist(), time.tolist(), most_load.tolist(), strict=True)):
                if seconds < best_s * (1 - ROUNDING) or (seconds <= best_s * (1 + ROUNDING) and row < best_row):
                    best_s, best_row, best_load = seconds, row, row_load
            below_parameters[rows] = parameters
            raised = load * batch.bottlenecks + batch.per_step(fewest[rows])
            bound[rows] = np.where(fits & (parameters > fewest[rows]), raised, np.inf)
        return None if best_row < 0 else _plan(problem, machine, candidates.rows([best_row]), best_load)


def smallest(problem: PartitionProblem) -> Smallest | None:
    """Return the plan that needs the least memory on its fullest device; None if there are too few devices for any."""
    candidates = pipelines(problem)
    if not len(candidates.width):
        return None
    # For each number of stages, the most replicas and the highest ZeRO stage need the least memory.
    order = np.lexsort(
        (candidates.zero_stage, candidates.num_replicas, candidates.num_stages, candidates.recomputed, candidates.width)
    )
    shared = np.stack([candidates.width, candidates.recomputed, candidates.num_stages])[:, order]
    last = candidates.rows(order[np.append((shared[:, 1:] != shared[:, :-1]).any(axis=0), True)])
    with jax.enable_x64(True):
        machine = machine_of(problem)
        needed = by_stages(machine, last, MEMORY, UNLIMITED)
    row = int(np.argmin(needed))
    return Smallest(**_choices(problem, last, row), memory_bytes=float(needed[row]))


def _competing(bound: np.ndarray, best_s: float, best_row: int) -> np.ndarray:
    """Return the pipelines to solve next: the lowest bounds that may beat the best or, if preferred, equal it."""
    preferred = np.arange(len(bound)) < best_row
    rows = np.flatnonzero((bound < best_s * (1 - ROUNDING)) | (preferred & (bound <= best_s * (1 + ROUNDING))))
    return rows[np.argsort(bound[rows], kind="stable")][:_ROUND]


def _plan(problem: PartitionProblem, machine: ScannedTables, row: Pipelines, most_load_s: float) -> TablePlan:
    """Return the plan of one pipeline: the cut within this load that has the fewest parameters on a stage."""
    (num_stages,) = row.num_stages.tolist()
    size = problem.widths[row.width[0]].devices_per_stage
    best = cut(machine, question(row, PARAMETERS, problem.most_bytes, most_load_s), num_stages)
    stages = tuple(
        TableStage(
            first_layer=int(best.first_layer[place]),
            num_layers=int(best.last_layer[place] - best.first_layer[place] + 1),
            first_device=place * size,
            load_s=float(best.load_s[place]),
            memory_bytes=float(best.memory_bytes[place]),
            parameter_bytes=float(best.parameter_bytes[place]),
            producer_level=int(best.producer_level[place]) if place < num_stages - 1 else None,
        )
        for place in reversed(range(num_stages))
    )
    bottleneck = max(stage.load_s for stage in stages)
    (passes,), (sync,) = row.bottlenecks, np.asarray(row.per_step(max(stage.parameter_bytes for stage in stages)))
    step_time_s, choices = float(bottleneck * passes + sync), _choices(problem, row, 0)
    return TablePlan(**choices, step_time_s=step_time_s, bottleneck_s=bottleneck, stages=stages, devices_per_stage=size)
