"""The program of placement for CP-SAT, without its transfers: where units are, when operators run, what devices hold.

A literal places a unit on a device. An operator has an interval on each device, there if its unit is there, and the
intervals of a device do not overlap: so the order is free (the sources' P1 fixes it). Operators that take no time run
beside others.

Times are whole ticks, rounded down (`ticks.py`).
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dsx.operator_placement.devices import Devices
from dsx.operator_placement.memory import limit_memory
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.schedule import op_seconds
from dsx.operator_placement.ticks import Ticks

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


class Program:
    """Variables of the placement of a graph and its schedule."""

    def __init__(self, graph: OpGraph, devices: Devices, unit: Sequence[int], longest_s: float, ticks: Ticks) -> None:
        """Make the variables of makespans up to `longest_s`; `unit` has the unit of each operator."""
        from ortools.sat.python import cp_model

        self.graph, self.devices, self.unit = graph, devices, list(unit)
        self.num_units = max(self.unit, default=-1) + 1
        self.ticks, self.longest = ticks, ticks.of(longest_s) + 1
        self.durations = [[ticks.of(own) for own in row] for row in op_seconds(graph, devices).tolist()]  # [N][D]
        self.model = cp_model.CpModel()
        self.place = [
            [self.model.new_bool_var(f"unit {one} on {device}") for device in range(devices.count)]
            for one in range(self.num_units)
        ]
        for row in self.place:
            self.model.add_exactly_one(row)
        self.makespan = self.model.new_int_var(self._path, self.longest, "makespan")
        self.model.minimize(self.makespan)
        self.start = [
            self.model.new_int_var(head, self.longest - tail, f"start {op}")
            for op, (head, tail) in enumerate(zip(self._heads, self._tails, strict=True))
        ]
        self._run_one_at_a_time()
        self._end_before_the_makespan()
        self._fit_into_memory()

    def sent(self, seconds: float) -> int:
        """Return the ticks of a transfer; one that is longer than all schedules that count is cut short to that."""
        return self.longest + 1 if seconds > self.longest * self.ticks.seconds else self.ticks.of(seconds)

    @cached_property
    def _least(self) -> list[int]:
        return [min(own) for own in self.durations]

    @cached_property
    def _heads(self) -> list[int]:
        """Least ticks before each operator."""
        found = [0] * self.graph.num_ops
        for op in self.graph.order:
            found[op] = max((found[one] + self._least[one] for one in self.graph.predecessors[op]), default=0)
        return found

    @cached_property
    def _tails(self) -> list[int]:
        """Least ticks from the start of each operator to the end of the step."""
        found = [0] * self.graph.num_ops
        for op in reversed(self.graph.order):
            found[op] = self._least[op] + max((found[one] for one in self.graph.successors[op]), default=0)
        return found

    @property
    def _path(self) -> int:
        return max(self._tails, default=0)

    def end(self, op: int) -> "cp_model.LinearExpr":
        """Return the ticks at which an operator ends."""
        from ortools.sat.python import cp_model

        own = self.durations[op]
        if len({*own}) == 1:
            return self.start[op] + own[0]
        return self.start[op] + cp_model.LinearExpr.weighted_sum(self.place[self.unit[op]], own)

    def _run_one_at_a_time(self) -> None:
        for device in range(self.devices.count):
            busy = [
                self.model.new_optional_fixed_size_interval_var(
                    self.start[op], own[device], self.place[self.unit[op]][device], f"run {op} on {device}"
                )
                for op, own in enumerate(self.durations)
                if own[device]
            ]
            self.model.add_no_overlap(busy)
            work = [0] * self.num_units
            for op, own in enumerate(self.durations):
                work[self.unit[op]] += own[device]
            load = sum(ticks * self.place[one][device] for one, ticks in enumerate(work) if ticks)
            self.model.add(load <= self.makespan)

    def _end_before_the_makespan(self) -> None:
        for op, others in enumerate(self.graph.successors):
            if not others:
                self.model.add(self.end(op) <= self.makespan)

    def _fit_into_memory(self) -> None:
        needs = np.bincount(self.unit, self.graph.memory_bytes, self.num_units)
        limit_memory(self.model, self.place, needs, self.devices.memory_bytes)

    def starts_in_order(
        self, placement: Sequence[int], order: Sequence[int], sent: Mapping[tuple[int, int], int]
    ) -> list[int]:
        """Return starts in ticks, where each device runs its operators in an order; `sent` has ticks of transfers."""
        free, start, end = [0] * self.devices.count, [0] * len(order), [0] * len(order)
        for op in order:
            device = placement[op]
            own = self.durations[op][device]
            begin = free[device] if own else 0
            for other in self.graph.predecessors[op]:
                begin = max(begin, end[other] + sent[other, op])
            start[op], end[op] = begin, begin + own
            if own:
                free[device] = end[op]
        return start

    def hint(self, placement: Sequence[int], start: Sequence[int]) -> None:
        """Hint the device and the start of each operator, and the makespan."""
        for one, device in {self.unit[op]: device for op, device in enumerate(placement)}.items():
            for other, literal in enumerate(self.place[one]):
                self.model.add_hint(literal, other == device)
        for op, begin in enumerate(start):
            self.model.add_hint(self.start[op], begin)
        ends = (begin + self.durations[op][placement[op]] for op, begin in enumerate(start))
        self.model.add_hint(self.makespan, max(ends, default=0))
