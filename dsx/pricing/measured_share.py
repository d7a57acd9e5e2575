"""Measured operator times in a plan: the kernels that have one, their share of the time, and the rows without use."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx import arrays as xp
from dsx.arrays import PerKernel, PerMultiply
from dsx.config.cluster_file import Cluster
from dsx.config.operator_files import DTYPES, OperatorTime, Shape
from dsx.cost.context import Assumptions
from dsx.cost.layer import busy_times
from dsx.cost.layer_work import LayerWork
from dsx.cost.measured_kernels import (
    EXACT,
    NONE,
    UNKNOWN,
    Measurable,
    known_times,
    measurable,
    measured_or,
    multiply_times,
    unmeasured,
)
from dsx.notation.work import DerivedLayer
from dsx.plans.choices import KEY_COLUMNS
from dsx.pricing.keys import work_of
from dsx.pricing.problem import Problem
from dsx.records import Float, Int


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A kernel of a plan, or one multiply of a kernel, with a time from measured ones."""

    layer: str
    kernel: str
    operator: str
    direction: int
    shape: Shape
    how: int  # EXTRAPOLATED, INTERPOLATED or EXACT
    row: OperatorTime | None  # of exactly its shape
    time_s: float
    roofline_s: float  # its time without measured ones


@dataclass(frozen=True, slots=True)
class KernelCoverage:
    """How much of a plan has times from measured ones."""

    file: str
    kernels: tuple[MeasuredKernel, ...]
    num_kernels: int  # forward and backward, each layer kind once; each multiply outside attention counts as one
    shares: Mapping[int, float]  # by how they are known, their time over that of all kernels of all layers
    idle: tuple[OperatorTime, ...]  # rows whose operator, direction and type no kernel has

    def number(self, how: int) -> int:
        """Return the number of kernels whose time is known so."""
        return sum(kernel.how == how for kernel in self.kernels)


def coverage(problem: Problem, plan: Mapping[str, object]) -> KernelCoverage | None:
    """Return how much of a plan has times from measured ones; None if the problem has no operator times."""
    table = problem.operator_times
    if table is None:
        return None
    keys = key_of(plan)
    kernels: list[MeasuredKernel] = []
    number, total_s, seconds = 0, 0.0, dict.fromkeys(range(UNKNOWN + 1, EXACT + 1), 0.0)
    model = problem.models[problem.strategies.index(plan["strategy"])]
    for layer in model.kinds:
        count = sum(count for other, count in model.layers if other is layer)
        parts = kernels_of(problem, layer, keys)
        work = work_of(problem, layer, keys)
        seconds_of_kernels, roofline_s, multiplies_s = _times(work, *problem.at_point(0))
        total_s += count * float(seconds_of_kernels.sum())
        times = known_times(table, parts, work, problem.cluster.device)
        number += _number([(part, int(time.how[0])) for part, time in zip(parts, times, strict=True)])
        for part, time in zip(parts, times, strict=True):
            how, row, time_s = int(time.how[0]), int(time.rows[0]), float(time.seconds[0])
            if how == UNKNOWN:
                continue
            roofline = roofline_s[part.direction, part.kernel] if part.multiply is None else multiplies_s[part.multiply]
            kernels.append(
                MeasuredKernel(
                    layer.name,
                    layer.priced_kernels[part.kernel].name,
                    part.name,
                    part.direction,
                    _as_shape(part.shapes[:, 0]),
                    how,
                    None if row == NONE else table.rows[row],
                    time_s,
                    float(roofline[0]),
                )
            )
            seconds[how] += count * time_s
    shares = {how: part / total_s if total_s else 0.0 for how, part in seconds.items()}
    return KernelCoverage(table.file, tuple(kernels), number, shares, idle_rows(problem))


def measured_ratios(problem: Problem, plan: Mapping[str, object]) -> Iterator[tuple[DerivedLayer, str, int, float]]:
    """Yield (layer, kernel, direction, seconds over those of the roofline) of a plan's kernels with measured times."""
    keys = key_of(plan)
    for layer in problem.kinds[problem.strategies.index(plan["strategy"])] if problem.operator_times else ():
        seconds, roofline_s, _ = _times(work_of(problem, layer, keys), *problem.at_point(0))
        for direction, place in np.argwhere(seconds[..., 0] != roofline_s[..., 0]).tolist():
            ratio = float(seconds[direction, place, 0] / roofline_s[direction, place, 0])
            yield layer, layer.priced_kernels[place].name, direction, ratio


def _number(chosen: Sequence[tuple[Measurable, int]]) -> int:
    """Return the number of kernels, from how each is known.

    One that consists of multiplies counts once if it is known as a whole, else as these.
    """
    unsplit = {(part.kernel, part.direction) for part, how in chosen if part.multiply is None and how != UNKNOWN}
    split = {(part.kernel, part.direction) for part, _ in chosen if part.multiply is not None} - unsplit
    return sum((part.kernel, part.direction) not in (split if part.multiply is None else unsplit) for part, _ in chosen)


@xp.unchecked
def _times(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> tuple[PerKernel, PerKernel, PerMultiply]:
    """Return the seconds of kernels, the same by the roofline, and multiplies by the roofline."""
    measured = measured_or(work, *busy_times(unmeasured(work), cluster, assumptions), cluster, assumptions)
    plain = busy_times(work, cluster, assumptions)
    return measured[0] + measured[1], plain[0] + plain[1], multiply_times(work, cluster, assumptions)


def key_of(plan: Mapping[str, object]) -> dict[str, Int[np.ndarray, "1"]]:
    """Return the key table of one plan of the first strategy."""
    return {name: np.array([0 if name == "strategy" else plan[name]]) for name in KEY_COLUMNS}


def kernels_of(problem: Problem, layer: DerivedLayer, keys: dict[str, Int[np.ndarray, "works"]]) -> list[Measurable]:
    """Return the kernels and multiplies of a layer that can have a measured time, with their shapes."""
    return measurable(layer, problem.model.dimensions, problem.assumptions_spec, problem.sequence_length, keys)


def kernels_to_measure(problem: Problem, plan: Mapping[str, object]) -> list[tuple[str, int | None, Shape]]:
    """Return the distinct (operator, direction, shape) of a plan's kernels; single multiplies have no direction."""
    parts = [part for layer in problem.kinds[0] for part in kernels_of(problem, layer, key_of(plan))]
    directions = [part.direction if part.multiply is None else None for part in parts]
    return [
        *dict.fromkeys(
            (part.name, at, _as_shape(part.shapes[:, 0])) for part, at in zip(parts, directions, strict=True)
        )
    ]


def _as_shape(sizes: Float[np.ndarray, "4"]) -> Shape:
    m, n, k, batch = (int(size) for size in sizes)
    return m, n, k, batch


def idle_rows(problem: Problem) -> tuple[OperatorTime, ...]:
    """Return the rows of the operator times whose operator, direction and type no kernel of any plan has."""
    if problem.operator_times is None:
        return ()
    one_key = {name: np.ones(1, dtype=np.int64) for name in KEY_COLUMNS}
    existing = {part.key for kinds in problem.kinds for layer in kinds for part in kernels_of(problem, layer, one_key)}
    return tuple(
        row
        for row in problem.operator_times.rows
        if not any(
            (row.operator, direction, width, bool(row.shape[2])) in existing
            for direction in row.directions
            for width in ([DTYPES[row.dtype]] if row.dtype else {*DTYPES.values()})
        )
    )
