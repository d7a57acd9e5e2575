"""The seconds of traced kernels: the roofline of `dsx.cost`, as for the kernels of layers.

A multiply runs at the device's rate for the precision of training, whatever the type of its arrays. A kernel is
launched once. Not modelled: the host that issues kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions, assumptions_from_spec
from dsx.cost.multiply import slowdowns
from dsx.cost.roofline import compute_time, exposed_memory_time
from dsx.cost.work import Multiplies, MultiplyShape
from dsx.graph.nodes import BACKWARD, FORWARD
from dsx.hardware.cluster import cluster_from_spec
from dsx.hardware.device import Device
from dsx.operator_placement.graph_sources.traced_step import Kernel
from dsx.spec.assumptions import load_assumptions
from dsx.spec.cluster import load_cluster
from dsx.spec.load import Given

DEFAULT_CLUSTER, DEFAULT_ASSUMPTIONS = "h100-nvs8", "default"


@dataclass(frozen=True, slots=True)
class Pricing:
    """What the seconds of a kernel depend on besides its work."""

    device: Device
    assumptions: Assumptions


def pricing_of(cluster: Given, assumptions: Given) -> Pricing:
    """Return the pricing on a device of a cluster under an assumption set; raises SpecError or UnknownNameError."""
    machine = load_cluster(cluster)
    numbers = assumptions_from_spec(load_assumptions(assumptions), machine.device.family)
    return Pricing(cluster_from_spec(machine).device, numbers)


@xp.unchecked
def kernel_seconds(kernels: Sequence[Kernel], pricing: Pricing) -> np.ndarray:
    """Return the seconds of all runs of each kernel, [K]."""
    device, assumptions = pricing.device, pricing.assumptions
    multiplies = [multiply for kernel in kernels for multiply in kernel.multiplies]
    owner = np.repeat(np.arange(len(kernels)), [len(kernel.multiplies) for kernel in kernels])
    matrix = np.zeros(len(kernels))
    if multiplies:
        sizes = Multiplies(
            **{
                name: np.array([[float(getattr(one, name))] for one in multiplies])
                for name in ("rows", "columns", "contracted", "batch", "flops")
            }
        )
        shapes = tuple(
            MultiplyShape(0, BACKWARD if one.backward else FORWARD, False, one.attention, False, False)
            for one in multiplies
        )
        slowed = np.asarray(sizes.flops * slowdowns(sizes, shapes, device, assumptions))[:, 0]
        matrix = np.bincount(owner, slowed, len(kernels))
    launches = np.ones(len(kernels))
    vector = np.array([kernel.vector_flops for kernel in kernels])
    num_bytes = np.array([kernel.num_bytes for kernel in kernels])
    compute_s = np.asarray(compute_time(matrix, vector, launches, device, assumptions))
    exposed_s = np.asarray(exposed_memory_time(num_bytes, compute_s, launches, device, assumptions))
    return (compute_s + exposed_s) * np.array([kernel.runs for kernel in kernels])
