"""Placement, order and bandwidth at once, by CP-SAT and by a search.

Placement, order and bandwidth at once by CP-SAT: the bandwidth of each pair of servers in whole parts (P2 and P3).

What a server sends has K parts, of which each pair gets some, or none if no data goes there. A literal says how many
parts a pair has; so the ticks of a transfer of some bytes between two servers are a sum over these literals, and an
operator waits for its input by the ticks of the pair that both units are on. The cone program (`cone.py`) then finds
the bandwidths between the parts.

The search of a placement together with the bandwidth between servers, from the best schedule of uniform shares.

Graphs reduced by two thresholds are annealed, each chain with bandwidths of its own, from HEFT and from that schedule;
what is behind is dropped after the first round. The cone program then finds the best bandwidths of what was found on
the given graph. A small graph goes to CP-SAT as well. The steps of annealing follow from the time that is given, not
from the clock.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from dsx.errors import InputError
from dsx.files import install_text
from dsx.placement.annealing import Annealing, AnnealingRun, annealed_once
from dsx.placement.bandwidth import (
    Allocated,
    ServerNetwork,
    filled,
    in_parts,
    num_servers,
    polished,
    uniform_shares,
    with_bandwidth,
)
from dsx.placement.capacity import run
from dsx.placement.exact import Cuts, PlacementProgram, renumbering, units_to_place_first
from dsx.placement.op_graph import OpGraph, finely
from dsx.placement.reduced_graph import alone, by_percentile, reduce
from dsx.placement.servers import Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule, heft

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


_PARTS_OF_TIME = 2**20  # ticks of the makespan; with bandwidths in parts, finer ones are of no use

Pair = tuple[int, int]  # of servers, from and to


def solve_joint(
    graph: OpGraph,
    devices: Devices,
    network: ServerNetwork,
    unit: Sequence[int],
    start: Allocated,
    parts: int,
    seconds: float,
    stop: Callable[[], bool] = lambda: False,
    seed: int = 0,
) -> tuple[Allocated, bool]:
    """Return the best of some seconds, polished, and whether `stop` or Ctrl-C ended the search.

    It is never longer than `start`, with which the solver begins. A server has `parts` parts for each server that it
    sends to. Links inside servers, and the latency of the network, are those of `devices`.
    """
    program = _JointProgram(graph, devices, network, unit, start, parts)
    answer = run(program.model, seconds, seed=seed, stop=stop)
    if not answer.found:
        return start, answer.stopped
    value = answer.solver.boolean_value
    device = [next(at for at, here in enumerate(row) if value(here)) for row in program.base.place]
    bandwidth = np.zeros((program.servers,) * 2)
    for pair, row in program.number.items():
        bandwidth[pair] = next(number for number, literal in enumerate(row) if value(literal))
    bandwidth = filled(network, bandwidth)
    begin = [float(answer.solver.value(op)) for op in program.base.start]
    made = GraphTimes(graph, with_bandwidth(devices, bandwidth)).best([device[one] for one in program.base.unit], begin)
    found = polished(graph, devices, network, Allocated(made, bandwidth))
    return (found if found.schedule.makespan_s < start.schedule.makespan_s else start), answer.stopped


class _JointProgram:
    """The program of placement with bandwidths in parts, with a hint."""

    def __init__(
        self,
        graph: OpGraph,
        devices: Devices,
        network: ServerNetwork,
        unit: Sequence[int],
        start: Allocated,
        parts: int,
    ) -> None:
        self.devices, self.servers, self.size = devices, num_servers(devices), devices.server_size
        self.total = parts * (self.servers - 1)
        share = in_parts(start.bandwidth, parts)
        timing = GraphTimes(graph, with_bandwidth(devices, filled(network, share.astype(float))))
        placement = start.schedule.device.tolist()
        order = timing.order_of(placement, start.schedule.start_s.tolist())
        longest_s = timing.in_order(placement, order).makespan_s
        self.base = PlacementProgram(graph, devices, unit, longest_s, finely(longest_s, _PARTS_OF_TIME))
        self.model, self.cuts = self.base.model, Cuts(self.base)
        self.number = {pair: self._numbers(pair) for pair in permutations(range(self.servers), 2)}
        for server in range(self.servers):
            of = [row for (sender, _), row in self.number.items() if sender == server]
            self.model.add(sum(at * literal for row in of for at, literal in enumerate(row)) <= self.total)
        self.part_s = 1.0 / (network.total / max(self.total, 1))  # seconds of a byte with one part
        self.delays: dict[tuple[Pair, float], tuple[cp_model.IntVar, list[int]]] = {}
        self.used: set[tuple[int, int]] = set()  # pairs of units with data between them
        for edge, num_bytes in graph.edge_bytes.items():
            self._run_after(edge, num_bytes)
        first = units_to_place_first(graph, devices, unit)
        for number, one in enumerate(first):
            for literal in self.base.place[one][number + 1 :]:
                self.model.add(literal == 0)
        self._hint(timing, placement, order, share, first)

    def _numbers(self, pair: Pair) -> "list[cp_model.IntVar]":
        """Return the literals of how many parts a pair has."""
        row = [self.model.new_bool_var(f"{at} parts for {pair}") for at in range(self.total + 1)]
        self.model.add_exactly_one(row)
        return row

    def _on(self, one: int) -> "list[cp_model.IntVar]":
        return self.cuts.parts_of(one, self.size)

    def _run_after(self, edge: tuple[int, int], num_bytes: float) -> None:
        """Let an operator wait for an input."""
        one, other = (self.base.unit[op] for op in edge)
        end, start = self.base.end(edge[0]), self.base.start[edge[1]]
        self.model.add(end <= start)
        if one == other or num_bytes <= 0.0:
            return
        if self.size > 1:
            inside = self.base.ticks.of(self.devices.links[0].seconds(num_bytes))
            for here, there in zip(self._on(one), self._on(other), strict=True):
                later = self.model.add(end + inside * self.cuts.of(one, other, 1) <= start)
                later.only_enforce_if(here, there)
        for pair, row in self.number.items():
            apart = self._on(one)[pair[0]], self._on(other)[pair[1]]
            self.model.add(end + self._delay(pair, num_bytes)[0] <= start).only_enforce_if(*apart)
            if (one, other) not in self.used:
                self.model.add_bool_or(~apart[0], ~apart[1], ~row[0])
        self.used.add((one, other))

    def _delay(self, pair: Pair, num_bytes: float) -> "tuple[cp_model.IntVar, list[int]]":
        """Return the ticks of a transfer between two servers, and what they are for each number of parts."""
        if (pair, num_bytes) not in self.delays:
            latency = self.devices.links[-1].latency_s
            ticks = [self.base.ticks.of(latency + num_bytes * self.part_s / at) for at in range(1, self.total + 1)]
            # More than the longest makespan is as good as endless; without parts nothing is sent.
            ticks = [0, *(min(own, self.base.longest + 1) for own in ticks)]
            delay = self.model.new_int_var(0, self.base.longest + 1, f"{num_bytes} bytes by {pair}")
            self.model.add(delay == sum(own * literal for own, literal in zip(ticks, self.number[pair], strict=True)))
            self.delays[pair, num_bytes] = delay, ticks
        return self.delays[pair, num_bytes]

    def _hint(
        self,
        timing: GraphTimes,
        placement: Sequence[int],
        order: Sequence[int],
        share: np.ndarray,
        first: Sequence[int],
    ) -> None:
        """Hint all variables, with servers renumbered as the first units ask for."""
        device_of = dict(zip(self.base.unit, placement, strict=True))
        number = renumbering(self.devices, [device_of[one] for one in first])
        placement = [number[device] for device in placement]
        moved = [number[server * self.size] // self.size for server in range(self.servers)]
        share = share[np.ix_(np.argsort(moved), np.argsort(moved))]
        sent: dict[tuple[int, int], int] = {}
        for edge, num_bytes in timing.graph.edge_bytes.items():
            one, other = (placement[op] for op in edge)
            pair = one // self.size, other // self.size
            if one == other or num_bytes <= 0.0:
                sent[edge] = 0
            elif pair[0] == pair[1]:
                sent[edge] = self.base.ticks.of(self.devices.links[0].seconds(num_bytes))
            else:
                sent[edge] = self._delay(pair, num_bytes)[1][share[pair]]
        self.base.hint(placement, self.base.starts_in_order(placement, order, sent))
        self.cuts.hint([number[device_of[one]] for one in range(self.base.num_units)])
        for pair, row in self.number.items():
            for at, literal in enumerate(row):
                self.model.add_hint(literal, at == share[pair])
        for (pair, _), (delay, ticks) in self.delays.items():
            self.model.add_hint(delay, ticks[share[pair]])


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

    schedule: OperatorSchedule
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
    network: ServerNetwork,
    seconds: float,
    hint: OperatorSchedule,
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
    network: ServerNetwork,
    seconds: float,
    best: Allocated,
    stop: Callable[[], bool],
    seed: int,
) -> Iterator[Allocated]:
    """Yield what each round finds, as a schedule of the given graph."""
    runs = _runs(graph, devices, network, best, seed)
    for hot, cold in _ROUNDS:
        for reduced, whole in annealed_once(graph, runs, seconds / len(_ROUNDS), hot, cold, stop):
            yield Allocated(whole, np.array(reduced.annealing.timing.devices.between))
        if stop():
            return
        runs = sorted(runs, key=lambda run: run.best_s)[:_KEPT]


def _runs(graph: OpGraph, devices: Devices, network: ServerNetwork, best: Allocated, seed: int) -> list[AnnealingRun]:
    """Return annealings of different graphs, that begin with HEFT or with the best placement known."""
    shared = with_bandwidth(devices, uniform_shares(network, num_servers(devices)))
    if graph.num_ops <= _MOST_RAW:
        graphs = [(graph, np.arange(graph.num_ops))]
    else:
        made = [reduce(graph, devices, by_percentile(graph, percentile)) for percentile in _PERCENTILES]
        graphs = [(one.graph, one.of_op) for one in made]
    runs: list[AnnealingRun] = []
    for reduced, of_op in graphs:
        unit, timing = alone(reduced), GraphTimes(reduced, shared)
        starts = [heft(timing, unit.tolist())]
        if not runs:  # of the graph with fewest units both: far from the best, and near it
            starts.append(timing.best(_projected(graph, of_op, unit, best.schedule.device).tolist()))
        runs += [
            AnnealingRun("joint", of_op, Annealing(reduced, timing, unit, start, seed, network))
            for start in starts
            if start is not None
        ]
    return runs


def _projected(graph: OpGraph, of_op: np.ndarray, unit: np.ndarray, device: np.ndarray) -> np.ndarray:
    """Return the device of each reduced operator: where its unit has most of its time."""
    seconds = np.zeros((int(unit.max()) + 1, int(device.max()) + 1))
    np.add.at(seconds, (unit[of_op], device), graph.mean_s)
    return seconds.argmax(axis=1)[unit]
