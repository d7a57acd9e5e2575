"""The search of a short schedule: HEFT, then annealing of the graph reduced by several thresholds, with and without
groups.

All are started; the half that is behind is dropped after each round, and the rest get twice as long. What counts is the
schedule of the given graph. The steps of a run follow from the time that it is given, not from the clock, so the same
seed gives the same answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dsx.operator_placement.annealing import Annealing
from dsx.operator_placement.devices import Devices
from dsx.operator_placement.heft import heft
from dsx.operator_placement.memory import packed
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.reduction import Reduction, alone, reduce
from dsx.operator_placement.schedule import Schedule, Timing
from dsx.operator_placement.thresholds import Thresholds, by_distribution, by_percentile

_ROUNDS = 8
_HOT, _COOLING, _COLD = 3e-3, 0.5, 1e-5  # temperatures, of the makespan: a round begins less hot than the one before
_HALVED_AFTER = (2, 4)  # rounds after which the half of the runs that is behind is dropped
_SECONDS_A_RUN = 1.5  # of the search, for each run: what it takes to compile one
_MOST_RAW = 1_000  # operators of a graph that is annealed as it is


@dataclass(frozen=True, eq=False)
class ReducedSchedule:
    """A schedule of a reduced graph."""

    graph: OpGraph
    unit: np.ndarray  # [n] operators of a unit share a device
    of_op: np.ndarray  # [N] the reduced operator of each operator of the given graph
    schedule: Schedule


@dataclass
class Found:
    """The best schedule so far, and the makespan of each way to find one."""

    best: Schedule | None = None
    makespans_s: dict[str, float] = field(default_factory=dict)
    source: str = ""  # the way that found the best
    reductions: dict[str, Reduction] = field(default_factory=dict)  # of the graphs that were annealed
    reduced: dict[str, ReducedSchedule] = field(default_factory=dict)  # the best schedule of each

    def take(self, name: str, schedule: Schedule | None) -> None:
        """Take a schedule of the given graph."""
        if schedule is None:
            return
        self.makespans_s[name] = min(self.makespans_s.get(name, np.inf), schedule.makespan_s)
        if self.best is None or schedule.makespan_s < self.best.makespan_s:
            self.best, self.source = schedule, name

    def reduced_best(self, most: int) -> ReducedSchedule | None:
        """Return the best schedule of a reduced graph of at most so many operators."""
        small = [(name, one) for name, one in self.reduced.items() if one.graph.num_ops <= most]
        return min(small, key=lambda item: self.makespans_s[item[0]])[1] if small else None


@dataclass
class _Run:
    """An annealing of a reduced graph."""

    name: str
    of_op: np.ndarray
    annealing: Annealing
    reduction: Reduction | None  # None: the graph as it is
    best_s: float = np.inf
    reduced_s: float = np.inf


def single_device(timing: Timing) -> Schedule | None:
    """Return the schedule of all operators on the fastest device; None if it has no room."""
    graph, devices = timing.graph, timing.devices
    if devices.memory_bytes is not None and graph.memory_bytes.sum() > devices.memory_bytes:
        return None
    found = [timing.in_order([device] * graph.num_ops, graph.order) for device in range(devices.count)]
    return min(found, key=lambda schedule: schedule.makespan_s)


def begun(timing: Timing) -> Found:
    """Return the schedules of one device, and of HEFT, as it is and in the order of its starts."""
    found = Found()
    found.take("single_device", single_device(timing))
    start = heft(timing, alone(timing.graph).tolist())
    found.take("heft", start)
    if start is not None and timing.devices.count > 1:
        found.take("heft, in order", timing.best(start.device.tolist(), start.start_s.tolist()))
    return found


def search(
    graph: OpGraph,
    devices: Devices,
    seconds: float,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
    told: Callable[[Found], None] = lambda found: None,
    found: Found | None = None,
) -> Found:
    """Return the best schedule that some seconds find, added to what is `found`: by default to what `begun` returns.

    `stop` ends the search after a round, `told` hears of each.
    """
    timing = Timing(graph, devices)
    found = begun(timing) if found is None else found
    if devices.count == 1 or stop():
        return found
    runs = _runs(graph, devices, timing, seed, max(int(seconds / _SECONDS_A_RUN), 1))
    found.reductions = {run.name: run.reduction for run in runs if run.reduction is not None}
    finest = max(runs, key=lambda run: run.annealing.num_units)
    for number in range(_ROUNDS):
        if number in _HALVED_AFTER:
            ahead = sorted(runs, key=lambda run: run.best_s)[: len(runs) // 2]
            # What has most units is the last to be short.
            runs = ahead if finest in ahead else [*ahead, finest]
        share = seconds / _ROUNDS / len(runs)
        for run in runs:
            if stop():
                return found
            steps = run.annealing.steps_in(share)
            made = run.annealing.run(steps, max(_HOT * _COOLING**number, _COLD), _COLD)
            if made is not None:
                annealed = run.annealing
                if made.makespan_s < run.reduced_s:
                    run.reduced_s = made.makespan_s
                    unit = np.array(annealed.unit)
                    found.reduced[run.name] = ReducedSchedule(annealed.graph, unit, run.of_op, made)
                whole = timing.best(made.device[run.of_op].tolist(), made.start_s[run.of_op].tolist())
                run.best_s = min(run.best_s, whole.makespan_s)
                found.take(run.name, whole)
            told(found)
    return found


_GRAPHS: tuple[tuple[Callable[[OpGraph], Thresholds], bool], ...] = (
    (lambda graph: by_percentile(graph, 50.0), False),
    (lambda graph: by_percentile(graph, 75.0), False),
    (by_distribution, False),
    (lambda graph: by_percentile(graph, 25.0), False),
    (lambda graph: by_percentile(graph, 75.0), True),
    (by_distribution, True),
    (lambda graph: by_percentile(graph, 90.0), False),
    (lambda graph: by_percentile(graph, 50.0), True),
    (lambda graph: by_percentile(graph, 90.0), True),
    (lambda graph: by_percentile(graph, 0.0), False),
)  # that are annealed, in the order of preference, and whether groups stay together


def _start(timing: Timing, unit: np.ndarray) -> Schedule:
    """Return the schedule of HEFT; where that has no room, one of large units spread out, which may not fit either."""
    found = heft(timing, unit.tolist())
    if found is not None:
        return found
    return timing.in_order(packed(timing.graph, timing.devices, unit).tolist(), timing.graph.order)


def _runs(graph: OpGraph, devices: Devices, timing: Timing, seed: int, most: int) -> list[_Run]:
    """Return up to `most` annealings of different graphs."""
    runs: list[_Run] = []
    seen: set[tuple[int, ...]] = set()
    if graph.num_ops <= _MOST_RAW:
        unit = alone(graph)
        start = _start(timing, unit)
        runs.append(_Run("as it is", np.arange(graph.num_ops), Annealing(graph, timing, unit, start, seed), None))
        seen.add((graph.num_ops, *unit.tolist()))
    for thresholds, grouped in _GRAPHS:
        if len(runs) >= most:
            break
        reduction = reduce(graph, devices, thresholds(graph))
        unit = reduction.group if grouped else alone(reduction.graph)
        key = (reduction.graph.num_ops, *unit.tolist())
        if key in seen:
            continue
        seen.add(key)
        reduced = Timing(reduction.graph, devices)
        start = _start(reduced, unit)
        name = f"alpha {reduction.thresholds.source}{', groups' if grouped else ''}"
        annealing = Annealing(reduction.graph, reduced, unit, start, seed)
        runs.append(_Run(name, reduction.of_op, annealing, reduction))
    return runs
