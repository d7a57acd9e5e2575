"""The Pareto front of a space: what no reference dominates leaves the hot loop, and is compared exactly.

A few points of the front that is known so far go into the hot loop as references. The candidates that none
of them dominates are few; they are priced again in float64 and their front is merged with the known one. The
first front is that of a sample over the whole space. Every candidate is priced; the front is exact as far as
float32 tells a candidate from what dominates it (see `dsx.search.blockwise.minima.undominated`).
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.pricing.devices import map_over_devices
from dsx.pricing.layers import Kinds
from dsx.pricing.problem import Problem
from dsx.pricing.rows import Counts, joined, no_rows, priced_rows
from dsx.search.blockwise.hot import HotLoop
from dsx.search.blockwise.minima import Objective, undominated
from dsx.search.blockwise.tiles import Chunk, Groups
from dsx.search.groups import front_of_groups, objective_points
from dsx.search.protocol import BlockRange, Progress
from dsx.search.space import Space
from dsx.space.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.space.enumerate import Arrays

_REFERENCES = 16
_COMPARED = (*StepCosts.__dataclass_fields__, *KEY_COLUMNS, *CHOICE_COLUMNS)
_SAMPLE = 1 << 14  # candidates from all over the space, over all hardware points, that give the first front


def front(
    problem: Problem,
    space: Space,
    table: Kinds,
    precision: str,
    objectives: Sequence[str],
    blocks: BlockRange,
    progress: Progress,
) -> tuple[Arrays, Counts]:
    """Return what `dsx.search.protocol.Search.front` says, of a space with its [H, U] layer costs in float64."""
    # What is not searched is the same everywhere, and tells no candidate from another.
    compared = [name for name in objectives if name.removeprefix("-") in _COMPARED]
    sought = tuple(Objective(name.removeprefix("-"), name.startswith("-")) for name in compared)
    wide = precision == "float64"
    kind = np.float64 if wide else np.float32
    hot = HotLoop(
        problem, space, table, Groups(space.keys, space.blocks, ()), [objective.column for objective in sought], wide
    )
    low, high = blocks
    counts = Counts(0, 0)
    kept = _front_of(_sample(problem, space, table, low, high), objectives)

    def run(device: Any, batch: tuple[Chunk, np.ndarray]) -> tuple[Arrays, int]:
        chunk, references = batch
        found, feasible = [no_rows(problem, space.keys)], 0
        with jax.enable_x64(wide), jax.default_device(device):
            for tiles, *arguments in hot.calls(device, chunk):
                survives, fitting = undominated(*arguments, references.astype(kind), sought)
                feasible += int(np.asarray(fitting, dtype=np.int64).sum())
                point, key, choices = hot.candidates(chunk, tiles, np.asarray(survives))
                found.append(priced_rows(problem, space.keys, table, point, key, choices))
        return _front_of(joined(found), objectives), feasible

    batches = ((chunk, _references(kept, compared, problem.num_points)) for chunk in hot.chunks(low, high))
    for (chunk, _), (found, feasible) in map_over_devices(run, batches):
        kept = _front_of(joined([kept, found]), objectives)
        counts = counts.plus(Counts(problem.num_points * chunk.size, feasible))
        progress(problem.num_points * chunk.size)
    return kept, counts


def _sample(problem: Problem, space: Space, table: Kinds, low: int, high: int) -> Arrays:
    """Return the rows of some candidates from all over a range of blocks, at every hardware point."""
    first, last = space.blocks.first_candidate[[low, high]].tolist()
    count = min(last - first, _SAMPLE // problem.num_points)
    positions, choices = space.blocks.rows_at(np.linspace(first, last, count, endpoint=False).astype(np.int64))
    points = np.repeat(np.arange(problem.num_points), count)
    tiled = {name: np.tile(column, problem.num_points) for name, column in choices.items()}
    return priced_rows(problem, space.keys, table, points, np.tile(positions, problem.num_points), tiled)


def _front_of(rows: Arrays, objectives: Sequence[str]) -> Arrays:
    """Return the front of the feasible rows of each hardware point, each candidate once, sorted."""
    return front_of_groups({n: c[rows["reject"] == 0] for n, c in rows.items()}, ["point"], objectives)


def _references(kept: Arrays, objectives: Sequence[str], num_points: int) -> np.ndarray:
    """Return [H, _REFERENCES, D] points of the known fronts, spread over each; infinite where there are fewer."""
    points = objective_points(kept, objectives)
    references = np.full((num_points, _REFERENCES, len(objectives)), np.inf)
    for point in range(num_points):
        known = points[kept["point"] == point]
        chosen = np.unique(np.linspace(0, len(known) - 1, _REFERENCES).astype(np.int64)) if len(known) else ()
        references[point, : len(chosen)] = known[list(chosen)]
    return references
