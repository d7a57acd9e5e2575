"""The best plans of a space, or its front, where every plan has the cut that is best for it.

Cuts are found row by row, so a space goes through as rows and not as blocks. The best are sought in the precision of
the search, and what may be among them is cut and priced again in float64; a front is sought in float64.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from dsx.search.devices import map_over_devices
from dsx.search.groups import front_of_groups, leading_rows
from dsx.search.optimal_rows import layers_of_stages, price_best_cuts
from dsx.search.pricing import Kinds, on_tiers
from dsx.search.problem import Problem
from dsx.search.rows import Counts, cut_rows, joined, no_rows, result_rows
from dsx.search.space import Space
from dsx.space.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.space.enumerate import Arrays

_ROWS = 1 << 12  # candidates that a worker takes at once, over all hardware points
_SLACK = 4  # more rows than wanted are priced again, since float32 may order near-ties differently
_MEMORY = "peak_bytes"

Progress = Callable[[int], None]
Reduce = Callable[[Arrays], Arrays]


def best_of_cuts(
    problem: Problem,
    space: Space,
    table: Kinds,
    top: int,
    per: Sequence[str],
    precision: str,
    progress: Progress,
    blocks: tuple[int, int],
    objective: str,
) -> tuple[Arrays, Counts]:
    """Return what `dsx.search.best.best` does, each row with its best cut, in a column `stage_layers`.

    Where the objective is `peak_bytes` a plan's best cut is the one that needs least memory.
    """
    per = ["point", *(name for name in per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS))]
    least_memory = objective == _MEMORY

    def leading(rows: Arrays) -> Arrays:
        return leading_rows(rows, top + _SLACK, per, objective)

    kept, counts = _stream(problem, space, table, leading, precision == "float64", least_memory, progress, blocks)
    if precision == "float64":
        return leading_rows(_without_position(kept), top, per, objective), counts
    lying = on_tiers(problem, kept)
    choices = {name: lying[name] for name in lying if name in CHOICE_COLUMNS or name not in kept}
    where = (kept["point"], kept["position"], choices)
    again = cut_rows(problem, space.keys, *where, price_best_cuts(problem, table, *where, True, least_memory))
    return leading_rows(_feasible(again), top, per, objective), counts


def front_of_cuts(
    problem: Problem,
    space: Space,
    table: Kinds,
    objectives: Sequence[str],
    progress: Progress,
    blocks: tuple[int, int],
) -> tuple[Arrays, Counts]:
    """Return what `dsx.search.fronts.best_front` does, each row with its best cut, in a column `stage_layers`."""

    def front(rows: Arrays) -> Arrays:
        return front_of_groups(rows, ["point"], objectives)

    kept, counts = _stream(problem, space, table, front, True, False, progress, blocks)
    return _without_position(kept), counts


def _stream(
    problem: Problem,
    space: Space,
    table: Kinds,
    reduce: Reduce,
    wide: bool,
    least_memory: bool,
    progress: Progress,
    blocks: tuple[int, int],
) -> tuple[Arrays, Counts]:
    """Return what `reduce` leaves of the feasible rows of some blocks, with their `position` among the keys."""
    kept = no_rows(problem, space.keys) | {"position": np.zeros(0, dtype=np.int64)}
    counts = Counts(0, 0)

    def run(device: Any, chunk: tuple[int, int]) -> tuple[Arrays, Counts]:
        positions, choices = space.blocks.rows(*chunk)
        points = np.repeat(np.arange(problem.num_points), len(positions))
        choices = {name: np.tile(column, problem.num_points) for name, column in choices.items()}
        where = (points, np.tile(positions, problem.num_points), choices)
        with jax.default_device(device):
            priced = price_best_cuts(problem, table, *where, wide, least_memory)
        rows = result_rows(problem, space.keys, *where, priced.costs) | {"position": where[1], "cut": priced.cuts}
        rows = _feasible(rows)
        left = reduce(rows)
        made = {"stage_layers": layers_of_stages(left.pop("cut"))}
        return left | made, Counts(len(points), len(rows["point"]))

    new: list[Arrays] = []
    for _, (rows, made) in map_over_devices(run, _chunks(problem, space, blocks)):
        new.append(rows)
        # As many rows as are kept may wait, so that with many groups a row is sorted a few times in all.
        if sum(len(part["point"]) for part in new) >= len(kept["point"]):
            kept, new = reduce(joined([kept, *new])), []
        counts = counts.plus(made)
        progress(made.candidates)
    return reduce(joined([kept, *new])), counts


def _chunks(problem: Problem, space: Space, blocks: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of candidates."""
    first, last = space.blocks.first_candidate[[*blocks]].tolist()
    step = max(1, _ROWS // problem.num_points)
    for start in range(first, last, step):
        yield start, min(start + step, last)


def _feasible(rows: Arrays) -> Arrays:
    return {name: column[rows["reject"] == 0] for name, column in rows.items()}


def _without_position(rows: Arrays) -> Arrays:
    return {name: column for name, column in rows.items() if name != "position"}
