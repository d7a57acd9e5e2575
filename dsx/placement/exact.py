"""Exact search: the shortest schedule of a graph whose units stay together, and a bound below it, by CP-SAT.

Devices and units that may change their names: of placements that differ in names alone, an exact search needs one.

Take of all these the placement whose devices come first, unit by unit in the order of work. It keeps the units with
most work to the first devices, since the names of two devices could be changed else; and among equal units it has no
device after a later one, since the units could be changed. So both may be asked for at once.

The program of placement for CP-SAT, without its transfers: where units are, when operators run, what devices hold.

A literal places a unit on a device. An operator has an interval on each device, there if its unit is there, and the
intervals of a device do not overlap: so the order is free (the sources' P1 fixes it). Operators that take no time run
beside others.

Times are whole ticks, rounded down (`ticks.py`).

Exact search: the shortest schedule of a graph whose units stay together, and a bound below it, by CP-SAT.

This is the sources' P1 (P3 for groups) with a free order (`program.py`). A transfer is cut at each level of links
that it leaves: a literal for each pair of units and level says whether the units are in different parts of that level.
The solver begins with the best schedule that is known.

The bound is that of this graph with these units: that of a reduced graph is none of the graph that it came from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dsx.placement.capacity import limit_memory, run
from dsx.placement.op_graph import OpGraph, Ticks, ticks_for
from dsx.placement.servers import Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule, load_bound_s, longest_s, op_seconds, path_bound_s

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def units_to_place_first(graph: OpGraph, devices: Devices, unit: Sequence[int]) -> list[int]:
    """Return units of which the k-th (from 0) may be kept to the devices up to k: some shortest schedule does.

    With one kind of link these are the units with most work, one less than there are devices. With several levels of
    links any device can be the first one, if all parts of a level are alike, so one unit is kept. Devices that differ
    allow none.
    """
    if not devices.alike or devices.between is not None or graph.seconds.shape[1] > 1 or not graph.num_ops:
        return []
    work = np.bincount(unit, graph.mean_s)
    largest = np.argsort(-work, kind="stable").tolist()
    if len({*devices.used_links}) <= 1:
        return largest[: devices.count - 1]
    sizes = [1, *devices.units, devices.count]
    nested = all(larger % size == 0 for size, larger in pairwise(sizes))
    return largest[:1] if nested else []


def equal_units(graph: OpGraph, unit: Sequence[int]) -> list[list[int]]:
    """Return groups of units that may change places: of one operator, with equal times, memory and edges."""
    members = np.bincount(unit)
    found: dict[object, list[int]] = {}
    for op, own in enumerate(unit):
        if members[own] > 1:
            continue
        before = tuple((other, graph.edge_bytes[other, op]) for other in graph.predecessors[op])
        after = tuple((other, graph.edge_bytes[op, other]) for other in graph.successors[op])
        key = tuple(graph.seconds[op].tolist()), float(graph.memory_bytes[op]), before, after
        found.setdefault(key, []).append(own)
    return [sorted(units) for units in found.values() if len(units) > 1]


def first_of_equal(
    devices: Devices, first: Sequence[int], equal: Sequence[Sequence[int]], device_of: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the device of each unit in the placement that stands for all that differ in names, and whose place it has.

    `first` are the units that are placed first, `device_of` has the device of each unit in the given placement.
    """
    placed, place_of = list(device_of), list(range(len(device_of)))
    while True:
        before = list(placed)
        number = renumbering(devices, [placed[one] for one in first])
        placed = [number[device] for device in placed]
        for units in equal:
            ordered = sorted(units, key=lambda one: placed[one])
            moved = [(placed[one], place_of[one]) for one in ordered]
            for one, (device, place) in zip(units, moved, strict=True):
                placed[one], place_of[one] = device, place
        if placed == before:
            return placed, place_of


