"""Schedules of a placement: when each operator starts, by HEFT; checked by a validator of its own, and bounded.

Schedules: when each operator starts, and on which device. One runs at a time on a device, without interruption.

What takes no time may run beside another one. A transfer between devices starts when its operator ends, and has the
whole link.

Checks a schedule against a graph and devices, from their definitions alone: it shares nothing with the searches.

Heterogeneous earliest finish time, with insertion (Topcuoglu et al., 2002), for operators that units keep together.

Operators are placed by their ranks, the largest first, each where it ends first, in a gap of a device if one is long
enough. The first operator of a unit places all of it.

Bounds below the shortest step of a graph as it is: its critical path, and its load.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices


@dataclass(frozen=True, eq=False)
class OperatorSchedule:
    """A placement with the start of each operator."""

    device: np.ndarray  # [N]
    start_s: np.ndarray  # [N]
    makespan_s: float


class GraphTimes:
    """A graph on devices, as lists that loops read: seconds of operators, transfers of their inputs."""

    def __init__(self, graph: OpGraph, devices: Devices) -> None:
        self.graph, self.devices = graph, devices
        self.seconds: list[list[float]] = op_seconds(graph, devices).tolist()  # [N][D]
        self.level: list[list[int]] = devices.level.tolist()  # from a device (row) to another
        self.level_from: list[list[int]] = devices.level.T.tolist()  # to a device (row) from another
        # Of each operator, the operators that it takes from, with the seconds of a transfer by the number of the link.
        self.inputs: list[list[tuple[int, list[float]]]] = [[] for _ in range(graph.num_ops)]
        self.outputs: list[list[tuple[int, list[float]]]] = [[] for _ in range(graph.num_ops)]
        known: dict[float, list[float]] = {}
        for (source, target), num_bytes in graph.edge_bytes.items():
            if num_bytes not in known:
                known[num_bytes] = [*(link.seconds(num_bytes) for link in devices.numbered_links), 0.0]
            self.inputs[target].append((source, known[num_bytes]))
            self.outputs[source].append((target, known[num_bytes]))

    @property
    def times_s(self) -> set[float]:
        """All seconds of operators and transfers."""
        return {time for row in (*self.seconds, *(costs for own in self.inputs for _, costs in own)) for time in row}

    @cached_property
    def place_in_order(self) -> list[int]:
        """The place of each operator in the topological order of the graph."""
        places = [0] * self.graph.num_ops
        for place, op in enumerate(self.graph.order):
            places[op] = place
        return places

    def ranks(self, placement: Sequence[int] | None = None) -> list[float]:
        """Return the longest time from the start of each operator to the end of the step.

        Transfers are those of a placement; without one, each takes the mean over all pairs of devices, and an operator
        the mean over devices (HEFT: Topcuoglu et al., 2002).
        """
        found = [0.0] * self.graph.num_ops
        levels = [level for row in self.level for level in row]
        # Not all numbers are those of links that exist: one from a server to itself is endless.
        shares = [(level, levels.count(level) / len(levels)) for level in sorted({*levels})]
        for op in reversed(self.graph.order):
            longest = 0.0
            for other, costs in self.outputs[op]:
                if placement is None:
                    sent = sum(share * costs[level] for level, share in shares)
                else:
                    sent = costs[self.level[placement[op]][placement[other]]]
                longest = max(longest, found[other] + sent)
            own = self.seconds[op]
            found[op] = longest + (sum(own) / len(own) if placement is None else own[placement[op]])
        return found

    def order_of(self, placement: Sequence[int], start_s: Sequence[float]) -> list[int]:
        """Return the operators by their starts, each after those that it depends on."""
        return sorted(range(self.graph.num_ops), key=lambda op: (start_s[op], self.place_in_order[op]))

    def in_order(self, placement: Sequence[int], order: Sequence[int]) -> OperatorSchedule:
        """Return the schedule in which each device runs its operators in an order, as soon as it can."""
        level, seconds = self.level_from, self.seconds
        free = [0.0] * self.devices.count
        start, end = [0.0] * len(order), [0.0] * len(order)
        for op in order:
            device = placement[op]
            own, row = seconds[op][device], level[device]
            begin = free[device] if own > 0.0 else 0.0
            for other, costs in self.inputs[op]:
                there = end[other] + costs[row[placement[other]]]
                if there > begin:
                    begin = there
            start[op], end[op] = begin, begin + own
            if own > 0.0:
                free[device] = end[op]
        return OperatorSchedule(np.asarray(placement), np.array(start), max(end, default=0.0))

    def by_priority(self, placement: Sequence[int], priority: Sequence[float]) -> OperatorSchedule:
        """Return the schedule in which a free device runs, of the operators that can start, that of most priority."""
        level, seconds, inputs, outputs = self.level, self.seconds, self.inputs, self.outputs
        count = self.graph.num_ops
        missing = [len(each) for each in inputs]
        ready, start, end = [0.0] * count, [0.0] * count, [0.0] * count
        waiting: list[list[tuple[float, int]]] = [[] for _ in range(self.devices.count)]  # by when they can start
        runnable: list[list[tuple[float, int]]] = [[] for _ in range(self.devices.count)]  # by priority
        free = [0.0] * self.devices.count
        events: list[tuple[float, int]] = []  # when a device may start something

        def arrives(op: int) -> None:
            device = placement[op]
            heapq.heappush(waiting[device], (ready[op], op))
            heapq.heappush(events, (max(ready[op], free[device]), device))

        for op, number in enumerate(missing):
            if not number:
                arrives(op)
        while events:
            now, device = heapq.heappop(events)
            if free[device] > now:
                continue
            while waiting[device] and waiting[device][0][0] <= now:
                _, op = heapq.heappop(waiting[device])
                heapq.heappush(runnable[device], (-priority[op], op))
            if not runnable[device]:
                continue
            _, op = heapq.heappop(runnable[device])
            start[op], end[op] = now, now + seconds[op][device]
            free[device] = end[op]
            heapq.heappush(events, (end[op], device))
            row = level[device]
            for other, costs in outputs[op]:
                there = end[op] + costs[row[placement[other]]]
                if there > ready[other]:
                    ready[other] = there
                missing[other] -= 1
                if not missing[other]:
                    arrives(other)
        return OperatorSchedule(np.asarray(placement), np.array(start), max(end, default=0.0))

    def best(self, placement: Sequence[int], *starts: Sequence[float]) -> OperatorSchedule:
        """Return the shortest schedule found of a placement: by priority, then in the order of starts."""
        found = self.by_priority(placement, self.ranks(placement))
        for start_s in (*starts, found.start_s.tolist()):
            made = self.in_order(placement, self.order_of(placement, start_s))
            while made.makespan_s < found.makespan_s * (1 - 1e-12):
                found = made
                made = self.in_order(placement, self.order_of(placement, found.start_s.tolist()))
        return found


def op_seconds(graph: OpGraph, devices: Devices) -> np.ndarray:
    """Return the seconds of each operator on each device, [N, D]."""
    return np.broadcast_to(graph.seconds, (graph.num_ops, devices.count)) / np.array(devices.speeds)


def longest_s(timing: GraphTimes) -> float:
    """Return seconds that no schedule without needless waiting exceeds: all operators and transfers in turn."""
    sent = sum(map(timing.devices.worst_s, timing.graph.edge_bytes.values()))
    return sum(map(max, timing.seconds)) + sent


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


def heft(
    timing: GraphTimes,
    unit: Sequence[int],
    ranks: Sequence[float] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> OperatorSchedule | None:
    """Return the schedule; None if memory has no room for a unit that is due, and at `stop`.

    `unit` has the unit of each operator.
    """
    graph, devices = timing.graph, timing.devices
    ranks = timing.ranks() if ranks is None else ranks
    # Operators that take no time have the rank of a successor, so the order of the graph decides.
    order = sorted(range(graph.num_ops), key=lambda op: (-ranks[op], timing.place_in_order[op]))
    needs = np.bincount(unit, graph.memory_bytes).tolist()
    room = [float("inf") if devices.memory_bytes is None else devices.memory_bytes] * devices.count
    device_of: dict[int, int] = {}
    placement, start, end = ([0] * graph.num_ops, [0.0] * graph.num_ops, [0.0] * graph.num_ops)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(devices.count)]  # (start, end), in order
    for op in order:
        if stop():
            return None
        own = unit[op]
        fixed = device_of.get(own)
        choices = [fixed] if fixed is not None else [d for d in range(devices.count) if room[d] >= needs[own]]
        best: tuple[float, float, int] | None = None
        for device in choices:
            row = timing.level_from[device]
            ready = max((end[other] + costs[row[placement[other]]] for other, costs in timing.inputs[op]), default=0.0)
            begin = _gap(busy[device], ready, timing.seconds[op][device])
            if best is None or begin + timing.seconds[op][device] < best[0]:
                best = begin + timing.seconds[op][device], begin, device
        if best is None:
            return None
        end[op], start[op], placement[op] = best
        if fixed is None:
            device_of[own] = placement[op]
            room[placement[op]] -= needs[own]
        if end[op] > start[op]:
            insort(busy[placement[op]], (start[op], end[op]))
    return OperatorSchedule(np.array(placement), np.array(start), max(end, default=0.0))


def _gap(busy: list[tuple[float, float]], ready: float, seconds: float) -> float:
    """Return the first start, not before `ready`, with so many free seconds after it."""
    place = bisect_left(busy, (ready,))
    begin = max(ready, busy[place - 1][1]) if place else ready
    while place < len(busy) and busy[place][0] - begin < seconds:
        begin = max(begin, busy[place][1])
        place += 1
    return begin


def path_bound_s(graph: OpGraph, devices: Devices) -> float:
    """Return the longest path, each operator on its fastest device and without transfers."""
    least, end = op_seconds(graph, devices).min(axis=1).tolist(), [0.0] * graph.num_ops
    for op in graph.order:
        end[op] = least[op] + max((end[before] for before in graph.predecessors[op]), default=0.0)
    return max(end, default=0.0)


def load_bound_s(graph: OpGraph, devices: Devices) -> float:
    """Return the time that all devices need for all operators if none ever waits."""
    if graph.seconds.shape[1] == 1:
        return float(graph.seconds.sum() / sum(devices.speeds))
    return float(op_seconds(graph, devices).min(axis=1).sum() / devices.count)
