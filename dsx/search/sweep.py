"""A sweep: all studies through a pipeline, part by part, and what `keep` asks for coming out as rows.

Every candidate is priced; nothing is pruned before. Memory stays flat: rows exist only a part per worker at
a time, and the best and fronts are reduced while the space streams by.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dsx.pricing.devices import map_over_devices
from dsx.pricing.layers import power_of_two, price_keys
from dsx.pricing.rows import Counts
from dsx.search.groups import front_of_groups, leading_rows
from dsx.search.parts import Part, make_parts
from dsx.search.protocol import Progress, Search
from dsx.search.search import search_of
from dsx.search.study import Study, at_points, points_of
from dsx.space.enumerate import Arrays
from dsx.spec.keep import Keep, KeepPareto, KeepTop

Write = Callable[[int, Arrays, Counts], None]


class Sweep:
    """The parts of a sweep, and how to price them.

    The rows of a part have the columns of a result set: `cluster` is the position of the cluster, and each
    field of `what_if` is a column.
    """

    def __init__(self, studies: Sequence[Study], keep: Keep, precision: str, part_size: int | None = None) -> None:
        self.studies, self.keep, self.precision = studies, keep, precision
        self.parts = make_parts(studies, keep, part_size)
        # One length for all parts, the last and shortest too.
        length = power_of_two(max((part.size for part in self.parts), default=0))
        self._searches = _Searches(studies, precision, length)

    @property
    def size(self) -> int:
        """Candidates, over all hardware points."""
        return sum(study.size for study in self.studies)

    def run(self, numbers: Iterable[int], write: Write, progress: Progress = lambda candidates: None) -> None:
        """Price parts by their numbers and hand each to `write`, which may be called by several threads at once.

        `progress` is told the number of candidates whenever some are done.
        """
        if isinstance(self.keep, KeepTop | KeepPareto):
            for number in numbers:
                write(number, *self._reduced(self.parts[number], self.keep, progress))
            return

        def make(device: Any, number: int) -> int:
            # Encoding a part is as much work as pricing it, so the worker that priced it does both.
            write(number, *self._rows(device, self.parts[number]))
            return self.parts[number].size

        for _, done in map_over_devices(make, numbers):
            progress(done)

    def merged(self, rows: Arrays) -> Arrays:
        """Return what is kept of the rows of all parts, for a `keep` that reduces."""
        hardware = ["cluster", *self.studies[0].values]
        if isinstance(self.keep, KeepTop):
            per = [name for name in self.keep.per if name not in hardware]
            return leading_rows(rows, self.keep.top, [*hardware, *per])
        if isinstance(self.keep, KeepPareto):
            return front_of_groups(rows, hardware, self.keep.pareto)
        return rows

    def _reduced(self, part: Part, keep: KeepTop | KeepPareto, progress: Progress) -> tuple[Arrays, Counts]:
        study, search = self._searches.of(part)
        blocks = (part.start, part.stop)
        if isinstance(keep, KeepPareto):
            rows, counts = search.front(keep.pareto, blocks, progress)
        else:
            rows, counts = search.best(keep.top, keep.per, blocks=blocks, progress=progress)
        return _with_hardware(study, rows), counts

    def _rows(self, device: Any, part: Part) -> tuple[Arrays, Counts]:
        study, search = self._searches.of(part)
        rows = search.rows(device, study.rows(part.start, part.stop), feasible=self.keep == "feasible")
        counts = Counts(part.size, int(np.count_nonzero(rows["reject"] == 0)))
        return _with_hardware(study, rows), counts


class _Searches:
    """The searches of studies at hardware points, made once for all parts that share them.

    The last two are kept: workers may be at the end of one and at the beginning of the next.
    """

    def __init__(self, studies: Sequence[Study], precision: str, length: int) -> None:
        self._studies, self._precision, self._length = studies, precision, length
        self._lock = threading.Lock()
        self._made: dict[tuple[int, int], tuple[Study, Search]] = {}

    def of(self, part: Part) -> tuple[Study, Search]:
        """Return the study of a part at its hardware points, and the search of it."""
        at = (part.study, part.first_point)
        with self._lock:
            if at not in self._made:
                study = points_of(self._studies[part.study], part.first_point, part.last_point)
                table = price_keys(study.problem, study.space.keys)
                search = search_of(study.problem, study.space, table, self._precision, self._length)
                self._made = dict([*self._made.items(), (at, (study, search))][-2:])
            return self._made[at]


def _with_hardware(study: Study, rows: Arrays) -> Arrays:
    """Return rows with columns for the hardware instead of the number of the hardware point."""
    point = rows.pop("point")
    hardware: Mapping[str, np.ndarray] = {"cluster": np.full(len(point), study.cluster)}
    return rows | hardware | {path: column[point] for path, column in study.values.items()}


def smallest(studies: Sequence[Study], progress: Progress) -> tuple[Study, Arrays]:
    """Return the candidate that needs least memory, whether it fits or not, as a single row, and its study.

    Each study is searched at its first hardware point, and must have a candidate.
    """
    found: list[tuple[Study, Arrays]] = []
    for study in studies:
        here = points_of(study, 0, 1)
        boundless = at_points(here.problem, {"device.hbm_capacity": np.array([np.inf])})
        table = price_keys(boundless, study.space.keys)
        search = search_of(boundless, study.space, table)
        found.append((here, search.best(1, objective="peak_bytes", progress=progress)[0]))
    return min(found, key=lambda one: one[1]["peak_bytes"][0])
