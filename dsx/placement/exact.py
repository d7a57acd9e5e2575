"""Exact search: the shortest schedule of a graph whose units stay together, and a bound below it, by CP-SAT.

This is the sources' P1 (P3 for groups) with a free order (`cp_program`). The solver begins with the best schedule that
is known. The bound is that of this graph with these units: that of a reduced graph is none of the graph that it came
from.

Of placements that differ in the names of devices and of equal units alone, an exact search needs one. Take of all these
the placement whose devices come first, unit by unit in the order of work. It keeps the units with most work to the
first devices, since the names of two devices could be changed else; and among equal units it has no device after a
later one, since the units could be changed. So both may be asked for at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dsx.placement.cp_program import PlacementProgram, SolverEffort, place_first, run, ticks_for
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule, step_bound_s


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
    nested = all(larger % size == 0 for size, larger in pairwise([1, *devices.units, devices.count]))
    return largest[:1] if nested else []


def equal_units(graph: OpGraph, unit: Sequence[int]) -> list[list[int]]:
    """Return groups of units that may change places: of one operator, with equal times, memory and edges."""
    members = np.bincount(unit)
    groups: dict[object, list[int]] = {}
    for op, unit_of_op in enumerate(unit):
        if members[unit_of_op] > 1:
            continue
        reads = tuple((source, graph.edge_bytes[source, op]) for source in graph.predecessors[op])
        writes = tuple((target, graph.edge_bytes[op, target]) for target in graph.successors[op])
        key = tuple(graph.seconds[op].tolist()), float(graph.memory_bytes[op]), reads, writes
        groups.setdefault(key, []).append(unit_of_op)
    return [sorted(units) for units in groups.values() if len(units) > 1]


def first_of_equal(
    devices: Devices, first: Sequence[int], equal: Sequence[Sequence[int]], device_of: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the device of each unit in the placement that stands for all that differ in names, and whose place it has.

    `first` are the units that are placed first, `device_of` has the device of each unit in the given placement.
    """
    placed, place_of = list(device_of), list(range(len(device_of)))
    while True:
        previous = list(placed)
        number = renumbering(devices, [placed[unit] for unit in first])
        placed = [number[device] for device in placed]
        for units in equal:
            ordered = sorted(units, key=lambda unit: placed[unit])
            moved = [(placed[unit], place_of[unit]) for unit in ordered]
            for unit, (device, place) in zip(units, moved, strict=True):
                placed[unit], place_of[unit] = device, place
        if placed == previous:
            return placed, place_of


def renumbering(devices: Devices, first: Sequence[int]) -> list[int]:
    """Return the new number of each device, given the devices of the units that are placed first.

    These come first in the order of their units. With several levels of links, the first one is moved to the place 0
    in its part of each level.
    """
    if len({*devices.used_links}) <= 1:
        return np.argsort([*dict.fromkeys([*first, *range(devices.count)])]).tolist()
    number = np.zeros(devices.count, dtype=np.int64)
    for size, larger in pairwise([1, *devices.units, devices.count]):
        moved = np.arange(devices.count) // size - (first[0] // size if first else 0)
        number += moved % (larger // size) * size
    return number.tolist()


@dataclass(frozen=True, eq=False)
class Exact:
    """The answer of an exact search."""

    schedule: OperatorSchedule | None  # None: none was found, and with `proved` there is none
    bound_s: float  # no schedule of these units is shorter; infinite if memory has no room for any
    proved: bool  # the schedule is as short as can be, but for the gap asked for or rounding
    stopped: bool = False  # by `stop` or Ctrl-C


def solve(
    graph: OpGraph, devices: Devices, unit: Sequence[int], effort: SolverEffort, hint: OperatorSchedule | None = None
) -> Exact:
    """Return the shortest schedule that is found, never longer than `hint`, and a bound below all schedules.

    `unit` has the unit of each operator, which share a device. The hint must keep to the units and to memory. Raises
    ValueError where pairs of servers have bandwidths of their own: `joint` is for these.
    """
    if devices.between is not None:
        raise ValueError("the program has one bandwidth a level")
    timing, unit = GraphTimes(graph, devices), np.asarray(unit).tolist()
    most_s = timing.longest_s if hint is None else hint.makespan_s
    ticks = ticks_for(timing.times_s, most_s)
    program = PlacementProgram(graph, devices, unit, most_s, ticks)
    model, costs = program.model, _run_after_transfers(program)
    first, equal = units_to_place_first(graph, devices, unit), equal_units(graph, unit)
    place_first(model, program.place, first)
    for ahead, behind in ((program.place[a], program.place[b]) for units in equal for a, b in pairwise(units)):
        model.add(sum(at * (a - b) for at, (a, b) in enumerate(zip(ahead, behind, strict=True))) <= 0)
    if hint is not None:
        device_of = dict(zip(unit, hint.device.tolist(), strict=True))
        listed = [device_of[number] for number in range(program.num_units)]
        placed, place_of = first_of_equal(devices, first, equal, listed)
        op_of = {number: op for op, number in enumerate(unit)}  # of units that changed places their only operator
        start_s = [
            hint.start_s[op if place_of[number] == number else op_of[place_of[number]]]
            for op, number in enumerate(unit)
        ]
        placement = [placed[number] for number in unit]
        level = devices.level.tolist()
        sent = [row[level[placement[a]][placement[b]]] for (a, b), row in zip(graph.edges, costs, strict=True)]
        program.hint(timing, placement, timing.order_of(start_s), sent)
    answer = run(model, effort)
    if answer.infeasible:
        return Exact(None, np.inf, True)
    best = hint
    if answer.solved:
        device = answer.chosen(program.place)
        placement = [device[number] for number in unit]
        start_s = [answer.solver.value(begin) * ticks.seconds for begin in program.start]
        schedule = timing.best(placement, start_s)
        if timing.fits(placement) and (best is None or schedule.makespan_s < best.makespan_s):
            best = schedule
    bound_s = max(answer.bound * ticks.seconds, step_bound_s(graph, devices))
    if best is None:
        return Exact(None, bound_s, False, answer.stopped)
    bound_s = min(bound_s, best.makespan_s)
    rounding_s = ticks.rounding_s(2 * graph.num_ops, most_s)
    proved = best.makespan_s - bound_s <= max(effort.gap * best.makespan_s, rounding_s)
    return Exact(best, bound_s, proved, answer.stopped)


def _run_after_transfers(program: PlacementProgram) -> list[list[int]]:
    """Let operators wait for their inputs; return the ticks of each edge by the level of its link, 0 at last."""
    ticks, longest = program.ticks, program.longest
    costs: list[list[int]] = []
    for (source, target), num_bytes in program.graph.edge_bytes.items():
        # A transfer that is longer than all schedules that count is cut short.
        times_s = [link.seconds(num_bytes) for link in program.devices.links]
        row = [longest + 1 if seconds > longest * ticks.seconds else ticks.of(seconds) for seconds in times_s]
        costs.append([*row, 0])
        arrival = program.end(source)
        a, b = program.unit[source], program.unit[target]
        if a != b:
            for at, size in enumerate(program.sizes):
                more = row[at] - (row[at - 1] if at else 0)
                if more and size < program.devices.count:
                    arrival += more * program.cut(a, b, size)
        program.model.add(arrival <= program.start[target])
    return costs
