"""The stages of one plan with a layer layout: layers, times, memory, and the network link to each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dsx.cost import xp
from dsx.cost.pipeline import in_flight
from dsx.cost.stage_costs import StageCosts
from dsx.cost.stages import over_layers, stages_between
from dsx.cost.step import with_effects
from dsx.pricing.cuts import boundaries_of
from dsx.pricing.layers import price_keys
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import on_tiers, step_choices, take_rows
from dsx.space.choices import KEY_COLUMNS
from dsx.space.enumerate import Arrays
from dsx.space.schedules import SCHEDULES
from dsx.space.stage_chunks import StageChunks


@dataclass(frozen=True, slots=True)
class StageChunk:
    """The layers of a chunk, in the chain of embedding, body and head."""

    first_layer: int  # counted from 0
    num_layers: int


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A stage of a pipeline. Seconds are of one microbatch, forward and backward."""

    chunks: tuple[StageChunk, ...]  # first to last; one if vpp is 1
    load_s: float
    compute_s: float  # of the load: kernels and their stalls
    comm_s: float  # of the load: exposed communication inside the stage
    recompute_s: float  # of the load: the recomputed forward
    in_flight: float  # microbatches in flight at most; with several chunks, the mean over them
    peak_bytes: float  # of one GPU
    link: str | None  # network tier of the link from the previous stage; None for the first stage

    @property
    def first_layer(self) -> int:
        """The first layer of its first chunk."""
        return self.chunks[0].first_layer

    @property
    def num_layers(self) -> int:
        """The layers of all chunks."""
        return sum(chunk.num_layers for chunk in self.chunks)


@xp.unchecked
def stages_of_plan(problem: Problem, columns: Arrays, layers: Sequence[int]) -> tuple[PlanStage, ...]:
    """Return the stages of a plan, given by all candidate columns [1], for the layers of its chunks."""
    num_stages = int(columns["pp"][0])
    table = price_keys(problem, {name: columns[name] for name in KEY_COLUMNS})
    columns = on_tiers(problem, columns)
    only = np.zeros(1, dtype=np.int64)
    kinds = jax.tree.map(lambda leaf: take_rows(np.asarray(leaf), only, only), table)
    tiers = [tier.name for tier in problem.cluster.network.middle]
    choices = step_choices(columns, lambda column: column.astype(np.float64), tiers)
    workload = problem.workload
    kinds = with_effects(kinds, choices, workload.stack, workload.searched, problem.assumptions)
    costs = StageCosts(kinds, choices, workload.stack, workload.searched, *problem.at_point(0))
    boundaries = boundaries_of(layers, num_stages)
    holds = SCHEDULES[int(columns["schedule"][0])].holds
    stages = stages_between(workload.stack, boundaries[..., None].astype(np.float64), choices.pp, holds)
    chunks_of_stages = _chunks(boundaries, holds)
    microbatches = in_flight(stages.position, choices, workload.searched)
    if not holds.in_rounds:
        of_last = in_flight(stages.position, choices, workload.searched, last=True)
        microbatches = 0.5 * (microbatches + of_last)
    stalls = costs.stall_s or [0.0] * len(kinds)
    busy = [kind.compute_s + kind.memory_s + stall for kind, stall in zip(kinds, stalls, strict=True)]
    each = {kind: layers / holds.num_chains for kind, layers in stages.layers.items()}  # that a microbatch goes through
    values: dict[str, Any] = {
        "load_s": over_layers(each, costs.forward_backward_s),
        "compute_s": over_layers(each, busy),
        "comm_s": over_layers(each, [kind.tp_comm_s + kind.cp_comm_s + kind.ep_comm_s for kind in kinds]),
        "recompute_s": over_layers(each, costs.recompute_s),
        "peak_bytes": costs.peak_memory(stages, holds).peak_bytes,
    }
    held = np.broadcast_to(microbatches, (num_stages, 1))
    *inner, outermost = [tier.name for tier in problem.cluster.network.tiers]
    per_unit = [(name, int(columns[f"pp_{name}"][0])) for name in inner]  # stages that share a unit of each tier
    return tuple(
        PlanStage(
            chunks=chunks,
            in_flight=float(held[index, 0]),
            link=next((name for name, count in per_unit if index % count), outermost) if index else None,
            **{name: float(column[index, 0]) for name, column in values.items()},
        )
        for index, chunks in enumerate(chunks_of_stages)
    )


def _chunks(boundaries: np.ndarray, holds: StageChunks) -> list[tuple[StageChunk, ...]]:
    """Return the chunks of each stage from the [R, S + 1] boundaries of all rounds."""
    firsts, sizes = boundaries[:, :-1].ravel().tolist(), np.diff(boundaries, axis=1).ravel().tolist()
    chunks = [StageChunk(int(first), int(size)) for first, size in zip(firsts, sizes, strict=True)]
    num_rounds, num_stages = len(boundaries), boundaries.shape[1] - 1
    stage_of = [stage for chain in holds.chains(num_stages, num_rounds) for stage in chain]
    found: list[list[StageChunk]] = [[] for _ in range(num_stages)]
    for stage, chunk in zip(stage_of, chunks * holds.num_chains, strict=True):
        found[stage].append(chunk)
    return [tuple(of_stage) for of_stage in found]
