"""The names of the files in a result folder; dsx leaves files with other names alone.

results/a/manifest.json                     describes the set and lists its parts
results/a/part-00000.parquet ...
results/a/.unfinished/manifest.json         describes an unfinished run, from its first moment
results/a/.unfinished/part-00007.parquet    the parts that the run has written so far
results/a/.unfinished/merged.parquet        all parts as one, while the run finishes
results/a/.unfinished/replaced.json         the parts of the set that is being replaced
results/a/.unfinished/*.lock                the processes that work on the run (locks.py)
results/a/.unfinished/.<hex>.partial        a file that is being written
"""

import re
from typing import Annotated

from pydantic import AfterValidator

from dsx.files import PARTIAL

Shard = tuple[int, int]  # (i, n): the i-th of n shards, counted from 1

MANIFEST = "manifest.json"
UNFINISHED = ".unfinished"
MERGED = "merged.parquet"
REPLACED = "replaced.json"
ENTRY_LOCK = "entry.lock"
RUN_LOCK = "run.lock"

_PART = re.compile(r"part-([0-9]{5,18})\.parquet")
_SHARD_LOCK = re.compile(r"shard-[0-9]+-of-[0-9]+\.lock")
_PASSING = re.compile(rf"\.[0-9a-f]+{re.escape(PARTIAL)}")
# The name that a network file system gives to a file that is removed while it is open, as locks are.
_REMOVED = re.compile(r"\.nfs[0-9a-f]+")


def part_name(number: int) -> str:
    """Return the file name of a part."""
    return f"part-{number:05d}.parquet"


def part_number(name: str) -> int | None:
    """Return the number of the part with this file name; None if it is not the name of a part."""
    match = _PART.fullmatch(name)
    number = int(match[1]) if match else None
    return number if number is not None and part_name(number) == name else None


def _is_part(name: str) -> str:
    if part_number(name) is None:
        raise ValueError("is not the name of a part, such as part-00000.parquet")
    return name


PartFile = Annotated[str, AfterValidator(_is_part)]  # a name from a file that dsx may not have written


def shard_lock(shard: Shard) -> str:
    """Return the name of the lock of a shard."""
    return f"shard-{shard[0]}-of-{shard[1]}.lock"


def is_shard_lock(name: str) -> bool:
    """Return whether `name` is the name of the lock of a shard."""
    return _SHARD_LOCK.fullmatch(name) is not None


def is_lock(name: str) -> bool:
    """Return whether `name` is the name of a lock."""
    return name in (ENTRY_LOCK, RUN_LOCK) or is_shard_lock(name)


def is_passing(name: str) -> bool:
    """Return whether `name` is the name of a file that is being written."""
    return _PASSING.fullmatch(name) is not None


def is_of_set(name: str) -> bool:
    """Return whether a result set has files with this name."""
    return name == MANIFEST or part_number(name) is not None


def is_of_run(name: str) -> bool:
    """Return whether an unfinished run has files with this name."""
    others = name in (MERGED, REPLACED) or _REMOVED.fullmatch(name) is not None
    return others or is_of_set(name) or is_lock(name) or is_passing(name)
