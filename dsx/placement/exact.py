"""Exact search by CP-SAT: the shortest schedule of a graph whose units stay together, and bounds below schedules.

This is the sources' P1 (P3 for groups) with a free order (`cp_program`). The solver begins with the best schedule that
is known. The bound is that of this graph with these units: that of a reduced graph is none of the graph that it came
from.

Of placements that differ in the names of devices and of equal units alone, an exact search needs one. Take of all these
the placement whose devices come first, unit by unit in the order of work. It keeps the units with most work to the
first devices, since the names of two devices could be changed else; and among equal units it has no device after a
later one, since the units could be changed. So both may be asked for at once.

Another bound, below every schedule of a graph as it is, comes from its K longest ("heavy") operators alone. The
relaxation keeps the heavy operators on their devices, one at a time, and what each pair must wait for; the others
("light") take up no device. It is asked whether a step can be as short as some time: if not, that time is a bound,
whatever K is. Within a short step the starts have narrow windows, so the answer comes sooner than the shortest step of
the relaxation. K grows while steps are possible.

A pair waits for the paths between both through light operators alone. If both ends are on one device, the second waits
for the longest such path. If they are not, some edge of each path is cut. Of the edges of a path that all take z or
more to send, the cut one does too. So the second operator waits for the largest sum, over all z, of z and the longest
path of such edges.

Not used: memory, and that outer links are slower than inner ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from time import monotonic

import numpy as np

from dsx.placement.cp_program import PlacementProgram, SolverEffort, place_first, placed_units, run, ticks_for
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule, op_seconds, step_bound_s


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


_MOST_THRESHOLDS = 256
_HEAVY = (40, 80, 120, 160, 200, 250, 300, 400)  # operators
_TICKS = 10_000_000  # of the shortest step known; all times are rounded down, which keeps the bound one
_ASKED = (0.2, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01, 0.0)  # gaps to the shortest step known, in this order
_WITHIN = 0.999
_NARROW = 2e-3  # of the shortest step known: bounds this near count as equal
_SLICE = 0.25  # of the time that is left, for one question
_LEAST_SLICE_S = 2.0


@dataclass(frozen=True, eq=False)
class Paths:
    """Seconds between the end of one heavy operator and the start of another, [K, K]; -inf where no path is."""

    together_s: np.ndarray  # on one device
    apart_s: np.ndarray  # on two


def paths_between(graph: OpGraph, devices: Devices, heavy: Sequence[int], seconds: np.ndarray) -> Paths:
    """Return the paths between heavy operators; `seconds` of all operators are those of their best device."""
    links, sizes = devices.used_links, {*graph.edge_bytes.values()}
    # The least seconds of a transfer: those of the best link there is.
    sent_of = {size: min((link.seconds(size) for link in links), default=0.0) for size in sizes}
    # Zero and the distinct positive seconds of transfers, evenly thinned out if there are many.
    thresholds = np.unique([0.0, *sent_of.values()])
    if len(thresholds) > _MOST_THRESHOLDS + 1:
        kept = np.linspace(0, len(thresholds) - 2, _MOST_THRESHOLDS).round().astype(int) + 1
        thresholds = thresholds[[0, *kept]]
    column = {op: place for place, op in enumerate(heavy)}
    # For each operator, the longest path to its start, from each heavy one, of edges of at least each threshold.
    longest: dict[int, np.ndarray] = {}
    unread = [len(ops) for ops in graph.successors]  # successors that have not read it
    for op in graph.order:
        paths = np.full((len(heavy), len(thresholds)), -np.inf)
        for source in graph.predecessors[op]:
            sent = sent_of[graph.edge_bytes[source, op]]
            reached = int(np.searchsorted(thresholds, sent, side="right"))  # that the edge meets
            if source in column:
                np.maximum(paths[column[source], :reached], 0.0, out=paths[column[source], :reached])
            else:
                along = longest[source][:, :reached] + seconds[source]
                np.maximum(paths[:, :reached], along, out=paths[:, :reached])
            unread[source] -= 1
            if not unread[source] and source not in column:
                del longest[source]
        longest[op] = paths
    between = np.stack([longest[op] for op in heavy], axis=1)  # [from, to, threshold]
    return Paths(between[:, :, 0], (between + thresholds).max(axis=2))


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound below all schedules, and the number of heavy operators that proved it; 0: the path or the load."""

    seconds: float
    num_heavy: int


