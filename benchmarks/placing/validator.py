"""What schedules and allocations break, from the definitions alone: the validator shares nothing with the searches."""

from itertools import pairwise

import numpy as np

from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices, ServerNetwork
from dsx.placement.timetable import OperatorSchedule

_ROUNDING = 1e-9  # of the makespan


def violations(graph: OpGraph, devices: Devices, schedule: OperatorSchedule) -> list[str]:
    """Return what a schedule breaks; empty for a valid one."""
    device, start = schedule.device.tolist(), schedule.start_s.tolist()
    slack = _ROUNDING * max(schedule.makespan_s, 1e-12)
    name = graph.ids
    seconds = [
        float(graph.seconds[op][device[op] if graph.seconds.shape[1] > 1 else 0]) / devices.speeds[device[op]]
        for op in range(graph.num_ops)
    ]
    end = [begin + duration for begin, duration in zip(start, seconds, strict=True)]
    broken = [f"operator {name[op]} starts at {begin} s" for op, begin in enumerate(start) if begin < -slack]
    for (source, target), tensors in graph.edges.items():
        num_bytes = float(sum(graph.tensor_bytes[tensor] for tensor in tensors))
        arrival = end[source] + _transfer_s(devices, device[source], device[target], num_bytes)
        if start[target] < arrival - slack:
            broken.append(
                f"operator {name[target]} starts before {name[source]} has ended and its tensors have arrived"
            )
    for number in range(devices.count):
        ops = sorted((start[op], end[op], op) for op in range(graph.num_ops) if device[op] == number)
        busy = [run for run in ops if run[1] > run[0]]
        broken += [
            f"operators {name[first[2]]} and {name[second[2]]} run at once on device {number}"
            for first, second in pairwise(busy)
            if second[0] < first[1] - slack
        ]
        held = sum(float(graph.memory_bytes[op]) for _, _, op in ops)
        if devices.memory_bytes is not None and held > devices.memory_bytes:
            broken.append(f"device {number} needs {held:.0f} bytes of {devices.memory_bytes:.0f}")
    by_label: dict[int, int] = {}
    for op, label in enumerate(graph.together.tolist()):
        if by_label.setdefault(label, device[op]) != device[op]:
            broken.append(f"operator {name[op]} is apart from those that it shares a device with")
    if abs(max(end, default=0.0) - schedule.makespan_s) > slack:
        broken.append(f"the last operator ends at {max(end, default=0.0)} s, not {schedule.makespan_s} s")
    return broken


def _transfer_s(devices: Devices, source: int, target: int, num_bytes: float) -> float:
    """Return the seconds of a transfer over the innermost unit that both devices share, or between two servers."""
    if source == target or num_bytes <= 0.0:
        return 0.0
    level = next((at for at, size in enumerate(devices.units) if source // size == target // size), len(devices.units))
    link = devices.links[level]
    size = devices.units[0] if devices.units else 1
    if devices.between is None or source // size == target // size:
        return link.latency_s + num_bytes / link.bandwidth
    bandwidth = devices.between[source // size][target // size]
    return link.latency_s + num_bytes / bandwidth if bandwidth > 0.0 else float("inf")


def excesses(network: ServerNetwork, bandwidth: np.ndarray) -> list[str]:
    """Return what an allocation of [S, S] bytes/s breaks; empty for a valid one."""
    broken = [
        f"server {server} sends {sum(row)} bytes/s of {network.total}"
        for server, row in enumerate(bandwidth.tolist())
        if sum(row) > network.total
    ]
    broken += [f"bandwidth from {a} to {b} is {bandwidth[a, b]}" for a, b in np.argwhere(~(bandwidth >= 0.0)).tolist()]
    return broken
