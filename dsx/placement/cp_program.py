"""The program of placement for CP-SAT: where units are, when operators run, what devices hold, which transfers are cut.

A literal places a unit on a device. An operator has an interval on each device, there if its unit is there, and the
intervals of a device do not overlap: so the order is free (the sources' P1 fixes it). Operators that take no time run
beside others. A transfer is cut at each level of links that it leaves: a literal for each pair of units and level says
whether the units are in different parts of that level; these are made where a transfer asks for them.

Times are whole ticks, rounded down. The longest path of a schedule in ticks is no longer than in seconds, so the least
makespan in ticks is a bound below that in seconds. Where all times are whole nanoseconds the tick is their greatest
common divisor: then a solver knows which makespans there are. Else it is a small part of the longest makespan that
counts.

The solver runs in a thread of its own, so that Ctrl-C reaches Python at once and what was found so far is kept.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices
from dsx.placement.timetable import GraphTimes, op_seconds, run_in_order

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_NANO = 1e-9
_LESS = 1e-9  # share that a tick is shorter than the divisor, so that floats just below a multiple count as it
_PARTS = 2**27  # ticks of the longest makespan, at least
_MOST = 2**40  # ticks of the longest makespan
_WORKERS = 8  # different searches; each alone is much weaker, even where cores are fewer
_POLL_S = 0.02
_WHOLE = 2**50  # numbers of bytes are whole up to here


@dataclass(frozen=True, slots=True)
class Ticks:
    """The length of a tick."""

    seconds: float
    exact: bool  # all times are whole ticks

    def of(self, seconds: float) -> int:
        """Return whole ticks, rounded down."""
        return math.floor(seconds / self.seconds)

    def rounding_s(self, num_times: int, longest_s: float) -> float:
        """Return the most that rounding takes off a sum of so many times."""
        return 2 * _LESS * longest_s if self.exact else num_times * self.seconds


def ticks_for(times_s: Iterable[float], longest_s: float) -> Ticks:
    """Return the ticks for times, and makespans up to `longest_s`."""
    times = np.array([time for time in {*times_s} if time > 0.0])
    nanos = np.round(times / _NANO)
    if len(times) and (nanos >= 1).all() and (np.abs(nanos * _NANO - times) < 0.1 * _LESS * times).all():
        divisor = math.gcd(*map(int, nanos.tolist()))
        if longest_s < _MOST * divisor * _NANO and times.max() * _LESS < 0.1 * divisor * _NANO:
            return Ticks(divisor * _NANO * (1.0 - _LESS), exact=True)
    return finely(longest_s)


def finely(longest_s: float, parts: int = _PARTS) -> Ticks:
    """Return ticks that are a power of two of seconds, of which the longest makespan has at least so many."""
    return Ticks(2.0 ** math.floor(math.log2(max(longest_s, 1e-30) / parts)), exact=False)


@dataclass(frozen=True)
class SolverEffort:
    """How long a solver searches: it also ends within `gap` of the bound, a share of the makespan, and at `stop`."""

    seconds: float
    gap: float = 0.0
    seed: int = 0
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class SolverAnswer:
    """What a run found."""

    solver: "cp_model.CpSolver"
    solved: bool  # variables have values
    infeasible: bool
    stopped: bool  # by `stop` or Ctrl-C

    @property
    def bound(self) -> int:
        """The least value that an integer objective may have."""
        # Of an integer objective the bound is a whole number, in a float.
        return round(self.solver.best_objective_bound)

    def chosen(self, rows: "Iterable[Sequence[cp_model.IntVar]]") -> list[int]:
        """Return the place of the first true literal of each row."""
        value = self.solver.boolean_value
        return [next(place for place, literal in enumerate(row) if value(literal)) for row in rows]


def run(model: "cp_model.CpModel", effort: SolverEffort) -> SolverAnswer:
    """Return the best answer of an effort, which Ctrl-C ends too."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(effort.seconds, 0.0)
    solver.parameters.num_search_workers = _WORKERS
    solver.parameters.relative_gap_limit = effort.gap
    solver.parameters.random_seed = effort.seed
    solver.parameters.catch_sigint_signal = False  # its handler would replace that of Python for good
    statuses: list[object] = []
    thread = Thread(target=lambda: statuses.append(solver.solve(model)))
    thread.start()
    stopped = False
    while thread.is_alive():
        try:
            thread.join(_POLL_S)
            stopped = stopped or effort.stop()
            if stopped:
                solver.stop_search()
        except KeyboardInterrupt:
            stopped = True
    if not statuses or statuses[0] == cp_model.MODEL_INVALID:
        raise AssertionError(f"the program is invalid: {model.validate()}")
    solved = statuses[0] in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return SolverAnswer(solver, solved, statuses[0] == cp_model.INFEASIBLE, stopped)


def placed_units(model: "cp_model.CpModel", num_units: int, num_devices: int) -> "list[list[cp_model.IntVar]]":
    """Return a row of literals for each unit, of which that of its device is true."""
    rows = [[model.new_bool_var(f"unit {unit} on {at}") for at in range(num_devices)] for unit in range(num_units)]
    for row in rows:
        model.add_exactly_one(row)
    return rows


def place_first(model: "cp_model.CpModel", place: "Sequence[Sequence[cp_model.IntVar]]", units: Sequence[int]) -> None:
    """Keep the k-th of some units (from 0) to the devices up to k."""
    for number, unit in enumerate(units):
        for literal in place[unit][number + 1 :]:
            model.add(literal == 0)


