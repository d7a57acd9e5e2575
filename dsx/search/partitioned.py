"""A search in which every plan has the cut that is best for it.

Cuts are found row by row, so a space goes through as rows and not as blocks. The best are sought in the precision of
the search, and what may be among them is cut and priced again in float64; a front is sought in float64.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dsx.pricing.cuts import layers_of_stages, price_best_cuts
from dsx.pricing.devices import map_over_devices
from dsx.pricing.layers import Kinds
from dsx.pricing.plans import on_tiers
from dsx.pricing.problem import Problem
from dsx.pricing.rows import Counts, Where, joined, no_rows, result_rows
from dsx.search.groups import front_of_groups, leading_rows
from dsx.search.protocol import BlockRange, Progress, silent
from dsx.search.space import Space
from dsx.space.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.space.enumerate import Arrays

_ROWS = 1 << 12  # candidates that a worker takes at once, over all hardware points
_SLACK = 4  # more rows than wanted are priced again, since float32 may order near-ties differently
_MEMORY = "peak_bytes"

Reduce = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class Partitioned:
    """A `dsx.search.protocol.Search` of plans with the best cut of each, in a column `stage_layers`."""

    problem: Problem
    space: Space
    table: Kinds  # [H, U] layer costs of the key table, in float64
    precision: str = "float64"

    def best(
        self,
        top: int,
        per: Sequence[str] = (),
        objective: str = "step_time_s",
        blocks: BlockRange | None = None,
        progress: Progress = silent,
    ) -> tuple[Arrays, Counts]:
        """Return what `dsx.search.protocol.Search.best` says.

        Where the objective is `peak_bytes` a plan's best cut is the one that needs least memory.
        """
        problem, table = self.problem, self.table
        per = ["point", *(name for name in per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS))]
        least_memory = objective == _MEMORY

        def leading(rows: Arrays) -> Arrays:
            return leading_rows(rows, top + _SLACK, per, objective)

        kept, counts = self._stream(leading, self._wide, least_memory, progress, blocks)
        if self._wide:
            return leading_rows(_without_position(kept), top, per, objective), counts
        placed = on_tiers(problem, kept)
        choices = {name: placed[name] for name in placed if name in CHOICE_COLUMNS or name not in kept}
        where = (kept["point"], kept["position"], choices)
        priced = price_best_cuts(problem, table, *where, True, least_memory)
        again = result_rows(problem, self.space.keys, *where, priced.costs, priced.cuts)
        return leading_rows(_feasible(again), top, per, objective), counts

    def front(
        self, objectives: Sequence[str], blocks: BlockRange | None = None, progress: Progress = silent
    ) -> tuple[Arrays, Counts]:
        """Return what `dsx.search.protocol.Search.front` says."""

        def front(rows: Arrays) -> Arrays:
            return front_of_groups(rows, ["point"], objectives)

        kept, counts = self._stream(front, True, False, progress, blocks)
        return _without_position(kept), counts

    def rows(self, device: Any, where: Where, feasible: bool) -> Arrays:
        """Return what `dsx.search.protocol.Search.rows` says.

        Where a plan fits with no cut and is not left out, its cut is the one that needs least memory.
        """
        with jax.default_device(device):
            priced = price_best_cuts(self.problem, self.table, *where, self._wide, False if feasible else None)
        rows = result_rows(self.problem, self.space.keys, *where, priced.costs, priced.cuts)
        return _feasible(rows) if feasible else rows

    @property
    def _wide(self) -> bool:
        return self.precision == "float64"

    def _stream(
        self, reduce: Reduce, wide: bool, least_memory: bool, progress: Progress, blocks: BlockRange | None
    ) -> tuple[Arrays, Counts]:
        """Return what `reduce` leaves of the feasible rows of some blocks, with their `position` among the keys."""
        problem, space = self.problem, self.space
        kept = no_rows(problem, space.keys) | {"position": np.zeros(0, dtype=np.int64)}
        counts = Counts(0, 0)

        def run(device: Any, chunk: tuple[int, int]) -> tuple[Arrays, Counts]:
            positions, choices = space.blocks.rows(*chunk)
            points = np.repeat(np.arange(problem.num_points), len(positions))
            choices = {name: np.tile(column, problem.num_points) for name, column in choices.items()}
            where = (points, np.tile(positions, problem.num_points), choices)
            with jax.default_device(device):
                priced = price_best_cuts(problem, self.table, *where, wide, least_memory)
            rows = result_rows(problem, space.keys, *where, priced.costs) | {"position": where[1], "cut": priced.cuts}
            rows = _feasible(rows)
            left = reduce(rows)
            made = {"stage_layers": layers_of_stages(left.pop("cut"))}
            return left | made, Counts(len(points), len(rows["point"]))

        new: list[Arrays] = []
        for _, (rows, made) in map_over_devices(run, self._chunks(blocks or (0, len(space.blocks)))):
            new.append(rows)
            # As many rows as are kept may wait, so that with many groups a row is sorted a few times in all.
            if sum(len(part["point"]) for part in new) >= len(kept["point"]):
                kept, new = reduce(joined([kept, *new])), []
            counts = counts.plus(made)
            progress(made.candidates)
        return reduce(joined([kept, *new])), counts

    def _chunks(self, blocks: BlockRange) -> Iterator[tuple[int, int]]:
        """Yield ranges of candidates."""
        first, last = self.space.blocks.first_candidate[[*blocks]].tolist()
        step = max(1, _ROWS // self.problem.num_points)
        for start in range(first, last, step):
            yield start, min(start + step, last)


def _feasible(rows: Arrays) -> Arrays:
    return {name: column[rows["reject"] == 0] for name, column in rows.items()}


def _without_position(rows: Arrays) -> Arrays:
    return {name: column for name, column in rows.items() if name != "position"}
