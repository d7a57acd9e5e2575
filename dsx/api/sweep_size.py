"""What a large sweep is about to price and write: candidates, rows and bytes, said before it starts."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from dsx.remarks import remark, warn
from dsx.results.schema import ROW_BYTES
from dsx.search.max_groups import most_rows
from dsx.search.study import Study
from dsx.search.sweep_parts import Part
from dsx.spec.keep import Keep, KeepPareto
from dsx.units import counted, format_quantity

_LARGE = 1_000_000  # candidates; fewer are priced in a second and take 50 MB at most


def say_size(studies: Sequence[Study], parts: Sequence[Part], keep: Keep, precision: str, folder: Path) -> None:
    """Remark how much the parts of a large sweep price and write into `folder`; warn if the disk has not the room.

    How many candidates fit, or are on a front, is not known before: then the rows are the most that there can be.
    """
    candidates = sum(part.size for part in parts)
    if candidates < _LARGE:
        return
    begins = f"{counted(candidates, 'candidate')} to price"
    if isinstance(keep, KeepPareto):
        remark(f"{begins}; the rows of each front go into {folder}")
        return
    rows = most_rows(studies, parts, keep)
    size = rows * ROW_BYTES[precision]
    most = "" if keep == "all" else "at most "
    remark(f"{begins}; {most}{counted(rows, 'row')}, about {format_quantity(size, 'B')}, go into {folder}")
    free = shutil.disk_usage(_existing(folder)).free
    if size > free:
        warn(f"{folder} has {format_quantity(free, 'B')} free; keep: {{top: 10}} or limits of columns need less")


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one around it that exists."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())
