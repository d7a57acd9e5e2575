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
from dsx.cost.layer import LayerCosts
from dsx.search import parts
from dsx.search.best import best, leading_rows
from dsx.search.devices import map_over_devices
from dsx.search.fronts import best_front, front_of_groups
from dsx.search.parts import Part
from dsx.search.pricing import pad, power_of_two, price_keys, price_steps, rows_of, step_choices
from dsx.search.problem import Problem
from dsx.search.rows import Counts, joined, result_rows
from dsx.search.space import Space
from dsx.search.study import Study, at_points, points_of
from dsx.space.enumerate import Arrays
from dsx.spec.keep import Keep, KeepPareto, KeepTop

Write = Callable[[int, Arrays, Counts], None]


def _price(
    table: Any, points: Any, positions: Any, choices: Any, workload: Any, hardware: Any, assumptions: Any
) -> Any:
    layer = jax.tree.map(lambda leaf: rows_of(leaf, points, positions), table)
    hardware, assumptions = jax.tree.map(lambda leaf: leaf[points], (hardware, assumptions))
    return price_steps(layer, choices, workload, hardware, assumptions)


_price_rows = jax.jit(_price)


class Sweep:
    """The parts of a sweep, and how to price them.

    The rows of a part have the columns of a result set: `cluster` is the position of the cluster, and each
    field of `what_if` is a column.
    """

    def __init__(
        self,
        studies: Sequence[Study],
        keep: Keep,
        precision: str,
        part_size: int | None = None,
        progress: Callable[[int], None] = lambda candidates: None,
    ) -> None:
        self.studies, self.keep = studies, keep
        self.precision, self.progress = precision, progress
        if isinstance(keep, KeepTop | KeepPareto):
            self.parts = parts.block_parts(studies, part_size or parts.REDUCED)
        else:
            self.parts = parts.row_parts(studies, part_size or parts.ROWS)
        self._tables = _Tables(studies, precision)

    @property
    def size(self) -> int:
        """Candidates, over all hardware points."""
        return sum(study.size for study in self.studies)

    def run(self, numbers: Iterable[int], write: Write) -> None:
        """Price parts by their numbers and hand each to `write`, which may be called by several threads at once."""
        if isinstance(self.keep, KeepTop | KeepPareto):
            for number in numbers:
                write(number, *self._reduced(self.parts[number], self.keep))
            return

        def make(device: Any, number: int) -> int:
            # Encoding a part is as much work as pricing it, so the worker that priced it does both.
            write(number, *self._rows(device, self.parts[number]))
            return self.parts[number].size

        for _, done in map_over_devices(make, numbers):
            self.progress(done)

    def merged(self, rows: Arrays) -> Arrays:
        """Return what is kept of the rows of all parts, for a `keep` that reduces."""
        hardware = ["cluster", *self.studies[0].values]
        if isinstance(self.keep, KeepTop):
            per = [name for name in self.keep.per if name not in hardware]
            return leading_rows(rows, self.keep.top, [*hardware, *per])
        if isinstance(self.keep, KeepPareto):
            return front_of_groups(rows, hardware, self.keep.pareto)
        return rows

    def _reduced(self, part: Part, keep: KeepTop | KeepPareto) -> tuple[Arrays, Counts]:
        study, table = self._tables.of(part)
        arguments = (study.problem, study.space, table)
        options: dict[str, Any] = {"precision": self.precision, "progress": self.progress}
        options["blocks"] = (part.start, part.stop)
        if isinstance(keep, KeepPareto):
            rows, counts = best_front(*arguments, keep.pareto, **options)
        else:
            rows, counts = best(*arguments, keep.top, keep.per, **options)
        return _with_hardware(study, rows), counts

    def _rows(self, device: Any, part: Part) -> tuple[Arrays, Counts]:
        study, table = self._tables.of(part, device)
        points, positions, choices = study.rows(part.start, part.stop)
        costs = self._priced(device, study.problem, table, points, positions, choices)
        rows = result_rows(study.problem, study.space.keys, points, positions, choices, costs)
        counts = Counts(part.size, int(np.count_nonzero(rows["reject"] == 0)))
        if self.keep == "feasible":
            rows = {name: column[rows["reject"] == 0] for name, column in rows.items()}
        return _with_hardware(study, rows), counts

    def _priced(
        self, device: Any, problem: Problem, table: Any, points: np.ndarray, positions: np.ndarray, choices: Arrays
    ) -> StepCosts:
        count = len(positions)
        # One length for all parts, the last and shortest too.
        length = power_of_two(max(part.size for part in self.parts))
        kind = np.float64 if self.precision == "float64" else np.float32
        with jax.enable_x64(self.precision == "float64"), jax.default_device(device):
            costs = _price_rows(
                table,
                jnp.asarray(pad(points, length), dtype=jnp.int32),
                jnp.asarray(pad(positions, length), dtype=jnp.int32),
                step_choices(choices, lambda column: jnp.asarray(pad(column, length).astype(kind))),
                problem.workload,
                problem.hardware,
                problem.assumptions,
            )
            return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], costs)


class _Tables:
    """The layer costs of the study and hardware points at hand, made once for all parts that share them."""

    def __init__(self, studies: Sequence[Study], precision: str) -> None:
        self._studies, self._wide = studies, precision == "float64"
        self._lock = threading.Lock()
        self._at: tuple[int, int] | None = None
        self._study: Study = studies[0]
        self._table: LayerCosts | None = None
        self._on_device: dict[Any, Any] = {}

    def of(self, part: Part, device: Any = None) -> tuple[Study, Any]:
        """Return the study of a part at its hardware points, and its [H, U] layer costs.

        In float64 as NumPy arrays, or, on a device, in the precision of the sweep.
        """
        with self._lock:
            if self._at != (part.study, part.first_point) or self._table is None:
                self._at = (part.study, part.first_point)
                self._study = points_of(self._studies[part.study], part.first_point, part.last_point)
                self._table = price_keys(self._study.problem, self._study.space.keys)
                self._on_device = {}
            if device is None:
                return self._study, self._table
            if device not in self._on_device:
                kind = np.float64 if self._wide else np.float32
                with jax.enable_x64(self._wide), jax.default_device(device):
                    self._on_device[device] = jax.tree.map(lambda leaf: jnp.asarray(leaf.astype(kind)), self._table)
            return self._study, self._on_device[device]


def _with_hardware(study: Study, rows: Arrays) -> Arrays:
    """Return rows with columns for the hardware instead of the number of the hardware point."""
    point = rows.pop("point")
    hardware: Mapping[str, np.ndarray] = {"cluster": np.full(len(point), study.cluster)}
    return rows | hardware | {path: column[point] for path, column in study.values.items()}


def smallest(problem: Problem, spaces: Sequence[Space], progress: Callable[[int], None]) -> Arrays:
    """Return the candidate that needs least memory, whether it fits or not, as a single row."""
    boundless = at_points(problem, {"device.hbm_capacity": np.array([np.inf])})
    found = [
        best(boundless, space, price_keys(boundless, space.keys), 1, progress=progress, objective="peak_bytes")[0]
        for space in spaces
    ]
    return leading_rows(joined(found), 1, [], "peak_bytes")
