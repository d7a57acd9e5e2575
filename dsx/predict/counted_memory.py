"""Predicted memory as tools count it: tensors, what the allocator holds, all that the driver reports.

The peak of a plan has three layers. Tensors: weights, gradients, optimizer state, activations. The framework's caching
allocator holds them and free blocks that fit no new tensor (`fragmentation`). The driver counts these, and what is
outside of the allocator: the device context, and buffers of the collective library (`overhead`).
"""

from dsx.cost.assumptions import Assumptions
from dsx.cost.columns import StepCosts
from dsx.cost.shapes import PerPlan
from dsx.runs.measured_memory import ALLOCATED, DEVICE, RESERVED


def counted_memory(costs: StepCosts, assumptions: Assumptions) -> dict[str, PerPlan]:
    """Return the peak bytes of plans by what a tool counts (`dsx.runs.measured_memory`)."""
    return {
        ALLOCATED: costs.peak_bytes - costs.overhead_bytes,
        RESERVED: costs.peak_bytes - assumptions.overhead,
        DEVICE: costs.peak_bytes,
    }
