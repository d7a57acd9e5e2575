"""The Pareto front of a space: the hot loop drops candidates that a reference dominates; the rest is compared exactly.

References are a few points of the front so far. The candidates that no reference dominates are few. They are priced
once more in float64, and their front is merged with the front so far. The first front is that of a sample of the whole
space. Every candidate is priced. The front is exact up to the precision of the hot loop
(`dsx.search.blockwise.minima.undominated`).
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.pricing.devices import map_over_devices
from dsx.pricing.row_costs import Rows
from dsx.pricing.rows import Counts, joined
from dsx.search.blockwise.hot import HotLoop
from dsx.search.blockwise.minima import Objective, undominated
from dsx.search.blockwise.tiles import Chunk, Groups, block_ranges
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import BlockRange, Progress
from dsx.search.row_groups import front_of_groups, objective_points
from dsx.space.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.space.enumerate import Arrays

_REFERENCES = 16
_COMPARED = (*StepCosts.__dataclass_fields__, *KEY_COLUMNS, *CHOICE_COLUMNS)
_SAMPLE = 1 << 14  # rows of the sample for the first front, over all hardware points


def front(
    source: PricedSpace, objectives: Sequence[str], blocks: BlockRange, progress: Progress
) -> tuple[Arrays, Counts]:
    """Return the front as `dsx.search.protocol.Search.front` says."""
    # Columns that are not searched have one value everywhere and decide nothing.
    compared = [name for name in objectives if name.removeprefix("-") in _COMPARED]
    columns = tuple(Objective(name.removeprefix("-"), name.startswith("-")) for name in compared)
    space, num_points = source.space, source.problem.num_points
    hot = HotLoop(source, Groups(space.keys, space.blocks, ()), [objective.column for objective in columns])
    counts = Counts(0, 0)
    kept = _front_of(_sample(source, blocks), objectives)

    def run(device: Any, batch: tuple[Chunk, np.ndarray]) -> tuple[Arrays, int]:
        chunk, references = batch
        found, feasible = [source.no_rows()], 0
        with jax.enable_x64(source.float64), jax.default_device(device):
            for tiles, *arguments in hot.calls(device, chunk):
                survives, fitting = undominated(*arguments, references.astype(source.dtype), columns)
                feasible += int(np.asarray(fitting, dtype=np.int64).sum())
                found.append(source.priced_rows(hot.candidates(chunk, tiles, np.asarray(survives))))
        return _front_of(joined(found), objectives), feasible

    batches = (
        (chunk, _references(kept, compared, num_points)) for chunk in hot.chunks(block_ranges(space.blocks, *blocks))
    )
    for (chunk, _), (found, feasible) in map_over_devices(run, batches):
        kept = _front_of(joined([kept, found]), objectives)
        counts = counts.plus(Counts(num_points * chunk.size, feasible))
        progress(num_points * chunk.size)
    return kept, counts


def _sample(source: PricedSpace, blocks: BlockRange) -> Arrays:
    """Return the rows of candidates at equal distances in a range of blocks, at every hardware point."""
    num_points = source.problem.num_points
    first, last = source.space.blocks.first_candidate[[*blocks]].tolist()
    count = min(last - first, _SAMPLE // num_points)
    positions, choices = source.space.blocks.rows_at(np.linspace(first, last, count, endpoint=False).astype(np.int64))
    points = np.repeat(np.arange(num_points), count)
    tiled = {name: np.tile(column, num_points) for name, column in choices.items()}
    return source.priced_rows(Rows(points, np.tile(positions, num_points), tiled))


def _front_of(rows: Arrays, objectives: Sequence[str]) -> Arrays:
    """Return the front of the feasible rows of each hardware point, each candidate once, sorted."""
    return front_of_groups({n: c[rows["reject"] == 0] for n, c in rows.items()}, ["point"], objectives)


def _references(kept: Arrays, objectives: Sequence[str], num_points: int) -> np.ndarray:
    """Return [H, _REFERENCES, D] points spread over the fronts so far; infinite if a front has fewer."""
    points = objective_points(kept, objectives)
    references = np.full((num_points, _REFERENCES, len(objectives)), np.inf)
    for point in range(num_points):
        known = points[kept["point"] == point]
        chosen = np.unique(np.linspace(0, len(known) - 1, _REFERENCES).astype(np.int64)) if len(known) else ()
        references[point, : len(chosen)] = known[list(chosen)]
    return references
