"""What a search keeps of rows: those of smallest objective of each group, or those that no other row beats.

A group is the rows with equal values in some columns. The order of the space decides among equal rows, so the result
does not depend on how the space was divided.

On the Pareto front every objective is minimised. Row a dominates row b if a is nowhere larger and somewhere smaller.
The front is the rows that no row dominates. Rows that are equal in all objectives do not dominate each other, so all or
none of them are on the front. A row with a NaN or an infinity is never on the front and dominates nothing. The front is
exact. The front of the union of several fronts is the front of all rows, so a sweep may compute it part by part. For
one objective it is a minimum. For two it is a sort and a running minimum. For more it is a loop that takes the row with
the smallest sum of ranks, which no row can dominate, and drops the rows that it dominates. Not covered: approximate
fronts and hypervolumes.

A search has a space with its layer costs at all hardware points of the problem (`dsx.search.spaces`), and runs through
it in its precision. The best plans and the front that it returns are priced in float64.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from dsx.arrays import PlanBools, PlanInts
from dsx.errors import InputError
from dsx.plans.choices import MODEL_AXES
from dsx.plans.enumerate import Arrays, Kept, changes
from dsx.pricing.cuts import CandidateCounts
from dsx.pricing.row_costs import Rows
from dsx.records import Float, Int, Real, Shaped

# Rows compared at a time, and rows of the front that they are compared with: the comparisons stay in the cache.
BLOCK, CHUNK = 2**13, 2**5


def front(points: Real[np.ndarray, "..."]) -> PlanBools:
    """Return which of the points are on the front; they are a matrix of plans and objectives.

    Raises InputError if `points` is not a matrix with at least one column.
    """
    points = np.asarray(points)
    if points.ndim != 2 or points.shape[1] == 0:
        raise InputError(f"a front needs [rows, objectives], with an objective; got shape {points.shape}")
    rows = np.flatnonzero(np.isfinite(points).all(axis=1))
    on_front = np.zeros(len(points), dtype=bool)
    if len(rows):
        finite = points[rows]
        match points.shape[1]:
            case 1:
                kept = finite[:, 0] == finite[:, 0].min()
            case 2:
                kept = _plane(finite[:, 0], finite[:, 1])
            case _:
                kept = _blocks(finite)
        on_front[rows[kept]] = True
    return on_front


def _plane(x: Real[np.ndarray, "plans"], y: Real[np.ndarray, "plans"]) -> PlanBools:
    """Front of two objectives: y is the least at its x, and less than every y at a smaller x."""
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    starts_group = np.concatenate(([True], x[1:] != x[:-1]))
    group = np.maximum.accumulate(np.where(starts_group, np.arange(len(x)), 0))
    least = np.minimum.accumulate(y)
    kept = np.empty(len(x), dtype=bool)
    kept[order] = (y == y[group]) & ((group == 0) | (y < least[group - 1]))
    return kept


def _blocks(points: Real[np.ndarray, "plans objectives"]) -> PlanBools:
    """Front of any number of objectives, in blocks of rows by rising sum of ranks."""
    # Ranks compare like values, and their sum is exact: a dominating row has a smaller sum.
    # So every row that could dominate another comes before it, and the rows that remain of a block are on the front.
    ranks = [np.unique(column, return_inverse=True)[1].astype(np.int32) for column in points.T]
    sums = np.stack(ranks).sum(axis=0, dtype=np.int64)
    order = np.argsort(sums, kind="stable")
    on_front = order[:0]
    for start in range(0, len(order), BLOCK):
        block = order[start : start + BLOCK]
        for first in range(0, len(on_front), CHUNK):
            chunk = on_front[first : first + CHUNK]
            dominated = sums[block, None] > sums[chunk]
            for rank in ranks:
                dominated &= rank[block, None] >= rank[chunk]
            block = block[~dominated.any(axis=1)]
        on_front = np.concatenate([on_front, block[_undominated([rank[block] for rank in ranks])]])
    kept = np.zeros(len(points), dtype=bool)
    kept[on_front] = True
    return kept


def _undominated(ranks: list[PlanInts]) -> PlanBools:
    """Front of rows with ascending sums of ranks: the first row is on it; drop the rows it dominates; repeat."""
    kept = np.zeros(len(ranks[0]), dtype=bool)
    remaining = np.arange(len(ranks[0]))
    while len(remaining):
        nowhere_smaller = np.logical_and.reduce([rank >= rank[0] for rank in ranks])
        equal = nowhere_smaller & np.logical_and.reduce([rank == rank[0] for rank in ranks])
        kept[remaining[equal]] = True
        somewhere_smaller = ~nowhere_smaller
        remaining, ranks = remaining[somewhere_smaller], [rank[somewhere_smaller] for rank in ranks]
    return kept


# The order of candidates in a space: columns of the key, then columns of the choice.
_ORDER = ("strategy", *MODEL_AXES, "panels", "microbatch_size", *(f"{axis}_nvs" for axis in MODEL_AXES))
_ORDER += ("num_gpus", "pp", "pp_nvs", "global_batch_size")


def ranks(group: Shaped[np.ndarray, "rows"], *groups: Shaped[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
    """Return the rank of each row in its group, for rows that are sorted by the columns of the groups."""
    position = np.arange(len(group))
    return position - np.maximum.accumulate(np.where(changes(group, *groups), position, 0))


def leading_rows(rows: Arrays, top: int, groups: Sequence[str], objective: str = "step_time_s") -> Kept:
    """Return the `top` rows of smallest objective of each group, sorted by group and objective.

    Equal rows come in the order of the space. So the same rows of many ties are kept, however the space is divided.
    """
    order = np.lexsort([rows[name] for name in reversed((*groups, objective, *_ORDER))])
    rows = {name: column[order] for name, column in rows.items()}
    leading = ranks(*(rows[name] for name in groups)) < top if groups else np.arange(len(order)) < top
    return {name: column[leading] for name, column in rows.items()}


def front_of_groups(rows: Arrays, groups: Sequence[str], objectives: Sequence[str]) -> Kept:
    """Return the front of each group, each candidate once, sorted by group and objectives."""
    order = np.lexsort((rows["candidate"], *(rows[name] for name in reversed(groups))))
    rows = {name: column[order] for name, column in rows.items()}
    columns = [rows[name] for name in groups]
    first = np.flatnonzero(changes(*columns, rows["candidate"]))
    rows = {name: column[first] for name, column in rows.items()}
    begins = changes(*(rows[name] for name in groups))
    points = objective_points(rows, objectives)
    members = np.split(np.arange(len(first)), np.flatnonzero(begins)[1:])
    chosen = np.concatenate(
        [rows_of_group[front(points[rows_of_group])] for rows_of_group in members if len(rows_of_group)] or [first]
    )
    chosen = chosen[np.lexsort((*points[chosen].T[::-1], np.cumsum(begins)[chosen]))]
    return {name: column[chosen] for name, column in rows.items()}


def objective_points(rows: Arrays, objectives: Sequence[str]) -> Float[np.ndarray, "plans {len(objectives)}"]:
    """Return the objectives to minimise; a column with a leading minus is maximised."""
    columns = [-rows[name[1:]] if name.startswith("-") else rows[name] for name in objectives]
    return np.array(columns, dtype=np.float64).reshape(len(columns), len(rows["candidate"])).T


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
    ) -> tuple[Arrays, CandidateCounts]:
        """Return all columns of the `top` feasible candidates of smallest objective in each group of equal `per`.

        Each hardware point of the problem has its own groups; the column `point` is the point of a row. `blocks` is a
        range of the blocks of the space, by default all of them. Rows are sorted by point, group and objective.
        `progress` is called with the number of candidates of each chunk.
        """
        ...

    def front(
        self, objectives: Sequence[str], blocks: BlockRange | None = None, progress: Progress = silent
    ) -> tuple[Arrays, CandidateCounts]:
        """Return all columns of the Pareto front of the feasible candidates of each hardware point.

        An objective is a column to minimise, or with a leading minus to maximise. Rows are sorted by point and
        objectives.
        """
        ...

    def rows(self, device: object, rows: Rows, feasible: bool) -> Kept:
        """Return all columns of rows, priced on a device in the precision of the search.

        With `feasible`, rows that do not fit are left out.
        """
        ...
