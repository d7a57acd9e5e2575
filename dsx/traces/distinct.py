"""Finds the distinct rows of columns: a trace repeats the same few hundred launches for each layer and microbatch."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dsx.traces.columns import Lists

# Constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), which spreads each bit of a number over all 64.
_STEP, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Distinct(NamedTuple):
    """The R distinct ones of N rows."""

    rows: np.ndarray  # [R] the first row of each
    which: np.ndarray  # [N] the distinct one that each row equals
    counts: np.ndarray  # [R] rows that equal it


def distinct(columns: Iterable[np.ndarray]) -> Distinct:
    """Return the distinct rows of integer columns, each [N].

    Rows are equal if hashes of 64 bits are, which sorts a million rows ten times as fast as the rows themselves. Two
    of a thousand different rows share a hash with a probability of 3e-14.
    """
    hashed: np.ndarray | None = None
    for column in columns:
        numbers = np.ascontiguousarray(column, np.int64).view(np.uint64)
        hashed = _mixed(numbers) if hashed is None else _mixed(hashed ^ numbers)
    if hashed is None:
        hashed = np.empty(0, np.uint64)
    _, rows, which, counts = np.unique(hashed, return_index=True, return_inverse=True, return_counts=True)
    return Distinct(rows, which, counts)


def hashed_lists(lists: Lists, nodes: np.ndarray) -> np.ndarray:
    """Return an integer for the list of each of `nodes`; equal lists have the same one."""
    starts, lengths = lists.starts[nodes], lists.starts[nodes + 1] - lists.starts[nodes]
    found = lengths.astype(np.uint64)
    for place in range(int(lengths.max(initial=0))):
        there = lengths > place
        numbers = lists.values[starts[there] + place].astype(np.int64).view(np.uint64)
        found[there] = _mixed(found[there] ^ numbers)
    return found.view(np.int64)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    numbers = numbers + _STEP
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))
