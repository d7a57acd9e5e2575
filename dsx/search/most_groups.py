"""How many rows the groups of a sweep may keep, said before anything is priced.

What is kept is in memory at the end, all columns of it, and that of all parts once more when they are merged. A row
takes about 0.6 KB, so the most that may be kept take a gigabyte or two: 104,857 groups of ten rows.
"""

from collections.abc import Sequence

from dsx.search.blockwise.cells import COUNTED, group_codes
from dsx.search.blockwise.tiles import Groups, block_ranges
from dsx.search.parts import Part
from dsx.search.study import Study
from dsx.space.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.spec.keep import Keep, KeepTop

MOST_ROWS = 1 << 20  # over all parts and hardware points


def fault_of_groups(studies: Sequence[Study], parts: Sequence[Part], keep: Keep) -> str:
    """Return why the groups of `keep` are too many; empty if they are not, or if nothing is grouped."""
    if not isinstance(keep, KeepTop):
        return ""
    per = [name for name in keep.per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS)]
    groups = [Groups(study.space.keys, study.space.blocks, per) for study in studies]
    # There may be as many as codes; they are counted only where that would be too many.
    if _rows(parts, [groups[part.study].span for part in parts], keep.top) <= MOST_ROWS:
        return ""
    counts: dict[tuple[int, int, int], int] = {}
    for part in parts:
        at = (part.study, part.start, part.stop)
        if at not in counts:
            blocks = studies[part.study].space.blocks
            counts[at] = len(group_codes(blocks, groups[part.study], block_ranges(blocks, part.start, part.stop)))
        if counts[at] > COUNTED:
            break
    known = [counts.get((part.study, part.start, part.stop), 0) for part in parts]
    if _rows(parts, known, keep.top) <= MOST_ROWS:
        return ""
    total = sum(count * (part.last_point - part.first_point) for part, count in zip(parts, known, strict=True))
    more = "more than " if max(known) > COUNTED else ""
    of_parts = f" over {len(parts):,} parts" if len(parts) > 1 else ""
    most = f" ({keep.top:,} of each of {MOST_ROWS // keep.top:,})" if keep.top <= MOST_ROWS else ""
    return (
        f"{more}{total:,} group{'' if total == 1 else 's'} of up to {keep.top:,} rows{of_parts}, and at most "
        f"{MOST_ROWS:,} rows are kept{most}; name fewer columns in 'per', give "
        "a smaller 'top', or fix or limit columns (keep: feasible writes all rows that fit, to be grouped later)"
    )


def _rows(parts: Sequence[Part], groups: Sequence[int], top: int) -> int:
    """Return how many rows are kept at most, from how many groups each part has."""
    return sum(
        min(count * (part.last_point - part.first_point) * top, part.size)
        for part, count in zip(parts, groups, strict=True)
    )