def renumbering(devices: Devices, first: Sequence[int]) -> list[int]:
    """Return the new number of each device, given the devices of the units that are placed first.

    These come first in the order of their units. With several levels of links, the first one is moved to the place 0
    in its part of each level.
    """
    if len({*devices.used_links}) <= 1:
        order = list(dict.fromkeys([*first, *range(devices.count)]))
        return [order.index(device) for device in range(devices.count)]
    number = [0] * devices.count
    sizes = [1, *devices.units, devices.count]
    for size, larger in pairwise(sizes):
        for device in range(devices.count):
            moved = device // size - (first[0] // size if first else 0)
            number[device] += moved % (larger // size) * size
    return number


class PlacementProgram:
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


@dataclass(frozen=True, eq=False)
class Exact:
    """The answer of an exact search."""

    schedule: OperatorSchedule | None  # None: none was found, and with `proved` there is none
    bound_s: float  # no schedule of these units is shorter; infinite if memory has no room for any
    proved: bool  # the schedule is as short as can be, but for the gap asked for or rounding
    stopped: bool = False  # by `stop` or Ctrl-C


class Cuts:
    """The literals of pairs of units in different parts of a level, made where a transfer asks for them."""

    def __init__(self, program: PlacementProgram) -> None:
        self.program = program
        self.sizes = [1, *program.devices.units]  # devices in a part of each level
        self.parts: dict[tuple[int, int], list[cp_model.IntVar]] = {}
        self.literals: dict[tuple[int, int, int], cp_model.IntVar] = {}

    def of(self, one: int, other: int, size: int) -> "cp_model.IntVar":
        """Return whether two units are in different parts of so many devices."""
        key = min(one, other), max(one, other), size
        if key not in self.literals:
            model = self.program.model
            cut = self.literals[key] = model.new_bool_var(f"cut {key}")
            for own, its in zip(self.parts_of(key[0], size), self.parts_of(key[1], size), strict=True):
                model.add_bool_or(~own, its, cut)
                model.add_bool_or(own, ~its, cut)
                model.add_bool_or(~own, ~its, ~cut)
        return self.literals[key]

    def parts_of(self, one: int, size: int) -> "list[cp_model.IntVar]":
        """Return literals of the part that has a unit."""
        if size == 1:
            return self.program.place[one]
        if (one, size) not in self.parts:
            model, place = self.program.model, self.program.place[one]
            made = [model.new_bool_var(f"unit {one} in {at} of {size}") for at in range(0, len(place), size)]
            for literal, at in zip(made, range(0, len(place), size), strict=True):
                model.add(sum(place[at : at + size]) == literal)
            self.parts[one, size] = made
        return self.parts[one, size]

    def hint(self, device_of: Sequence[int]) -> None:
        """Hint all literals, given the device of each unit."""
        for (one, other, size), literal in self.literals.items():
            self.program.model.add_hint(literal, device_of[one] // size != device_of[other] // size)
        for (one, size), literals in self.parts.items():
            for part, literal in enumerate(literals):
                self.program.model.add_hint(literal, device_of[one] // size == part)


def solve(
    graph: OpGraph,
    devices: Devices,
    unit: Sequence[int],
    seconds: float,
    gap: float = 0.0,
    hint: OperatorSchedule | None = None,
    stop: Callable[[], bool] = lambda: False,
    seed: int = 0,
) -> Exact:
    """Return the shortest schedule that some seconds find, never longer than `hint`, and a bound below all schedules.

    `unit` has the unit of each operator, which share a device. The search ends early once within `gap`, a share of the
    makespan, of the bound. The hint must keep to the units and to memory. Raises ValueError where pairs of servers have
    bandwidths of their own: `joint.py` is for these.
    """
    if devices.between is not None:
        raise ValueError("the program has one bandwidth a level")
    timing, unit = GraphTimes(graph, devices), np.asarray(unit).tolist()
    most_s = longest_s(timing) if hint is None else hint.makespan_s
    ticks = ticks_for(timing.times_s, most_s)
    program = PlacementProgram(graph, devices, unit, most_s, ticks)
    cuts = Cuts(program)
    costs = _run_after_transfers(program, cuts)
    first, equal = units_to_place_first(graph, devices, unit), equal_units(graph, unit)
    for number, one in enumerate(first):
        for literal in program.place[one][number + 1 :]:
            program.model.add(literal == 0)
    for one, other in (pair for units in equal for pair in pairwise(units)):
        ahead, behind = program.place[one], program.place[other]
        program.model.add(
            sum(at * (here - there) for at, (here, there) in enumerate(zip(ahead, behind, strict=True))) <= 0
        )
    if hint is not None:
        device_of = dict(zip(unit, hint.device.tolist(), strict=True))
        listed = [device_of[one] for one in range(program.num_units)]
        placed, place_of = first_of_equal(devices, first, equal, listed)
        op_of = {one: op for op, one in enumerate(unit)}  # of units that changed places their only operator
        start_s = [hint.start_s[op if place_of[one] == one else op_of[place_of[one]]] for op, one in enumerate(unit)]
        placement, level = [placed[one] for one in unit], timing.level
        order = timing.order_of(placement, start_s)
        sent = {(a, b): own[level[placement[a]][placement[b]]] for (a, b), own in costs.items()}
        program.hint(placement, program.starts_in_order(placement, order, sent))
        cuts.hint(placed)
    answer = run(program.model, seconds, gap, seed, stop)
    if answer.infeasible:
        return Exact(None, np.inf, True)
    best = hint
    if answer.found:
        device = [next(at for at, here in enumerate(row) if answer.solver.boolean_value(here)) for row in program.place]
        start_s = [answer.solver.value(begin) * ticks.seconds for begin in program.start]
        placement = [device[one] for one in unit]
        found = timing.best(placement, start_s)
        if _fits(graph, devices, placement) and (best is None or found.makespan_s < best.makespan_s):
            best = found
    bound_s = max(answer.bound * ticks.seconds, path_bound_s(graph, devices), load_bound_s(graph, devices))
    if best is None:
        return Exact(None, bound_s, False, answer.stopped)
    bound_s = min(bound_s, best.makespan_s)
    proved = best.makespan_s - bound_s <= max(gap * best.makespan_s, ticks.rounding_s(2 * graph.num_ops, most_s))
    return Exact(best, bound_s, proved, answer.stopped)


def _run_after_transfers(program: PlacementProgram, cuts: Cuts) -> dict[tuple[int, int], list[int]]:
    """Let operators wait for their inputs; return the ticks of each edge by the level of its link, 0 at last."""
    model, links = program.model, program.devices.links
    costs: dict[tuple[int, int], list[int]] = {}
    for (source, target), num_bytes in program.graph.edge_bytes.items():
        own = costs[source, target] = [*(program.sent(link.seconds(num_bytes)) for link in links), 0]
        there = program.end(source)
        one, other = program.unit[source], program.unit[target]
        if one != other:
            for at, size in enumerate(cuts.sizes):
                more = own[at] - (own[at - 1] if at else 0)
                if more and size < program.devices.count:
                    there += more * cuts.of(one, other, size)
        model.add(there <= program.start[target])
    return costs


def _fits(graph: OpGraph, devices: Devices, placement: Sequence[int]) -> bool:
    held = np.bincount(placement, graph.memory_bytes, devices.count)
    return devices.memory_bytes is None or bool((held <= devices.memory_bytes).all())
