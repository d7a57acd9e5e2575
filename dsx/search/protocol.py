"""The interface of a search: the best plans of a space, its front, and its rows.

A search has a space with its layer costs at all hardware points of the problem (`dsx.search.priced_space`). It runs
through the space in its precision. The best plans and the front that it returns are priced in float64.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dsx.pricing.row_costs import Rows
from dsx.pricing.rows import Counts
from dsx.space.enumerate import Arrays

BlockRange = tuple[int, int]  # a range of the blocks of a space
Progress = Callable[[int], None]  # called with the number of newly priced candidates


def silent(candidates: int) -> None:
    """Ignore progress."""
    del candidates


class Search(Protocol):
    """A search of a space."""

    def best(
        self,
        top: int,
        per: Sequence[str] = (),
        objective: str = "step_time_s",
        blocks: BlockRange | None = None,
        progress: Progress = silent,
    ) -> tuple[Arrays, Counts]:
        """Return all columns of the `top` feasible candidates of smallest objective in each group of equal `per`.

        Each hardware point of the problem has its own groups; the column `point` is the point of a row. `blocks` is a
        range of the blocks of the space, by default all of them. Rows are sorted by point, group and objective.
        `progress` is called with the number of candidates of each chunk.
        """
        ...

    def front(
        self, objectives: Sequence[str], blocks: BlockRange | None = None, progress: Progress = silent
    ) -> tuple[Arrays, Counts]:
        """Return all columns of the Pareto front of the feasible candidates of each hardware point.

        An objective is a column to minimise, or with a leading minus to maximise. Rows are sorted by point and
        objectives.
        """
        ...

    def rows(self, device: Any, rows: Rows, feasible: bool) -> Arrays:
        """Return all columns of [N] rows, priced on a device in the precision of the search.

        With `feasible`, rows that do not fit are left out.
        """
        ...
