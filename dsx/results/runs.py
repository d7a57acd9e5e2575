"""Runs of a sweep into a folder: whether it is finished, who may begin, and what an earlier run left to go on with.

    if store.finished(folder, manifest) is None:
        with store.create(folder, manifest, num_parts) as writer:
            for number in writer.missing():
                writer.write(number, *priced(number))
            writer.finish()

A folder belongs to one sweep. What is there is only ever added to until a new set is whole: a run refuses a folder
with anything in it that is not of its own sweep.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from dsx.errors import StoreError
from dsx.results import folder as disk
from dsx.results import locks, parts
from dsx.results import manifest as manifests
from dsx.results.file_names import MANIFEST, MERGED, UNFINISHED, Shard
from dsx.results.identity import differences
from dsx.results.locks import Hold
from dsx.results.manifest import Manifest
from dsx.results.reading import stated
from dsx.results.writer import Writer


def finished(folder: str | Path, manifest: Manifest) -> Manifest | None:
    """Return the manifest of the set in `folder` if it is that of the sweep that `manifest` begins, and whole.

    None if there is none, it was written by another version of dsx, or a part is missing or damaged. What a run
    that died while it finished has left beside the set is removed.
    Raises StoreError if the manifest there is broken or of another schema version, or the folder of the unfinished
    run is not dsx's.
    """
    folder = Path(folder)
    with disk.os_errors(f"cannot read {folder}"):
        if not folder.is_dir():
            return None
        disk.refuse_foreign_entries(folder)
        there = _whole(folder, manifest)
    if there is not None:
        _remove_leftovers(folder, there)
    return there


@contextmanager
def create(folder: str | Path, manifest: Manifest, num_parts: int, shard: Shard | None = None) -> Iterator[Writer]:
    """Give a writer of the result set that `manifest` begins, or goes on with; `folder` is made if need be.

    Args:
        folder: of the set; the unfinished run lies in its `.unfinished`.
        manifest: of the sweep.
        num_parts: into how many parts the sweep is cut.
        shard: (i, n) if this process writes the i-th of n shares of the parts, counted from 1. Shards may be at
            work at once, a run without a shard only alone.

    If no part was written at the end, the folder is as it was.
    Raises StoreError, with nothing touched, if the folder cannot be written, holds the results or an unfinished
    run of another sweep, version or number of parts, or files or links that are not dsx's; or if others are at work
    there.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, not a folder; choose another folder with -o")
    run = folder / UNFINISHED
    with ExitStack() as stack:
        with disk.os_errors(f"cannot write to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            disk.refuse_foreign_entries(folder)
            _refuse_what_is_not_ours(folder, manifest)
            if foreign := _parts_of_nobody(run, manifest):
                raise StoreError(
                    f"{run} holds parts that are not of this sweep ({', '.join(foreign[:3])}), and no manifest that "
                    "says of which; move it elsewhere, or choose another folder with -o"
                )
            stack.callback(_remove_if_empty, run)
            with locks.entry(run):
                hold = stack.enter_context(closing(Hold(run, shard)))
                begun = _begin(folder, dataclasses.replace(manifest, num_parts=num_parts), hold.alone)
                if shard is None:
                    disk.remove_partial(run)
                hold.share()
        yield Writer(folder, begun, shard, hold)


def _refuse_what_is_not_ours(folder: Path, manifest: Manifest) -> None:
    there = stated(folder)
    if there is not None and not there.complete:
        raise StoreError(f"{folder} is an unfinished run; give the folder that it lies in, {folder.parent}")
    if there is not None and there.spec_hash != manifest.spec_hash:
        keys = differences(there.spec, manifest.spec)
        raise StoreError(
            f"{folder} holds the results of another sweep ({there.spec_hash[:12]}; this one is "
            f"{manifest.spec_hash[:12]}, they differ in {', '.join(keys[:4])}); choose another folder with -o"
        )
    # Parts of this sweep without a manifest were left by a run that died, whose `.unfinished` was then deleted.
    foreign = [n for n in disk.foreign_files(folder) if parts.spec_hash_of(folder / n) != manifest.spec_hash]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise StoreError(
            f"{folder} holds files that are not a result set ({', '.join(foreign[:3])}{more}); "
            "choose another folder with -o"
        )


def _parts_of_nobody(run: Path, manifest: Manifest) -> list[str]:
    """Return the parts in a run without a manifest that are not of the sweep of `manifest`, by their names.

    Those of the sweep are left by a run that died while it was removed, its manifest first.
    """
    if not run.is_dir() or stated(run) is not None:
        return []
    there = [*parts.part_files(run).values(), *(path for path in (run / MERGED,) if path.exists())]
    return [path.name for path in there if parts.spec_hash_of(path) != manifest.spec_hash]


def _begin(folder: Path, manifest: Manifest, alone: bool) -> Manifest:
    """Return the manifest of the unfinished run in `folder`, which is begun if there is none to go on with."""
    run = folder / UNFINISHED
    if _whole(folder, manifest) is not None:
        raise StoreError(f"another process has finished {folder} just now; run the same command again to see it")
    begun = stated(run)
    why = _difference(begun, manifest) if begun is not None else ""
    # Of a run of which no part is there yet, nothing is lost.
    if why and (parts.part_files(run) or not alone):
        raise StoreError(
            f"{folder} holds an unfinished run of {why}; go on with that one, delete {run}, or choose another "
            "folder with -o"
        )
    if begun is not None and not why:
        return dataclasses.replace(manifest, started=begun.started)
    if alone:
        disk.empty(run)
    disk.write_whole(run / MANIFEST, manifests.to_json(manifest))
    return manifest


def _difference(begun: Manifest, manifest: Manifest) -> str:
    """Return of what a run is that is not the one that `manifest` begins; "" if it is that one."""
    if begun.spec_hash != manifest.spec_hash:
        keys = differences(begun.spec, manifest.spec)
        return f"another sweep (they differ in {', '.join(keys[:4])})"
    if begun.dsx_version != manifest.dsx_version:
        return f"dsx {begun.dsx_version} (this is {manifest.dsx_version})"
    if begun.num_parts != manifest.num_parts:
        return f"{begun.num_parts} parts (this one has {manifest.num_parts})"
    return ""


def _whole(folder: Path, manifest: Manifest) -> Manifest | None:
    there = stated(folder)
    if there is None or not there.complete or not _is_same_sweep(there, manifest):
        return None
    schema = parts.part_schema(there)
    return there if all(parts.is_intact(folder, part, schema) for part in there.parts) else None


def _is_same_sweep(a: Manifest, b: Manifest) -> bool:
    return (a.spec_hash, a.dsx_version) == (b.spec_hash, b.dsx_version)


def _remove_leftovers(folder: Path, done: Manifest) -> None:
    """Remove what the run that made the set `done` left of itself."""
    run = folder / UNFINISHED

    def remove() -> None:
        begun = stated(run)
        if _parts_of_nobody(run, done):
            return
        if begun is None or _is_same_sweep(begun, done):
            files = parts.part_files(folder).values()
            left = [path.name for path in files if parts.spec_hash_of(path) == done.spec_hash]
            disk.clean(folder, {part.file for part in done.parts}, left)

    _while_alone(run, remove)


def _remove_if_empty(run: Path) -> None:
    """Remove a run without any part, so that the folder is as it was."""

    def remove() -> None:
        if not parts.part_files(run):
            disk.discard(run)

    _while_alone(run, remove)


def _while_alone(run: Path, tidy: Callable[[], None]) -> None:
    """Tidy a run that nobody is at work on; it can wait if somebody is, or if it is not ours to change."""
    with suppress(OSError, StoreError):
        if run.is_dir():
            with locks.entry(run), closing(Hold(run, None)):
                tidy()
