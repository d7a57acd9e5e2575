"""The Pareto front of a space: what no reference dominates leaves the hot loop, and is compared exactly.

A few points of the front that is known so far go into the hot loop as references. The candidates that none
of them dominates are few; they are priced again in float64 and their front is merged with the known one. The
first front is that of a sample over the whole space. Every candidate is priced; the front is exact as far as
float32 tells a candidate from what dominates it (see `dsx.search.minima.undominated`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.layer import LayerCosts
from dsx.search.devices import map_over_devices
from dsx.search.hot import HotLoop
from dsx.search.minima import Objective, undominated
from dsx.search.pareto import front
from dsx.search.problem import Problem
from dsx.search.rows import Counts, joined, no_rows, priced_rows
from dsx.search.space import Space
from dsx.search.strips import block_ranges
from dsx.space.blocks import CHOICE_COLUMNS
from dsx.space.enumerate import KEY_COLUMNS, Arrays

_REFERENCES = 32
_COMPARED = (*StepCosts.__dataclass_fields__, *KEY_COLUMNS, *CHOICE_COLUMNS)
_SAMPLES, _SAMPLE = 64, 1024  # stretches of the space, and candidates of each, that give the first front


def best_front(
    problem: Problem,
    space: Space,
    table: LayerCosts,
    objectives: Sequence[str],
    precision: str = "float64",
    progress: Callable[[int], None] = lambda rows: None,
    blocks: tuple[int, int] | None = None,
) -> tuple[Arrays, Counts]:
    """Return all columns of the feasible candidates that no other one beats in all `objectives`, per hardware point.

    An objective is a column to minimise, or, with a leading minus, to maximise. The other arguments and the
    results are those of `dsx.search.best.best`; rows come sorted by point and objectives.
    """
    # What is not searched is the same everywhere, and tells no candidate from another.
    compared = [name for name in objectives if name.removeprefix("-") in _COMPARED]
    sought = tuple(Objective(name.removeprefix("-"), name.startswith("-")) for name in compared)
    wide = precision == "float64"
    hot = HotLoop(problem, space, table, (), [objective.column for objective in sought], wide)
    low, high = blocks or (0, len(space.blocks))
    counts = Counts(0, 0)
    kept = _front_of(_sample(problem, space, table, low, high), objectives)

    def run(device: Any, chunk_blocks: tuple[int, int]) -> tuple[Arrays, Counts]:
        chunk = hot.chunk(*chunk_blocks)
        references = _references(kept, compared, problem.num_points)
        found, feasible = [no_rows(problem, space.keys)], 0
        with jax.enable_x64(wide), jax.default_device(device):
            for strips, *arguments in hot.calls(device, chunk):
                kind = jnp.float64 if wide else jnp.float32
                survives, fitting = undominated(*arguments, jnp.asarray(references, dtype=kind), sought)
                feasible += int(np.asarray(fitting, dtype=np.int64).sum())
                point, key, choices = hot.candidates(chunk, strips, np.asarray(survives))
                found.append(priced_rows(problem, space.keys, table, point, key, choices))
        first, last = space.blocks.first_candidate[list(chunk_blocks)]
        return _front_of(joined(found), objectives), Counts(problem.num_points * int(last - first), feasible)

    for _, (found, made) in map_over_devices(run, block_ranges(space.blocks, low, high)):
        kept = _front_of(joined([kept, found]), objectives)
        counts = counts.plus(made)
        progress(made.candidates)
    return kept, counts


def _sample(problem: Problem, space: Space, table: LayerCosts, low: int, high: int) -> Arrays:
    """Return the rows of some candidates from all over a range of blocks, at every hardware point."""
    first, last = space.blocks.first_candidate[[low, high]].tolist()
    width = max(1, _SAMPLE // problem.num_points)
    starts = np.unique(np.linspace(first, max(first, last - width), _SAMPLES).astype(np.int64)) if last > first else ()
    parts = [no_rows(problem, space.keys)]
    for start in starts:
        positions, choices = space.blocks.rows(int(start), min(int(start) + width, last))
        points = np.repeat(np.arange(problem.num_points), len(positions))
        tiled = {name: np.tile(column, problem.num_points) for name, column in choices.items()}
        parts.append(priced_rows(problem, space.keys, table, points, np.tile(positions, problem.num_points), tiled))
    return joined(parts)


def _front_of(rows: Arrays, objectives: Sequence[str]) -> Arrays:
    """Return the front of the feasible rows of each hardware point, each candidate once, sorted."""
    return front_of_groups({n: c[rows["reject"] == 0] for n, c in rows.items()}, ["point"], objectives)


def front_of_groups(rows: Arrays, groups: Sequence[str], objectives: Sequence[str]) -> Arrays:
    """Return the front of each group of equal columns `groups`, each candidate once, sorted by them and objectives."""
    order = np.lexsort((rows["candidate"], *(rows[name] for name in reversed(groups))))
    rows = {name: column[order] for name, column in rows.items()}
    group = np.zeros(len(order), dtype=np.int64)
    for name in groups:
        group[1:] |= rows[name][1:] != rows[name][:-1]
    group = np.cumsum(group)
    again = np.zeros(len(order), dtype=bool)
    again[1:] = (rows["candidate"][1:] == rows["candidate"][:-1]) & (group[1:] == group[:-1])
    points = objective_points(rows, objectives)
    kept = np.zeros(len(order), dtype=bool)
    for code in np.unique(group).tolist():
        here = np.flatnonzero((group == code) & ~again)
        kept[here[front(points[here])]] = True
    chosen = np.flatnonzero(kept)
    chosen = chosen[np.lexsort((*points[chosen].T[::-1], group[chosen]))]
    return {name: column[chosen] for name, column in rows.items()}


def objective_points(rows: Arrays, objectives: Sequence[str]) -> np.ndarray:
    """Return the [N, D] objectives to minimise; one with a leading minus is maximised."""
    columns = [-rows[name[1:]] if name.startswith("-") else rows[name] for name in objectives]
    return np.array(columns, dtype=np.float64).reshape(len(columns), len(rows["candidate"])).T


def _references(kept: Arrays, objectives: Sequence[str], num_points: int) -> np.ndarray:
    """Return [H, _REFERENCES, D] points of the known fronts, spread over each; infinite where there are fewer."""
    points = objective_points(kept, objectives)
    references = np.full((num_points, _REFERENCES, len(objectives)), np.inf)
    for point in range(num_points):
        known = points[kept["point"] == point]
        chosen = np.unique(np.linspace(0, len(known) - 1, _REFERENCES).astype(np.int64)) if len(known) else ()
        references[point, : len(chosen)] = known[list(chosen)]
    return references
