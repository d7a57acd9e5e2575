"""Contenders: the few slices of smallest value of each group, kept while a space streams through.

A slice has choices of one key, a single choice if groups are many. Equal values are ordered by key and choice, so the
kept slices do not depend on which device was faster. New slices are merged once they are as many as the kept ones, and
only their groups are sorted again. So a slice is sorted only a few times in all. Memory holds the kept slices, and one
number per group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.search.row_groups import ranks


@dataclass(frozen=True, slots=True)
class Contenders:
    """M slices that may hold a winner, of up to W choices of one key each, with the smallest value of each slice."""

    group: np.ndarray  # [M] number of the group, over all hardware points
    value: np.ndarray  # [M] positive
    point: np.ndarray  # [M] hardware point
    key: np.ndarray  # [M]
    placement: np.ndarray  # [M, W]
    global_batch_size: np.ndarray  # [M, W]
    length: np.ndarray  # [M]

    def __len__(self) -> int:
        return len(self.group)

    def take(self, where: np.ndarray | slice) -> "Contenders":
        """Return some of the slices."""
        return Contenders(*(getattr(self, name)[where] for name in Contenders.__dataclass_fields__))

    def leading(self, count: int) -> "Contenders":
        """Return the `count` slices of smallest value of each group, sorted."""
        first = (self.placement[:, 0], self.global_batch_size[:, 0])
        return self.take(leading(self.group, self.value, self.key, first, count))


def together(parts: Sequence[Contenders]) -> Contenders:
    """Return the slices of several parts as one."""
    names = Contenders.__dataclass_fields__
    return Contenders(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def leading(
    group: np.ndarray, value: np.ndarray, key: np.ndarray, first: tuple[np.ndarray, np.ndarray], count: int
) -> np.ndarray:
    """Return the positions of the `count` smallest values of each group, sorted.

    Equal values are ordered by key and by `first`, the first choice of a slice.
    """
    code = packed(group, value)
    order = np.argsort(code)
    code = code[order]
    tied = np.zeros(len(code) + 1, dtype=bool)
    tied[1:-1] = code[1:] == code[:-1]
    (equal,) = np.nonzero(tied[1:] | tied[:-1])
    here = order[equal]
    order[equal] = here[np.lexsort((*(part[here] for part in reversed(first)), key[here], value[here], code[equal]))]
    return order[ranks(group[order]) < count]


def packed(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return [M] words in the order of group and float32 value; positive floats have the order of their bits.

    One sort of words is several times as fast as a sort by two columns.
    """
    return group.astype(np.uint64) << np.uint64(32) | value.astype(np.float32).view(np.uint32)


class Kept:
    """The `count` slices of smallest value so far, of each of G groups.

    Attributes:
        worst: [G] the largest value that may still be kept. It only falls: a thread that reads it during a change
            passes a few slices too many, and never one too few.
    """

    def __init__(self, num_groups: int, count: int, dtype: type) -> None:
        self.worst = np.full(num_groups, np.finfo(dtype).max, dtype=dtype)
        self._count = count
        self._kept: Contenders | None = None
        self._new: list[Contenders] = []

    def add(self, found: Contenders) -> None:
        """Add new slices."""
        self._new.append(found)
        if sum(map(len, self._new)) >= (len(self._kept) if self._kept else 0):
            self._merge()

    def slices(self) -> Contenders | None:
        """Return the kept slices, sorted by group and value; None if none were added."""
        self._merge()
        return None if self._kept is None else self._kept.leading(self._count)

    def _merge(self) -> None:
        if not self._new:
            return
        new = together(self._new)
        self._new = []
        untouched = None
        if self._kept is not None:
            touched = np.zeros(len(self.worst), dtype=bool)
            touched[new.group] = True
            touched = touched[self._kept.group]
            untouched = self._kept.take(~touched)
            new = together([self._kept.take(touched), new])
        new = new.leading(self._count)
        full = ranks(new.group) == self._count - 1
        self.worst[new.group[full]] = new.value[full]
        self._kept = together([untouched, new]) if untouched is not None else new
