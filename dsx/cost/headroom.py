"""Headroom: predictions of memory have errors, so a search leaves room, and a plan fits with some probability.

The assumption set states quantiles of measured / predicted peak memory. Between and beyond them the logarithm of the
ratio is taken as normal, with a deviation of its own on either side of the median.
"""

import math
from statistics import NormalDist

from dsx.cost.assumptions import Assumptions
from dsx.cost.shapes import PerPlan
from dsx.hardware.device import Device
from dsx.spec.known_errors import MemoryIntervalSpec

_NORMAL = NormalDist()
_TAIL = _NORMAL.inv_cdf(0.9)  # deviations from the median to the outer quantiles


def usable_bytes(device: Device, assumptions: Assumptions) -> PerPlan:
    """Return the largest predicted peak [bytes] of a plan that a search keeps."""
    return device.hbm_capacity / (1.0 + assumptions.memory_margin)


def probability_of_fitting(interval: MemoryIntervalSpec, peak_bytes: float, hbm_capacity: float) -> float:
    """Return the probability that a plan with this predicted peak fits in the memory of a GPU."""
    above = math.log(hbm_capacity / peak_bytes / interval.median)
    side = interval.high / interval.median if above > 0 else interval.median / interval.low
    deviation = math.log(side) / _TAIL
    return _NORMAL.cdf(above / deviation) if deviation else float(above >= 0)
