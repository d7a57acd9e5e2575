"""The Pareto front: the rows that no other row beats in every objective.

Every objective is minimised. Row a dominates row b if a is nowhere larger and somewhere smaller. The front is the rows
that no row dominates. Rows that are equal in all objectives do not dominate each other, so all or none of them are on
the front. A row with a NaN or an infinity is never on the front and dominates nothing.

The front is exact. The front of the union of several fronts is the front of all rows, so a sweep may compute it part by
part.

For one objective the front is a minimum. For two it is a sort and a running minimum. For more it is a loop that takes
the row with the smallest sum of ranks, which no row can dominate, and drops the rows that it dominates.

Not covered: approximate fronts and hypervolumes.
"""

import numpy as np
from numpy.typing import NDArray

from dsx.errors import InputError

# Rows compared at a time, and rows of the front that they are compared with: the comparisons stay in the cache.
BLOCK, CHUNK = 2**13, 2**5


def front(points: NDArray[np.number]) -> NDArray[np.bool_]:
    """Return which of the [N, D] points are on the front, as [N] booleans.

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


def _plane(x: NDArray[np.number], y: NDArray[np.number]) -> NDArray[np.bool_]:
    """Front of two objectives: y is the least at its x, and less than every y at a smaller x."""
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    starts_group = np.concatenate(([True], x[1:] != x[:-1]))
    group = np.maximum.accumulate(np.where(starts_group, np.arange(len(x)), 0))
    least = np.minimum.accumulate(y)
    kept = np.empty(len(x), dtype=bool)
    kept[order] = (y == y[group]) & ((group == 0) | (y < least[group - 1]))
    return kept


def _blocks(points: NDArray[np.number]) -> NDArray[np.bool_]:
    """Front of any number of objectives, in blocks of rows by rising sum of ranks."""
    # Ranks compare like values, and their sum is exact: a dominating row has a smaller sum.
    # So every row that could dominate another comes before it, and the rows that remain of a block are on the front.
    ranks = [np.unique(column, return_inverse=True)[1].astype(np.int32) for column in points.T]
    sums = np.stack(ranks).sum(axis=0, dtype=np.int64)
    order = np.argsort(sums, kind="stable")
    on_front = order[:0]
    for start in range(0, len(order), BLOCK):
        left = order[start : start + BLOCK]
        for first in range(0, len(on_front), CHUNK):
            chunk = on_front[first : first + CHUNK]
            dominated = sums[left, None] > sums[chunk]
            for rank in ranks:
                dominated &= rank[left, None] >= rank[chunk]
            left = left[~dominated.any(axis=1)]
        on_front = np.concatenate([on_front, left[_undominated([rank[left] for rank in ranks])]])
    kept = np.zeros(len(points), dtype=bool)
    kept[on_front] = True
    return kept


def _undominated(ranks: list[NDArray[np.int32]]) -> NDArray[np.bool_]:
    """Front of rows with ascending sums of ranks: the first row is on it; drop the rows it dominates; repeat."""
    kept = np.zeros(len(ranks[0]), dtype=bool)
    left = np.arange(len(ranks[0]))
    while len(left):
        nowhere_smaller = np.logical_and.reduce([rank >= rank[0] for rank in ranks])
        equal = nowhere_smaller & np.logical_and.reduce([rank == rank[0] for rank in ranks])
        kept[left[equal]] = True
        others = ~nowhere_smaller
        left, ranks = left[others], [rank[others] for rank in ranks]
    return kept
