"""What is kept while a space streams by: the few slices of smallest value of each group.

A slice is choices of one key, a single one where groups are many. Values that are equal are ordered by key and choice,
so what is kept does not depend on which device was faster. What comes is merged when it is as much as what is there,
and only groups for which something came are sorted again, so a slice is sorted a few times in all. Memory is that of
the kept slices, and a number per group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.search.groups import ranks


@dataclass(frozen=True, slots=True)
class Contenders:
    """M slices of up to W choices of one key each that may hold a winner, with the smallest value of each."""

    group: np.ndarray  # [M] number of the group, of all hardware points
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
    """Return the slices of several as one."""
    names = Contenders.__dataclass_fields__
    return Contenders(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def leading(
    group: np.ndarray, value: np.ndarray, key: np.ndarray, first: tuple[np.ndarray, np.ndarray], count: int
) -> np.ndarray:
    """Return the positions of the `count` smallest values of each group, sorted; `first` is a slice's first choice.

    Equal values come in the order of key and choice.
    """
    code = packed(group, value)
    order = np.argsort(code)
    code = code[order]
    again = np.zeros(len(code) + 1, dtype=bool)
    again[1:-1] = code[1:] == code[:-1]
    (equal,) = np.nonzero(again[1:] | again[:-1])
    here = order[equal]
    order[equal] = here[np.lexsort((*(part[here] for part in reversed(first)), key[here], value[here], code[equal]))]
    return order[ranks(group[order]) < count]


def packed(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return [M] words that are in the order of group and value in float32; positive floats are ordered as their bits.

    A single sort of words is several times as fast as one by two columns.
    """
    return group.astype(np.uint64) << np.uint64(32) | value.astype(np.float32).view(np.uint32)


class Kept:
    """The `count` slices of smallest value that have come so far, of each of G groups.

    Attributes:
        worst: [G] the largest value that may still be among them. It only ever falls, so that whoever reads it while
            it changes passes a few slices too many, and never one too few.
    """

    def __init__(self, num_groups: int, count: int, kind: type) -> None:
        self.worst = np.full(num_groups, np.finfo(kind).max, dtype=kind)
        self._count = count
        self._kept: Contenders | None = None
        self._new: list[Contenders] = []

    def add(self, found: Contenders) -> None:
        """Take in some slices."""
        self._new.append(found)
        if sum(map(len, self._new)) >= (len(self._kept) if self._kept else 0):
            self._merge()

    def slices(self) -> Contenders | None:
        """Return what is kept, sorted by group and value; None if nothing has come."""
        self._merge()
        return None if self._kept is None else self._kept.leading(self._count)

    def _merge(self) -> None:
        if not self._new:
            return
        new = together(self._new)
        self._new = []
        resting = None
        if self._kept is not None:
            touched = np.zeros(len(self.worst), dtype=bool)
            touched[new.group] = True
            touched = touched[self._kept.group]
            resting = self._kept.take(~touched)
            new = together([self._kept.take(touched), new])
        new = new.leading(self._count)
        full = ranks(new.group) == self._count - 1
        self.worst[new.group[full]] = new.value[full]
        self._kept = together([resting, new]) if resting is not None else new
