"""Measured operator times in a plan: the kernels that have one, their share of the time, and the rows without use."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.cost.layer import busy_times
from dsx.cost.operator_times import NONE, Measurable, TimesTable, measurable, rows_of
from dsx.cost.override import measured_or, multiply_times, unmeasured
from dsx.cost.work import LayerWork
from dsx.graph.derived import DerivedLayer
from dsx.hardware.cluster import Cluster
from dsx.pricing.layers import work_of
from dsx.pricing.problem import Problem
from dsx.space.choices import KEY_COLUMNS
from dsx.space.enumerate import Arrays, changes
from dsx.spec.operator_times import DTYPES, OperatorTime, Shape

_AT_ONCE = 16384  # keys whose shapes are collected together

# The shapes of kernels by (name, direction, bytes of an element).
Shapes = Mapping[tuple[str, int, int], set[Shape]]


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A kernel of a plan, or one multiply of a kernel, with a measured time."""

    layer: str
    kernel: str
    direction: int
    row: OperatorTime
    roofline_s: float  # its time without the measurement


@dataclass(frozen=True, slots=True)
class IdleRow:
    """A row that no kernel matches, and the nearest shape of a kernel of that name, if any."""

    row: OperatorTime
    nearest: Shape | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a plan has measured times."""

    file: str
    kernels: tuple[MeasuredKernel, ...]
    num_kernels: int  # forward and backward, each layer kind once; each multiply outside attention counts as one
    share: float  # measured time over the time of all kernels of all layers
    idle: tuple[IdleRow, ...]


def coverage(problem: Problem, plan: Mapping[str, Any]) -> Coverage | None:
    """Return how much of a plan has measured times; None if the problem has no operator times."""
    table = problem.operator_times
    if table is None:
        return None
    keys = key_of(plan)
    kernels: list[MeasuredKernel] = []
    number, total_s, measured_s = 0, 0.0, 0.0
    model = problem.models[problem.strategies.index(plan["strategy"])]
    for layer in model.kinds:
        count = sum(count for other, count in model.layers if other is layer)
        found = kernels_of(problem, layer, keys)
        whole, plain, multiplies = _times(work_of(problem, layer, keys), *problem.at_point(0))
        total_s += count * float(whole.sum())
        chosen = [(one, int(rows[0])) for one, rows in zip(found, rows_of(table, found), strict=True)]
        number += _number(chosen)
        for one, position in chosen:
            if position == NONE:
                continue
            row = table.rows[position]
            roofline = plain[one.direction, one.kernel] if one.multiply is None else multiplies[one.multiply]
            name = layer.priced_kernels[one.kernel].name
            kernels.append(MeasuredKernel(layer.name, name, one.direction, row, float(roofline[0])))
            measured_s += count * row.time_s
    share = measured_s / total_s if total_s else 0.0
    return Coverage(table.file, tuple(kernels), number, share, idle_rows(table, shapes_of(problem, keys)))


def measured_ratios(problem: Problem, plan: Mapping[str, Any]) -> Iterator[tuple[DerivedLayer, str, int, float]]:
    """Yield (layer, kernel, direction, seconds over those of the roofline) of a plan's kernels with measured times."""
    keys = key_of(plan)
    for layer in problem.kinds[problem.strategies.index(plan["strategy"])] if problem.operator_times else ():
        whole, plain, _ = _times(work_of(problem, layer, keys), *problem.at_point(0))
        for direction, place in np.argwhere(whole[..., 0] != plain[..., 0]).tolist():
            ratio = float(whole[direction, place, 0] / plain[direction, place, 0])
            yield layer, layer.priced_kernels[place].name, direction, ratio


def _number(chosen: Sequence[tuple[Measurable, int]]) -> int:
    """Return the number of kernels. One that consists of multiplies counts once if it was measured, else as these."""
    whole = {(one.kernel, one.direction) for one, row in chosen if one.multiply is None and row != NONE}
    split = {(one.kernel, one.direction) for one, _ in chosen if one.multiply is not None} - whole
    return sum((one.kernel, one.direction) not in (whole if one.multiply is not None else split) for one, _ in chosen)


