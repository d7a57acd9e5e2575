"""Exact search: the shortest schedule of a graph whose units stay together, and a bound below it, by CP-SAT.

This is the sources' P1 (P3 for groups) with a free order (`program.py`). A transfer is cut at each level of links
that it leaves: a literal for each pair of units and level says whether the units are in different parts of that level.
The solver begins with the best schedule that is known.

The bound is that of this graph with these units: that of a reduced graph is none of the graph that it came from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dsx.operator_placement.bounds import load_bound_s, path_bound_s
from dsx.operator_placement.cp_sat import run
from dsx.operator_placement.devices import Devices
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.program import Program
from dsx.operator_placement.schedule import Schedule, Timing, longest_s
from dsx.operator_placement.symmetry import equal_units, first_of_equal, units_to_place_first
from dsx.operator_placement.ticks import ticks_for

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


@dataclass(frozen=True, eq=False)
class Exact:
    """The answer of an exact search."""

    schedule: Schedule | None  # None: none was found, and with `proved` there is none
    bound_s: float  # no schedule of these units is shorter; infinite if memory has no room for any
    proved: bool  # the schedule is as short as can be, but for the gap asked for or rounding
    stopped: bool = False  # by `stop` or Ctrl-C


class Cuts:
    """The literals of pairs of units in different parts of a level, made where a transfer asks for them."""

    def __init__(self, program: Program) -> None:
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
    hint: Schedule | None = None,
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
    timing, unit = Timing(graph, devices), np.asarray(unit).tolist()
    most_s = longest_s(timing) if hint is None else hint.makespan_s
    ticks = ticks_for(timing.times_s, most_s)
    program = Program(graph, devices, unit, most_s, ticks)
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


def _run_after_transfers(program: Program, cuts: Cuts) -> dict[tuple[int, int], list[int]]:
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
