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
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.reduction import alone, reduce
from dsx.operator_placement.schedule import Schedule, Timing
from dsx.operator_placement.thresholds import by_distribution, by_percentile

_PERCENTILES = (50.0, 75.0, 90.0)
_MOST_RAW = 1_000  # operators of a graph that is annealed as it is
_ROUNDS = ((1e-3, 1e-4), (5e-4, 5e-5), (3e-4, 2e-5), (2e-4, 1e-5), (1e-4, 5e-6))  # hot and cold, of the makespan


@dataclass
class Found:
    """The best schedule so far, and the makespan of each way to find one."""

    best: Schedule | None = None
    makespans_s: dict[str, float] = field(default_factory=dict)

    def take(self, name: str, schedule: Schedule | None) -> None:
        """Take a schedule of the given graph."""
        if schedule is None:
            return
        self.makespans_s[name] = min(self.makespans_s.get(name, np.inf), schedule.makespan_s)
        if self.best is None or schedule.makespan_s < self.best.makespan_s:
            self.best = schedule


@dataclass
class _Run:
    """An annealing of a reduced graph."""

    name: str
    of_op: np.ndarray
    annealing: Annealing
    best_s: float = np.inf


def single_device(timing: Timing) -> Schedule | None:
    """Return the schedule of all operators on the fastest device; None if it has no room."""
    graph, devices = timing.graph, timing.devices
    if devices.memory_bytes is not None and graph.memory_bytes.sum() > devices.memory_bytes:
        return None
    found = [timing.in_order([device] * graph.num_ops, graph.order) for device in range(devices.count)]
    return min(found, key=lambda schedule: schedule.makespan_s)


def packed(timing: Timing, unit: np.ndarray) -> Schedule:
    """Return the schedule of the largest units first, each on the device with most room: a start where nothing fits."""
    needs = np.bincount(unit, timing.graph.memory_bytes)
    used, placement = np.zeros(timing.devices.count), np.zeros(len(needs), dtype=np.int64)
    for one in np.argsort(-needs, kind="stable").tolist():
        placement[one] = used.argmin()
        used[placement[one]] += needs[one]
    return timing.in_order(placement[unit].tolist(), timing.graph.order)


def search(
    graph: OpGraph,
    devices: Devices,
    seconds: float,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
    told: Callable[[Found], None] = lambda found: None,
) -> Found:
    """Return the best schedule that some seconds find; `stop` ends the search after a round, `told` hears of each."""
    found, timing = Found(), Timing(graph, devices)
    found.take("single_device", single_device(timing))
    own = alone(graph)
    start = heft(timing, own.tolist())
    found.take("heft", start)
    if devices.count == 1:
        return found
    if start is not None:
        found.take("search", timing.best(start.device.tolist(), start.start_s.tolist()))
    told(found)
    runs = _runs(graph, devices, timing, seed)
    share = seconds / len(_ROUNDS)
    for hot, cold in _ROUNDS:
        for run in runs:
            if stop():
                return found
            made = run.annealing.run(run.annealing.steps_in(share / len(runs)), hot, cold)
            if made is not None:
                whole = timing.best(made.device[run.of_op].tolist(), made.start_s[run.of_op].tolist())
                run.best_s = min(run.best_s, whole.makespan_s)
                found.take("search", whole)
            told(found)
        runs = sorted(runs, key=lambda run: run.best_s)[: max(len(runs) // 2, 1)]
    return found


def _runs(graph: OpGraph, devices: Devices, timing: Timing, seed: int) -> list[_Run]:
    runs: list[_Run] = []
    thresholds = [by_distribution(graph), *(by_percentile(graph, percentile) for percentile in _PERCENTILES)]
    graphs = [(f"alpha {one.source}", reduce(graph, devices, one)) for one in thresholds]
    seen: set[tuple[int, ...]] = set()
    for name, reduction in graphs:
        reduced = Timing(reduction.graph, devices)
        for what, unit in (("", alone(reduction.graph)), (", groups", reduction.group)):
            key = (reduction.graph.num_ops, *unit.tolist())
            if key in seen:
                continue
            seen.add(key)
            start = heft(reduced, unit.tolist()) or packed(reduced, unit)
            runs.append(_Run(f"{name}{what}", reduction.of_op, Annealing(reduction.graph, reduced, unit, start, seed)))
    if graph.num_ops <= _MOST_RAW:
        unit = alone(graph)
        start = heft(timing, unit.tolist()) or packed(timing, unit)
        runs.append(_Run("as it is", np.arange(graph.num_ops), Annealing(graph, timing, unit, start, seed)))
    return runs
