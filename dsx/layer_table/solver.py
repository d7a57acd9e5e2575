"""The best plan of a chain of layers, including its cuts: an exact solver by scans and bounds.

Bottleneck and synchronisation conflict: the cut with the least bottleneck may put more parameters on one stage than
another cut does. So the solver bounds the parameters of a stage. One min-max scan finds the least bottleneck under a
bound, a second one the fewest parameters that this bottleneck allows; the next bound is below these.

Pipelines are taken in the order of a lower bound of their step time, which each pair of scans raises, until no bound is
below the best plan found. So no better plan is missed.
"""

from dataclasses import dataclass

import jax
import numpy as np

from dsx.layer_table.pipelines import ROUNDING, PartitionProblem, Pipelines, pipelines
from dsx.layer_table.scans import (
    LOAD,
    MEMORY,
    PARAMETERS,
    UNLIMITED,
    ScannedTables,
    by_stages,
    cut,
    fewest_parameters,
    first_bounds,
    least,
    machine_of,
    question,
)
from dsx.text import Data
from dsx.units import counted

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
