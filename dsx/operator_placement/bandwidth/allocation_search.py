"""The search of a placement together with the bandwidth between servers, from the best schedule of uniform shares.

Graphs reduced by two thresholds are annealed, each chain with bandwidths of its own, from HEFT and from that schedule;
what is behind is dropped after the first round. The cone program then finds the best bandwidths of what was found on
the given graph. A small graph goes to CP-SAT as well. The steps of annealing follow from the time that is given, not
from the clock.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from dsx.errors import InputError
from dsx.installed import install_text
from dsx.operator_placement.annealing import Annealing
from dsx.operator_placement.annealing_runs import Run, annealed_once
from dsx.operator_placement.bandwidth.allocated import Allocated, polished
from dsx.operator_placement.bandwidth.joint import solve_joint
from dsx.operator_placement.bandwidth.network import Network, num_servers, uniform_shares, with_bandwidth
from dsx.operator_placement.devices import Devices
from dsx.operator_placement.heft import heft
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.reduction import alone, reduce
from dsx.operator_placement.schedule import Schedule, Timing
from dsx.operator_placement.thresholds import by_percentile

_PERCENTILES = (75.0, 50.0)
_MOST_RAW = 300  # operators of a graph that is annealed as it is
_MOST_EXACT = 60  # units of a graph that CP-SAT gets
_PARTS = 6  # of the bandwidth of a server, for each server that it sends to
_ROUNDS = ((1e-3, 1e-4), (5e-4, 5e-5), (3e-4, 2e-5), (2e-4, 1e-5), (1e-4, 5e-6))  # hot and cold, of the makespan
_KEPT = 2  # runs after the first round
_CLOSE = 1.005  # of the best makespan: what is polished between rounds


@dataclass(frozen=True, eq=False)
class Joint:
    """A schedule with the bandwidth that it needs, and what uniform shares give."""

    schedule: Schedule
    bandwidth: np.ndarray  # [S, S] bytes/s from server to server, 0 for pairs that exchange nothing
    uniform_s: float  # makespan of uniform shares
    stopped: bool = False  # by Ctrl-C


def check_solvers() -> None:
    """Raise InputError if a solver of joint bandwidth is not installed."""
    missing = [name for name in ("ortools", "clarabel") if find_spec(name) is None]
    if missing:
        raise InputError(f"joint bandwidth needs {' and '.join(missing)}: {install_text('[place]')}")


def allocate(
    graph: OpGraph,
    devices: Devices,
    network: Network,
    seconds: float,
    hint: Schedule,
    stop: Callable[[], bool] = lambda: False,
    seed: int = 0,
) -> Joint:
    """Return the best schedule and bandwidths that some seconds find, never longer than `hint` with uniform shares.

    Of `devices` the bandwidth of links between servers is not used. `stop` ends the search after a round, Ctrl-C at
    once. Raises InputError if a solver that it needs is not installed.
    """
    check_solvers()
    servers = num_servers(devices)
    best, stopped = Allocated(hint, uniform_shares(network, servers)), False
    try:
        best = polished(graph, devices, network, best)
        unit = alone(graph)
        if servers > 2 and int(unit.max(initial=-1)) < _MOST_EXACT and not stop():
            seconds /= 2
            best, stopped = solve_joint(graph, devices, network, unit.tolist(), best, _PARTS, seconds, stop, seed)
        if servers > 2 and not stopped:  # of two, each has one to send to
            for found in _annealed(graph, devices, network, seconds, best, stop, seed):
                if found.schedule.makespan_s < best.schedule.makespan_s * _CLOSE:
                    found = polished(graph, devices, network, found, rounds=2)
                if found.schedule.makespan_s < best.schedule.makespan_s:
                    best = found
            best = polished(graph, devices, network, best)
    except KeyboardInterrupt:
        stopped = True
    return Joint(best.schedule, best.bandwidth, hint.makespan_s, stopped)


def _annealed(
    graph: OpGraph,
    devices: Devices,
    network: Network,
    seconds: float,
    best: Allocated,
    stop: Callable[[], bool],
    seed: int,
) -> Iterator[Allocated]:
    """Yield what each round finds, as a schedule of the given graph."""
    runs = _runs(graph, devices, network, best, seed)
    for hot, cold in _ROUNDS:
        for run, whole in annealed_once(graph, runs, seconds / len(_ROUNDS), hot, cold, stop):
            yield Allocated(whole, np.array(run.annealing.timing.devices.between))
        if stop():
            return
        runs = sorted(runs, key=lambda run: run.best_s)[:_KEPT]


def _runs(graph: OpGraph, devices: Devices, network: Network, best: Allocated, seed: int) -> list[Run]:
    """Return annealings of different graphs, that begin with HEFT or with the best placement known."""
    shared = with_bandwidth(devices, uniform_shares(network, num_servers(devices)))
    if graph.num_ops <= _MOST_RAW:
        graphs = [(graph, np.arange(graph.num_ops))]
    else:
        made = [reduce(graph, devices, by_percentile(graph, percentile)) for percentile in _PERCENTILES]
        graphs = [(one.graph, one.of_op) for one in made]
    runs: list[Run] = []
    for reduced, of_op in graphs:
        unit, timing = alone(reduced), Timing(reduced, shared)
        starts = [heft(timing, unit.tolist())]
        if not runs:  # of the graph with fewest units both: far from the best, and near it
            starts.append(timing.best(_projected(graph, of_op, unit, best.schedule.device).tolist()))
        runs += [
            Run("joint", of_op, Annealing(reduced, timing, unit, start, seed, network))
            for start in starts
            if start is not None
        ]
    return runs


def _projected(graph: OpGraph, of_op: np.ndarray, unit: np.ndarray, device: np.ndarray) -> np.ndarray:
    """Return the device of each reduced operator: where its unit has most of its time."""
    seconds = np.zeros((int(unit.max()) + 1, int(device.max()) + 1))
    np.add.at(seconds, (unit[of_op], device), graph.mean_s)
    return seconds.argmax(axis=1)[unit]
