"""A sweep: prices all studies part by part and returns the rows that `keep` asks for.

Where only the fastest are kept, bounds leave out candidates that cannot be among them; all others are priced. Memory
stays flat: each worker has the rows of one part at a time, and the best rows and fronts are reduced while the space
streams through.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dsx.pricing.devices import map_over_devices
from dsx.pricing.layers import power_of_two, price_keys
from dsx.pricing.rows import Counts
from dsx.search.bounded import smallest_cut
from dsx.search.dispatch import search_of
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import Progress, Search
from dsx.search.row_groups import front_of_groups, leading_rows
from dsx.search.study import Study, at_points, points_of
from dsx.search.sweep_parts import Part, make_parts
from dsx.space.enumerate import Arrays
from dsx.spec.keep import Keep, KeepPareto, KeepTop

Write = Callable[[int, Arrays, Counts], None]


class Sweep:
    """The parts of a sweep and their pricing.

    The rows of a part have the columns of a result set: `cluster` is the position of the cluster, and each field of
    `what_if` is a column.
    """

    def __init__(self, studies: Sequence[Study], keep: Keep, precision: str, part_size: int | None = None) -> None:
        self.studies, self.keep, self.precision = studies, keep, precision
        self.parts = make_parts(studies, keep, part_size)
        # All parts have one padded length, even the last and shortest.
        length = power_of_two(max((part.size for part in self.parts), default=0))
        self._searches = _Searches(studies, precision, length)

    @property
    def size(self) -> int:
        """The number of candidates, over all hardware points."""
        return sum(study.size for study in self.studies)

    def run(self, numbers: Iterable[int], write: Write, progress: Progress = lambda candidates: None) -> None:
        """Price the parts with these numbers and pass each to `write`, which several threads may call at once.

        `progress` is called with the number of newly priced candidates.
        """
        if isinstance(self.keep, KeepTop | KeepPareto):
            for number in numbers:
                write(number, *self._reduced(self.parts[number], self.keep, progress))
            return

        def make(device: Any, number: int) -> int:
            # Encoding a part takes as long as pricing it, so the worker that prices it also encodes it.
            write(number, *self._rows(device, self.parts[number]))
            return self.parts[number].size

        for _, done in map_over_devices(make, numbers):
            progress(done)

    def merged(self, rows: Arrays) -> Arrays:
        """Reduce the rows of all parts once more, if `keep` reduces."""
        hardware = ["cluster", *self.studies[0].values]
        if isinstance(self.keep, KeepTop):
            per = [name for name in self.keep.per if name not in hardware]
            return leading_rows(rows, self.keep.top, [*hardware, *per], self.keep.objective)
        if isinstance(self.keep, KeepPareto):
            return front_of_groups(rows, hardware, self.keep.pareto)
        return rows

    def _reduced(self, part: Part, keep: KeepTop | KeepPareto, progress: Progress) -> tuple[Arrays, Counts]:
        study, search = self._searches.of(part)
        blocks = (part.start, part.stop)
        if isinstance(keep, KeepPareto):
            rows, counts = search.front(keep.pareto, blocks, progress)
        else:
            rows, counts = search.best(keep.top, keep.per, keep.objective, blocks, progress)
        return _with_hardware(study, rows), counts

    def _rows(self, device: Any, part: Part) -> tuple[Arrays, Counts]:
        study, search = self._searches.of(part)
        rows = search.rows(device, study.rows(part.start, part.stop), feasible=self.keep == "feasible")
        counts = Counts(part.size, int(np.count_nonzero(rows["reject"] == 0)))
        return _with_hardware(study, rows), counts


class _Searches:
    """The searches of studies at hardware points, each made once for all parts that share it.

    The last two are kept, because some workers may still be at one while others begin the next.
    """

    def __init__(self, studies: Sequence[Study], precision: str, length: int) -> None:
        self._studies, self._precision, self._length = studies, precision, length
        self._lock = threading.Lock()
        self._made: dict[tuple[int, int], tuple[Study, Search]] = {}

    def of(self, part: Part) -> tuple[Study, Search]:
        """Return the study of a part at its hardware points, and its search."""
        at = (part.study, part.first_point)
        with self._lock:
            if at not in self._made:
                study = points_of(self._studies[part.study], part.first_point, part.last_point)
                table = price_keys(study.problem, study.space.keys)
                search = search_of(study.problem, study.space, table, self._precision, self._length)
                self._made = dict([*self._made.items(), (at, (study, search))][-2:])
            return self._made[at]


def _with_hardware(study: Study, rows: Arrays) -> Arrays:
    """Return rows with the columns of the hardware in place of the number of the hardware point."""
    point = rows.pop("point")
    hardware: Mapping[str, np.ndarray] = {"cluster": np.full(len(point), study.cluster)}
    return rows | hardware | {path: column[point] for path, column in study.values.items()}


def smallest(studies: Sequence[Study], progress: Progress) -> tuple[Study, Arrays]:
    """Return the candidate that needs the least memory, whether it fits or not: its study, and its row.

    Each study is searched at its first hardware point and must have a candidate. Candidates whose hosts hold what they
    offload come first.
    """
    found = _smallest(studies, ("device.hbm_capacity",), progress)
    found = found or _smallest(studies, ("device.hbm_capacity", "node.host_memory"), progress)
    return min(found, key=lambda one: one[1]["peak_bytes"][0])


def _smallest(
    studies: Sequence[Study], unlimited_fields: Sequence[str], progress: Progress
) -> list[tuple[Study, Arrays]]:
    """Return for each study the candidate that needs the least memory if some fields have no limit, if any fits."""
    found: list[tuple[Study, Arrays]] = []
    for study in studies:
        here = points_of(study, 0, 1)
        unlimited = at_points(here.problem, {path: np.array([np.inf]) for path in unlimited_fields})
        table = price_keys(unlimited, study.space.keys)
        if unlimited.optimal_cuts:
            rows = smallest_cut(PricedSpace(unlimited, study.space, table, "float64"), progress)
        else:
            rows, _ = search_of(unlimited, study.space, table).best(1, objective="peak_bytes", progress=progress)
        if len(rows["candidate"]):
            found.append((here, rows))
    return found
