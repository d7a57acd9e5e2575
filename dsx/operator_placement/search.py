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
from dsx.operator_placement.annealing_runs import ReducedSchedule, Run, annealed_once
from dsx.operator_placement.devices import Devices
from dsx.operator_placement.heft import heft
from dsx.operator_placement.memory import packed
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.reduction import Reduction, alone, reduce
from dsx.operator_placement.schedule import Schedule, Timing
from dsx.operator_placement.thresholds import by_distribution, by_percentile

_ROUNDS = 8
_HOT, _COOLING, _COLD = 3e-3, 0.5, 1e-5  # temperatures, of the makespan: a round begins less hot than the one before
_HALVED_AFTER = (2, 4)  # rounds after which the half of the runs that is behind is dropped
_SECONDS_A_RUN = 1.5  # of the search, for each run: what it takes to compile one
_MOST_RAW = 1_000  # operators of a graph that is annealed as it is
# Reductions that are annealed, in the order of preference: the percentile of alpha, None for that of the distribution,
# and whether groups stay together.
_REDUCTIONS = (
    *((50.0, False), (75.0, False), (None, False), (25.0, False), (75.0, True)),
    *((None, True), (90.0, False), (50.0, True), (90.0, True), (0.0, False)),
)


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


def single_device(timing: Timing) -> Schedule | None:
    """Return the schedule of all operators on the fastest device; None if it has no room."""
    graph, devices = timing.graph, timing.devices
    if devices.memory_bytes is not None and graph.memory_bytes.sum() > devices.memory_bytes:
        return None
    found = [timing.in_order([device] * graph.num_ops, graph.order) for device in range(devices.count)]
    return min(found, key=lambda schedule: schedule.makespan_s)


def begun(timing: Timing, found: Found, stop: Callable[[], bool] = lambda: False) -> Found:
    """Add the schedules of one device and, unless stopped, of HEFT, as it is and in the order of its starts."""
    found.take("single_device", single_device(timing))
    start = heft(timing, alone(timing.graph).tolist(), stop=stop)
    found.take("heft", start)
    if start is not None and timing.devices.count > 1 and not stop():
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

    `stop` ends the search soon, `told` hears of each.
    """
    timing = Timing(graph, devices)
    found = begun(timing, Found(), stop) if found is None else found
    if devices.count == 1 or stop():
        return found
    runs = _runs(graph, devices, timing, seed, max(int(seconds / _SECONDS_A_RUN), 1), stop)
    found.reductions = {run.name: run.reduction for run in runs if run.reduction is not None}
    finest = max(runs, key=lambda run: run.annealing.num_units)
    for number in range(_ROUNDS):
        if number in _HALVED_AFTER:
            ahead = sorted(runs, key=lambda run: run.best_s)[: len(runs) // 2]
            # What has most units is the last to be short.
            runs = ahead if finest in ahead else [*ahead, finest]
        hot = max(_HOT * _COOLING**number, _COLD)
        for run, whole in annealed_once(graph, runs, seconds / _ROUNDS, hot, _COLD, stop):
            found.take(run.name, whole)
            if run.reduced is not None:
                found.reduced[run.name] = run.reduced
            told(found)
        if stop():
            break
    return found


def _start(timing: Timing, unit: np.ndarray, stop: Callable[[], bool]) -> Schedule:
    """Return the schedule of HEFT; where that has no room, one of large units spread out, which may not fit either."""
    found = heft(timing, unit.tolist(), stop=stop)
    if found is not None:
        return found
    return timing.in_order(packed(timing.graph, timing.devices, unit).tolist(), timing.graph.order)


def _runs(
    graph: OpGraph, devices: Devices, timing: Timing, seed: int, most: int, stop: Callable[[], bool]
) -> list[Run]:
    """Return up to `most` annealings of different graphs, at least one; no further ones at `stop`."""
    runs: list[Run] = []
    seen: set[tuple[int, ...]] = set()
    if graph.num_ops <= _MOST_RAW:
        unit = alone(graph)
        start = _start(timing, unit, stop)
        runs.append(Run("as it is", np.arange(graph.num_ops), Annealing(graph, timing, unit, start, seed)))
        seen.add((graph.num_ops, *unit.tolist()))
    for percentile, grouped in _REDUCTIONS:
        if len(runs) >= most or (runs and stop()):
            break
        thresholds = by_distribution(graph) if percentile is None else by_percentile(graph, percentile)
        reduction = reduce(graph, devices, thresholds, stop=stop)
        unit = reduction.group if grouped else alone(reduction.graph)
        key = (reduction.graph.num_ops, *unit.tolist())
        if key in seen:
            continue
        seen.add(key)
        reduced = Timing(reduction.graph, devices)
        start = _start(reduced, unit, stop)
        name = f"alpha {reduction.thresholds.source}{', groups' if grouped else ''}"
        annealing = Annealing(reduction.graph, reduced, unit, start, seed)
        runs.append(Run(name, reduction.of_op, annealing, reduction))
    return runs