@xp.unchecked
def _times(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> tuple[Any, Any, Any]:
    """Return the seconds of kernels [2, K, V], the same by the roofline, and multiplies by the roofline [M, V]."""
    whole = measured_or(work, *busy_times(unmeasured(work), cluster, assumptions))
    plain = busy_times(work, cluster, assumptions)
    return whole[0] + whole[1], plain[0] + plain[1], multiply_times(work, cluster, assumptions)


def key_of(plan: Mapping[str, Any]) -> Arrays:
    """Return the key table of one plan of the first strategy."""
    return {name: np.array([0 if name == "strategy" else plan[name]]) for name in KEY_COLUMNS}


def kernels_of(problem: Problem, layer: DerivedLayer, keys: Arrays) -> list[Measurable]:
    """Return the kernels and multiplies of a layer that can have a measured time, with their shapes."""
    return measurable(layer, problem.model.dimensions, problem.assumptions_spec, problem.sequence_length, keys)


def kernels_to_measure(problem: Problem, plan: Mapping[str, Any]) -> list[tuple[str, int | None, Shape]]:
    """Return the distinct (operator, direction, shape) of a plan's kernels; single multiplies have no direction."""
    found: dict[tuple[str, int | None, Shape], None] = {}
    keys = key_of(plan)
    for layer in problem.kinds[0]:
        for one in kernels_of(problem, layer, keys):
            direction = one.direction if one.multiply is None else None
            found[(one.name, direction, _as_shape(one.shapes[:, 0]))] = None
    return list(found)


def _as_shape(sizes: np.ndarray) -> Shape:
    m, n, k, batch = (int(size) for size in sizes)
    return m, n, k, batch


def shapes_of(problem: Problem, keys: Arrays) -> dict[tuple[str, int, int], set[Shape]]:
    """Return the shapes of all kernels under the plans of a [U] key table."""
    shapes: dict[tuple[str, int, int], set[Shape]] = {}
    for layer, some in _key_batches(problem, keys):
        for one in kernels_of(problem, layer, some):
            there = shapes.setdefault((one.name, one.direction, one.element_bytes), set())
            there |= {_as_shape(sizes) for sizes in np.unique(one.shapes, axis=1).T}
    return shapes


def _key_batches(problem: Problem, keys: Arrays) -> Iterator[tuple[DerivedLayer, Arrays]]:
    columns = [name for name in KEY_COLUMNS if not name.endswith("_nvs")]
    first = np.flatnonzero(changes(*(keys[name] for name in columns)))
    for code, kinds in enumerate(problem.kinds):
        own = first[keys["strategy"][first] == code]
        for start in range(0, len(own), _AT_ONCE):
            some = {name: column[own[start : start + _AT_ONCE]] for name, column in keys.items()}
            yield from ((layer, some) for layer in kinds)


def idle_rows(table: TimesTable, shapes: Shapes) -> tuple[IdleRow, ...]:
    """Return the rows of a table that match no kernel with `shapes`."""
    idle: list[IdleRow] = []
    for row in table.rows:
        named = {key: known for key, known in shapes.items() if key[0] == row.operator and key[1] in row.directions}
        widths = {DTYPES[row.dtype]} if row.dtype else {width for _, _, width in named}
        if not any(row.shape in known for (_, _, width), known in named.items() if width in widths):
            idle.append(IdleRow(row, _nearest(row.shape, sorted(set().union(*named.values())))))
    return tuple(idle)


def _nearest(shape: Shape, known: list[Shape]) -> Shape | None:
    """Return the known shape with the smallest ratios of sizes, or the one with m and n swapped if it is known."""
    m, n, k, batch = shape
    same = [other for other in known if bool(other[2]) == bool(k)]
    if not same or (n, m, k, batch) in same:
        return (n, m, k, batch) if same else None
    ratios = np.abs(np.log(np.maximum(np.array(same), 1) / np.maximum(np.array(shape), 1))).sum(axis=1)
    return same[int(np.argmin(ratios))]
