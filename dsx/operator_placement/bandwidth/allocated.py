"""A schedule with the bandwidths that it needs; bandwidths by the cone program, and orders, improve it in turn."""

from dataclasses import dataclass

import numpy as np

from dsx.operator_placement.bandwidth.cone import best_bandwidth
from dsx.operator_placement.bandwidth.network import Network, with_bandwidth
from dsx.operator_placement.devices import Devices
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.schedule import Schedule, Timing

_LESS = 1.0 - 1e-6  # a round that shortens a schedule by less is the last one


@dataclass(frozen=True, eq=False)
class Allocated:
    """A schedule, and the bandwidths that it was timed with."""

    schedule: Schedule
    bandwidth: np.ndarray  # [S, S] bytes/s from server to server


def polished(graph: OpGraph, devices: Devices, network: Network, start: Allocated, rounds: int = 10) -> Allocated:
    """Return the best of bandwidths and orders, each improved for the other in turn; the placement stays."""
    best, placement = start, start.schedule.device.tolist()
    for _ in range(rounds):
        timing = Timing(graph, with_bandwidth(devices, best.bandwidth))
        bandwidth = best_bandwidth(timing, network, best.schedule)
        if bandwidth is None:
            return best
        timing = Timing(graph, with_bandwidth(devices, bandwidth))
        made = timing.best(placement, best.schedule.start_s.tolist())
        last = made.makespan_s > best.schedule.makespan_s * _LESS
        if made.makespan_s < best.schedule.makespan_s:
            best = Allocated(made, bandwidth)
        if last:
            break
    return best
