"""The parts of a sweep. Each part is priced, reduced and written as a unit, so that a run can stop after any of them.

A part is a pure function of the sweep and its number. It is a range of candidates if all rows are kept, and a range of
blocks if only the best rows or a front are kept. A part has hardware points of one study.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.search.study import Study
from dsx.spec.keep import Keep, KeepPareto, KeepTop

ROWS = 1 << 18  # candidates of a part whose rows are kept
REDUCED = 1 << 32  # candidates of a part that is reduced to a few rows
_POINTS = 16  # hardware points that are priced together
_TABLE = 1 << 21  # keys times hardware points in a table of layer costs


@dataclass(frozen=True, slots=True)
class Part:
    """Some hardware points of a study, and a range of its candidates or blocks."""

    study: int
    first_point: int
    last_point: int
    start: int  # first candidate, counted over all points; or first block
    stop: int
    size: int  # candidates, over all points


def make_parts(studies: Sequence[Study], keep: Keep, size: int | None = None) -> list[Part]:
    """Return the parts of a sweep, with `size` candidates each if given."""
    if reduces(keep):
        return block_parts(studies, size or REDUCED)
    return row_parts(studies, size or ROWS)


def reduces(keep: Keep) -> bool:
    """Return whether `keep` reduces the rows to a few."""
    return isinstance(keep, KeepTop | KeepPareto)


def size_for(studies: Sequence[Study], keep: Keep, count: int) -> int:
    """Return a size that gives at least `count` parts; 0 if there is none.

    Blocks are not divided, so there may be fewer parts than the number of candidates allows.
    """
    size = sum(study.size for study in studies) // count
    while size and len(make_parts(studies, keep, size)) < count:
        size = size * 3 // 4
    return size


def row_parts(studies: Sequence[Study], size: int) -> list[Part]:
    """Return parts of `size` candidates, counted point by point."""
    found: list[Part] = []
    for code, study in enumerate(studies):
        for first, last in _point_ranges(study):
            count = study.space.size * (last - first)
            found += [
                Part(code, first, last, start, min(start + size, count), min(size, count - start))
                for start in range(0, count, size)
            ]
    return found


def block_parts(studies: Sequence[Study], size: int) -> list[Part]:
    """Return parts of whole blocks with at least `size` candidates; the last one may have fewer."""
    found: list[Part] = []
    for code, study in enumerate(studies):
        before = study.space.blocks.first_candidate
        for first, last in _point_ranges(study):
            start = 0
            while start < len(before) - 1:
                points = last - first
                stop = int(np.searchsorted(before, before[start] + -(-size // points)))
                stop = min(stop, len(before) - 1)
                found.append(Part(code, first, last, start, stop, int(before[stop] - before[start]) * points))
                start = stop
    return found


def _point_ranges(study: Study) -> list[tuple[int, int]]:
    """Return ranges of hardware points that are priced together.

    Ranges of one length are compiled once, so the length divides the number of points if possible.
    """
    count = study.problem.num_points
    most = max(1, min(_POINTS, _TABLE // max(1, len(study.space.keys["tp"]))))
    even = max(length for length in range(1, most + 1) if count % length == 0)
    length = even if 2 * even > min(most, count) else most
    return [(first, min(first + length, count)) for first in range(0, count, length)]
