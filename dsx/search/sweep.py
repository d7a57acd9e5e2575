"""A sweep: all studies through a pipeline, part by part, and what `keep` asks for coming out as rows.

Every candidate is priced; nothing is pruned before. Memory stays flat: rows exist only a part per worker at
a time, and the best and fronts are reduced while the space streams by.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.pricing.batch import Plans, costs, pad
from dsx.search.best import best
from dsx.search.devices import map_over_devices
from dsx.search.fronts import best_front
from dsx.search.groups import front_of_groups, leading_rows
from dsx.search.optimal_rows import price_best_cuts
from dsx.search.parts import Part, make_parts
from dsx.search.pricing import Kinds, power_of_two, price_keys, rows_of, step_choices
from dsx.search.problem import Problem
from dsx.search.rows import Counts, cut_rows, result_rows
from dsx.search.study import Study, at_points, points_of
from dsx.space.enumerate import Arrays
from dsx.spec.keep import Keep, KeepPareto, KeepTop

Write = Callable[[int, Arrays, Counts], None]
Progress = Callable[[int], None]


def _price(
    table: Any, points: Any, positions: Any, choices: Any, workload: Any, hardware: Any, assumptions: Any
) -> Any:
    layer = jax.tree.map(lambda leaf: rows_of(leaf, points, positions), table)
    hardware, assumptions = jax.tree.map(lambda leaf: leaf[points], (hardware, assumptions))
    return costs(Plans(layer, choices, hardware, assumptions), workload)


_price_rows = jax.jit(_price)


class Sweep:
    """The parts of a sweep, and how to price them.

    The rows of a part have the columns of a result set: `cluster` is the position of the cluster, and each
    field of `what_if` is a column.
    """

    def __init__(self, studies: Sequence[Study], keep: Keep, precision: str, part_size: int | None = None) -> None:
        self.studies, self.keep, self.precision = studies, keep, precision
        self.parts = make_parts(studies, keep, part_size)
        # One length for all parts, the last and shortest too.
        self._length = power_of_two(max((part.size for part in self.parts), default=0))
        self._tables = _Tables(studies, precision)

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
        study, table = self._tables.of(part)
        arguments = (study.problem, study.space, table)
        options: dict[str, Any] = {"precision": self.precision, "progress": progress}
        options["blocks"] = (part.start, part.stop)
        if isinstance(keep, KeepPareto):
            rows, counts = best_front(*arguments, keep.pareto, **options)
        else:
            rows, counts = best(*arguments, keep.top, keep.per, **options)
        return _with_hardware(study, rows), counts

    def _rows(self, device: Any, part: Part) -> tuple[Arrays, Counts]:
        rows = self._cut_rows(device, part) if self._cuts_anyhow else self._even_rows(device, part)
        counts = Counts(part.size, int(np.count_nonzero(rows["reject"] == 0)))
        if self.keep == "feasible":
            rows = {name: column[rows["reject"] == 0] for name, column in rows.items()}
        return _with_hardware(self._tables.of(part)[0], rows), counts

    @property
    def _cuts_anyhow(self) -> bool:
        return self.studies[0].problem.cuts_anyhow

    def _even_rows(self, device: Any, part: Part) -> Arrays:
        study, table = self._tables.of(part, device)
        where = study.rows(part.start, part.stop)
        return result_rows(study.problem, study.space.keys, *where, self._priced(device, study.problem, table, *where))

    def _cut_rows(self, device: Any, part: Part) -> Arrays:
        study, table = self._tables.of(part)
        where = study.rows(part.start, part.stop)
        # What does not fit is left out, or else has the cut that needs least memory.
        least_memory = False if self.keep == "feasible" else None
        with jax.default_device(device):
            priced = price_best_cuts(study.problem, table, *where, self.precision == "float64", least_memory)
        return cut_rows(study.problem, study.space.keys, *where, priced)

    def _priced(
        self, device: Any, problem: Problem, table: Any, points: np.ndarray, positions: np.ndarray, choices: Arrays
    ) -> StepCosts:
        count = len(positions)
        length = self._length
        tiers = [tier.name for tier in problem.cluster.network.middle]
        kind = np.float64 if self.precision == "float64" else np.float32
        with jax.enable_x64(self.precision == "float64"), jax.default_device(device):
            priced = _price_rows(
                table,
                jnp.asarray(pad(points, length), dtype=jnp.int32),
                jnp.asarray(pad(positions, length), dtype=jnp.int32),
                step_choices(choices, lambda column: jnp.asarray(pad(column, length).astype(kind)), tiers),
                problem.workload,
                problem.hardware,
                problem.assumptions,
            )
            return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], priced)


class _Tables:
    """The layer costs of studies at hardware points, made once for all parts that share them.

    The last two are kept: workers may be at the end of one and at the beginning of the next.
    """

    def __init__(self, studies: Sequence[Study], precision: str) -> None:
        self._studies, self._wide = studies, precision == "float64"
        self._lock = threading.Lock()
        self._tables: dict[tuple[int, int], tuple[Study, Kinds]] = {}
        self._on_device: dict[tuple[int, int, Any], Any] = {}

    def of(self, part: Part, device: Any = None) -> tuple[Study, Any]:
        """Return the study of a part at its hardware points, and its [H, U] layer costs.

        In float64 as NumPy arrays, or, on a device, in the precision of the sweep and padded to a power of two.
        """
        at = (part.study, part.first_point)
        with self._lock:
            if at not in self._tables:
                study = points_of(self._studies[part.study], part.first_point, part.last_point)
                table = price_keys(study.problem, study.space.keys)
                self._tables = dict([*self._tables.items(), (at, (study, table))][-2:])
                self._on_device = {key: made for key, made in self._on_device.items() if key[:2] in self._tables}
            study, table = self._tables[at]
            if device is None:
                return study, table
            if (*at, device) not in self._on_device:
                self._on_device[(*at, device)] = self._put(table, device)
            return study, self._on_device[(*at, device)]

    def _put(self, table: Kinds, device: Any) -> Any:
        kind = np.float64 if self._wide else np.float32
        length = power_of_two(table[0].boundary_bytes.shape[-1])

        def put(leaf: np.ndarray) -> Any:
            widths = [(0, 0)] * (leaf.ndim - 1) + [(0, length - leaf.shape[-1])]
            return jnp.asarray(np.pad(leaf.astype(kind), widths, mode="edge"))

        with jax.enable_x64(self._wide), jax.default_device(device):
            return jax.tree.map(put, table)


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
        found.append((here, best(boundless, study.space, table, 1, progress=progress, objective="peak_bytes")[0]))
    return min(found, key=lambda one: one[1]["peak_bytes"][0])
