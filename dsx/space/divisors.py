"""Divisors of whole numbers. Most degrees are divisors."""

from collections.abc import Sequence
from functools import cache

import numpy as np


@cache
def divisors(number: int) -> np.ndarray:
    """Return the divisors of a number in increasing order, as a read-only array."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    found = np.array(sorted({*small, *(number // d for d in small)}), dtype=np.int64)
    found.flags.writeable = False
    return found


def all_divisors(numbers: Sequence[int]) -> np.ndarray:
    """Return the divisors of any of `numbers`, in increasing order."""
    return np.unique(np.concatenate([divisors(number) for number in numbers]))
