"""Divisors of whole numbers. Most degrees are divisors."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from dsx.spec.ranges import divisors_of


@cache
def divisors(number: int) -> np.ndarray:
    """Return the divisors of a number in increasing order, as a read-only array."""
    found = np.array(divisors_of(number), dtype=np.int64)
    found.flags.writeable = False
    return found


def all_divisors(numbers: Sequence[int]) -> np.ndarray:
    """Return the divisors of any of `numbers`, in increasing order."""
    return np.unique(np.concatenate([divisors(number) for number in numbers]))
