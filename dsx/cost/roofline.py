"""The roofline of a kernel: the larger of compute and memory time, with a launch.

T_flop = launch + F_matrix / (eff * share * clock * P_matrix) + F_vector / (eff * P_vector), T_mem = bytes / (eff * BW)
(arXiv 2410.00273, section 3 and its released code). `share` is what a single large multiply was measured to sustain of
the data sheet's peak, if `matrix_ceiling` is "sustained", and 1 if it is "data_sheet". F_matrix counts the FLOPs of
each multiply times its slowdown (dsx.cost.multiply). A launch precedes compute and traffic, of which the longer counts;
traffic hides the fraction `launch_hidden` of it. A device with a power limit below its data sheet has a lower clock:
power rises with the cube of the clock if voltage follows (Weiser, Welch, Demers, Shenker, OSDI 1994).
"""

from dsx.cost import xp
from dsx.cost.assumptions import SUSTAINED, Assumptions
from dsx.hardware.device import Device
from dsx.records import Array, ArrayLike, Float


def sustained_flops(device: Device, assumptions: Assumptions) -> ArrayLike:
    """Return the matrix FLOP/s of a large multiply at the clock of the device's power limit."""
    share = ceiling_share(device, assumptions) / assumptions.kernel_slowdown
    return share * device.matrix_flops * device.power_share**assumptions.clock_exponent


def ceiling_share(device: Device, assumptions: Assumptions) -> ArrayLike:
    """Return the share of `matrix_flops` that a large multiply of 16 bits reaches at the full clock."""
    return assumptions.matrix_efficiency * sustained_share(device.sustained_share, assumptions)


def sustained_share(stated: ArrayLike, assumptions: Assumptions) -> ArrayLike:
    """Return the share of a peak at the ceiling, from what a device states of it; 0 if it states none."""
    if assumptions.matrix_ceiling != SUSTAINED:
        return 1.0
    return xp.where(stated > 0.0, stated, assumptions.sustained_share)


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
