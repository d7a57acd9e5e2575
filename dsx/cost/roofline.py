"""The roofline of a kernel, the larger of compute and memory time, with a launch; and the slowdown of a multiply.

T_flop = launch + F_matrix / (eff * share * clock * P_matrix) + F_vector / (eff * P_vector), T_mem = bytes / (eff * BW)
(arXiv 2410.00273, section 3 and its released code). `share` is what a single large multiply was measured to sustain of
the data sheet's peak, if `matrix_ceiling` is "sustained", and 1 if it is "data_sheet". F_matrix counts the FLOPs of
each multiply times its slowdown. A launch precedes compute and traffic, of which the longer counts;
traffic hides the fraction `launch_hidden` of it. A device with a power limit below its data sheet has a lower clock:
power rises with the cube of the clock if voltage follows (Weiser, Welch, Demers, Shenker, OSDI 1994).

The slowdown of a matrix multiply: its time over that at the ceiling, `matrix_efficiency`.

A multiply of (m x k) by (k x n), `batch` times, outside a fused kernel:

    x = (1 + tile_latency C / (2 r c k)) * min over tiles of (tile cost * tile waste * wave waste)

A tile computes for 2 r c k / C seconds, with C the ceiling of a multiprocessor at the precision of the multiply and
r x c the first tile of the list; before it loads its first operands, after it writes its result (`tile_latency`). So a
contracted size that is large enough for one generation of devices is not for the next, nor for 8 bits.

A tile of r x c elements of the result costs 1 + tile_half (1/r + 1/c), relative to the first tile of the list: small
tiles load more operands for each multiplication. Tile waste is the work beyond the edges of the result; wave waste is
the idle multiprocessors during the last wave of tiles. A parameter between 0 and 1 for each states the fraction that a
library does not avoid (NVIDIA, Matrix Multiplication Background User's Guide).

Inside a fused kernel, multiplies of two activations (attention) take 1 / attention efficiency times
(d + attention_half) / d, with d their smallest dimension, the head dimension (arXiv 2205.14135, 2307.08691). Where the
device lists kernels that the software has, the fastest reaches a share a of the data sheet's peak at d = 128, so they
take ceiling / a times (d + attention_half) / d * 128 / (128 + attention_half).
Multiplies of an operator with a weight may run in fewer bits, but for those that stay in 16:
x s_m P_m / (s_n P_n fp8_efficiency), with P the peak at 16 bits (m) and at n bits, and s the share of each that large
multiplies sustain; casts of their operands are memory traffic.
"""

import functools

import numpy as np

from dsx import arrays as xp
from dsx.arrays import PerMultiply
from dsx.config.cluster_file import Device
from dsx.cost.context import BF16, SUSTAINED, Assumptions
from dsx.cost.layer_work import Multiplies, MultiplyShape
from dsx.notation.work import FORWARD
from dsx.records import Array, ArrayLike, Bool, Float


def sustained_flops(device: Device, assumptions: Assumptions) -> ArrayLike:
    """Return the matrix FLOP/s of a large multiply at the clock of the device's power limit."""
    share = ceiling_share(device, assumptions) / assumptions.kernel_slowdown
    return share * device.matrix_flops * device.power_share**assumptions.clock_exponent


def ceiling_share(device: Device, assumptions: Assumptions) -> ArrayLike:
    """Return the share of `matrix_flops` that a large multiply of 16 bits reaches at the full clock."""
    return assumptions.matrix_efficiency * sustained_share(device.sustained_share, assumptions)


def sustained_share(share: ArrayLike, assumptions: Assumptions) -> ArrayLike:
    """Return the share of a peak at the ceiling, from what a device states of it; 0 if it states none."""
    if assumptions.matrix_ceiling != SUSTAINED:
        return 1.0
    return xp.where(share > 0.0, share, assumptions.sustained_share)


def compute_time(
    matrix: Float[Array, "*#kernels"],
    vector: Float[Array, "*#kernels"],
    launches: Float[Array, "*#kernels"],
    device: Device,
    assumptions: Assumptions,
) -> Float[Array, "*kernels"]:
    """Return the compute seconds of a kernel, launch included, from its matrix and vector FLOPs."""
    matrix_s = matrix / sustained_flops(device, assumptions)
    vector_s = vector * (assumptions.kernel_slowdown / (assumptions.vector_efficiency * device.vector_flops))
    return launches * assumptions.launch_latency + matrix_s + vector_s


