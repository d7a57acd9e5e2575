"""The answer to where the operators of a step go: a search, a bound, and exact search where that is within reach.

The time is shared out beforehand. The search comes first (`search.py`), then bandwidths if they are to be found too
(`bandwidth/allocation_search.py`). The bound is for the graph as it is (`heavy_bound.py`). CP-SAT gets a graph of few
operators as it is, and its bound counts; a larger one is reduced first, and only its schedules count. Without the
packages of the extra `place`, the bound is the larger of critical path and load, and METIS has no answer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from time import monotonic

import numpy as np

from dsx.errors import NothingFeasible
from dsx.operator_placement.bandwidth.allocation_search import allocate, check_solvers
from dsx.operator_placement.bandwidth.network import Network, num_servers, tree, with_bandwidth, with_uniform_shares
from dsx.operator_placement.bounds import load_bound_s, path_bound_s
from dsx.operator_placement.devices import Devices, Link
from dsx.operator_placement.exact import solve
from dsx.operator_placement.heavy_bound import Bound, heavy_bound
from dsx.operator_placement.mcmc import mcmc
from dsx.operator_placement.memory import check_memory, fitting, shortage
from dsx.operator_placement.metis import metis
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.placed import Placed
from dsx.operator_placement.reduction import alone, reduce
from dsx.operator_placement.schedule import Timing
from dsx.operator_placement.search import begun, search, single_device
from dsx.operator_placement.thresholds import by_distribution

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
    network: Network | None = None,
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
        timing = Timing(graph, devices)
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
            placed.found.take("packing", Timing(placed.graph, placed.devices).best(packing.device.tolist()))

    def allocate(self, network: Network) -> None:
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

    def compare(self, network: Network) -> None:
        """Find what uniform shares and the thesis' tree give."""
        placed, schedule = self.placed, self.placed.schedule
        if placed.bandwidth is None:
            placed.uniform_s = schedule.makespan_s
        between = tree(network, num_servers(placed.devices))
        if between.total == network.total:
            placed.tree_s = placed.uniform_s
            return
        fast = with_uniform_shares(placed.devices, between)
        made = Timing(placed.graph, fast).best(schedule.device.tolist(), schedule.start_s.tolist())
        found = search(placed.graph, fast, _TREE * self.seconds, self.seed, self.over)
        placed.tree_s = min(made.makespan_s, *found.makespans_s.values())

    def _best_devices(self) -> Devices:
        """Return devices with the best bandwidths that there may be: a bound for these is one for all allocations."""
        placed = self.placed
        if placed.bandwidth is None or placed.network is None:
            return placed.devices
        inside = len(placed.devices.units[:1])
        links = placed.devices.links
        outside = [Link(placed.network.total, link.latency_s) for link in links[inside:]]
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
            timing = Timing(placed.graph, placed.devices)
            made = exact.schedule
            whole = timing.best(made.device[start.of_op].tolist(), made.start_s[start.of_op].tolist())
            placed.found.take("exact, reduced", whole)
