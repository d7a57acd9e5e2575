"""Schedules: when each operator starts, and on which device. One runs at a time on a device, without interruption.

What takes no time may run beside another one. A transfer between devices starts when its operator ends, and has the
whole link.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsx.operator_placement.devices import Devices
from dsx.operator_placement.op_graph import OpGraph


@dataclass(frozen=True, eq=False)
class Schedule:
    """A placement with the start of each operator."""

    device: np.ndarray  # [N]
    start_s: np.ndarray  # [N]
    makespan_s: float


class Timing:
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

    def in_order(self, placement: Sequence[int], order: Sequence[int]) -> Schedule:
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
        return Schedule(np.asarray(placement), np.array(start), max(end, default=0.0))

    def by_priority(self, placement: Sequence[int], priority: Sequence[float]) -> Schedule:
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
        return Schedule(np.asarray(placement), np.array(start), max(end, default=0.0))

    def best(self, placement: Sequence[int], *starts: Sequence[float]) -> Schedule:
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


def longest_s(timing: Timing) -> float:
    """Return seconds that no schedule without needless waiting exceeds: all operators and transfers in turn."""
    sent = sum(map(timing.devices.worst_s, timing.graph.edge_bytes.values()))
    return sum(map(max, timing.seconds)) + sent