def memory_time(
    num_bytes: Float[Array, "*kernels"], device: Device, assumptions: Assumptions
) -> Float[Array, "*kernels"]:
    """Return the seconds of HBM traffic."""
    return num_bytes * (assumptions.kernel_slowdown / (assumptions.hbm_efficiency * device.hbm_bandwidth))


def exposed_memory_time(
    num_bytes: Float[Array, "*#kernels"],
    compute_s: Float[Array, "*#kernels"],
    launches: Float[Array, "*#kernels"],
    device: Device,
    assumptions: Assumptions,
) -> Float[Array, "*kernels"]:
    """Return the seconds of HBM traffic that `compute_s`, its launches included, does not hide."""
    memory_s = memory_time(num_bytes, device, assumptions)
    before_s = (1.0 - assumptions.launch_hidden) * assumptions.launch_latency * launches
    return xp.maximum(memory_s - (compute_s - before_s), xp.zeros_like(memory_s))


_MEASURED_HEAD = 128.0  # head dimension at which devices state what attention kernels reach


def slowdowns(
    multiplies: Multiplies, shapes: tuple[MultiplyShape, ...], device: Device, assumptions: Assumptions
) -> PerMultiply:
    """Return the time of each multiply over the time of its FLOPs at the ceiling, [M, V]."""
    ones = xp.ones_like(multiplies.rows)
    rows, columns, contracted, batch = (
        xp.maximum(size, ones)
        for size in (multiplies.rows, multiplies.columns, multiplies.contracted, multiplies.batch)
    )
    dtype = _dtype(shapes, device, assumptions)
    fill = 1.0 + _filled(device, assumptions) / (dtype * contracted)
    grouped = xp.where(
        _column([shape.grouped for shape in shapes]), 1.0 / assumptions.grouped_efficiency, xp.ones_like(rows)
    )
    library = grouped * fill * _tiled(rows, columns, batch, device, assumptions) * dtype
    smallest = xp.minimum(xp.minimum(rows, columns), contracted)
    attention = (smallest + assumptions.attention_half) / smallest * _attention(shapes, device, assumptions)
    return xp.where(_column([is_attention(shape) for shape in shapes]), attention, library)


def cast_bytes(multiplies: Multiplies, shapes: tuple[MultiplyShape, ...], assumptions: Assumptions) -> PerMultiply:
    """Return the [M, V] bytes of casting operands to fewer bits: the input of each multiply with a weight.

    The multiply for the gradient of a weight reuses the operands that the other multiplies have cast.
    """
    cast = _column([shape.narrow and not shape.of_weight for shape in shapes])
    operand = multiplies.batch * multiplies.rows * multiplies.contracted
    return xp.where(cast, assumptions.cast_traffic * operand, xp.zeros_like(operand))


def accumulated_bytes(
    multiplies: Multiplies, shapes: tuple[MultiplyShape, ...], assumptions: Assumptions
) -> PerMultiply:
    """Return the [M, V] bytes of accumulating weight gradients over the microbatches of a step."""
    accumulates = _column([shape.of_weight for shape in shapes])
    result = multiplies.batch * multiplies.rows * multiplies.columns
    return xp.where(accumulates, assumptions.accumulation_traffic_per_parameter * result, xp.zeros_like(result))


def is_attention(shape: MultiplyShape) -> bool:
    """Return whether a multiply is one of two activations inside a fused kernel."""
    return shape.fused and not shape.linear


def per_kernel(
    values: PerMultiply, shapes: tuple[MultiplyShape, ...], num_kernels: int
) -> Float[Array, "2 {num_kernels} works"]:
    """Return [2, K, V] sums of [M, V] values over the multiplies of each direction and kernel."""
    if isinstance(values, np.ndarray):
        # A kernel has few of the multiplies: adding these is less work than a product with all, and needs no BLAS.
        sums = np.zeros((2, num_kernels, *values.shape[1:]), values.dtype)
        for shape, of_multiply in zip(shapes, values, strict=True):
            sums[shape.direction, shape.kernel] += of_multiply
        return sums
    member = np.zeros((2, num_kernels, len(shapes)))
    for index, shape in enumerate(shapes):
        member[shape.direction, shape.kernel, index] = 1.0
    return xp.tensordot(member.astype(values.dtype), values, axes=1)


