"""Headroom: predictions of memory have errors, so a search leaves room, and a plan fits with some probability.

What a plan keeps on the host is known better than what a GPU holds, so it needs no margin: `host_memory_share` says
what a job has of the host's memory.

The assumption set states quantiles of measured / predicted peak memory. Between and beyond them the logarithm of the
ratio is taken as normal, with a deviation of its own on either side of the median.
"""

import math
from statistics import NormalDist
from typing import Any, NamedTuple

from dsx.cost.assumptions import Assumptions
from dsx.cost.columns import StepCosts
from dsx.cost.offload import usable_host_bytes
from dsx.cost.shapes import PerPlan
from dsx.hardware.cluster import Cluster
from dsx.spec.known_errors import MemoryIntervalSpec

_NORMAL = NormalDist()
_TAIL = _NORMAL.inv_cdf(0.9)  # deviations from the median to the outer quantiles


class Room(NamedTuple):
    """The most bytes that a plan which a search keeps may need."""

    gpu: PerPlan  # of a GPU, as predicted
    host: PerPlan  # of the host, for each GPU

    def holds(self, costs: StepCosts) -> Any:
        """Return whether plans fit."""
        return (costs.peak_bytes <= self.gpu) & (costs.host_bytes <= self.host)


def room(cluster: Cluster, assumptions: Assumptions, num_gpus: PerPlan) -> Room:
    """Return the room of plans with so many GPUs."""
    gpu = cluster.device.hbm_capacity / (1.0 + assumptions.memory_margin)
    return Room(gpu, usable_host_bytes(num_gpus, cluster.node, assumptions))


def probability_of_fitting(interval: MemoryIntervalSpec, peak_bytes: float, hbm_capacity: float) -> float:
    """Return the probability that a plan with this predicted peak fits in the memory of a GPU."""
    above = math.log(hbm_capacity / peak_bytes / interval.median)
    side = interval.high / interval.median if above > 0 else interval.median / interval.low
    deviation = math.log(side) / _TAIL
    return _NORMAL.cdf(above / deviation) if deviation else float(above >= 0)
