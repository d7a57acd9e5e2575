"""Measured times of kernels in place of the roofline: those of exactly the shapes of a layer, and interpolated ones.

A kernel that is measured as a whole, or else its single multiplies, take the place of the roofline: whichever is known
better, and the whole kernel where both are known equally well. A single multiply is looked up by its own shape, except
one of two activations inside a fused kernel, which is no kernel of its own. Every other kernel is looked up by its
name. As for the work of a layer, NumPy does this once.

What is interpolated is the efficiency: the measured time over the roofline of the device's peaks. A roofline has the
orders of magnitude of a time, so the logarithm of this ratio varies little with the logarithms of the sizes. Between
measured shapes it is the sum of distances to them that has the measured value at each, up to a constant (radial basis
functions |x|; Powell, Algorithms for Approximation, 1987). Along one size this is linear interpolation between
neighbours. Beyond the smallest or the largest measured value of a size, the ratio is that at the nearest shape within.
At another shape the FLOPs of a kernel are in proportion to the product of its sizes, and its bytes to the elements of
its operands and its result.

The time of a measured multiply replaces its compute, its launch and its traffic, casts included; the roofline prices
the other work of its kernel. A multiply and the multiplies of its two gradients read and write the same three tensors,
so each multiply of a kernel has an equal share of the kernel's launches and bytes. The time of a measured kernel
replaces its compute and exposed memory time. The accumulation of weight gradients over microbatches is no part of
either. Without measured times, prices return their arguments, and nothing is compiled.

Not modelled: parameters of the assumption set, so that an interpolated time does not depend on them; tiles and waves
between measured shapes.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dsx import arrays as xp
from dsx.arrays import PerKernel, PerMultiply, Size
from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.cluster_file import Cluster, Device
from dsx.config.operator_files import DIRECTIONS, DTYPES, OperatorTime, OperatorTimes, Shape
from dsx.cost.context import BF16, Assumptions
from dsx.cost.layer_work import LayerWork, MeasuredTimes, layer_values, multiplies_of, multiply_shapes
from dsx.cost.roofline import (
    accumulated_bytes,
    cast_bytes,
    compute_time,
    exposed_memory_time,
    is_attention,
    memory_time,
    per_kernel,
    slowdowns,
)
from dsx.errors import OperatorTimesError, did_you_mean
from dsx.notation.expressions import Expression, evaluate
from dsx.notation.kernels import Multiply
from dsx.notation.operators import OperatorKind
from dsx.notation.work import BACKWARD, FORWARD, DerivedLayer
from dsx.records import Array, Bool, Float, Int, Real


@dataclass(frozen=True)
class Samples:
    """The measured times of kernels of one name, direction and type."""

    rows: Int[np.ndarray, "rows"]  # positions in the file
    sizes: Float[np.ndarray, "4 rows"]  # m, n, k, batch; all different
    seconds: Float[np.ndarray, "rows"]

    def beyond(self, sizes: Float[np.ndarray, "4 shapes"]) -> Bool[np.ndarray, "shapes"]:
        """Return whether a size of a shape is outside of the measured ones."""
        low, high = self.sizes.min(axis=1, keepdims=True), self.sizes.max(axis=1, keepdims=True)
        return ((sizes < low) | (sizes > high)).any(axis=0)

    def weights(self, sizes: Float[np.ndarray, "4 shapes"]) -> Float[np.ndarray, "shapes rows"]:
        """Return the weight of each measured logarithm in that of a shape; those of a shape add up to 1."""
        low, high = self.sizes.min(axis=1, keepdims=True), self.sizes.max(axis=1, keepdims=True)
        distances = _distances(np.clip(sizes, low, high), self.sizes)
        return (np.column_stack([distances, np.ones(len(distances))]) @ self._inverse)[:, :-1]

    @cached_property
    def _inverse(self) -> Float[np.ndarray, "bordered bordered"]:
        """The inverse of the distances between the measured shapes, bordered by ones for the constant."""
        count = len(self.rows)
        bordered = np.ones((count + 1, count + 1))
        bordered[:-1, :-1] = _distances(self.sizes, self.sizes)
        bordered[-1, -1] = 0.0
        return np.linalg.inv(bordered)


def _distances(shapes: Float[np.ndarray, "4 shapes"], measured: Float[np.ndarray, "4 rows"]) -> np.ndarray:
    """Return the [shapes, rows] distances: the root of the sum of squares of their logarithmic ratios."""
    logarithms, of_measured = (np.log(np.maximum(sizes, 1.0)) for sizes in (shapes, measured))
    return np.sqrt(((logarithms[:, :, None] - of_measured[:, None]) ** 2).sum(axis=0))


@dataclass(frozen=True, slots=True)
class Amounts:
    """What kernels of one name do, each at its own sizes."""

    sizes: Float[np.ndarray, "4 shapes"]  # m, n, k, batch; k and batch are 0 without multiplies
    matrix: Float[np.ndarray, "shapes"]  # FLOPs
    vector: Float[np.ndarray, "shapes"]  # FLOPs
    bytes: Float[np.ndarray, "shapes"]
    inner: bool  # the result of the first multiply stays inside the kernel

    def roofline(self, device: Device) -> Float[np.ndarray, "shapes"]:
        """Return the seconds at the peaks of a device."""
        return _roofline(self.matrix, self.vector, self.bytes, device)

    def rooflines_at(self, sizes: Float[np.ndarray, "4 rows"], device: Device) -> Float[np.ndarray, "shapes rows"]:
        """Return the seconds that each kernel would take at other sizes, at the peaks of a device."""
        flops = _product(sizes) / _product(self.sizes)[:, None]
        moved = _elements(sizes, self.inner) / _elements(self.sizes, self.inner)[:, None]
        matrix, vector, num_bytes = self.matrix[:, None], self.vector[:, None], self.bytes[:, None]
        return _roofline(matrix * flops, vector * flops, num_bytes * moved, device)


def _roofline(matrix: np.ndarray, vector: np.ndarray, num_bytes: np.ndarray, device: Device) -> np.ndarray:
    return np.maximum(matrix / device.matrix_flops + vector / device.vector_flops, num_bytes / device.hbm_bandwidth)


def _product(sizes: np.ndarray) -> np.ndarray:
    return np.maximum(sizes, 1.0).prod(axis=0)


def _elements(sizes: np.ndarray, inner: bool) -> np.ndarray:
    rows, columns, contracted, batch = np.maximum(sizes, 1.0)
    of_result = rows * columns
    operands = np.where(sizes[2] > 0, rows * contracted + contracted * columns, 0.0 * of_result)
    return batch * (operands + (0.0 if inner else of_result))


def interpolated(samples: Samples, amounts: Amounts, device: Device) -> Float[np.ndarray, "shapes"]:
    """Return the seconds of kernels from measured times of their name, direction and type.

    The efficiency is within those that were measured.
    """
    ratios = np.log(samples.seconds / amounts.rooflines_at(samples.sizes, device))
    ratio = (samples.weights(amounts.sizes) * ratios).sum(axis=1)
    return amounts.roofline(device) * np.exp(np.clip(ratio, ratios.min(axis=1), ratios.max(axis=1)))


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

    def named(self, kernel: "Measurable") -> Mapping[Shape, int]:
        """Return the positions of the rows for the name, direction and type of a kernel, by shape.

        Of two rows of one shape, that of the type itself comes before that of any type.
        """
        name, direction, element_bytes, multiplies = kernel.key
        return {
            shape: position
            for width in (_ANY, element_bytes)
            for shape, position in self.places.get((name, direction, width, multiplies), {}).items()
        }

    def samples(self, kernel: "Measurable") -> Samples:
        """Return the same rows as samples to interpolate between; there is at least one."""
        if kernel.key not in self._samples:
            named = self.named(kernel)
            rows = np.array([*named.values()])
            seconds = np.array([self.rows[row].time_s for row in rows])
            self._samples[kernel.key] = Samples(rows, np.array([*named], dtype=float).T, seconds)
        return self._samples[kernel.key]


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
    accepted = sorted({*operators, *kernels})
    for position, row in enumerate(times.rows):
        place = f"{times.file}:{row.line}"
        if row.operator not in accepted:
            near = did_you_mean(row.operator, accepted)
            raise OperatorTimesError(
                f"{place}: operator: unknown operator {row.operator!r}{near} (known: {', '.join(accepted)})"
            )
        if row.operator in operators and operators[row.operator].shape == "contract":
            if not row.shape[2]:
                raise OperatorTimesError(f"{place}: k: is blank; {row.operator} is a multiply of (m x k) by (k x n)")
        elif len(row.directions) > 1:
            raise OperatorTimesError(
                f"{place}: direction: is blank; the two directions of {row.operator} take different times: "
                f"write {' or '.join(DIRECTIONS)}"
            )
        for direction in row.directions:
            key = row.operator, direction, DTYPES.get(row.dtype, _ANY), bool(row.shape[2])
            places.setdefault(key, {}).setdefault(row.shape, position)
    return TimesTable(times.file, times.rows, places)


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

    def numbers(*expressions: Expression) -> Float[np.ndarray, "expressions works"]:
        return np.stack([np.broadcast_to(np.asarray(evaluate(e, values), dtype=float), (count,)) for e in expressions])

    def sizes_of(multiply: Multiply) -> Float[np.ndarray, "4 works"]:
        return numbers(multiply.rows, multiply.columns, multiply.contracted, multiply.batch)

    def element_bytes(narrow: bool) -> int:
        fewer = narrow and assumptions.linear_dtype != BF16
        return DTYPES[assumptions.linear_dtype] if fewer else assumptions.activation_bytes

    kernels: list[Measurable] = []
    for index, (shape, multiply) in enumerate(zip(multiply_shapes(layer), multiplies_of(layer), strict=True)):
        if not is_attention(shape):
            place = shape.kernel, shape.direction, index
            width, sizes = element_bytes(shape.narrow), sizes_of(multiply)
            kernels.append(Measurable(multiply.operator, *place, width, sizes, contracts=True))
    for index, kernel in enumerate(layer.priced_kernels):
        multiplies = kernel.work[FORWARD].multiplies
        if kernel.work[FORWARD].matrix != 0 and not kernel.fused:
            continue
        sizes = sizes_of(multiplies[0]) if multiplies else numbers(*kernel.extent, 0, 0)
        width = element_bytes(any(multiply.linear and not multiply.wide for multiply in multiplies))
        inner = bool(multiplies) and not multiplies[0].linear
        for direction in (FORWARD, BACKWARD):
            work = kernel.work[direction]
            if kernel.runs and any(amount != 0 for amount in (work.matrix, work.vector, work.bytes)):
                place = index, direction, None
                kernels.append(Measurable(kernel.title, *place, width, sizes, bool(multiplies), inner))
    return kernels


def unmeasured(work: LayerWork) -> LayerWork:
    """Return the work without the multiplies that have a measured time."""
    if work.measured is None:
        return work
    measured = ~xp.isnan(work.measured.multiplies)
    share = xp.where(measured, share_of_kernel(work)[:, None], xp.zeros_like(work.multiplies.flops))
    modelled = 1.0 - per_kernel(share, work.multiply_shapes, work.num_kernels)
    flops = xp.where(measured, work.multiplies.flops, xp.zeros_like(work.multiplies.flops))
    return replace(
        work,
        matrix=work.matrix - per_kernel(flops, work.multiply_shapes, work.num_kernels),
        bytes=work.bytes * modelled,
        launches=work.launches * modelled,
        multiplies=replace(
            work.multiplies,
            flops=work.multiplies.flops - flops,
            # Nothing is cast for it, but its result is accumulated.
            contracted=xp.where(measured, xp.zeros_like(work.multiplies.flops), work.multiplies.contracted),
        ),
    )


def measured_or(
    work: LayerWork, compute: PerKernel, memory: PerKernel, cluster: Cluster, assumptions: Assumptions
) -> tuple[PerKernel, PerKernel]:
    """Return compute and exposed memory time with measured times, from those of the `unmeasured` work."""
    if work.measured is None:
        return compute, memory
    shapes, num_kernels = work.multiply_shapes, work.num_kernels
    multiplies = per_kernel(xp.nan_to_num(work.measured.multiplies), shapes, num_kernels)
    accumulated = per_kernel(accumulated_bytes(work.multiplies, shapes, assumptions), shapes, num_kernels)
    kernels = work.measured.kernels
    return (
        xp.where(xp.isnan(kernels), compute + multiplies, kernels),
        xp.where(xp.isnan(kernels), memory, memory_time(accumulated, cluster.device, assumptions)),
    )


def of_weight_gradients(work: LayerWork) -> Float[np.ndarray, "multiplies 1"]:
    """Return 1.0 for each multiply that computes the gradient of a weight, else 0.0."""
    return np.array([[float(shape.of_weight)] for shape in work.multiply_shapes]).reshape(-1, 1)


def weight_gradients_or(
    work: LayerWork, gradients: Float[Array, "kernels works"], modelled: tuple[PerKernel, PerKernel]
) -> Float[Array, "kernels works"]:
    """Return the seconds of the multiplies that compute weight gradients, from those of the `unmeasured` work.

    They have the same share of a measured kernel as of its `modelled` compute and exposed memory time.
    """
    if work.measured is None:
        return gradients
    shapes, of_weight = work.multiply_shapes, of_weight_gradients(work)
    multiplies = per_kernel(xp.nan_to_num(work.measured.multiplies) * of_weight, shapes, work.num_kernels)[BACKWARD]
    busy = (modelled[0] + modelled[1])[BACKWARD]
    kernels = work.measured.kernels[BACKWARD]
    of_kernel = kernels * gradients / xp.where(busy > 0, busy, xp.ones_like(busy))
    return xp.where(xp.isnan(kernels), gradients + multiplies, of_kernel)


def multiply_times(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> PerMultiply:
    """Return the seconds of each multiply on its own by the roofline, its launch included."""
    shapes = work.multiply_shapes
    share = share_of_kernel(work)[:, None]
    where = [shape.direction for shape in shapes], [shape.kernel for shape in shapes]
    launches = work.launches[where] * share
    num_bytes = work.bytes[where] * share
    if assumptions.linear_dtype != BF16:
        num_bytes = num_bytes + cast_bytes(work.multiplies, shapes, assumptions)
    matrix = work.multiplies.flops * slowdowns(work.multiplies, shapes, cluster.device, assumptions)
    compute = compute_time(matrix, xp.zeros_like(matrix), launches, cluster.device, assumptions)
    return compute + exposed_memory_time(num_bytes, compute, launches, cluster.device, assumptions)


def share_of_kernel(work: LayerWork) -> Float[np.ndarray, "multiplies"]:
    """Return the share of each multiply in the launches and bytes of its kernel."""
    places = [(shape.direction, shape.kernel) for shape in work.multiply_shapes]
    count = Counter(places)
    return np.array([1.0 / count[place] for place in places])


NONE = -1  # no row has exactly that shape
# How well a time is known; more is better.
UNKNOWN, EXTRAPOLATED, INTERPOLATED, EXACT = range(4)


@dataclass(frozen=True, slots=True)
class Known:
    """What the rows of a file say about one kernel or multiply, for V works."""

    how: Int[np.ndarray, "works"]  # UNKNOWN to EXACT
    rows: Int[np.ndarray, "works"]  # position of the row of exactly that shape, or `NONE`
    seconds: Float[np.ndarray, "works"]  # NaN where UNKNOWN


def known_times(table: TimesTable, kernels: Sequence[Measurable], work: LayerWork, device: Device) -> list[Known]:
    """Return what a file says about each of `kernels`, those of the work of a layer and its multiplies.

    Of a kernel and its multiplies, only those count whose times are used; the others are UNKNOWN.
    """
    share = share_of_kernel(work)
    times = [_known(table, kernel, _amounts(kernel, work, share), device) for kernel in kernels]
    multiplies: dict[tuple[int, int], np.ndarray] = {}
    for kernel, of_kernel in zip(kernels, times, strict=True):
        if kernel.multiply is not None:
            where = kernel.kernel, kernel.direction
            multiplies[where] = np.maximum(multiplies.get(where, UNKNOWN), of_kernel.how)
    as_one = {
        where: of_kernel.how >= np.maximum(multiplies.get(where, UNKNOWN), EXTRAPOLATED)
        for kernel, of_kernel in zip(kernels, times, strict=True)
        if kernel.multiply is None and (where := (kernel.kernel, kernel.direction))
    }

    def used(kernel: Measurable, of_kernel: Known) -> Known:
        chosen = as_one.get((kernel.kernel, kernel.direction), np.zeros(len(of_kernel.how), dtype=bool))
        chosen = chosen if kernel.multiply is None else ~chosen
        how = np.where(chosen, of_kernel.how, UNKNOWN)
        return Known(how, np.where(chosen, of_kernel.rows, NONE), np.where(how > UNKNOWN, of_kernel.seconds, np.nan))

    return [used(*pair) for pair in zip(kernels, times, strict=True)]


def _amounts(kernel: Measurable, work: LayerWork, share: Float[np.ndarray, "multiplies"]) -> Amounts:
    """Return what a kernel, or one multiply of it, does."""
    num_bytes = np.asarray(work.bytes[kernel.direction, kernel.kernel])
    if kernel.multiply is not None:
        flops = np.asarray(work.multiplies.flops[kernel.multiply])
        return Amounts(kernel.shapes, flops, 0.0 * flops, num_bytes * share[kernel.multiply], kernel.inner)
    matrix, vector = (np.asarray(flops[kernel.direction, kernel.kernel]) for flops in (work.matrix, work.vector))
    return Amounts(kernel.shapes, matrix, vector, num_bytes, kernel.inner)


def _known(table: TimesTable, kernel: Measurable, amounts: Amounts, device: Device) -> Known:
    # Many works are equal.
    amount = np.stack([*amounts.sizes, amounts.matrix, amounts.vector, amounts.bytes])
    distinct, which = np.unique(amount, axis=1, return_inverse=True)
    which = which.reshape(-1)
    count = distinct.shape[1]
    named = table.named(kernel)
    if not named:
        return Known(np.full(len(which), UNKNOWN), np.full(len(which), NONE), np.full(len(which), np.nan))
    rows = np.array([named.get((int(m), int(n), int(k), int(batch)), NONE) for m, n, k, batch in distinct[:4].T])
    how, seconds = np.full(count, EXACT), np.array([table.rows[row].time_s for row in rows])
    between = rows == NONE
    if between.any():
        samples = table.samples(kernel)
        sizes, (matrix, vector, num_bytes) = distinct[:4, between], distinct[4:, between]
        how[between] = np.where(samples.beyond(sizes), EXTRAPOLATED, INTERPOLATED)
        seconds[between] = interpolated(samples, Amounts(sizes, matrix, vector, num_bytes, amounts.inner), device)
    return Known(how[which], rows[which], seconds[which])


def measured_times(table: TimesTable, kernels: Sequence[Measurable], work: LayerWork, device: Device) -> MeasuredTimes:
    """Return the times of the kernels and multiplies of a layer by a file; `kernels` are those that can have one."""
    of_kernels = np.full(work.matrix.shape, np.nan)
    multiplies = np.full(work.multiplies.flops.shape, np.nan)
    for kernel, times in zip(kernels, known_times(table, kernels, work, device), strict=True):
        if kernel.multiply is None:
            of_kernels[kernel.direction, kernel.kernel] = times.seconds
        else:
            multiplies[kernel.multiply] = times.seconds
    return MeasuredTimes(of_kernels, multiplies)
