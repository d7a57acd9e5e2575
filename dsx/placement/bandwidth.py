"""Bandwidth between servers: what switches or a tree give, and the best allocation for a placement.

What a server sends is limited by its network cards: the bandwidths from a server to all others add up to no more than
that of all of its cards (P2 of the sources). A transfer has all of the bandwidth of its pair.

The best bandwidths for a placement and the order on each device are a program over second-order cones, by Clarabel.
Over starts s, the makespan, the share b of each pair of servers and its inverse r,

    minimise the makespan, so that   s_j >= s_i + p_i + latency + bytes r   for an edge between two servers,
                                     s_j >= s_i + p_i                       for operators in turn on a device,
                                     the b from each server add up to 1,  and  r b >= 1,

which is convex (P2 of the sources with fixed x): r b >= 1 is the cone |(2, r - b)| <= r + b. Times are shares of the
makespan known before, bandwidths shares of the total of a server.
"""

from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse

from dsx.errors import InputError
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule

_LAST = 1.0 - 1e-6  # a round that shortens a schedule by less is the last one
_LEAST_SHARE = 1e-9

Pair = tuple[int, int]  # of servers, from and to


@dataclass(frozen=True, slots=True)
class ServerNetwork:
    """What each server has."""

    nics: int
    nic_bandwidth: float  # bytes/s

    def __post_init__(self) -> None:
        """Refuse what carries nothing; raises InputError."""
        if self.nics < 1:
            raise InputError(f"{self.nics} network cards are too few; a server needs 1")
        if not 0.0 < self.nic_bandwidth < np.inf:
            raise InputError(f"a network card of {self.nic_bandwidth} bytes/s; more than 0 is wanted")

    @property
    def total(self) -> float:
        """What a server sends at most, bytes/s."""
        return self.nics * self.nic_bandwidth


def uniform_shares(network: ServerNetwork, servers: int) -> np.ndarray:
    """Return equal bandwidths from each server to all others, [S, S] bytes/s."""
    return within(network, (1.0 - np.eye(servers)) * network.total / max(servers - 1, 1))


def tree(network: ServerNetwork, servers: int) -> ServerNetwork:
    """Return a network whose uniform shares are those of the thesis' tree: a card's bandwidth between any two."""
    return ServerNetwork(max(servers - 1, 1), network.nic_bandwidth)


def filled(network: ServerNetwork, bandwidth: np.ndarray) -> np.ndarray:
    """Return shares of [S, S] bytes/s scaled to all that each server has; uniform shares for one without any."""
    sums = bandwidth.sum(axis=1, keepdims=True)
    scaled = bandwidth * network.total / np.where(sums > 0.0, sums, 1.0)
    return within(network, np.where(sums > 0.0, scaled, uniform_shares(network, len(bandwidth))))


def within(network: ServerNetwork, bandwidth: np.ndarray) -> np.ndarray:
    """Return [S, S] bytes/s whose sums exceed what a server has by no rounding: lowered by their last places."""
    lowered = bandwidth.copy()
    for row in lowered:
        while sum(row.tolist()) > network.total or row.sum() > network.total:
            row *= 1.0 - np.finfo(float).eps
    return lowered


def in_parts(bandwidth: np.ndarray, parts: int) -> np.ndarray:
    """Return [S, S] whole parts of each server's bandwidth, about in proportion, 0 to itself and at least 1 to others.

    Each server has `parts` for each other one.
    """
    servers = len(bandwidth)
    shares = np.zeros((servers, servers), dtype=np.int64)
    for server, row in enumerate(bandwidth if servers > 1 else ()):
        receivers = np.delete(np.arange(servers), server)
        weights = row[receivers] if row[receivers].sum() > 0.0 else np.ones(len(receivers))
        exact = weights / weights.sum() * (parts - 1) * len(receivers)
        floored = np.floor(exact + 1e-9)
        remainder = round(exact.sum() - floored.sum())
        floored[np.argsort(floored - exact, kind="stable")[:remainder]] += 1
        shares[server, receivers] = floored + 1
    return shares


def with_bandwidth(devices: Devices, bandwidth: np.ndarray) -> Devices:
    """Return devices whose servers have [S, S] bytes/s between them."""
    return replace(devices, between=tuple(map(tuple, bandwidth.tolist())))


def with_uniform_shares(devices: Devices, network: ServerNetwork) -> Devices:
    """Return devices whose network is that of uniform shares, as links of levels, which searches take faster."""
    return devices.networked(network.total / max(devices.num_servers - 1, 1))


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
    queues: list[list[int]] = [[] for _ in range(devices.count)]
    for op in timing.order_of(schedule.start_s.tolist()):
        if took[op] > 0.0:
            queues[placement[op]].append(op)
    for op, following in (pair for queue in queues for pair in pairwise(queue)):
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