def limit_memory(
    model: "cp_model.CpModel", place: "Sequence[Sequence[cp_model.IntVar]]", needs: np.ndarray, limit: float | None
) -> None:
    """Limit what units need on each device; bytes that are no whole numbers are rounded down in their last places."""
    if limit is None or needs.sum() <= limit:
        return
    is_exact = (needs == np.floor(needs)).all() and limit == math.floor(limit) and needs.sum() < _WHOLE
    scale = 1.0 if is_exact else 2.0 ** math.floor(math.log2(_WHOLE / needs.sum()))
    amounts = np.floor(needs * scale).astype(np.int64).tolist()
    for device in range(len(place[0])):
        held = sum(amount * place[unit][device] for unit, amount in enumerate(amounts) if amount)
        model.add(held <= math.floor(limit * scale))


class PlacementProgram:
    """Variables of the placement of a graph and its schedule."""

    def __init__(self, graph: OpGraph, devices: Devices, unit: Sequence[int], longest_s: float, ticks: Ticks) -> None:
        """Make the variables of makespans up to `longest_s`; `unit` has the unit of each operator."""
        from ortools.sat.python import cp_model

        self.graph, self.devices, self.unit = graph, devices, list(unit)
        self.num_units = max(self.unit, default=-1) + 1
        self.ticks, self.longest = ticks, ticks.of(longest_s) + 1
        self.sizes = [1, *devices.units]  # devices in a part of each level
        self._parts: dict[tuple[int, int], list[cp_model.IntVar]] = {}
        self._cuts: dict[tuple[int, int, int], cp_model.IntVar] = {}  # whether two units are in different parts
        self.durations = [[ticks.of(seconds) for seconds in row] for row in op_seconds(graph, devices).tolist()]
        self.model = model = cp_model.CpModel()
        self.place = placed_units(model, self.num_units, devices.count)
        least = [min(row) for row in self.durations]
        windows = [*zip(map(int, graph.heads(least)), least, map(int, graph.tails(least)), strict=True)]
        self.makespan = model.new_int_var(max(map(sum, windows), default=0), self.longest, "makespan")
        model.minimize(self.makespan)
        self.start = [
            model.new_int_var(head, self.longest - duration - tail, f"start {op}")
            for op, (head, duration, tail) in enumerate(windows)
        ]
        for device in range(devices.count):  # which runs one at a time
            work = [0] * self.num_units
            intervals: list[cp_model.IntervalVar] = []
            for op, row in enumerate(self.durations):
                work[self.unit[op]] += row[device]
                if row[device]:
                    placed = self.place[self.unit[op]][device]
                    interval = model.new_optional_fixed_size_interval_var
                    intervals.append(interval(self.start[op], row[device], placed, f"run {op} on {device}"))
            model.add_no_overlap(intervals)
            load = sum(ticks * self.place[unit][device] for unit, ticks in enumerate(work) if ticks)
            model.add(load <= self.makespan)
        for op, successors in enumerate(graph.successors):
            if not successors:
                model.add(self.end(op) <= self.makespan)
        needs = np.bincount(self.unit, graph.memory_bytes, self.num_units)
        limit_memory(model, self.place, needs, devices.memory_bytes)

    def end(self, op: int) -> "cp_model.LinearExpr":
        """Return the ticks at which an operator ends."""
        from ortools.sat.python import cp_model

        row = self.durations[op]
        if len({*row}) == 1:
            return self.start[op] + row[0]
        return self.start[op] + cp_model.LinearExpr.weighted_sum(self.place[self.unit[op]], row)

    def hint(self, timing: GraphTimes, placement: Sequence[int], order: Sequence[int], sent: Sequence[int]) -> None:
        """Hint all variables of a placement whose devices run in an order; `sent` has the ticks of each edge."""
        device_of = {self.unit[op]: device for op, device in enumerate(placement)}
        for unit, device in device_of.items():
            for at, literal in enumerate(self.place[unit]):
                self.model.add_hint(literal, at == device)
        durations = [row[device] for row, device in zip(self.durations, placement, strict=True)]
        starts, ends = run_in_order(order, placement, durations, timing.inputs, sent)
        for variable, start in zip(self.start, starts, strict=True):
            self.model.add_hint(variable, int(start))
        self.model.add_hint(self.makespan, int(max(ends, default=0)))
        for (a, b, size), literal in self._cuts.items():
            self.model.add_hint(literal, device_of[a] // size != device_of[b] // size)
        for (unit, size), literals in self._parts.items():
            for part, literal in enumerate(literals):
                self.model.add_hint(literal, device_of[unit] // size == part)

    def cut(self, a: int, b: int, size: int) -> "cp_model.IntVar":
        """Return whether two units are in different parts of so many devices."""
        key = min(a, b), max(a, b), size
        if key not in self._cuts:
            cut = self._cuts[key] = self.model.new_bool_var(f"cut {key}")
            for in_a, in_b in zip(self.parts_of(key[0], size), self.parts_of(key[1], size), strict=True):
                self.model.add_bool_or(~in_a, in_b, cut)
                self.model.add_bool_or(in_a, ~in_b, cut)
                self.model.add_bool_or(~in_a, ~in_b, ~cut)
        return self._cuts[key]

    def parts_of(self, unit: int, size: int) -> "list[cp_model.IntVar]":
        """Return literals of the part that has a unit."""
        place = self.place[unit]
        if size == 1:
            return place
        if (unit, size) not in self._parts:
            begins = range(0, len(place), size)
            literals = [self.model.new_bool_var(f"unit {unit} in {at} of {size}") for at in begins]
            for literal, at in zip(literals, begins, strict=True):
                self.model.add(sum(place[at : at + size]) == literal)
            self._parts[unit, size] = literals
        return self._parts[unit, size]
