"""Measured times of a layer's kernels, looked up by operator, direction, type and local shape.

A single multiply is looked up by its own shape, except one of two activations inside a fused kernel, which is no kernel
of its own. Every other kernel is looked up by its name. Shapes match exactly; nothing is interpolated. As for the work
of a layer, NumPy does this once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.cost.assumptions import BF16
from dsx.cost.multiply import is_attention
from dsx.cost.shapes import Size
from dsx.cost.work import MeasuredTimes, layer_values, multiply_shapes
from dsx.errors import OperatorTimesError, did_you_mean
from dsx.graph.derived import BACKWARD, FORWARD, DerivedLayer, KernelCosts
from dsx.graph.expressions import evaluate
from dsx.graph.multiplies import Multiply
from dsx.graph.operators import OperatorKind
from dsx.records import Float, Int, Real
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.operator_times import DIRECTIONS, DTYPES, OperatorTime, OperatorTimes, Shape

_ANY = 0  # element bytes of a row without a type
NONE = -1  # no row


@dataclass(frozen=True, slots=True)
class TimesTable:
    """The rows of a file, indexed by name, direction, element size and shape."""

    file: str
    rows: tuple[OperatorTime, ...]
    places: Mapping[tuple[str, int, int], Mapping[Shape, int]]  # (name, direction, bytes): {shape: position}

    def find(self, name: str, direction: int, element_bytes: int, shape: Shape) -> int:
        """Return the position of the row of a kernel, or `NONE`."""
        for width in (element_bytes, _ANY):
            found = self.places.get((name, direction, width), {}).get(shape)
            if found is not None:
                return found
        return NONE


@dataclass(frozen=True, slots=True)
class Measurable:
    """One kernel of a layer, or one multiply of it, in one direction, whose time a row can give."""

    name: str
    kernel: int  # position among the layer's priced kernels
    direction: int
    multiply: int | None  # position among the layer's multiplies
    element_bytes: int
    shapes: Float[np.ndarray, "4 works"]  # m, n, k, batch


def times_table(times: OperatorTimes, operators: Mapping[str, OperatorKind], kernels: Collection[str]) -> TimesTable:
    """Return the table of a file's rows; `kernels` are the names of fused kernels.

    Raises OperatorTimesError, with file and line, for an unknown name, a multiply without k, and any other kernel
    without a direction.
    """
    places: dict[tuple[str, int, int], dict[Shape, int]] = {}
    for position, row in enumerate(times.rows):
        _check(row, f"{times.file}:{row.line}", operators, kernels)
        for direction in row.directions:
            of_kernel = places.setdefault((row.operator, direction, DTYPES.get(row.dtype, _ANY)), {})
            of_kernel.setdefault(row.shape, position)
    return TimesTable(times.file, times.rows, places)


def _check(row: OperatorTime, place: str, operators: Mapping[str, OperatorKind], kernels: Collection[str]) -> None:
    known = sorted({*operators, *kernels})
    if row.operator not in known:
        near = did_you_mean(row.operator, known)
        raise OperatorTimesError(
            f"{place}: operator: unknown operator {row.operator!r}{near} (known: {', '.join(known)})"
        )
    if row.operator in operators and operators[row.operator].shape == "contract":
        if not row.shape[2]:
            raise OperatorTimesError(f"{place}: k: is blank; {row.operator} is a multiply of (m x k) by (k x n)")
    elif len(row.directions) > 1:
        raise OperatorTimesError(
            f"{place}: direction: is blank; the two directions of {row.operator} take different times: "
            f"write {' or '.join(DIRECTIONS)}"
        )


def measurable(
    layer: DerivedLayer,
    dimensions: Mapping[str, Size],
    assumptions: AssumptionsSpec,
    sequence_length: Size,
    keys: Mapping[str, Real[np.ndarray, "works"]],
) -> list[Measurable]:
    """Return the kernels and multiplies of a layer that can have a measured time, with shapes for V keys.

    The arguments are those of `layer_work`.
    """
    values = layer_values(layer, dimensions, assumptions, sequence_length, keys)
    count = len(keys["microbatch_size"])

    def numbers(*expressions: Any) -> Float[np.ndarray, "expressions works"]:
        return np.stack([np.broadcast_to(np.asarray(evaluate(e, values), dtype=float), (count,)) for e in expressions])

    found: list[Measurable] = []
    for index, (shape, multiply) in enumerate(zip(multiply_shapes(layer), _multiplies(layer), strict=True)):
        if not is_attention(shape):
            width = _element_bytes(shape.linear, assumptions)
            sizes = numbers(*_sizes(multiply))
            found.append(Measurable(multiply.operator, shape.kernel, shape.direction, index, width, sizes))
    for index, kernel in enumerate(layer.priced_kernels):
        multiplies = kernel.work[FORWARD].multiplies
        if kernel.work[FORWARD].matrix != 0 and not kernel.fused:
            continue
        sizes = numbers(*(_sizes(multiplies[0]) if multiplies else (*kernel.extent, 0, 0)))
        width = _element_bytes(any(multiply.linear for multiply in multiplies), assumptions)
        for direction in (FORWARD, BACKWARD):
            if _has_work(kernel, direction):
                found.append(Measurable(kernel.title, index, direction, None, width, sizes))
    return found


def _element_bytes(linear: bool, assumptions: AssumptionsSpec) -> int:
    narrow = linear and assumptions.linear_dtype != BF16
    return DTYPES[assumptions.linear_dtype] if narrow else assumptions.activation_bytes


def _multiplies(layer: DerivedLayer) -> list[Multiply]:
    return [m for direction in (FORWARD, BACKWARD) for k in layer.priced_kernels for m in k.work[direction].multiplies]


def _sizes(multiply: Multiply) -> tuple[Any, ...]:
    return multiply.rows, multiply.columns, multiply.contracted, multiply.batch


def _has_work(kernel: KernelCosts, direction: int) -> bool:
    work = kernel.work[direction]
    return kernel.runs and any(amount != 0 for amount in (work.matrix, work.vector, work.bytes))


def rows_of(table: TimesTable, found: Sequence[Measurable]) -> list[Int[np.ndarray, "works"]]:
    """Return the positions of the rows of each of `found`, `NONE` without a row.

    If a whole kernel is measured, its multiplies have no rows.
    """
    rows = [_rows_of_one(table, one) for one in found]
    whole = {(one.kernel, one.direction): row for one, row in zip(found, rows, strict=True) if one.multiply is None}
    for one, row in zip(found, rows, strict=True):
        if one.multiply is not None and (one.kernel, one.direction) in whole:
            row[whole[(one.kernel, one.direction)] != NONE] = NONE
    return rows


def _rows_of_one(table: TimesTable, one: Measurable) -> Int[np.ndarray, "works"]:
    shapes, which = np.unique(one.shapes, axis=1, return_inverse=True)
    rows = [
        table.find(one.name, one.direction, one.element_bytes, (int(m), int(n), int(k), int(batch)))
        for m, n, k, batch in shapes.T
    ]
    return np.array(rows, dtype=np.int64)[which.reshape(-1)]


def measured_times(
    table: TimesTable,
    layer: DerivedLayer,
    dimensions: Mapping[str, Size],
    assumptions: AssumptionsSpec,
    sequence_length: Size,
    keys: Mapping[str, Real[np.ndarray, "works"]],
) -> MeasuredTimes:
    """Return the measured times of a layer's kernels and multiplies for V keys.

    The arguments are those of `layer_work`.
    """
    found = measurable(layer, dimensions, assumptions, sequence_length, keys)
    seconds = np.array([*(row.time_s for row in table.rows), np.nan])  # the last one is for NONE
    count = len(keys["microbatch_size"])
    kernels = np.full((2, len(layer.priced_kernels), count), np.nan)
    multiplies = np.full((len(multiply_shapes(layer)), count), np.nan)
    for one, row in zip(found, rows_of(table, found), strict=True):
        if one.multiply is None:
            kernels[one.direction, one.kernel] = seconds[row]
        else:
            multiplies[one.multiply] = seconds[row]
    return MeasuredTimes(kernels, multiplies)
