"""The rows that a sweep keeps at most, and their limit where it has groups, checked before anything is priced.

All columns of kept rows are in memory at the end, and those of all parts a second time when the parts are merged. A row
takes about 0.6 KB, so the most rows, 104,857 groups of ten, take one or two gigabytes.
"""

from collections.abc import Sequence

from dsx.search.blockwise.cells import COUNTED, group_codes
from dsx.search.blockwise.tiles import Groups, block_ranges
from dsx.search.study import Study
from dsx.search.sweep_parts import Part
from dsx.space.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.spec.keep import Keep, KeepTop

MAX_ROWS = 1 << 20  # over all parts and hardware points


def fault_of_groups(studies: Sequence[Study], parts: Sequence[Part], keep: Keep) -> str:
    """Return why the groups of `keep` are too many; empty if they are not, or if `keep` has no groups."""
    if not isinstance(keep, KeepTop):
        return ""
    per = [name for name in keep.per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS)]
    groups = [Groups(study.space.keys, study.space.blocks, per) for study in studies]
    # The codes bound the number of groups. Groups are counted only if that bound is too large.
    if _rows(parts, [groups[part.study].span for part in parts], keep.top) <= MAX_ROWS:
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
    if _rows(parts, known, keep.top) <= MAX_ROWS:
        return ""
    total = sum(count * (part.last_point - part.first_point) for part, count in zip(parts, known, strict=True))
    more = "more than " if max(known) > COUNTED else ""
    of_parts = f" over {len(parts):,} parts" if len(parts) > 1 else ""
    most = f" ({keep.top:,} for each of {MAX_ROWS // keep.top:,} groups)" if keep.top <= MAX_ROWS else ""
    return (
        f"{more}{total:,} group{'' if total == 1 else 's'} of up to {keep.top:,} rows{of_parts} exceed the limit of "
        f"{MAX_ROWS:,} rows{most}; name fewer columns in 'per', give "
        "a smaller 'top', or fix or limit columns (keep: feasible writes all rows that fit, to be grouped later)"
    )


def most_rows(studies: Sequence[Study], parts: Sequence[Part], keep: Keep) -> int:
    """Return the most rows that some parts of a sweep can keep."""
    if not isinstance(keep, KeepTop):
        return sum(part.size for part in parts)
    per = [name for name in keep.per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS)]
    spans = [Groups(study.space.keys, study.space.blocks, per).span for study in studies]
    return _rows(parts, [spans[part.study] for part in parts], keep.top)


def _rows(parts: Sequence[Part], groups: Sequence[int], top: int) -> int:
    """Return the most rows that can be kept, from the number of groups in each part."""
    return sum(
        min(count * (part.last_point - part.first_point) * top, part.size)
        for part, count in zip(parts, groups, strict=True)
    )
