"""A search of plans with optimal cuts.

Cuts are found row by row, so the space streams through as rows and not as blocks. The best plans are searched in the
precision of the search; the contenders are then cut and priced once more in float64. A front is searched in float64.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dsx.pricing.cuts import Goal, layers_of_stages, price_best_cuts
from dsx.pricing.devices import map_over_devices
from dsx.pricing.row_costs import Rows, on_tiers
from dsx.pricing.rows import Counts, joined, result_rows
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import BlockRange, Progress, silent
from dsx.search.row_groups import front_of_groups, leading_rows
from dsx.space.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.space.enumerate import Arrays

_ROWS = 1 << 12  # candidates that a worker takes at once, over all hardware points
_SLACK = 4  # extra rows that are priced once more, since float32 may order near-ties differently
_MEMORY = "peak_bytes"

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
        per = ["point", *(name for name in per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS))]
        goal: Goal = "least memory" if objective == _MEMORY else "fastest"

        def leading(rows: Arrays) -> Arrays:
            return leading_rows(rows, top + _SLACK, per, objective)

        kept, counts = self._stream(leading, source.float64, goal, progress, blocks)
        if source.float64:
            return leading_rows(_without_position(kept), top, per, objective), counts
        columns = on_tiers(source.problem, kept)
        choices = {name: columns[name] for name in columns if name in CHOICE_COLUMNS or name not in kept}
        rows = Rows(kept["point"], kept["position"], choices)
        priced = price_best_cuts(source.problem, source.table, rows, goal)
        repriced = result_rows(source.problem, source.space.keys, rows, priced.costs, priced.cuts)
        return leading_rows(_feasible(repriced), top, per, objective), counts

    def front(
        self, objectives: Sequence[str], blocks: BlockRange | None = None, progress: Progress = silent
    ) -> tuple[Arrays, Counts]:
        """Return the front as `dsx.search.protocol.Search.front` says."""

        def front(rows: Arrays) -> Arrays:
            return front_of_groups(rows, ["point"], objectives)

        kept, counts = self._stream(front, True, "fastest", progress, blocks)
        return _without_position(kept), counts

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

    def _stream(
        self, reduce: Reduce, float64: bool, goal: Goal, progress: Progress, blocks: BlockRange | None
    ) -> tuple[Arrays, Counts]:
        """Reduce the feasible rows of some blocks; the result has their `position` in the key table too."""
        problem, space, table = self.source.problem, self.source.space, self.source.table
        kept = self.source.no_rows() | {"position": np.zeros(0, dtype=np.int64)}
        counts = Counts(0, 0)

        def run(device: Any, chunk: tuple[int, int]) -> tuple[Arrays, Counts]:
            positions, choices = space.blocks.rows(*chunk)
            points = np.repeat(np.arange(problem.num_points), len(positions))
            choices = {name: np.tile(column, problem.num_points) for name, column in choices.items()}
            rows = Rows(points, np.tile(positions, problem.num_points), choices)
            with jax.default_device(device):
                priced = price_best_cuts(problem, table, rows, goal, float64)
            columns = result_rows(problem, space.keys, rows, priced.costs)
            feasible = _feasible(columns | {"position": rows.positions, "cut": priced.cuts})
            left = reduce(feasible)
            # Only the remaining cuts are written as text.
            stage_layers = layers_of_stages(left.pop("cut"))
            return left | {"stage_layers": stage_layers}, Counts(len(points), len(feasible["point"]))

        new: list[Arrays] = []
        for _, (rows, counted) in map_over_devices(run, self._chunks(blocks or (0, len(space.blocks)))):
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


def _without_position(rows: Arrays) -> Arrays:
    return {name: column for name, column in rows.items() if name != "position"}
