"""Bandwidth between servers: the best for a placement, and with placement and order at once (P2, P3 of the sources).

The best bandwidths for a placement and the order on each device are a program over second-order cones, by Clarabel.
Over starts s, the makespan, the share b of each pair of servers and its inverse r,

    minimise the makespan, so that   s_j >= s_i + p_i + latency + bytes r   for an edge between two servers,
                                     s_j >= s_i + p_i                       for operators in turn on a device,
                                     the b from each server add up to 1,  and  r b >= 1,

which is convex (P2 of the sources with fixed x): r b >= 1 is the cone |(2, r - b)| <= r + b. Times are shares of the
makespan known before, bandwidths shares of the total of a server. A transfer has all of the bandwidth of its pair.

Placement, order and bandwidth are searched at once by annealing and by CP-SAT.

Annealing goes on from the best schedule of uniform shares. Graphs reduced by two thresholds are annealed, each chain
with bandwidths of its own, from HEFT and from that schedule; what is behind is dropped after the first round. The cone
program then finds the best bandwidths of what was found on the given graph. The steps of annealing follow
from the time that it has, not from the clock.

A small graph goes to CP-SAT as well. What a server sends has K parts, of which each pair gets some, or none if no data
goes there. A literal says how many parts a pair has; so the ticks of a transfer of some bytes between two servers are a
sum over these literals, and an operator waits for its input by the ticks of the pair that both units are on. The cone
program finds the bandwidths between the parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from dsx.errors import InputError
from dsx.files import install_text
from dsx.placement.annealing import Annealing, AnnealingRun, annealed_once
from dsx.placement.cp_program import PlacementProgram, SolverEffort, finely, place_first, run
from dsx.placement.exact import renumbering, units_to_place_first
from dsx.placement.op_graph import Edge, OpGraph, by_percentile, reduce, units_of
from dsx.placement.servers import (
    Devices,
    Pair,
    ServerNetwork,
    filled,
    in_parts,
    uniform_shares,
    with_bandwidth,
)
from dsx.placement.timetable import GraphTimes, OperatorSchedule

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_PARTS_OF_TIME = 2**20  # ticks of the makespan; with bandwidths in parts, finer ones are of no use
_PERCENTILES = (75.0, 50.0)
_MOST_RAW = 300  # operators of a graph that is annealed as it is
_MOST_EXACT = 60  # units of a graph that CP-SAT gets
_PARTS = 6  # of the bandwidth of a server, for each server that it sends to
# Temperatures of each round, hot and cold, of the makespan.
_ROUNDS = (
    *((1e-3, 1e-4), (5e-4, 5e-5), (3e-4, 2e-5), (2e-4, 1e-5)),
    *((1e-4, 5e-6), (1e-4, 5e-6), (5e-5, 5e-6)),
)
_KEPT = 2  # runs after the first round
_CLOSE = 1.005  # of the best makespan: what is polished between rounds
_LAST = 1.0 - 1e-6  # a round that shortens a schedule by less is the last one
_LEAST_SHARE = 1e-9


@dataclass
class _ConeProgram:
    """Rows of a program: sums of factors times columns, each at most a limit."""

    entries: list[tuple[int, int, float]] = field(default_factory=list)  # row, column, factor
    limits: list[float] = field(default_factory=list)  # of each row

    def at_most(self, limit: float, *terms: tuple[int, float]) -> None:
        """Add a row of (column, factor)."""
        self.entries += [(len(self.limits), column, factor) for column, factor in terms]
        self.limits.append(limit)

    def solution(self, goal: int, num_columns: int, num_cones: int) -> np.ndarray | None:
        """Return the columns for which `goal` is least; the last rows are cones of three; None if the solver fails."""
        clarabel: Any = import_module("clarabel")  # which has no types

        rows, columns, factors = (np.array(part) for part in zip(*self.entries, strict=True))
        matrix = scipy.sparse.csc_matrix((factors, (rows, columns)), shape=(len(self.limits), num_columns))
        weights = np.zeros(num_columns)
        weights[goal] = 1.0
        inequalities = clarabel.NonnegativeConeT(len(self.limits) - 3 * num_cones)
        cones = [inequalities, *(clarabel.SecondOrderConeT(3) for _ in range(num_cones))]
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        nothing = scipy.sparse.csc_matrix((num_columns, num_columns))
        solver = clarabel.DefaultSolver(nothing, weights, matrix, np.array(self.limits), cones, settings)
        solution = solver.solve()
        if solution.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
            return None
        return np.array(solution.x)


def best_bandwidth(timing: GraphTimes, network: ServerNetwork, schedule: OperatorSchedule) -> np.ndarray | None:
    """Return the [S, S] bytes/s that make a schedule shortest, each device keeping its order.

    None if no two servers exchange data, or the solver fails. What a server has is given out in full to the pairs that
    carry data; servers that send none keep uniform shares.
    """
    graph, devices, placement = timing.graph, timing.devices, schedule.device.tolist()
    # Of each edge the pair of servers between which it goes, seconds that no share changes, and bytes.
    sent: list[tuple[Pair | None, float, float]] = []
    for (source, target), num_bytes in graph.edge_bytes.items():
        a, b = placement[source], placement[target]
        servers = a // devices.server_size, b // devices.server_size
        if num_bytes > 0.0 and servers[0] != servers[1]:
            sent.append((servers, devices.link(a, b).latency_s, num_bytes))
        else:
            sent.append((None, devices.links[0].seconds(num_bytes) if a != b else 0.0, 0.0))
    pairs = sorted({pair for pair, _, _ in sent if pair is not None})
    if not pairs or schedule.makespan_s <= 0.0:
        return None
    makespan, scale = graph.num_ops, schedule.makespan_s
    # Columns: starts, the makespan, shares, inverses.
    share = {pair: makespan + 1 + at for at, pair in enumerate(pairs)}
    inverse = {pair: column + len(pairs) for pair, column in share.items()}
    program = _ConeProgram()
    took = [seconds / scale for seconds in timing.durations(placement)]
    for op in range(graph.num_ops):
        if not graph.predecessors[op]:
            program.at_most(0.0, (op, -1.0))
        if not graph.successors[op]:
            program.at_most(-took[op], (op, 1.0), (makespan, -1.0))
    for (source, target), (pair, fixed_s, num_bytes) in zip(graph.edges, sent, strict=True):
        more = [] if pair is None else [(inverse[pair], num_bytes / network.total / scale)]
        program.at_most(-took[source] - fixed_s / scale, (source, 1.0), (target, -1.0), *more)
    for op, following in (pair for queue in timing.queues(schedule) for pair in pairwise(queue)):
        program.at_most(-took[op], (op, 1.0), (following, -1.0))
    for server in sorted({sender for sender, _ in pairs}):
        program.at_most(1.0, *((share[pair], 1.0) for pair in pairs if pair[0] == server))
    for pair in pairs:
        program.at_most(0.0, (inverse[pair], -1.0), (share[pair], -1.0))
        program.at_most(2.0)
        program.at_most(0.0, (inverse[pair], -1.0), (share[pair], 1.0))
    solution = program.solution(makespan, makespan + 1 + 2 * len(pairs), len(pairs))
    if solution is None:
        return None
    bandwidth = np.zeros((devices.num_servers,) * 2)
    for pair in pairs:
        bandwidth[pair] = max(solution[share[pair]], _LEAST_SHARE)
    return filled(network, bandwidth)


@dataclass(frozen=True, eq=False)
class Allocated:
    """A schedule, and the bandwidths that it was timed with."""

    schedule: OperatorSchedule
    bandwidth: np.ndarray  # [S, S] bytes/s from server to server


def polished(graph: OpGraph, devices: Devices, network: ServerNetwork, start: Allocated, rounds: int = 10) -> Allocated:
    """Return the best of bandwidths and orders, each improved for the other in turn; the placement stays."""
    best, placement = start, start.schedule.device.tolist()
    for _ in range(rounds):
        timing = GraphTimes(graph, with_bandwidth(devices, best.bandwidth))
        bandwidth = best_bandwidth(timing, network, best.schedule)
        if bandwidth is None:
            return best
        timing = GraphTimes(graph, with_bandwidth(devices, bandwidth))
        schedule = timing.best(placement, best.schedule.start_s.tolist())
        last = schedule.makespan_s > best.schedule.makespan_s * _LAST
        if schedule.makespan_s < best.schedule.makespan_s:
            best = Allocated(schedule, bandwidth)
        if last:
            break
    return best


def solve_joint(
    graph: OpGraph, devices: Devices, network: ServerNetwork, start: Allocated, parts: int, effort: SolverEffort
) -> tuple[Allocated, bool]:
    """Return the best that is found, polished, and whether the search was stopped.

    It is never longer than `start`, with which the solver begins. A server has `parts` parts for each server that it
    sends to. Links inside servers, and the latency of the network, are those of `devices`.
    """
    program = _JointProgram(graph, devices, network, start, parts)
    answer = run(program.model, effort)
    if not answer.solved:
        return start, answer.stopped
    device = answer.chosen(program.place)
    bandwidth = np.zeros((program.servers,) * 2)
    for pair, number in zip(program.number, answer.chosen(program.number.values()), strict=True):
        bandwidth[pair] = number
    bandwidth = filled(network, bandwidth)
    begin = [float(answer.solver.value(op)) for op in program.start]
    timing = GraphTimes(graph, with_bandwidth(devices, bandwidth))
    schedule = timing.best([device[unit] for unit in program.unit], begin)
    joint = polished(graph, devices, network, Allocated(schedule, bandwidth))
    return (joint if joint.schedule.makespan_s < start.schedule.makespan_s else start), answer.stopped


class _JointProgram(PlacementProgram):
    """The program of placement with bandwidths in parts, with a hint."""

    def __init__(self, graph: OpGraph, devices: Devices, network: ServerNetwork, start: Allocated, parts: int) -> None:
        self.servers, self.size = devices.num_servers, devices.server_size
        self.total = parts * (self.servers - 1)
        share = in_parts(start.bandwidth, parts)
        timing = GraphTimes(graph, with_bandwidth(devices, filled(network, share.astype(float))))
        placement = start.schedule.device.tolist()
        order = timing.order_of(start.schedule.start_s.tolist())
        longest_s = timing.in_order(placement, order).makespan_s
        unit = units_of(graph).tolist()
        super().__init__(graph, devices, unit, longest_s, finely(longest_s, _PARTS_OF_TIME))
        self.number = {pair: self._numbers(pair) for pair in permutations(range(self.servers), 2)}
        for server in range(self.servers):
            rows = [row for (sender, _), row in self.number.items() if sender == server]
            self.model.add(sum(at * literal for row in rows for at, literal in enumerate(row)) <= self.total)
        self.part_s = 1.0 / (network.total / max(self.total, 1))  # seconds of a byte with one part
        self.delays: dict[tuple[Pair, float], tuple[cp_model.IntVar, list[int]]] = {}
        self.used: set[tuple[int, int]] = set()  # pairs of units with data between them
        for edge, num_bytes in graph.edge_bytes.items():
            self._run_after(edge, num_bytes)
        first = units_to_place_first(graph, devices, unit)
        place_first(self.model, self.place, first)
        # The hint has servers renumbered as the first units ask for.
        device_of = dict(zip(unit, placement, strict=True))
        number = renumbering(devices, [device_of[unit] for unit in first])
        moved = [number[server * self.size] // self.size for server in range(self.servers)]
        self._hint(timing, [number[device] for device in placement], order, share[np.ix_(*[np.argsort(moved)] * 2)])

    def _numbers(self, pair: Pair) -> "list[cp_model.IntVar]":
        """Return the literals of how many parts a pair has."""
        row = [self.model.new_bool_var(f"{at} parts for {pair}") for at in range(self.total + 1)]
        self.model.add_exactly_one(row)
        return row

    def _run_after(self, edge: Edge, num_bytes: float) -> None:
        """Let an operator wait for an input."""
        a, b = (self.unit[op] for op in edge)
        end, start = self.end(edge[0]), self.start[edge[1]]
        self.model.add(end <= start)
        if a == b or num_bytes <= 0.0:
            return
        of_a, of_b = self.parts_of(a, self.size), self.parts_of(b, self.size)
        if self.size > 1:
            inside = self._inside(num_bytes)
            for server_of_a, server_of_b in zip(of_a, of_b, strict=True):
                later = self.model.add(end + inside * self.cut(a, b, 1) <= start)
                later.only_enforce_if(server_of_a, server_of_b)
        for pair, row in self.number.items():
            apart = of_a[pair[0]], of_b[pair[1]]
            self.model.add(end + self._delay(pair, num_bytes)[0] <= start).only_enforce_if(*apart)
            if (a, b) not in self.used:
                self.model.add_bool_or(~apart[0], ~apart[1], ~row[0])
        self.used.add((a, b))

    def _inside(self, num_bytes: float) -> int:
        """Return the ticks of a transfer inside a server."""
        return self.ticks.of(self.devices.links[0].seconds(num_bytes))

    def _delay(self, pair: Pair, num_bytes: float) -> "tuple[cp_model.IntVar, list[int]]":
        """Return the ticks of a transfer between two servers, and what they are for each number of parts."""
        if (pair, num_bytes) not in self.delays:
            latency, most = self.devices.links[-1].latency_s, self.longest + 1
            ticks = [self.ticks.of(latency + num_bytes * self.part_s / at) for at in range(1, self.total + 1)]
            # More than the longest makespan is as good as endless; without parts nothing is sent.
            ticks = [0, *(min(delay, most) for delay in ticks)]
            delay = self.model.new_int_var(0, most, f"{num_bytes} bytes by {pair}")
            self.model.add(delay == sum(at * literal for at, literal in zip(ticks, self.number[pair], strict=True)))
            self.delays[pair, num_bytes] = delay, ticks
        return self.delays[pair, num_bytes]

    def _hint(self, timing: GraphTimes, placement: Sequence[int], order: Sequence[int], share: np.ndarray) -> None:
        """Hint all variables."""
        sent: list[int] = []
        for (source, target), num_bytes in timing.graph.edge_bytes.items():
            pair = placement[source] // self.size, placement[target] // self.size
            if placement[source] == placement[target] or num_bytes <= 0.0:
                sent.append(0)
            elif pair[0] == pair[1]:
                sent.append(self._inside(num_bytes))
            else:
                sent.append(self._delay(pair, num_bytes)[1][share[pair]])
        self.hint(timing, placement, order, sent)
        for pair, row in self.number.items():
            for at, literal in enumerate(row):
                self.model.add_hint(literal, at == share[pair])
        for (pair, _), (delay, ticks) in self.delays.items():
            self.model.add_hint(delay, ticks[share[pair]])


def check_solvers() -> None:
    """Raise InputError if a solver of joint bandwidth is not installed."""
    missing = [name for name in ("ortools", "clarabel") if find_spec(name) is None]
    if missing:
        raise InputError(f"joint bandwidth needs {' and '.join(missing)}: {install_text('[place]')}")


def allocate(
    graph: OpGraph, devices: Devices, network: ServerNetwork, hint: OperatorSchedule, effort: SolverEffort
) -> tuple[Allocated, bool]:
    """Return the best that is found, never longer than `hint` with uniform shares; and whether it was stopped.

    Pairs that exchange nothing have no bandwidth. Of `devices` the bandwidth of links between servers is not used.
    `stop` ends the search after a round, Ctrl-C at once. Raises InputError if a solver that it needs is not installed.
    """
    check_solvers()
    servers = devices.num_servers
    best, stopped = Allocated(hint, uniform_shares(network, servers)), False
    try:
        best = polished(graph, devices, network, best)
        if servers > 2 and int(units_of(graph).max(initial=-1)) < _MOST_EXACT and not effort.stop():
            effort = replace(effort, seconds=effort.seconds / 2)
            best, stopped = solve_joint(graph, devices, network, best, _PARTS, effort)
        if servers > 2 and not stopped:  # of two, each has one to send to
            runs = _runs(graph, devices, network, best, effort.seed)
            for hot, cold in _ROUNDS:
                share_s = effort.seconds / len(_ROUNDS)
                for annealed, schedule in annealed_once(graph, runs, share_s, hot, cold, effort.stop):
                    joint = Allocated(schedule, np.array(annealed.annealing.timing.devices.between))
                    if joint.schedule.makespan_s < best.schedule.makespan_s * _CLOSE:
                        joint = polished(graph, devices, network, joint, rounds=2)
                    if joint.schedule.makespan_s < best.schedule.makespan_s:
                        best = joint
                if effort.stop():
                    break
                runs = sorted(runs, key=lambda annealed: annealed.best_s)[:_KEPT]
            best = polished(graph, devices, network, best)
    except KeyboardInterrupt:
        stopped = True
    return best, stopped


def _runs(graph: OpGraph, devices: Devices, network: ServerNetwork, best: Allocated, seed: int) -> list[AnnealingRun]:
    """Return annealings of different graphs, that begin with HEFT or with the best placement known."""
    shared = with_bandwidth(devices, uniform_shares(network, devices.num_servers))
    if graph.num_ops <= _MOST_RAW:
        graphs = [(graph, np.arange(graph.num_ops))]
    else:
        reductions = [reduce(graph, devices, by_percentile(graph, percentile)) for percentile in _PERCENTILES]
        graphs = [(reduction.graph, reduction.of_op) for reduction in reductions]
    runs: list[AnnealingRun] = []
    for reduced, of_op in graphs:
        unit, timing = units_of(reduced), GraphTimes(reduced, shared)
        starts = [timing.heft(unit.tolist())]
        if not runs:  # of the graph with fewest units both: far from the best, and near it
            # Each unit is where it has most of its time.
            seconds = np.zeros((int(unit.max()) + 1, int(best.schedule.device.max()) + 1))
            np.add.at(seconds, (unit[of_op], best.schedule.device), graph.mean_s)
            starts.append(timing.best(seconds.argmax(axis=1)[unit].tolist()))
        runs += [
            AnnealingRun("joint", of_op, Annealing(timing, unit, start, seed, network))
            for start in starts
            if start is not None
        ]
    return runs
