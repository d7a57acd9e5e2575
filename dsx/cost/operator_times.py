"""The kernels of a layer that can have a measured time, and the rows of a file by operator, direction, type and shape.

A single multiply is looked up by its own shape, except one of two activations inside a fused kernel, which is no kernel
of its own. Every other kernel is looked up by its name.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsx.cost.assumptions import BF16
from dsx.cost.between_shapes import Samples
from dsx.cost.multiply import is_attention
from dsx.cost.shapes import Size
from dsx.cost.work import layer_values, multiply_shapes
from dsx.errors import OperatorTimesError, did_you_mean
from dsx.graph.derived import BACKWARD, FORWARD, DerivedLayer, KernelCosts
from dsx.graph.expressions import evaluate
from dsx.graph.multiplies import Multiply
from dsx.graph.operators import OperatorKind
from dsx.records import Float, Real
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.operator_times import DIRECTIONS, DTYPES, OperatorTime, OperatorTimes, Shape

_ANY = 0  # element bytes of a row without a type


# Rows by (name, direction, bytes of an element, whether there are multiplies).
_Key = tuple[str, int, int, bool]


@dataclass(frozen=True, slots=True)
class TimesTable:
    """The rows of a file, indexed by name, direction, element size and shape."""

    file: str
    rows: tuple[OperatorTime, ...]
    places: Mapping[_Key, Mapping[Shape, int]]  # {shape: position}
    _samples: dict[_Key, Samples] = field(default_factory=dict, init=False, repr=False, compare=False)

    def named(self, one: "Measurable") -> Mapping[Shape, int]:
        """Return the positions of the rows for the name, direction and type of a kernel, by shape.

        Of two rows of one shape, that of the type itself comes before that of any type.
        """
        name, direction, element_bytes, multiplies = one.key
        return {
            shape: position
            for width in (_ANY, element_bytes)
            for shape, position in self.places.get((name, direction, width, multiplies), {}).items()
        }

    def samples(self, one: "Measurable") -> Samples:
        """Return the same rows as samples to interpolate between; there is at least one."""
        if one.key not in self._samples:
            named = self.named(one)
            rows = np.array([*named.values()])
            seconds = np.array([self.rows[row].time_s for row in rows])
            self._samples[one.key] = Samples(rows, np.array([*named], dtype=float).T, seconds)
        return self._samples[one.key]


@dataclass(frozen=True, slots=True)
class Measurable:
    """One kernel of a layer, or one multiply of it, in one direction, whose time a row can give."""

    name: str
    kernel: int  # position among the layer's priced kernels
    direction: int
    multiply: int | None  # position among the layer's multiplies
    element_bytes: int
    shapes: Float[np.ndarray, "4 works"]  # m, n, k, batch
    contracts: bool = False  # it has multiplies, of the first of which the sizes are
    inner: bool = False  # the result of that multiply stays inside the kernel

    @property
    def key(self) -> _Key:
        """What it is looked up by, besides the shape."""
        return self.name, self.direction, self.element_bytes, self.contracts


def times_table(times: OperatorTimes, operators: Mapping[str, OperatorKind], kernels: Collection[str]) -> TimesTable:
    """Return the table of a file's rows; `kernels` are the names of fused kernels.

    Raises OperatorTimesError, with file and line, for an unknown name, a multiply without k, and any other kernel
    without a direction.
    """
    places: dict[_Key, dict[Shape, int]] = {}
    for position, row in enumerate(times.rows):
        _check(row, f"{times.file}:{row.line}", operators, kernels)
        for direction in row.directions:
            key = row.operator, direction, DTYPES.get(row.dtype, _ANY), bool(row.shape[2])
            of_kernel = places.setdefault(key, {})
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
            width = _element_bytes(shape.narrow, assumptions)
            sizes = numbers(*_sizes(multiply))
            found.append(Measurable(multiply.operator, shape.kernel, shape.direction, index, width, sizes, True))
    for index, kernel in enumerate(layer.priced_kernels):
        multiplies = kernel.work[FORWARD].multiplies
        if kernel.work[FORWARD].matrix != 0 and not kernel.fused:
            continue
        sizes = numbers(*(_sizes(multiplies[0]) if multiplies else (*kernel.extent, 0, 0)))
        width = _element_bytes(any(multiply.linear and not multiply.wide for multiply in multiplies), assumptions)
        for direction in (FORWARD, BACKWARD):
            if _has_work(kernel, direction):
                inner = bool(multiplies) and not multiplies[0].linear
                found.append(Measurable(kernel.title, index, direction, None, width, sizes, bool(multiplies), inner))
    return found


def _element_bytes(narrow: bool, assumptions: AssumptionsSpec) -> int:
    fewer = narrow and assumptions.linear_dtype != BF16
    return DTYPES[assumptions.linear_dtype] if fewer else assumptions.activation_bytes


def _multiplies(layer: DerivedLayer) -> list[Multiply]:
    return [m for direction in (FORWARD, BACKWARD) for k in layer.priced_kernels for m in k.work[direction].multiplies]


def _sizes(multiply: Multiply) -> tuple[Any, ...]:
    return multiply.rows, multiply.columns, multiply.contracted, multiply.batch


def _has_work(kernel: KernelCosts, direction: int) -> bool:
    work = kernel.work[direction]
    return kernel.runs and any(amount != 0 for amount in (work.matrix, work.vector, work.bytes))
