"""The answer to where the operators of a step go: a search, a bound, and exact search where that is within reach.

The time is shared out beforehand. The search comes first: HEFT, then annealing of the graph reduced by several
thresholds, with and without groups. All are started; the half that is behind is dropped after some rounds. What counts
is the schedule of the given graph. The steps of a run follow from the time that it has, not from the clock, so the same
seed gives the same answer. Then bandwidths follow if they are to be found too (`joint`).

The bound is for the graph as it is (`exact`). CP-SAT gets a graph of few operators as it is, and its bound counts; a
larger one is reduced first, and only its schedules count. Without the packages of the extra `place`, the bound is the
larger of critical path and load.

Where the memory of the devices has no room for the graph, the answer is how much is short.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from time import monotonic

import numpy as np

from dsx.errors import NothingFeasible
from dsx.placement.annealing import Annealing, AnnealingRun, annealed_once
from dsx.placement.cp_program import SolverEffort, limit_memory, placed_units, run
from dsx.placement.exact import Bound, heavy_bound, solve
from dsx.placement.joint import allocate, check_solvers
from dsx.placement.op_graph import OpGraph, Reduction, by_distribution, by_percentile, reduce, units_of
from dsx.placement.servers import Devices, ServerNetwork, with_bandwidth, with_uniform_shares
from dsx.placement.timetable import Contended, GraphTimes, OperatorSchedule, contended, step_bound_s
from dsx.units import format_quantity

_SHOWN = 3  # operators of a message


def check_memory(graph: OpGraph, devices: Devices, unit: np.ndarray) -> None:
    """Raise NothingFeasible for what can be seen at once: a unit larger than a device, or a graph than all of them."""
    most = devices.memory_bytes
    if most is None:
        return
    needs = np.bincount(unit, graph.memory_bytes, 1)
    largest = int(needs.argmax())
    if needs[largest] > most:
        members = [repr(graph.ids[op]) for op in np.flatnonzero(unit == largest).tolist()]
        what, together = f"operator {members[0]} needs", ""
        if len(members) > 1:
            more = f" and {len(members) - _SHOWN} more" if len(members) > _SHOWN else ""
            what, together = f"operators {', '.join(members[:_SHOWN])}{more} need", " on one device"
        short = _size(needs[largest] - most)
        raise NothingFeasible(
            f"{what} {_size(needs[largest])}{together}, and a device has {_size(most)}: {short} short"
        )
    total = float(needs.sum())
    if total > most * devices.count:
        raise NothingFeasible(
            f"the operators need {_size(total)}, and {devices.count} devices of {_size(most)} have "
            f"{_size(most * devices.count)}: {_size(total - most * devices.count)} short"
        )


def packed(graph: OpGraph, devices: Devices, unit: np.ndarray) -> np.ndarray:
    """Return the device of each operator, the largest units first, each where most room is left: it may not fit."""
    needs = np.bincount(unit, graph.memory_bytes)
    used, placement = np.zeros(devices.count), np.zeros(len(needs), dtype=np.int64)
    for number in np.argsort(-needs, kind="stable").tolist():
        placement[number] = used.argmin()
        used[placement[number]] += needs[number]
    return placement[unit]


def fitting(graph: OpGraph, devices: Devices, unit: np.ndarray, effort: SolverEffort) -> np.ndarray | None:
    """Return a placement that fits, [N], by CP-SAT, without regard to time; None if none was found.

    Raises NothingFeasible where there is none.
    """
    from ortools.sat.python import cp_model

    model, needs = cp_model.CpModel(), np.bincount(unit, graph.memory_bytes)
    place = placed_units(model, len(needs), devices.count)
    limit_memory(model, place, needs, devices.memory_bytes)
    answer = run(model, effort)
    if answer.infeasible:
        raise NothingFeasible(shortage(graph, devices, unit, proved=True))
    if not answer.solved:
        return None
    placement = np.array(answer.chosen(place))[unit]
    return placement if GraphTimes(graph, devices).fits(placement.tolist()) else None


def shortage(graph: OpGraph, devices: Devices, unit: np.ndarray, proved: bool) -> str:
    """Return why no placement fits, with how much is short in a fair one; not `proved`: none was found."""
    held = np.bincount(packed(graph, devices, unit), graph.memory_bytes, devices.count)
    fullest, most = int(held.argmax()), devices.memory_bytes or 0.0
    what = "no placement fits" if proved else "no placement was found that fits"
    return (
        f"{what} into {_size(most)} a device: with the largest operators spread out first, "
        f"device {fullest} needs {_size(held[fullest])}, {_size(max(held[fullest] - most, 0.0))} more"
    )


def _size(num_bytes: float) -> str:
    return format_quantity(num_bytes, "bytes")


_ROUNDS = 11
_HOT, _COOLING, _COLD = 3e-3, 0.5, 1e-5  # temperatures, of the makespan: a round begins less hot than the last one
_HALVED_AFTER = (2, 4)  # rounds after which the half of the runs that is behind is dropped
_SECONDS_A_RUN = 2.06  # of the search, for each run: most of it is to compile one
_MOST_RAW = 1_000  # operators of a graph that is annealed as it is
# Reductions that are annealed, in the order of preference: the percentile of alpha, None for that of the distribution,
# and whether groups stay together.
_REDUCTIONS = (
    *((50.0, False), (75.0, False), (None, False), (25.0, False), (75.0, True)),
    *((None, True), (90.0, False), (50.0, True), (90.0, True), (0.0, False)),
)
_TOUCHING = 1e-6  # a gap that is none
_SEARCH, _JOINT = 0.4125, 0.42  # shares of the time
_REDUCED, _FIT = 0.1, 0.1  # of exact search before bandwidths, and of a first placement that fits
_LEAST_FIT_S = 2.0
_HEFT = 0.4  # of HEFT, at most
_GRACE, _GRACE_S = 0.25, 5.0  # beyond the time, as a share of it and at least, before what is going on is cut off
_FEW = 60  # operators that CP-SAT places exactly, whatever the gap
_MANY = 400  # operators that CP-SAT gets as they are
_MOST_REDUCED = 1_500  # operators of a reduced graph that CP-SAT gets


@dataclass
class Ways:
    """The best schedule so far, and the makespan of each way to find one."""

    best: OperatorSchedule | None = None
    makespans_s: dict[str, float] = field(default_factory=dict)
    source: str = ""  # the way that found the best
    runs: dict[str, AnnealingRun] = field(default_factory=dict)  # by their ways

    def take(self, name: str, schedule: OperatorSchedule | None) -> None:
        """Take a schedule of the given graph."""
        if schedule is None:
            return
        self.makespans_s[name] = min(self.makespans_s.get(name, np.inf), schedule.makespan_s)
        if self.best is None or schedule.makespan_s < self.best.makespan_s:
            self.best, self.source = schedule, name


def begun(timing: GraphTimes, ways: Ways, stop: Callable[[], bool] = lambda: False) -> Ways:
    """Add the schedules of one device and, unless stopped, of HEFT, as it is and in the order of its starts."""
    ways.take("single_device", timing.single_device())
    start = timing.heft(units_of(timing.graph).tolist(), stop)
    ways.take("heft", start)
    if start is not None and timing.devices.count > 1 and not stop():
        ways.take("heft, in order", timing.best(start.device.tolist(), start.start_s.tolist()))
    return ways


def search(
    graph: OpGraph,
    devices: Devices,
    effort: SolverEffort,
    report: Callable[[Ways], None] = lambda ways: None,
    ways: Ways | None = None,
) -> Ways:
    """Return the best schedule that is found, added to `ways`: by default to what `begun` returns.

    `report` hears of each schedule.
    """
    timing = GraphTimes(graph, devices)
    ways = begun(timing, Ways(), effort.stop) if ways is None else ways
    if devices.count == 1 or effort.stop():
        return ways
    runs = _runs(timing, effort)
    ways.runs = {run.name: run for run in runs}
    finest = max(runs, key=lambda run: run.annealing.num_units)
    for number in range(_ROUNDS):
        if number in _HALVED_AFTER:
            ahead = sorted(runs, key=lambda running: running.best_s)[: len(runs) // 2]
            # What has most units is the last to be short.
            runs = ahead if finest in ahead else [*ahead, finest]
        hot = max(_HOT * _COOLING**number, _COLD)
        for running, schedule in annealed_once(graph, runs, effort.seconds / _ROUNDS, hot, _COLD, effort.stop):
            ways.take(running.name, schedule)
            report(ways)
        if effort.stop():
            break
    return ways


def _runs(timing: GraphTimes, effort: SolverEffort) -> list[AnnealingRun]:
    """Return annealings of different graphs, at least one; no further ones at `stop`."""
    graph, devices = timing.graph, timing.devices
    most = max(int(effort.seconds / _SECONDS_A_RUN), 1)
    runs: list[AnnealingRun] = []
    seen: set[tuple[int, ...]] = set()

    def add(name: str, of_op: np.ndarray, timing: GraphTimes, unit: np.ndarray, reduction: Reduction | None) -> None:
        key = timing.graph.num_ops, *unit.tolist()
        if key not in seen:
            seen.add(key)
            # HEFT; where that has no room, large units spread out, which may not fit either.
            start = timing.heft(unit.tolist(), effort.stop)
            start = start or timing.in_order(packed(timing.graph, devices, unit).tolist(), timing.graph.order)
            runs.append(AnnealingRun(name, of_op, Annealing(timing, unit, start, effort.seed), reduction))

    if graph.num_ops <= _MOST_RAW:
        add("as it is", np.arange(graph.num_ops), timing, units_of(graph), None)
    for percentile, grouped in _REDUCTIONS:
        if len(runs) >= most or (runs and effort.stop()):
            break
        thresholds = by_distribution(graph) if percentile is None else by_percentile(graph, percentile)
        reduction = reduce(graph, devices, thresholds, stop=effort.stop)
        unit = reduction.group if grouped else units_of(reduction.graph)
        name = f"alpha {reduction.thresholds.source}{', groups' if grouped else ''}"
        add(name, reduction.of_op, GraphTimes(reduction.graph, devices), unit, reduction)
    return runs


@dataclass(eq=False)
class Placed:
    """A placement, how good it is, and what else was tried. It is filled while the search goes on."""

    graph: OpGraph
    devices: Devices
    network: ServerNetwork | None
    ways: Ways = field(default_factory=Ways)
    bound: Bound = field(default_factory=lambda: Bound(0.0, 0))
    bandwidth: np.ndarray | None = None  # [S, S] bytes/s from server to server, with a network
    uniform_s: float | None = None  # the makespan with uniform shares of the network
    reduction: Reduction | None = None  # of the best, or the usual one
    stopped: bool = False  # by the user

    @property
    def schedule(self) -> OperatorSchedule:
        """The best schedule; raises NothingFeasible where none was found."""
        if self.ways.best is None:
            raise NothingFeasible("no placement was found that fits into memory")
        return self.ways.best

    @property
    def gap(self) -> float:
        """How much longer the schedule may be than the shortest, as a share of it."""
        if self.ways.best is None:
            return 1.0
        return (self.schedule.makespan_s - self.bound_s) / (self.schedule.makespan_s or 1.0)

    @property
    def bound_s(self) -> float:
        """Seconds that no schedule is below: rounding of sums does not lift it over the best."""
        return min(self.bound.seconds, self.schedule.makespan_s)

    @property
    def timing(self) -> GraphTimes:
        """The evaluator of schedules."""
        return GraphTimes(self.graph, self.devices)

    def close(self, gap: float) -> bool:
        """Return whether the best schedule is within a gap of the bound."""
        return self.ways.best is not None and self.gap <= max(gap, _TOUCHING)

    def replay(self) -> Contended:
        """Return the replay of the schedule in which transfers share links."""
        total = None if self.network is None else self.network.total
        return contended(self.timing, self.schedule, None if self.bandwidth is not None else total)


def place(
    graph: OpGraph,
    devices: Devices,
    effort: SolverEffort,
    network: ServerNetwork | None = None,
    joint: bool = False,
    report: Callable[[Placed], None] = lambda placed: None,
) -> Placed:
    """Return the best placement that is found.

    With a `network`, servers share what their network cards send: uniformly, or as the placement needs (`joint`).
    `report` hears of the best so far. Ctrl-C ends the search; what was found until then is returned.

    Raises NothingFeasible if memory has no room, with how much is short; InputError if `joint` needs a package that is
    not installed.
    """
    unit = units_of(graph)
    check_memory(graph, devices, unit)
    if joint:
        check_solvers()
    if network is not None:
        devices = with_uniform_shares(devices, network)
    placed = Placed(graph, devices, network)
    # Of two servers, each has one to send to, which gets all.
    joint = joint and network is not None and devices.num_servers > 2
    work = _Work(placed, unit, joint, monotonic() + effort.seconds, effort, report)
    searches = [work.search, work.exact_as_it_is]
    if graph.num_ops <= _FEW:  # exact search often ends all
        searches.reverse()
    # Bandwidths are allocated from the best of uniform shares on.
    last = [work.exact_reduced, work.allocate, work.prove] if joint else [work.prove, work.exact_reduced]
    for stage in (work.begin, work.fit, *searches, *last):
        with work.until_stopped():
            stage()
    if placed.ways.best is None:
        raise NothingFeasible(shortage(graph, devices, unit, proved=False))
    if network is not None and placed.bandwidth is None:
        placed.uniform_s = placed.schedule.makespan_s
    run = placed.ways.runs.get(placed.ways.source)
    placed.reduction = None if run is None else run.reduction
    if placed.reduction is None and not work.over():
        placed.reduction = reduce(graph, devices, by_distribution(graph))
    return placed


@dataclass
class _Work:
    """The stages, each of which improves what is placed."""

    placed: Placed
    unit: np.ndarray
    joint: bool
    until: float
    effort: SolverEffort
    report: Callable[[Placed], None]

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Go on to the next stage at Ctrl-C, which then does nothing."""
        try:
            yield
            self.report(self.placed)
        except KeyboardInterrupt:
            self.placed.stopped = True
        self.placed.stopped = self.placed.stopped or self.effort.stop()

    @property
    def left_s(self) -> float:
        """Seconds until the time is up."""
        return self.until - monotonic()

    @property
    def has_solver(self) -> bool:
        """Whether CP-SAT is installed, and there is something to choose."""
        return find_spec("ortools") is not None and self.placed.devices.count > 1

    def over(self, until: float = -np.inf) -> bool:
        """Return whether work that has begun must end: the user stopped it, or the time is long up or `until` left."""
        grace = max(_GRACE_S, _GRACE * self.effort.seconds)
        return self.placed.stopped or self.effort.stop() or self.left_s < max(-grace, until)

    def _for(self, seconds: float, gap: float = 0.0, stop: Callable[[], bool] | None = None) -> SolverEffort:
        return SolverEffort(seconds, gap, self.effort.seed, stop or self.over)

    def begin(self) -> None:
        """Bound the step, and place it on one device and by HEFT."""
        placed = self.placed
        placed.bound = Bound(step_bound_s(placed.graph, placed.devices), 0)
        until = self.left_s - _HEFT * self.effort.seconds - _GRACE_S
        begun(placed.timing, placed.ways, lambda: self.over(until))

    def search(self) -> None:
        """Anneal reduced graphs."""
        placed = self.placed
        effort = self._for(_SEARCH * self.effort.seconds, stop=lambda: self.over() or placed.close(0.0))
        if not effort.stop():
            search(placed.graph, placed.devices, effort, lambda _: self.report(placed), placed.ways)

    def fit(self) -> None:
        """Find a start where neither one device nor HEFT fits."""
        placed = self.placed
        if placed.ways.best is None and self.has_solver:
            effort = SolverEffort(max(_FIT * self.effort.seconds, _LEAST_FIT_S), stop=self.over)
            placement = fitting(placed.graph, placed.devices, self.unit, effort)
            placed.ways.take("packing", None if placement is None else placed.timing.best(placement.tolist()))

    def allocate(self) -> None:
        """Find the bandwidths of servers."""
        placed, best, network = self.placed, self.placed.ways.best, self.placed.network
        if best is None or network is None or self.over() or placed.close(0.0):
            return
        placed.uniform_s = best.makespan_s
        effort = self._for(_JOINT * self.effort.seconds)
        allocated, stopped = allocate(placed.graph, placed.devices, network, best, effort)
        placed.stopped = placed.stopped or stopped
        if allocated.schedule.makespan_s < best.makespan_s:
            placed.bandwidth = allocated.bandwidth
            placed.devices = with_bandwidth(placed.devices, allocated.bandwidth)
            placed.ways.take("joint", allocated.schedule)

    def exact_as_it_is(self) -> None:
        """Let CP-SAT place a small graph."""
        placed = self.placed
        gap = 0.0 if placed.graph.num_ops <= _FEW else self.effort.gap
        if placed.graph.num_ops > _MANY or placed.bandwidth is not None or placed.close(gap):
            return
        if self.over() or not self.has_solver:
            return
        effort = self._for(max(self.left_s, 0.2 * self.effort.seconds) / 2, gap)
        exact = solve(placed.graph, placed.devices, self.unit.tolist(), effort, placed.ways.best)
        placed.ways.take("exact", exact.schedule)
        placed.stopped = placed.stopped or exact.stopped
        if exact.schedule is None and exact.proved:
            raise NothingFeasible(shortage(placed.graph, placed.devices, self.unit, proved=True))
        # The bound is that of these bandwidths; others may be better.
        if not self.joint and exact.bound_s > placed.bound.seconds:
            placed.bound = Bound(min(exact.bound_s, placed.schedule.makespan_s), placed.graph.num_ops)

    def prove(self) -> None:
        """Raise the bound."""
        placed, devices = self.placed, self.placed.devices
        if placed.ways.best is None or placed.close(self.effort.gap) or self.over() or not self.has_solver:
            return

        def better(bound: Bound) -> None:
            if bound.seconds > placed.bound.seconds:
                placed.bound = bound
            self.report(placed)

        if placed.bandwidth is not None and placed.network is not None:
            # A bound for the best bandwidths that there may be is one for all allocations.
            devices = devices.networked(placed.network.total)
        effort = self._for(max(self.left_s, 0.2 * self.effort.seconds) * 0.75, self.effort.gap)
        better(heavy_bound(placed.graph, devices, self.unit.tolist(), placed.schedule.makespan_s, effort, better))

    def exact_reduced(self) -> None:
        """Let CP-SAT improve the best schedule of a reduced graph, with the time that is left."""
        placed = self.placed
        if placed.ways.best is None or placed.close(self.effort.gap) or placed.bandwidth is not None:
            return
        if self.left_s < 0.05 * self.effort.seconds or self.over() or not self.has_solver:
            return
        ways = placed.ways
        runs = (run for run in ways.runs.values() if run.best is not None and run.name in ways.makespans_s)
        small = [run for run in runs if run.annealing.timing.graph.num_ops <= _MOST_REDUCED]
        start = min(small, key=lambda run: ways.makespans_s[run.name], default=None)
        if start is None:
            return
        annealing, seconds = start.annealing, self.left_s
        effort = self._for(min(seconds, _REDUCED * self.effort.seconds) if self.joint else seconds, self.effort.gap)
        exact = solve(annealing.timing.graph, placed.devices, annealing.unit, effort, start.best)
        placed.stopped = placed.stopped or exact.stopped
        if exact.schedule is not None:
            placed.ways.take("exact, reduced", start.unreduced(placed.timing, exact.schedule))
