"""The time of a kernel at one shape, from its measured times at others.

What is interpolated is the efficiency: the measured time over the roofline of the device's peaks. A roofline has the
orders of magnitude of a time, so the logarithm of this ratio varies little with the logarithms of the sizes. Between
measured shapes it is the sum of distances to them that has the measured value at each, up to a constant (radial basis
functions |x|; Powell, Algorithms for Approximation, 1987). Along one size this is linear interpolation between
neighbours. Beyond the smallest or the largest measured value of a size, the ratio is that at the nearest shape within.

At another shape the FLOPs of a kernel are in proportion to the product of its sizes, and its bytes to the elements of
its operands and its result.

Not modelled: parameters of the assumption set, so that an interpolated time does not depend on them; tiles and waves
between measured shapes.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsx.hardware.device import Device
from dsx.records import Bool, Float, Int


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


def _distances(left: Float[np.ndarray, "4 left"], right: Float[np.ndarray, "4 right"]) -> np.ndarray:
    """Return the [left, right] distances of shapes: the root of the sum of squares of their logarithmic ratios."""
    squares = np.zeros((left.shape[1], right.shape[1]))
    for one, other in zip(np.log(np.maximum(left, 1.0)), np.log(np.maximum(right, 1.0)), strict=True):
        squares += (one[:, None] - other) ** 2
    return np.sqrt(squares)


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
    found = (samples.weights(amounts.sizes) * ratios).sum(axis=1)
    return amounts.roofline(device) * np.exp(np.clip(found, ratios.min(axis=1), ratios.max(axis=1)))
