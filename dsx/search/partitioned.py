"""A search of plans with optimal cuts.

The fastest plans and the front of step time and memory are found by bounds (`dsx.search.fastest_cuts`,
`dsx.search.front_of_cuts`). For anything else the space streams through as rows, and each row is cut. All are searched
in float64.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dsx.pricing.cuts import Goal, layers_of_stages, price_best_cuts
from dsx.pricing.devices import map_over_devices
from dsx.pricing.row_costs import Rows
from dsx.pricing.rows import Counts, joined, result_rows
from dsx.search.fastest_cuts import fastest_cuts
from dsx.search.front_of_cuts import OBJECTIVES, front_of_cuts
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import BlockRange, Progress, silent
from dsx.search.row_groups import front_of_groups, leading_rows
from dsx.space.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.space.enumerate import Arrays

_ROWS = 1 << 14  # candidates that a worker takes at once, over all hardware points
_STEP_TIME, _MEMORY = "step_time_s", "peak_bytes"

Reduce = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class Partitioned:
    """A `dsx.search.protocol.Search` of plans with optimal cuts, which are the column `stage_layers`."""

    source: PricedSpace

    def best(
        self,
        top: int,
        per: Sequence[str] = (),
        objective: str = "step_time_s",
        blocks: BlockRange | None = None,
        progress: Progress = silent,
    ) -> tuple[Arrays, Counts]:
        """Return the best plans as `dsx.search.protocol.Search.best` says.

        If the objective is `peak_bytes`, the cut of a plan is the one of least memory.
        """
        source = self.source
        blocks = blocks or (0, len(source.space.blocks))
        per = [name for name in per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS)]
        if objective == _STEP_TIME:
            return fastest_cuts(source, top, per, blocks, progress)
        goal: Goal = "least memory" if objective == _MEMORY else "fastest"

        def leading(rows: Arrays) -> Arrays:
            return leading_rows(rows, top, ["point", *per], objective)

        return self._stream(leading, goal, progress, blocks)

    def front(
        self, objectives: Sequence[str], blocks: BlockRange | None = None, progress: Progress = silent
    ) -> tuple[Arrays, Counts]:
        """Return the front as `dsx.search.protocol.Search.front` says."""

        blocks = blocks or (0, len(self.source.space.blocks))
        if {*objectives} <= {*OBJECTIVES}:
            return front_of_cuts(self.source, objectives, list(self._chunks(blocks)), progress)

        def front(rows: Arrays) -> Arrays:
            return front_of_groups(rows, ["point"], objectives)

        return self._stream(front, "fastest", progress, blocks)

    def rows(self, device: Any, rows: Rows, feasible: bool) -> Arrays:
        """Return rows as `dsx.search.protocol.Search.rows` says.

        A row that fits with no cut and is not left out has the cut of least memory.
        """
        source = self.source
        goal: Goal = "fastest" if feasible else "fastest, else least memory"
        with jax.default_device(device):
            priced = price_best_cuts(source.problem, source.table, rows, goal, source.float64)
        columns = result_rows(source.problem, source.space.keys, rows, priced.costs, priced.cuts)
        return _feasible(columns) if feasible else columns

    def _stream(self, reduce: Reduce, goal: Goal, progress: Progress, blocks: BlockRange) -> tuple[Arrays, Counts]:
        """Reduce the feasible rows of some blocks, in float64."""
        problem, space, table = self.source.problem, self.source.space, self.source.table
        kept = self.source.no_rows()
        counts = Counts(0, 0)

        def run(device: Any, chunk: tuple[int, int]) -> tuple[Arrays, Counts]:
            positions, choices = space.blocks.rows(*chunk)
            points = np.repeat(np.arange(problem.num_points), len(positions))
            choices = {name: np.tile(column, problem.num_points) for name, column in choices.items()}
            rows = Rows(points, np.tile(positions, problem.num_points), choices)
            with jax.default_device(device):
                priced = price_best_cuts(problem, table, rows, goal)
            columns = result_rows(problem, space.keys, rows, priced.costs)
            feasible = _feasible(columns | {"cut": priced.cuts})
            left = reduce(feasible)
            # Only the remaining cuts are written as text.
            stage_layers = layers_of_stages(left.pop("cut"))
            return left | {"stage_layers": stage_layers}, Counts(len(points), len(feasible["point"]))

        new: list[Arrays] = []
        for _, (rows, counted) in map_over_devices(run, self._chunks(blocks)):
            new.append(rows)
            # New rows are merged once they are as many as the kept ones. So a row is sorted only a few times in all.
            if sum(len(part["point"]) for part in new) >= len(kept["point"]):
                kept, new = reduce(joined([kept, *new])), []
            counts = counts.plus(counted)
            progress(counted.candidates)
        return reduce(joined([kept, *new])), counts

    def _chunks(self, blocks: BlockRange) -> Iterator[tuple[int, int]]:
        """Yield ranges of candidates."""
        first, last = self.source.space.blocks.first_candidate[[*blocks]].tolist()
        step = max(1, _ROWS // self.source.problem.num_points)
        for start in range(first, last, step):
            yield start, min(start + step, last)


def _feasible(rows: Arrays) -> Arrays:
    return {name: column[rows["reject"] == 0] for name, column in rows.items()}
