"""A sweep prices all studies part by part and returns the rows that `keep` asks for.

Each part is priced, reduced and written as a unit, so that a run can stop after any of them. A part is a pure function
of the sweep and its number. It is a range of candidates if all rows are kept, and a range of blocks if only the best
rows or a front are kept. A part has hardware points of one study. Memory stays flat: each worker has the rows of one
part at a time, and the best rows and fronts are reduced while the space streams through.

Where only the fastest are kept, bounds leave out candidates that cannot be among them; all others are priced. Of plans
with optimal cuts the fastest and the front of step time and memory are found by bounds (`dsx.search.cut_search`), in
float64. For anything else the space streams through as rows, and each row is cut.

The most rows that a sweep keeps are checked before anything is priced. All columns of kept rows are in memory at the
end, and those of all parts a second time when the parts are merged. A row takes about 0.6 KB, so the most rows, 104,857
groups of ten, take one or two gigabytes.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from dsx.config.sweep_file import Keep, KeepPareto, KeepTop
from dsx.plans.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.plans.enumerate import Arrays, Kept, take
from dsx.pricing.compiled import map_over_devices
from dsx.pricing.cuts import CandidateCounts, Goal, joined, price_best_cuts, result_rows
from dsx.pricing.keys import KeyCosts, power_of_two
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows
from dsx.records import Over
from dsx.search.bounds import smallest_cut
from dsx.search.cut_search import OBJECTIVES, fastest_cuts, front_of_cuts
from dsx.search.ranking import BlockRange, Progress, Search, front_of_groups, leading_rows, silent
from dsx.search.spaces import PricedSpace, Space, Study, at_points, points_of
from dsx.search.tiles.contenders import COUNTED, group_codes
from dsx.search.tiles.tiles import Groups, block_ranges
from dsx.search.tiles.top_plans import Blockwise

_ROWS = 1 << 14  # candidates that a worker takes at once, over all hardware points
_STEP_TIME, _MEMORY = "step_time_s", "peak_bytes"

Reduce = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class Partitioned:
    """A `dsx.search.ranking.Search` of plans with optimal cuts, which are the column `stage_layers`."""

    source: PricedSpace

    def best(
        self,
        top: int,
        per: Sequence[str] = (),
        objective: str = "step_time_s",
        blocks: BlockRange | None = None,
        progress: Progress = silent,
    ) -> tuple[Arrays, CandidateCounts]:
        """Return the best plans as `dsx.search.ranking.Search.best` says.

        If the objective is `peak_bytes`, the cut of a plan is the one of least memory.
        """
        source = self.source
        blocks = blocks or (0, len(source.space.blocks))
        per = [name for name in per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS)]
        if objective == _STEP_TIME:
            return fastest_cuts(source, top, per, blocks, progress)
        goal: Goal = "least memory" if objective == _MEMORY else "fastest"

        def leading(rows: Arrays) -> Arrays:
            return leading_rows(rows, top, ["point", *per], objective)

        return self._stream(leading, goal, progress, blocks)

    def front(
        self, objectives: Sequence[str], blocks: BlockRange | None = None, progress: Progress = silent
    ) -> tuple[Arrays, CandidateCounts]:
        """Return the front as `dsx.search.ranking.Search.front` says."""

        blocks = blocks or (0, len(self.source.space.blocks))
        if {*objectives} <= {*OBJECTIVES}:
            return front_of_cuts(self.source, objectives, list(self._chunks(blocks)), progress)

        def front(rows: Arrays) -> Arrays:
            return front_of_groups(rows, ["point"], objectives)

        return self._stream(front, "fastest", progress, blocks)

    def rows(self, device: object, rows: Rows, feasible: bool) -> Kept:
        """Return rows as `dsx.search.ranking.Search.rows` says.

        A row that fits with no cut and is not left out has the cut of least memory.
        """
        source = self.source
        goal: Goal = "fastest" if feasible else "fastest, else least memory"
        with jax.default_device(device):
            priced = price_best_cuts(source.problem, source.table, rows, goal, source.float64)
        columns = result_rows(source.problem, source.space.keys, rows, priced.costs, priced.cuts)
        return take(columns, columns["reject"] == 0) if feasible else columns

    def _stream(
        self, reduce: Reduce, goal: Goal, progress: Progress, blocks: BlockRange
    ) -> tuple[Arrays, CandidateCounts]:
        """Reduce the feasible rows of some blocks, in float64."""
        problem, space, table = self.source.problem, self.source.space, self.source.table
        kept = self.source.no_rows()
        counts = CandidateCounts(0, 0)

        def run(device: object, chunk: tuple[int, int]) -> tuple[Arrays, CandidateCounts]:
            positions, choices = space.blocks.rows(*chunk)
            points = np.repeat(np.arange(problem.num_points), len(positions))
            choices = {name: np.tile(column, problem.num_points) for name, column in choices.items()}
            rows = Rows(points, np.tile(positions, problem.num_points), choices)
            with jax.default_device(device):
                priced = price_best_cuts(problem, table, rows, goal)
            columns = result_rows(problem, space.keys, rows, priced.costs, priced.cuts)
            feasible = take(columns, columns["reject"] == 0)
            return reduce(feasible), CandidateCounts(len(points), len(feasible["point"]))

        new: list[Arrays] = []
        for _, (rows, counted) in map_over_devices(run, self._chunks(blocks)):
            new.append(rows)
            # New rows are merged once they are as many as the kept ones. So a row is sorted only a few times in all.
            if sum(len(part["point"]) for part in new) >= len(kept["point"]):
                kept, new = reduce(joined([kept, *new])), []
            counts = counts.plus(counted)
            progress(counted.candidates)
        return reduce(joined([kept, *new])), counts

    def _chunks(self, blocks: BlockRange) -> Iterator[tuple[int, int]]:
        """Yield ranges of candidates."""
        first, last = self.source.space.blocks.first_candidate[[*blocks]].tolist()
        step = max(1, _ROWS // self.source.problem.num_points)
        for start in range(first, last, step):
            yield start, min(start + step, last)


def search_of(problem: Problem, space: Space, table: KeyCosts, precision: str = "float64", length: int = 0) -> Search:
    """Return the search of a space.

    `table` has the layer costs of its keys in float64. Calls for rows with even cuts are padded to `length`, so
    that they are compiled once.
    """
    source = PricedSpace(problem, space, table, precision)
    return Partitioned(source) if problem.optimal_cuts else Blockwise(source, length)


ROWS = 1 << 18  # candidates of a part whose rows are kept
REDUCED = 1 << 32  # candidates of a part that is reduced to a few rows
_POINTS = 16  # hardware points that are priced together
_TABLE = 1 << 21  # keys times hardware points in a table of layer costs


@dataclass(frozen=True, slots=True)
class Part:
    """Some hardware points of a study, and a range of its candidates or blocks."""

    study: int
    first_point: int
    last_point: int
    start: int  # first candidate, counted over all points; or first block
    stop: int
    size: int  # candidates, over all points


_AnyStudy = Over[Study, "..."]


def make_parts(studies: Sequence[_AnyStudy], keep: Keep, size: int | None = None) -> list[Part]:
    """Return the parts of a sweep, with `size` candidates each if given."""
    if reduces(keep):
        return block_parts(studies, size or REDUCED)
    return row_parts(studies, size or ROWS)


def reduces(keep: Keep) -> bool:
    """Return whether `keep` reduces the rows to a few."""
    return isinstance(keep, KeepTop | KeepPareto)


def size_for(studies: Sequence[_AnyStudy], keep: Keep, count: int) -> int:
    """Return a size that gives at least `count` parts; 0 if there is none.

    Blocks are not divided, so there may be fewer parts than the number of candidates allows.
    """
    size = sum(study.size for study in studies) // count
    while size and len(make_parts(studies, keep, size)) < count:
        size = size * 3 // 4
    return size


def row_parts(studies: Sequence[_AnyStudy], size: int) -> list[Part]:
    """Return parts of `size` candidates, counted point by point."""
    parts: list[Part] = []
    for code, study in enumerate(studies):
        for first, last in _point_ranges(study):
            count = study.space.size * (last - first)
            parts += [
                Part(code, first, last, start, min(start + size, count), min(size, count - start))
                for start in range(0, count, size)
            ]
    return parts


def block_parts(studies: Sequence[_AnyStudy], size: int) -> list[Part]:
    """Return parts of whole blocks with at least `size` candidates; the last one may have fewer."""
    parts: list[Part] = []
    for code, study in enumerate(studies):
        first_candidate = study.space.blocks.first_candidate
        for first, last in _point_ranges(study):
            start = 0
            while start < len(first_candidate) - 1:
                points = last - first
                stop = int(np.searchsorted(first_candidate, first_candidate[start] + -(-size // points)))
                stop = min(stop, len(first_candidate) - 1)
                parts.append(
                    Part(code, first, last, start, stop, int(first_candidate[stop] - first_candidate[start]) * points)
                )
                start = stop
    return parts


def _point_ranges(study: Study) -> list[tuple[int, int]]:
    """Return ranges of hardware points that are priced together.

    Ranges of one length are compiled once, so the length divides the number of points if possible.
    """
    count = study.problem.num_points
    most = max(1, min(_POINTS, _TABLE // max(1, len(study.space.keys["tp"]))))
    even = max(length for length in range(1, most + 1) if count % length == 0)
    length = even if 2 * even > min(most, count) else most
    return [(first, min(first + length, count)) for first in range(0, count, length)]


MAX_ROWS = 1 << 20  # over all parts and hardware points


def fault_of_groups(studies: Sequence[_AnyStudy], parts: Sequence[Part], keep: Keep) -> str:
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
    num_groups = [counts.get((part.study, part.start, part.stop), 0) for part in parts]
    if _rows(parts, num_groups, keep.top) <= MAX_ROWS:
        return ""
    total = sum(count * (part.last_point - part.first_point) for part, count in zip(parts, num_groups, strict=True))
    more = "more than " if max(num_groups) > COUNTED else ""
    of_parts = f" over {len(parts):,} parts" if len(parts) > 1 else ""
    most = f" ({keep.top:,} for each of {MAX_ROWS // keep.top:,} groups)" if keep.top <= MAX_ROWS else ""
    return (
        f"{more}{total:,} group{'' if total == 1 else 's'} of up to {keep.top:,} rows{of_parts} exceed the limit of "
        f"{MAX_ROWS:,} rows{most}; name fewer columns in 'per', give "
        "a smaller 'top', or fix or limit columns (keep: feasible writes all rows that fit, to be grouped later)"
    )


def most_rows(studies: Sequence[_AnyStudy], parts: Sequence[Part], keep: Keep) -> int:
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


Write = Callable[[int, Arrays, CandidateCounts], None]


class Sweep:
    """The parts of a sweep and their pricing.

    The rows of a part have the columns of a result set: `cluster` is the position of the cluster, and each field of
    `what_if` is a column.
    """

    def __init__(self, studies: Sequence[_AnyStudy], keep: Keep, precision: str, part_size: int | None = None) -> None:
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

        def make(device: object, number: int) -> int:
            # Encoding a part takes as long as pricing it, so the worker that prices it also encodes it.
            write(number, *self._rows(device, self.parts[number]))
            return self.parts[number].size

        for _, done in map_over_devices(make, numbers):
            progress(done)

    def merged(self, rows: Arrays) -> Kept:
        """Reduce the rows of all parts once more, if `keep` reduces."""
        hardware = ["cluster", *self.studies[0].values]
        if isinstance(self.keep, KeepTop):
            per = [name for name in self.keep.per if name not in hardware]
            return leading_rows(rows, self.keep.top, [*hardware, *per], self.keep.objective)
        if isinstance(self.keep, KeepPareto):
            return front_of_groups(rows, hardware, self.keep.pareto)
        return rows

    def _reduced(self, part: Part, keep: KeepTop | KeepPareto, progress: Progress) -> tuple[Arrays, CandidateCounts]:
        study, search = self._searches.of(part)
        blocks = (part.start, part.stop)
        if isinstance(keep, KeepPareto):
            rows, counts = search.front(keep.pareto, blocks, progress)
        else:
            rows, counts = search.best(keep.top, keep.per, keep.objective, blocks, progress)
        return _with_hardware(study, rows), counts

    def _rows(self, device: object, part: Part) -> tuple[Arrays, CandidateCounts]:
        study, search = self._searches.of(part)
        rows = search.rows(device, study.rows(part.start, part.stop), feasible=self.keep == "feasible")
        counts = CandidateCounts(part.size, int(np.count_nonzero(rows["reject"] == 0)))
        return _with_hardware(study, rows), counts


class _Searches:
    """The searches of studies at hardware points, each made once for all parts that share it.

    The last two are kept, because some workers may still be at one while others begin the next.
    """

    def __init__(self, studies: Sequence[_AnyStudy], precision: str, length: int) -> None:
        self._studies, self._precision, self._length = studies, precision, length
        self._lock = threading.Lock()
        self._made: dict[tuple[int, int], tuple[Study, Search]] = {}

    def of(self, part: Part) -> tuple[Study, Search]:
        """Return the study of a part at its hardware points, and its search."""
        at = (part.study, part.first_point)
        with self._lock:
            if at not in self._made:
                study = points_of(self._studies[part.study], part.first_point, part.last_point)
                table = study.space.table(study.problem)
                search = search_of(study.problem, study.space, table, self._precision, self._length)
                self._made = dict([*self._made.items(), (at, (study, search))][-2:])
            return self._made[at]


def _with_hardware(study: Study, rows: Arrays) -> Arrays:
    """Return rows with the columns of the hardware in place of the number of the hardware point."""
    point = rows.pop("point")
    hardware: Arrays = {"cluster": np.full(len(point), study.cluster)}
    return rows | hardware | {path: column[point] for path, column in study.values.items()}


def smallest(studies: Sequence[_AnyStudy], progress: Progress) -> tuple[Study, Arrays]:
    """Return the candidate that needs the least memory, whether it fits or not: its study, and its row.

    Each study is searched at its first hardware point and must have a candidate. Candidates whose hosts hold what they
    offload come first.
    """
    of_studies = _smallest(studies, ("device.hbm_capacity",), progress)
    of_studies = of_studies or _smallest(studies, ("device.hbm_capacity", "node.host_memory"), progress)
    return min(of_studies, key=lambda study_and_row: study_and_row[1]["peak_bytes"][0])


def _smallest(
    studies: Sequence[_AnyStudy], unlimited_fields: Sequence[str], progress: Progress
) -> list[tuple[_AnyStudy, Over[Arrays, "..."]]]:
    """Return for each study the candidate that needs the least memory if some fields have no limit, if any fits."""
    smallest_rows: list[tuple[Study, Arrays]] = []
    for study in studies:
        at_first_point = points_of(study, 0, 1)
        unlimited = at_points(at_first_point.problem, {path: np.array([np.inf]) for path in unlimited_fields})
        table = study.space.table(unlimited)
        if unlimited.optimal_cuts:
            rows = smallest_cut(PricedSpace(unlimited, study.space, table, "float64"), progress)
        else:
            rows, _ = search_of(unlimited, study.space, table).best(1, objective="peak_bytes", progress=progress)
        if len(rows["candidate"]):
            smallest_rows.append((at_first_point, rows))
    return smallest_rows
