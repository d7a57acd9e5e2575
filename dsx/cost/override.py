"""Measured times in place of the roofline.

The time of a measured multiply replaces its compute, its launch and its traffic, casts included; the roofline prices
the rest of its kernel. A multiply and the multiplies of its two gradients read and write the same three tensors, so
each multiply of a kernel has an equal share of the kernel's launches and bytes. The time of a measured kernel replaces
its compute and exposed memory time. The accumulation of weight gradients over microbatches is no part of either.
Without measured times, all functions here return their arguments, and nothing is compiled.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from dsx.cost import xp
from dsx.cost.assumptions import BF16, Assumptions
from dsx.cost.multiply import accumulated_bytes, cast_bytes, per_kernel, slowdowns
from dsx.cost.roofline import compute_time, exposed_memory_time, memory_time
from dsx.cost.shapes import PerKernel, PerMultiply
from dsx.cost.work import LayerWork
from dsx.graph.derived import BACKWARD
from dsx.hardware.cluster import Cluster
from dsx.records import Array, Float


def unmeasured(work: LayerWork) -> LayerWork:
    """Return the work without the multiplies that have a measured time."""
    if work.measured is None:
        return work
    known = ~xp.isnan(work.measured.multiplies)
    share = xp.where(known, share_of_kernel(work)[:, None], xp.zeros_like(work.multiplies.flops))
    left = 1.0 - per_kernel(share, work.multiply_shapes, work.matrix.shape[1])
    flops = xp.where(known, work.multiplies.flops, xp.zeros_like(work.multiplies.flops))
    return replace(
        work,
        matrix=work.matrix - per_kernel(flops, work.multiply_shapes, work.matrix.shape[1]),
        bytes=work.bytes * left,
        launches=work.launches * left,
        multiplies=replace(
            work.multiplies,
            flops=work.multiplies.flops - flops,
            # Nothing is cast for it, but its result is accumulated.
            contracted=xp.where(known, xp.zeros_like(work.multiplies.flops), work.multiplies.contracted),
        ),
    )


def measured_or(
    work: LayerWork, compute: PerKernel, memory: PerKernel, cluster: Cluster, assumptions: Assumptions
) -> tuple[PerKernel, PerKernel]:
    """Return compute and exposed memory time with measured times, from those of the `unmeasured` work."""
    if work.measured is None:
        return compute, memory
    shapes, num_kernels = work.multiply_shapes, work.matrix.shape[1]
    multiplies = per_kernel(xp.nan_to_num(work.measured.multiplies), shapes, num_kernels)
    accumulated = per_kernel(accumulated_bytes(work.multiplies, shapes, assumptions), shapes, num_kernels)
    kernels = work.measured.kernels
    return (
        xp.where(xp.isnan(kernels), compute + multiplies, kernels),
        xp.where(xp.isnan(kernels), memory, memory_time(accumulated, cluster.device, assumptions)),
    )


def weight_gradients_or(
    work: LayerWork, gradients: Float[Array, "kernels works"], modelled: tuple[PerKernel, PerKernel]
) -> Float[Array, "kernels works"]:
    """Return the seconds of the multiplies that compute weight gradients, from those of the `unmeasured` work.

    They have the same share of a measured kernel as of its `modelled` compute and exposed memory time.
    """
    if work.measured is None:
        return gradients
    shapes = work.multiply_shapes
    of_weight = np.array([[float(shape.of_weight)] for shape in shapes]).reshape(-1, 1)
    multiplies = per_kernel(xp.nan_to_num(work.measured.multiplies) * of_weight, shapes, work.matrix.shape[1])[BACKWARD]
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
