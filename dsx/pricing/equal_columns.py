"""Plans that are alike: those with equal numbers in some columns."""

from collections.abc import Sequence

import numpy as np

_SHIFT = np.uint64(29)


def first_of_equals(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first of the plans whose columns [N] of numbers are equal, in order, and [N] which of them each is.

    Hashes are sorted many times as fast as rows of numbers. Where two of them are the same by chance, all plans count
    as different.
    """
    count = len(columns[0])
    factors = np.random.default_rng(0).integers(1, 2**63, len(columns), dtype=np.uint64) | np.uint64(1)
    hashes = np.zeros(count, dtype=np.uint64)
    for column, factor in zip(columns, factors, strict=True):
        hashes = (hashes ^ np.ascontiguousarray(column, dtype=np.float64).view(np.uint64)) * factor
        hashes ^= hashes >> _SHIFT
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    if not all((column == column[first][which]).all() for column in columns):
        return np.arange(count), np.arange(count)
    order = np.argsort(first)
    return first[order], np.argsort(order)[which]
