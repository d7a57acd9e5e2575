"""The answer to where the operators of a step go: a search, a bound, and exact search within reach.

The search of a short schedule: HEFT, then annealing of the graph reduced by several thresholds, with and without
groups.

All are started; the half that is behind is dropped after each round, and the rest get twice as long. What counts is the
schedule of the given graph. The steps of a run follow from the time that it is given, not from the clock, so the same
seed gives the same answer.

A placement, how good it is, and what else was tried: what a search fills while it goes on.

The answer to where the operators of a step go: a search, a bound, and exact search where that is within reach.

The time is shared out beforehand. The search comes first (`search.py`), then bandwidths if they are to be found too
(`bandwidth/allocation_search.py`). The bound is for the graph as it is (`heavy_bound.py`). CP-SAT gets a graph of few
operators as it is, and its bound counts; a larger one is reduced first, and only its schedules count. Without the
packages of the extra `place`, the bound is the larger of critical path and load, and METIS has no answer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from time import monotonic

import numpy as np

from dsx.errors import NothingFeasible
from dsx.placement.annealing import Annealing, AnnealingRun, ReducedSchedule, annealed_once
from dsx.placement.bandwidth import ServerNetwork, num_servers, tree, with_bandwidth, with_uniform_shares
from dsx.placement.capacity import check_memory, fitting, packed, shortage
from dsx.placement.contention import Contended, contended
from dsx.placement.exact import solve
from dsx.placement.heavy import Bound, heavy_bound
from dsx.placement.joint import allocate, check_solvers
from dsx.placement.op_graph import OpGraph
from dsx.placement.other_reductions import mcmc, metis
from dsx.placement.reduced_graph import Reduction, alone, by_distribution, by_percentile, reduce
from dsx.placement.servers import DeviceLink, Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule, heft, load_bound_s, path_bound_s

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

    best: OperatorSchedule | None = None
    makespans_s: dict[str, float] = field(default_factory=dict)
    source: str = ""  # the way that found the best
    reductions: dict[str, Reduction] = field(default_factory=dict)  # of the graphs that were annealed
    reduced: dict[str, ReducedSchedule] = field(default_factory=dict)  # the best schedule of each

    def take(self, name: str, schedule: OperatorSchedule | None) -> None:
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


def single_device(timing: GraphTimes) -> OperatorSchedule | None:
    """Return the schedule of all operators on the fastest device; None if it has no room."""
    graph, devices = timing.graph, timing.devices
    if devices.memory_bytes is not None and graph.memory_bytes.sum() > devices.memory_bytes:
        return None
    found = [timing.in_order([device] * graph.num_ops, graph.order) for device in range(devices.count)]
    return min(found, key=lambda schedule: schedule.makespan_s)


def begun(timing: GraphTimes, found: Found, stop: Callable[[], bool] = lambda: False) -> Found:
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
    timing = GraphTimes(graph, devices)
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


def _start(timing: GraphTimes, unit: np.ndarray, stop: Callable[[], bool]) -> OperatorSchedule:
    """Return the schedule of HEFT; where that has no room, one of large units spread out, which may not fit either."""
    found = heft(timing, unit.tolist(), stop=stop)
    if found is not None:
        return found
    return timing.in_order(packed(timing.graph, timing.devices, unit).tolist(), timing.graph.order)


def _runs(
    graph: OpGraph, devices: Devices, timing: GraphTimes, seed: int, most: int, stop: Callable[[], bool]
) -> list[AnnealingRun]:
    """Return up to `most` annealings of different graphs, at least one; no further ones at `stop`."""
    runs: list[AnnealingRun] = []
    seen: set[tuple[int, ...]] = set()
    if graph.num_ops <= _MOST_RAW:
        unit = alone(graph)
        start = _start(timing, unit, stop)
        runs.append(AnnealingRun("as it is", np.arange(graph.num_ops), Annealing(graph, timing, unit, start, seed)))
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
        reduced = GraphTimes(reduction.graph, devices)
        start = _start(reduced, unit, stop)
        name = f"alpha {reduction.thresholds.source}{', groups' if grouped else ''}"
        annealing = Annealing(reduction.graph, reduced, unit, start, seed)
        runs.append(AnnealingRun(name, reduction.of_op, annealing, reduction))
    return runs


_TOUCHING = 1e-6  # a gap that is none


@dataclass(eq=False)
class Placed:
    """A placement, how good it is, and what else was tried. It is filled while the search goes on."""

    graph: OpGraph
    devices: Devices
    network: ServerNetwork | None
    gap_wanted: float
    found: Found = field(default_factory=Found)
    bound: Bound = field(default_factory=lambda: Bound(0.0, 0))
    mcmc_steps: int = 0
    bandwidth: np.ndarray | None = None  # [S, S] bytes/s from server to server, with a network
    uniform_s: float | None = None  # the makespan with uniform shares of the network
    tree_s: float | None = None  # and with the bandwidth of a network card between any two servers
    reduction: Reduction | None = None  # of the best, or the usual one
    stopped: bool = False  # by the user

    @property
    def schedule(self) -> OperatorSchedule:
        """The best schedule; raises NothingFeasible where none was found."""
        if self.found.best is None:
            raise NothingFeasible("no placement was found that fits into memory")
        return self.found.best

    @property
    def gap(self) -> float:
        """How much longer the schedule may be than the shortest, as a share of it."""
        if self.found.best is None:
            return 1.0
        return (self.schedule.makespan_s - self.bound_s) / (self.schedule.makespan_s or 1.0)

    @property
    def bound_s(self) -> float:
        """Seconds that no schedule is below: rounding of sums does not lift it over the best."""
        return min(self.bound.seconds, self.schedule.makespan_s)

    def close(self, gap: float) -> bool:
        """Return whether the best schedule is within a gap of the bound."""
        return self.found.best is not None and self.gap <= max(gap, _TOUCHING)

    def replay(self) -> Contended:
        """Return the replay of the schedule in which transfers share links."""
        total = None if self.network is None else self.network.total
        return contended(self.graph, self.devices, self.schedule, None if self.bandwidth is not None else total)


_SEARCH, _TREE, _JOINT, _MCMC = 0.3, 0.1, 0.3, 0.1  # shares of the time
_REDUCED, _FIT = 0.1, 0.1  # of exact search before bandwidths, and of a first placement that fits
_LEAST_FIT_S = 2.0
_BASELINES = 0.4  # of the ways that are known from elsewhere, at most
_GRACE, _GRACE_S = 0.25, 5.0  # beyond the time, as a share of it and at least, before what is going on is cut off
_MCMC_STEPS = 25_000
_STEP_PER_OP_S = 6e-8  # nominal seconds of a step of MCMC, for each operator
_FEW = 60  # operators that CP-SAT places exactly, whatever the gap
_MANY = 400  # operators that CP-SAT gets as they are
_MOST_REDUCED = 1_500  # operators of a reduced graph that CP-SAT gets


def place(
    graph: OpGraph,
    devices: Devices,
    seconds: float = 60.0,
    gap: float = 0.05,
    seed: int = 0,
    network: ServerNetwork | None = None,
    joint: bool = False,
    stop: Callable[[], bool] = lambda: False,
    told: Callable[[Placed], None] = lambda placed: None,
) -> Placed:
    """Return the best placement that some seconds find.

    With a `network`, servers share what their network cards send: uniformly, or as the placement needs (`joint`).
    `told` hears of the best so far. Ctrl-C ends the search; what was found until then is returned.

    Raises NothingFeasible if memory has no room, with how much is short; InputError if `joint` needs a package that is
    not installed.
    """
    unit = alone(graph)
    check_memory(graph, devices, unit)
    if joint:
        check_solvers()
    if network is not None:
        devices = with_uniform_shares(devices, network)
    placed = Placed(graph, devices, network, gap)
    joint = joint and num_servers(devices) > 2  # of two, each has one to send to, which gets all
    work = _Work(placed, unit, joint, monotonic() + seconds, seconds, seed, stop, told)
    few = graph.num_ops <= _FEW  # then exact search comes before the other one, and often ends all
    stages = [work.baselines, work.fit, *([work.exact_as_it_is] if few else []), work.search]
    stages += [] if few else [work.exact_as_it_is]
    if network is not None and work.joint:  # which goes on from the best of uniform shares
        stages += [work.exact_reduced, partial(work.allocate, network), work.prove]
    else:
        stages += [work.prove, work.exact_reduced]
    for stage in stages:
        with work.until_stopped():
            stage()
    if placed.found.best is None:
        raise NothingFeasible(shortage(graph, devices, unit, proved=False))
    if network is not None:
        with work.until_stopped():
            work.compare(network)
    source = placed.found.source
    placed.reduction = placed.found.reductions.get(source)
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
    seconds: float
    seed: int
    stop: Callable[[], bool]
    told: Callable[[Placed], None]

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Go on to the next stage at Ctrl-C, which then does nothing."""
        try:
            yield
            self.told(self.placed)
        except KeyboardInterrupt:
            self.placed.stopped = True
        self.placed.stopped = self.placed.stopped or self.stop()

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.until - monotonic()

    def over(self) -> bool:
        """Return whether work that has begun must end: the user stopped it, or the time is long up."""
        grace = max(_GRACE_S, _GRACE * self.seconds)
        return self.placed.stopped or self.stop() or self.left < -grace

    def baselines(self) -> None:
        """Run the ways that are known from elsewhere."""
        placed, graph, devices = self.placed, self.placed.graph, self.placed.devices
        placed.bound = Bound(max(path_bound_s(graph, devices), load_bound_s(graph, devices)), 0)
        timing = GraphTimes(graph, devices)
        until = self.left - _BASELINES * self.seconds - _GRACE_S

        def over() -> bool:
            return self.over() or self.left < until

        begun(timing, placed.found, over)
        if devices.count == 1:
            return
        if find_spec("pymetis") is not None:
            placed.found.take("metis", metis(timing, self.unit.tolist(), self.seed))
        if (start := single_device(timing)) is not None:
            most = _MCMC * self.seconds / (_STEP_PER_OP_S * max(graph.num_ops, 1))
            placed.mcmc_steps = int(min(_MCMC_STEPS, max(most, 1)))
            placed.found.take("mcmc", mcmc(timing, self.unit.tolist(), start, placed.mcmc_steps, self.seed, over))

    def search(self) -> None:
        """Anneal reduced graphs."""
        placed = self.placed
        if self.over() or placed.close(0.0):
            return
        search(
            placed.graph,
            placed.devices,
            _SEARCH * self.seconds,
            self.seed,
            lambda: self.over() or placed.close(0.0),
            lambda _: self.told(placed),
            placed.found,
        )

    def fit(self) -> None:
        """Find a start where none of the baselines fits."""
        placed = self.placed
        if placed.found.best is not None or find_spec("ortools") is None:
            return
        packing = fitting(placed.graph, placed.devices, self.unit, max(_FIT * self.seconds, _LEAST_FIT_S), self.over)
        if packing.impossible:
            raise NothingFeasible(shortage(placed.graph, placed.devices, self.unit, proved=True))
        if packing.device is not None:
            placed.found.take("packing", GraphTimes(placed.graph, placed.devices).best(packing.device.tolist()))

    def allocate(self, network: ServerNetwork) -> None:
        """Find the bandwidths of servers."""
        placed, best = self.placed, self.placed.found.best
        if best is None or self.over() or placed.close(0.0):
            return
        placed.uniform_s = best.makespan_s
        made = allocate(placed.graph, placed.devices, network, _JOINT * self.seconds, best, self.over, self.seed)
        placed.stopped = placed.stopped or made.stopped
        if made.schedule.makespan_s < best.makespan_s:
            placed.bandwidth = made.bandwidth
            placed.devices = with_bandwidth(placed.devices, made.bandwidth)
            placed.found.take("joint", made.schedule)

    def compare(self, network: ServerNetwork) -> None:
        """Find what uniform shares and the thesis' tree give."""
        placed, schedule = self.placed, self.placed.schedule
        if placed.bandwidth is None:
            placed.uniform_s = schedule.makespan_s
        between = tree(network, num_servers(placed.devices))
        if between.total == network.total:
            placed.tree_s = placed.uniform_s
            return
        fast = with_uniform_shares(placed.devices, between)
        made = GraphTimes(placed.graph, fast).best(schedule.device.tolist(), schedule.start_s.tolist())
        found = search(placed.graph, fast, _TREE * self.seconds, self.seed, self.over)
        placed.tree_s = min(made.makespan_s, *found.makespans_s.values())

    def _best_devices(self) -> Devices:
        """Return devices with the best bandwidths that there may be: a bound for these is one for all allocations."""
        placed = self.placed
        if placed.bandwidth is None or placed.network is None:
            return placed.devices
        inside = len(placed.devices.units[:1])
        links = placed.devices.links
        outside = [DeviceLink(placed.network.total, link.latency_s) for link in links[inside:]]
        return replace(placed.devices, links=(*links[:inside], *outside), between=None)

    def exact_as_it_is(self) -> None:
        """Let CP-SAT place a small graph."""
        placed = self.placed
        gap = 0.0 if placed.graph.num_ops <= _FEW else placed.gap_wanted
        wanted = placed.graph.num_ops <= _MANY and placed.bandwidth is None and not placed.close(gap)
        if not wanted or self.over() or find_spec("ortools") is None or placed.devices.count == 1:
            return
        exact = solve(
            placed.graph,
            placed.devices,
            self.unit.tolist(),
            max(self.left, 0.2 * self.seconds) / 2,
            gap,
            placed.found.best,
            self.over,
            self.seed,
        )
        placed.found.take("exact", exact.schedule)
        placed.stopped = placed.stopped or exact.stopped
        if exact.schedule is None and exact.proved:
            raise NothingFeasible(shortage(placed.graph, placed.devices, self.unit, proved=True))
        # The bound is that of these bandwidths; others may be better.
        if not self.joint and exact.bound_s > placed.bound.seconds:
            placed.bound = Bound(min(exact.bound_s, placed.schedule.makespan_s), placed.graph.num_ops)

    def prove(self) -> None:
        """Raise the bound."""
        placed = self.placed
        if placed.found.best is None or placed.close(placed.gap_wanted) or self.over():
            return
        if find_spec("ortools") is None or placed.devices.count == 1:
            return

        def better(bound: Bound) -> None:
            if bound.seconds > placed.bound.seconds:
                placed.bound = bound
            self.told(placed)

        share = max(self.left, 0.2 * self.seconds) * 0.75
        devices, shortest_s = self._best_devices(), placed.schedule.makespan_s
        better(
            heavy_bound(
                placed.graph, devices, self.unit.tolist(), shortest_s, share, placed.gap_wanted, self.over, better
            )
        )

    def exact_reduced(self) -> None:
        """Let CP-SAT improve the best schedule of a reduced graph, with the time that is left."""
        placed = self.placed
        if placed.found.best is None or placed.close(placed.gap_wanted) or placed.bandwidth is not None:
            return
        if self.left < 0.05 * self.seconds or self.over() or find_spec("ortools") is None:
            return
        start = placed.found.reduced_best(_MOST_REDUCED)
        if start is None:
            return
        exact = solve(
            start.graph,
            placed.devices,
            start.unit.tolist(),
            min(self.left, _REDUCED * self.seconds) if self.joint else self.left,
            placed.gap_wanted,
            start.schedule,
            self.over,
            self.seed,
        )
        placed.stopped = placed.stopped or exact.stopped
        if exact.schedule is not None:
            timing = GraphTimes(placed.graph, placed.devices)
            made = exact.schedule
            whole = timing.best(made.device[start.of_op].tolist(), made.start_s[start.of_op].tolist())
            placed.found.take("exact, reduced", whole)