def heavy_bound(
    graph: OpGraph,
    devices: Devices,
    unit: Sequence[int],
    shortest_s: float,
    effort: SolverEffort,
    report: Callable[[Bound], None] = lambda bound: None,
) -> Bound:
    """Return the best bound that an effort proves, at most the shortest step known.

    `unit` has the unit of each operator; operators of one unit share a device. The bound need not be nearer than the
    gap of the effort. `report` hears of each better bound; at Ctrl-C, which goes on, it has heard of all.
    """
    best = Bound(min(step_bound_s(graph, devices), shortest_s), 0)
    # A little more than the gap: at the gap itself, rounding would decide.
    gaps = [*(gap for gap in _ASKED if gap > effort.gap), effort.gap * _WITHIN]

    def next_target_s() -> float | None:
        """Return the next step time to ask for; None if the bound is as good as all."""
        steps = (shortest_s * (1.0 - gap) for gap in gaps)
        return next((step_s for step_s in steps if step_s > best.seconds + _NARROW * shortest_s), None)

    until = monotonic() + effort.seconds
    seconds = op_seconds(graph, devices).min(axis=1)
    longest = np.argsort(-seconds, kind="stable")[: int((seconds > 0.0).sum())].tolist()
    sizes = [*(size for size in _HEAVY if size < len(longest)), *([len(longest)] if len(longest) <= _HEAVY[-1] else [])]
    if not longest or devices.count == 1:
        return best
    place, target_s = 0, next_target_s()
    relaxation = _Relaxation(graph, devices, unit, longest[: sizes[0]])
    while target_s is not None and not effort.stop() and (left_s := until - monotonic()) > 0.0:
        slice_s = max(left_s * _SLICE, min(_LEAST_SLICE_S, left_s))
        possible = relaxation.possible(target_s, shortest_s, replace(effort, seconds=slice_s))
        if possible is False:
            best = Bound(target_s, len(relaxation.heavy))
            report(best)
            target_s = next_target_s()
        elif possible and place + 1 < len(sizes):
            place += 1
            relaxation = _Relaxation(graph, devices, unit, longest[: sizes[place]])
        elif target_s - best.seconds < _NARROW * shortest_s:
            break
        else:
            target_s = (best.seconds + target_s) / 2
    return best


class _Relaxation:
    """The relaxation to some heavy operators."""

    def __init__(self, graph: OpGraph, devices: Devices, unit: Sequence[int], heavy: Sequence[int]) -> None:
        self.graph, self.devices, self.heavy = graph.only(heavy), devices, heavy
        self.unit = np.unique([unit[op] for op in heavy], return_inverse=True)[1].tolist()
        seconds = op_seconds(graph, devices).min(axis=1)
        head_s, tail_s = graph.heads(seconds.tolist()), graph.tails(seconds.tolist())
        self.windows_s = [(head_s[op], float(seconds[op]), tail_s[op]) for op in heavy]
        self.paths = paths_between(graph, devices, heavy, seconds)

    def possible(self, step_s: float, shortest_s: float, effort: SolverEffort) -> bool | None:
        """Return whether the heavy operators can be done in a step of `step_s`; None if that is not known in time."""
        from ortools.sat.python import cp_model

        def ticks(value: float) -> int:
            return int(np.floor(value / shortest_s * _TICKS))

        model, count, last = cp_model.CpModel(), self.devices.count, ticks(step_s)
        place = placed_units(model, max(self.unit) + 1, count)
        place_first(model, place, units_to_place_first(self.graph, self.devices, self.unit))
        windows = [(ticks(head), ticks(seconds), ticks(tail)) for head, seconds, tail in self.windows_s]
        if any(sum(window) > last for window in windows):
            return False
        start = [model.new_int_var(head, last - seconds - tail, "") for head, seconds, tail in windows]
        durations = [[ticks(seconds) for seconds in row] for row in op_seconds(self.graph, self.devices).tolist()]
        for device in range(count):
            model.add_no_overlap(
                model.new_optional_fixed_size_interval_var(begin, row[device], place[unit][device], "")
                for begin, row, unit in zip(start, durations, self.unit, strict=True)
            )
        for a, b in product(range(len(start)), repeat=2):
            if not np.isfinite(self.paths.together_s[a, b]):
                continue
            (head, seconds, _), (_, seconds_after, tail) = windows[a], windows[b]
            near, far = ticks(self.paths.together_s[a, b]), ticks(self.paths.apart_s[a, b])
            model.add(start[b] >= start[a] + seconds + near)
            if far <= near or self.unit[a] == self.unit[b]:
                continue
            same_device = [*zip(place[self.unit[a]], place[self.unit[b]], strict=True)]
            if head + seconds + far + seconds_after + tail > last:  # then they share a device
                for of_a, of_b in same_device:
                    model.add_implication(of_a, of_b)
                continue
            apart = model.new_bool_var("")
            for of_a, of_b in same_device:
                model.add_bool_or(apart, ~of_a, of_b)
            model.add(start[b] >= start[a] + seconds + far).only_enforce_if(apart)
        answer = run(model, replace(effort, gap=0.0, seed=0))
        if answer.stopped and not effort.stop():
            raise KeyboardInterrupt
        return True if answer.solved else False if answer.infeasible else None
