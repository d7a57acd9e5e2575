"""What a search answers of a space: its best plans, its front, its rows; and which search does it.

A search holds a problem, a space and the layer costs of the keys of that space, at all hardware points of the problem.
Its precision is that in which a space streams by: what is returned of the best and of fronts is priced in float64.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dsx.pricing.rows import Counts, Where
from dsx.space.enumerate import Arrays

BlockRange = tuple[int, int]  # a range of the blocks of a space
Progress = Callable[[int], None]  # told how many candidates are newly priced


def silent(candidates: int) -> None:
    """Do nothing: a progress that nobody watches."""
    del candidates


class Search(Protocol):
    """A way through a space."""

    def best(
        self,
        top: int,
        per: Sequence[str] = (),
        objective: str = "step_time_s",
        blocks: BlockRange | None = None,
        progress: Progress = silent,
    ) -> tuple[Arrays, Counts]:
        """Return all columns of the `top` feasible candidates of smallest objective in each group of equal `per`.

        Every hardware point of the problem has groups of its own; the column `point` says which one a row is of.
        `blocks` is a range of the space's blocks, all by default. Rows come sorted by point, group and objective.
        `progress` is told the number of candidates after each chunk.
        """
        ...

    def front(
        self, objectives: Sequence[str], blocks: BlockRange | None = None, progress: Progress = silent
    ) -> tuple[Arrays, Counts]:
        """Return all columns of the feasible candidates that none beats in all `objectives`, per hardware point.

        An objective is a column to minimise, or, with a leading minus, to maximise. Rows come sorted by point and
        objectives.
        """
        ...

    def rows(self, device: Any, where: Where, feasible: bool) -> Arrays:
        """Return all columns of [N] candidates, priced on a device in the precision of the search.

        With `feasible` those that do not fit are left out.
        """
        ...
