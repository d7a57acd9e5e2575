"""Runs of a sweep into a folder: whether a run is finished, which process may begin one, and how it continues one.

    if store.finished(folder, manifest) is None:
        with store.create(folder, manifest, num_parts) as writer:
            for number in writer.missing():
                writer.write(number, *priced(number))
            writer.finish()

A folder belongs to one sweep. Until a new set is complete, a run only adds files; it refuses a folder with files that
do not belong to its sweep.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from dsx.errors import StoreError
from dsx.results import folder as disk
from dsx.results import locks, stored_parts
from dsx.results import manifest as manifests
from dsx.results.file_names import MANIFEST, MERGED, UNFINISHED, Shard
from dsx.results.locks import Hold
from dsx.results.manifest import Manifest
from dsx.results.reading import stated
from dsx.results.spec_hash import differences
from dsx.results.writer import Writer


def finished(folder: str | Path, manifest: Manifest) -> Manifest | None:
    """Return the manifest of the set in `folder` if it is complete and of the sweep of `manifest`.

    None if there is no set, if another version of dsx wrote it, or if a part is missing or damaged. Files that a run
    left when it died while finishing are removed.
    Raises StoreError if the manifest in `folder` is broken or has another schema version, or if the folder of the
    unfinished run is not of dsx.
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
    """Yield a writer that begins or continues the result set of `manifest`; makes `folder` if needed.

    Args:
        folder: of the set; the unfinished run is in its `.unfinished`.
        manifest: of the sweep.
        num_parts: the number of parts of the sweep.
        shard: (i, n) if this process writes the i-th of n shares of the parts, counted from 1. Shards may run at the
            same time; a run without a shard must be the only one.

    If no part was written, the folder is left as it was.
    Raises StoreError, without any change, if the folder cannot be written; if it holds the results or an unfinished run
    of another sweep, version or number of parts, or files or links that are not of dsx; or if other processes work in
    it.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, not a folder; choose another folder with -o")
    run = folder / UNFINISHED
    with ExitStack() as stack:
        with disk.os_errors(f"cannot write to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            disk.refuse_foreign_entries(folder)
            _refuse_other_results(folder, manifest)
            if foreign := _foreign_parts(run, manifest):
                raise StoreError(
                    f"{run} holds parts of another sweep ({', '.join(foreign[:3])}) and no manifest; move it "
                    "elsewhere, or choose another folder with -o"
                )
            stack.callback(_remove_if_empty, run)
            with locks.entry(run):
                hold = stack.enter_context(closing(Hold(run, shard)))
                begun = _begin(folder, dataclasses.replace(manifest, num_parts=num_parts), hold.alone)
                if shard is None:
                    disk.remove_partial(run)
                hold.share()
        yield Writer(folder, begun, shard, hold)


def _refuse_other_results(folder: Path, manifest: Manifest) -> None:
    there = stated(folder)
    if there is not None and not there.complete:
        raise StoreError(f"{folder} is an unfinished run; give the folder that contains it, {folder.parent}")
    if there is not None and there.spec_hash != manifest.spec_hash:
        keys = differences(there.spec, manifest.spec)
        raise StoreError(
            f"{folder} holds the results of another sweep ({there.spec_hash[:12]}; this one is "
            f"{manifest.spec_hash[:12]}, they differ in {', '.join(keys[:4])}); choose another folder with -o"
        )
    # Parts of this sweep without a manifest are from a run that died and whose `.unfinished` was then deleted.
    foreign = [n for n in disk.foreign_files(folder) if stored_parts.spec_hash_of(folder / n) != manifest.spec_hash]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise StoreError(
            f"{folder} holds files that are not a result set ({', '.join(foreign[:3])}{more}); "
            "choose another folder with -o"
        )


def _foreign_parts(run: Path, manifest: Manifest) -> list[str]:
    """Return the names of the parts in a run without a manifest that are not of the sweep of `manifest`.

    Parts of the sweep itself remain if a run dies while it is being removed, its manifest first.
    """
    if not run.is_dir() or stated(run) is not None:
        return []
    there = [*stored_parts.part_files(run).values(), *(path for path in (run / MERGED,) if path.exists())]
    return [path.name for path in there if stored_parts.spec_hash_of(path) != manifest.spec_hash]


def _begin(folder: Path, manifest: Manifest, alone: bool) -> Manifest:
    """Return the manifest of the unfinished run in `folder`; begin a run if there is none to continue."""
    run = folder / UNFINISHED
    if _whole(folder, manifest) is not None:
        raise StoreError(f"another process has just finished {folder}; run the same command again to see it")
    begun = stated(run)
    why = _difference(begun, manifest) if begun is not None else ""
    # A run without parts can be replaced: nothing is lost.
    if why and (stored_parts.part_files(run) or not alone):
        raise StoreError(
            f"{folder} holds an unfinished run of {why}; continue that run, delete {run}, or choose another folder "
            "with -o"
        )
    if begun is not None and not why:
        return dataclasses.replace(manifest, started=begun.started)
    if alone:
        disk.empty(run)
    disk.write_whole(run / MANIFEST, manifests.to_json(manifest))
    return manifest


def _difference(begun: Manifest, manifest: Manifest) -> str:
    """Return how an unfinished run differs from the run of `manifest`; "" if it does not."""
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
    schema = stored_parts.part_schema(there)
    return there if all(stored_parts.is_intact(folder, part, schema) for part in there.parts) else None


def _is_same_sweep(a: Manifest, b: Manifest) -> bool:
    return (a.spec_hash, a.dsx_version) == (b.spec_hash, b.dsx_version)


def _remove_leftovers(folder: Path, done: Manifest) -> None:
    """Remove the files that remain of the run that made the set `done`."""
    run = folder / UNFINISHED

    def remove() -> None:
        begun = stated(run)
        if _foreign_parts(run, done):
            return
        if begun is None or _is_same_sweep(begun, done):
            files = stored_parts.part_files(folder).values()
            left = [path.name for path in files if stored_parts.spec_hash_of(path) == done.spec_hash]
            disk.clean(folder, {part.file for part in done.parts}, left)

    _while_alone(run, remove)


def _remove_if_empty(run: Path) -> None:
    """Remove a run without parts, so that the folder is left as it was."""

    def remove() -> None:
        if not stored_parts.part_files(run):
            disk.discard(run)

    _while_alone(run, remove)


def _while_alone(run: Path, tidy: Callable[[], None]) -> None:
    """Tidy a run if no process works on it; do nothing if one does, or if the run may not be changed."""
    with suppress(OSError, StoreError):
        if run.is_dir():
            with locks.entry(run), closing(Hold(run, None)):
                tidy()