def _filled(device: Device, assumptions: Assumptions) -> ArrayLike:
    """Return the contracted size, in 16 bits, that one tile computes while the pipeline of another fills and drains."""
    if not assumptions.tiles:
        return 0.0
    height, width = assumptions.tiles[0]
    per_sm = xp.where(device.num_sms > 1.0, sustained_flops(device, assumptions) / device.num_sms, 0.0)
    return assumptions.tile_latency * per_sm / (2.0 * height * width)


def _tiled(
    rows: PerMultiply, columns: PerMultiply, batch: PerMultiply, device: Device, assumptions: Assumptions
) -> PerMultiply:
    """Return the time with the best tile over that of a perfect fit of the first tile."""
    loads = [1.0 + assumptions.tile_half * (1.0 / height + 1.0 / width) for height, width in assumptions.tiles]
    times: list[Array] = []
    for (height, width), load in zip(assumptions.tiles, loads, strict=True):
        down, across = xp.ceil(rows / height), xp.ceil(columns / width)
        tiles = batch * down * across
        tile_waste = (down * height) * (across * width) / (rows * columns) - 1.0
        wave_waste = xp.ceil(tiles / device.num_sms) * device.num_sms / tiles - 1.0
        waste = (1.0 + assumptions.tile_quantisation * tile_waste) * (1.0 + assumptions.wave_quantisation * wave_waste)
        times.append(load / loads[0] * waste)
    return functools.reduce(xp.minimum, times) if times else xp.ones_like(rows)


def _dtype(shapes: tuple[MultiplyShape, ...], device: Device, assumptions: Assumptions) -> ArrayLike:
    """Return the [M, 1] times of the multiplies at their precision over those in 16 bits, or one for all."""
    if assumptions.linear_dtype == BF16:
        return 1.0
    narrow_ones = _column([shape.narrow for shape in shapes])
    # The peak of a device in fewer than 16 bits, and the share of it that large multiplies sustain.
    rates = {
        "fp8": (device.fp8_flops, device.fp8_sustained_share),
        "fp4": (device.fp4_flops, device.sustained_share),
        "int8": (device.int8_flops, device.sustained_share),
    }
    peak, share = rates[assumptions.linear_dtype]
    wide = device.matrix_flops * sustained_share(device.sustained_share, assumptions)
    narrow = xp.where(peak > 0, peak * sustained_share(share, assumptions), wide)
    ratio = wide / (narrow * assumptions.fp8_efficiency)
    return xp.where(narrow_ones, ratio, xp.ones_like(ratio))


def _attention(
    shapes: tuple[MultiplyShape, ...], device: Device, assumptions: Assumptions
) -> Float[Array, "multiplies 1"]:
    """Return the time of attention over that of its FLOPs at the ceiling, without the effect of head dimension."""
    directions = (
        (device.attention_forward, assumptions.attention_efficiency),
        (device.attention_backward, assumptions.attention_gradient_efficiency),
    )
    times: list[ArrayLike] = []
    for reached, efficiency in directions:
        has = [xp.where(assumptions.attention_kernels >= age, share, 0.0) for age, share in enumerate(reached, 1)]
        fastest = functools.reduce(xp.maximum, has)
        at_128 = ceiling_share(device, assumptions) * _MEASURED_HEAD / (_MEASURED_HEAD + assumptions.attention_half)
        times.append(xp.where(fastest > 0, at_128 / xp.where(fastest > 0, fastest, 1.0), 1.0 / efficiency))
    return xp.where(_column([shape.direction == FORWARD for shape in shapes]), *times)


def _column(flags: list[bool]) -> Bool[Array, "{len(flags)} 1"]:
    return np.array(flags, dtype=bool).reshape(-1, 1)
