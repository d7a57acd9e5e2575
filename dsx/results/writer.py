"""Write a result set part by part, and publish the parts as the set.

A sweep is divided into numbered parts; a part depends only on the sweep and its number. The finished parts are those in
the folder of the unfinished run (folder.py). So an interruption loses only the parts that are being written, and a run
that is interrupted a hundred times writes the same files as one that is not.
"""

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np

from dsx.errors import IncompleteSweep, StoreError
from dsx.results import folder as disk
from dsx.results import locks, stored_parts
from dsx.results import manifest as manifests
from dsx.results.file_names import MERGED, UNFINISHED, Shard, part_name, part_number
from dsx.results.locks import Hold
from dsx.results.manifest import Counts, Manifest, Part
from dsx.results.reading import frame, stated

Rows = Mapping[str, np.ndarray]

_SHOWN = 5  # numbers of missing parts in an error


class Writer:
    """Writes the parts of one result set; made by `runs.create`."""

    def __init__(self, folder: Path, manifest: Manifest, shard: Shard | None, hold: Hold) -> None:
        self._folder, self._manifest, self._shard, self._hold = folder, manifest, shard, hold
        self._run = folder / UNFINISHED

    def unfinished(self) -> list[int]:
        """Return the numbers of all missing or damaged parts, including those of other shards."""
        with disk.os_errors(f"cannot read {self._run}"):
            there = stored_parts.footers(self._run, self._manifest)
        return [number for number in range(self._manifest.num_parts) if number not in there]

    def missing(self) -> list[int]:
        """Return the numbers of the parts that this process has to write: of its shard, or of the whole run."""
        i, n = self._shard or (1, 1)
        return [number for number in self.unfinished() if number % n == i - 1]

    def write(self, number: int, rows: Rows, counts: Counts) -> None:
        """Write a part of n rows, whole or not at all; several threads may call this at once.

        Args:
            number: of the part.
            rows: every column of the set as an [n] array; name columns as codes, costs in the units of the schema.
            counts: of the candidates priced for the part, kept or not.

        Raises StoreError if the rows do not fit the schema, or cannot be written.
        """
        if not 0 <= number < self._manifest.num_parts:
            raise ValueError(f"part {number} of {self._manifest.num_parts}")
        content = memoryview(stored_parts.encode(rows, counts, self._manifest))
        try:
            with disk.os_errors(f"cannot write part {number} of {self._folder}"):
                disk.write_whole(self._run / part_name(number), content)
        except StoreError as error:
            if not self._run.is_dir():
                raise StoreError(f"{self._run} was removed meanwhile; run the same command again") from error
            raise

    def finish(self, merge: Callable[[dict[str, np.ndarray]], Rows] | None = None) -> Manifest:
        """Make the parts the folder's result set, in place of an earlier one; return its manifest.

        Parts without rows are left out. With `merge`, the set has a single part: what `merge` returns for the rows of
        all parts, in order, with codes for names.
        Raises IncompleteSweep if parts are missing, StoreError if other processes work on them or the set cannot be
        written; this or a later run can then call `finish` again.
        """
        with disk.os_errors(f"cannot finish {self._folder}"), locks.entry(self._run):
            there = stored_parts.footers(self._run, self._manifest)
            if len(there) < self._manifest.num_parts:
                raise IncompleteSweep(self._gaps(there))
            self._hold.take_all()
            counts = manifests.total(self._manifest, [part.counts for part in there.values()])
            if merge is None:
                files = {number: (part_name(number), part.rows) for number, part in there.items() if part.rows}
            else:
                files = {0: (MERGED, self._write_merged(merge, counts, there))}
            return self._publish(files, counts)

    def _gaps(self, there: Collection[int]) -> str:
        missing = [number for number in range(self._manifest.num_parts) if number not in there]
        more = ", ..." if len(missing) > _SHOWN else ""
        return (
            f"{len(missing)} of {self._manifest.num_parts} parts of {self._folder} are missing "
            f"(number {', '.join(map(str, missing[:_SHOWN]))}{more}); run the same command again, or the shards "
            "that write them"
        )

    def _write_merged(
        self, merge: Callable[[dict[str, np.ndarray]], Rows], counts: Counts, there: Mapping[int, stored_parts.Footer]
    ) -> int:
        """Write all parts as one file; return its number of rows."""
        columns = [column.name for column in self._manifest.columns]
        filled = [Part(part_name(number), part.rows) for number, part in there.items() if part.rows]
        tables = [stored_parts.read(self._run, part, self._manifest, columns) for part in filled]
        df = frame(self._manifest, tables, columns)
        codes = {name: df[name].cat.codes for name in self._manifest.names}
        rows = merge({name: codes.get(name, df[name]).to_numpy() for name in columns})
        disk.write_whole(self._run / MERGED, memoryview(stored_parts.encode(rows, counts, self._manifest)))
        return len(rows[columns[0]])

    def _publish(self, by_number: Mapping[int, tuple[str, int]], counts: Counts) -> Manifest:
        """Publish files of the run; `by_number` maps the number of a part in the set to its file and rows."""
        earlier = stated(self._folder)
        named = {part.file for part in earlier.parts} if earlier else set()
        own = {path.name for path in stored_parts.part_files(self._folder).values() if self._is_own(path, named)}
        taken = {number for file in named if (number := part_number(file)) is not None}
        # New numbers, so that the earlier set can be read until the new one replaces it.
        first = max(taken) + 1 if taken & by_number.keys() else 0
        files = {part_name(first + number): file for number, (file, _) in by_number.items()}
        for name in files:
            if name not in own and os.path.lexists(self._folder / name):
                raise StoreError(
                    f"{self._folder / name} already exists and is not of this sweep; move it elsewhere and run the "
                    "same command again"
                )
        rows = [rows for _, rows in by_number.values()]
        done = dataclasses.replace(
            self._manifest,
            parts=tuple(Part(name, count) for name, count in zip(files, rows, strict=True)),
            counts=counts,
            complete=True,
            finished=manifests.now(),
        )
        disk.publish(self._folder, files, own, manifests.to_json(done))
        return done

    def _is_own(self, path: Path, named: Collection[str]) -> bool:
        """Return whether a file is a part of the earlier set, or is left from a run of this sweep that died."""
        return path.name in named or stored_parts.spec_hash_of(path) == self._manifest.spec_hash
