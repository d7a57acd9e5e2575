"""Checks a schedule against a graph and devices, from their definitions alone: it shares nothing with the searches."""

from itertools import pairwise

from dsx.operator_placement.devices import Devices
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.schedule import Schedule

_ROUNDING = 1e-9  # of the makespan


def violations(graph: OpGraph, devices: Devices, schedule: Schedule) -> list[str]:
    """Return what a schedule breaks; empty for a valid one."""
    device, start = schedule.device.tolist(), schedule.start_s.tolist()
    slack = _ROUNDING * max(schedule.makespan_s, 1e-12)
    name = graph.ids
    seconds = [
        float(graph.seconds[op][device[op] if graph.seconds.shape[1] > 1 else 0]) / devices.speeds[device[op]]
        for op in range(graph.num_ops)
    ]
    end = [begin + own for begin, own in zip(start, seconds, strict=True)]
    found = [f"operator {name[op]} starts at {begin} s" for op, begin in enumerate(start) if begin < -slack]
    for (source, target), tensors in graph.edges.items():
        num_bytes = float(sum(graph.tensor_bytes[tensor] for tensor in tensors))
        there = end[source] + _transfer_s(devices, device[source], device[target], num_bytes)
        if start[target] < there - slack:
            found.append(f"operator {name[target]} starts before {name[source]} has ended and its tensors have arrived")
    for one in range(devices.count):
        own = sorted((start[op], end[op], op) for op in range(graph.num_ops) if device[op] == one)
        busy = [entry for entry in own if entry[1] > entry[0]]
        found += [
            f"operators {name[before[2]]} and {name[after[2]]} run at once on device {one}"
            for before, after in pairwise(busy)
            if after[0] < before[1] - slack
        ]
        held = sum(float(graph.memory_bytes[op]) for _, _, op in own)
        if devices.memory_bytes is not None and held > devices.memory_bytes:
            found.append(f"device {one} needs {held:.0f} bytes of {devices.memory_bytes:.0f}")
    by_label: dict[int, int] = {}
    for op, label in enumerate(graph.together.tolist()):
        if by_label.setdefault(label, device[op]) != device[op]:
            found.append(f"operator {name[op]} is apart from those that it shares a device with")
    if abs(max(end, default=0.0) - schedule.makespan_s) > slack:
        found.append(f"the last operator ends at {max(end, default=0.0)} s, not {schedule.makespan_s} s")
    return found


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
