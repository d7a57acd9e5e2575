"""A folder of traces: a file for each rank, the process groups, and what its writer says of it."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsx.errors import TraceError, wrong
from dsx.files import MANIFEST
from dsx.traces.columns import RankTrace
from dsx.traces.read import read_trace

GROUPS = "comm_groups.json"
WORLD = ("", "0")  # names of the process group of all ranks

_TRACE_FILE = re.compile(r"(.+)\.([0-9]+)\.et")
_MOST_DIGITS = 9  # of a rank
_SHOWN = 3  # names in an error
_WIDEST = 16  # bytes of an element


@dataclass(frozen=True, slots=True)
class TraceFolder:
    """The files of a trace; nothing of the ranks is in memory."""

    path: Path
    prefix: str  # of the files: <prefix>.<rank>.et
    files: Mapping[int, Path]  # by rank, in ascending order
    groups: Mapping[str, Sequence[int]]  # process groups by name: their ranks in the order of the ring
    manifest: Mapping[str, Any]  # empty if there is none
    num_ranks: int  # of the job, as far as files, groups and manifest say
    element_bytes: int | None = None  # of files that count elements; None is the usual number

    def members(self, group: str) -> Sequence[int] | None:
        """Return the ranks of a process group; None if there is no group of that name."""
        return self.groups.get(group, range(self.num_ranks) if group in WORLD else None)

    def only(self, ranks: Collection[int]) -> "TraceFolder":
        """Return the folder with the files of some ranks alone."""
        return replace(self, files={rank: file for rank, file in self.files.items() if rank in ranks})

    def with_groups(self, trace: RankTrace) -> "TraceFolder":
        """Return the folder with the process groups that a trace states itself, where no file states them."""
        groups = trace.stated_groups.items()
        new = {name: ranks for name, ranks in groups if name not in self.groups and (ranks or name not in WORLD)}
        if not new:
            return self
        num_ranks = max([self.num_ranks, *(rank + 1 for ranks in new.values() for rank in ranks)])
        complete = {name: ranks or range(num_ranks) for name, ranks in new.items()}
        return replace(self, groups={**self.groups, **complete}, num_ranks=num_ranks)


def open_folder(path: Path, element_bytes: int | None = None) -> TraceFolder:
    """Return the folder of traces at `path`; `element_bytes` are those of files that count elements.

    Raises TraceError if it cannot be read or has no trace, if its traces have two prefixes or a rank twice, and if the
    file of groups is none; InputError for bytes that no element has.
    """
    if element_bytes is not None and (type(element_bytes) is not int or not 1 <= element_bytes <= _WIDEST):
        raise wrong("element_bytes", element_bytes, f"a number of bytes is wanted, from 1 to {_WIDEST}")
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    except OSError as error:
        raise TraceError(f"{path}: cannot be read as a folder of traces: {error.strerror or error}") from None
    prefix, files = _files(path, names)
    manifest = _json(path / MANIFEST) if MANIFEST in names else {}
    if not isinstance(manifest, dict):
        raise TraceError(f"{path / MANIFEST}: an object with keys is wanted")
    groups = _groups(path, names)
    num_ranks = manifest.get("num_ranks", 0)
    if type(num_ranks) is not int or not 0 <= num_ranks < 10**_MOST_DIGITS:
        raise TraceError(f"{path / MANIFEST}: num_ranks is {num_ranks!r:.60}, which is no number of ranks")
    num_ranks = max(num_ranks, 1 + max(*files, *(rank for ranks in groups.values() for rank in ranks), 0))
    return TraceFolder(path, prefix, files, groups, manifest, num_ranks, element_bytes)


def traces(folder: TraceFolder, tensors: bool = True) -> Iterator[RankTrace]:
    """Yield the traces of all ranks, in ascending order, each read when it is asked for; raises TraceError."""
    for rank, file in folder.files.items():
        yield read_trace(file, rank, tensors, folder.element_bytes)


def _files(path: Path, names: list[str]) -> tuple[str, dict[int, Path]]:
    matches = [match for name in names if (match := _TRACE_FILE.fullmatch(name))]
    if not matches:
        raise TraceError(f"{path}: has no file <prefix>.<rank>.et; give the folder of a trace")
    prefixes = sorted({match[1] for match in matches})
    if len(prefixes) > 1:
        shown = ", ".join(f"{prefix}.*.et" for prefix in prefixes[:_SHOWN])
        raise TraceError(f"{path}: has traces of {len(prefixes)} prefixes ({shown}); move all but one elsewhere")
    files: dict[int, Path] = {}
    for match in matches:
        if len(match[2]) > _MOST_DIGITS:
            raise TraceError(f"{path}: {match[0]} has a rank that is too large")
        rank = int(match[2])
        if rank in files:
            raise TraceError(f"{path}: rank {rank} has two files, {files[rank].name} and {match[0]}")
        files[rank] = path / match[0]
    return prefixes[0], dict(sorted(files.items()))


def _groups(path: Path, names: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the process groups of the file of that name, or of the only other JSON file that has groups."""
    if GROUPS in names:
        contents = {path / GROUPS: _json(path / GROUPS)}
    else:
        files = [path / name for name in names if name.endswith(".json") and name != MANIFEST]
        contents = {file: content for file in files if _is_groups(content := _json(file))}
    if len(contents) > 1:
        shown = ", ".join(file.name for file in [*contents][:_SHOWN])
        raise TraceError(f"{path}: has {len(contents)} files of process groups ({shown}); call the right one {GROUPS}")
    file, content = next(iter(contents.items()), (path, {}))
    if (content and not _is_groups(content)) or not isinstance(content, dict):
        raise TraceError(f'{file}: process groups are wanted, as in {{"1": [0, 1]}}')
    for name, ranks in content.items():
        members: set[int] = set()
        for rank in ranks:
            if type(rank) is not int or not 0 <= rank < 10**_MOST_DIGITS:
                raise TraceError(f"{file}: group {name} has {rank!r:.60}, which is no rank")
            if rank in members:
                raise TraceError(f"{file}: group {name} has rank {rank} twice")
            members.add(rank)
    return {name: tuple(ranks) for name, ranks in content.items()}


def _is_groups(content: object) -> bool:
    named = content.items() if isinstance(content, dict) else ()
    return bool(named) and all(name.isdigit() and isinstance(ranks, list) for name, ranks in named)


def _json(file: Path) -> object:
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise TraceError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{file}: is not JSON that can be read: {error}") from None
