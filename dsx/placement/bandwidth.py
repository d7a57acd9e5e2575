"""Bandwidth between servers: what a switch or a tree gives, and the best allocation for a placement.

Bandwidth between servers, as a switch or a tree gives it, or as programs allocate it.

What a server sends is limited by its network cards: the bandwidths from a server to all others add up to no more than
that of all of its cards (P2 of the sources). A transfer has all of the bandwidth of its pair.

The best bandwidths for a placement and the order on each device: a program over second-order cones, by Clarabel.

Over starts s, the makespan, the share b of each pair of servers and its inverse r,

    minimise the makespan, so that   s_j >= s_i + p_i + latency + bytes r   for an edge between two servers,
                                     s_j >= s_i + p_i                       for operators in turn on a device,
                                     the b from each server add up to 1,  and  r b >= 1,

which is convex (P2 of the sources with fixed x): r b >= 1 is the cone |(2, r - b)| <= r + b. Times are shares of the
makespan known before, bandwidths shares of the total of a server.

A schedule with the bandwidths that it needs; bandwidths by the cone program, and orders, improve it in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse

from dsx.errors import InputError
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import DeviceLink, Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule


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


def num_servers(devices: Devices) -> int:
    """Return the number of servers; raises InputError where devices do not fill them."""
    if devices.count % devices.server_size:
        raise InputError(f"{devices.count} devices do not fill servers of {devices.server_size}")
    return devices.count // devices.server_size


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
    found = bandwidth.copy()
    for row in found:
        while sum(row.tolist()) > network.total or row.sum() > network.total:
            row *= 1.0 - np.finfo(float).eps
    return found


def in_parts(bandwidth: np.ndarray, parts: int) -> np.ndarray:
    """Return [S, S] whole parts of each server's bandwidth, about in proportion, 0 to itself and at least 1 to others.

    Each server has `parts` for each other one.
    """
    servers = len(bandwidth)
    found = np.zeros((servers, servers), dtype=np.int64)
    for own, row in enumerate(bandwidth):
        others = np.array([other for other in range(servers) if other != own], dtype=np.int64)
        if not len(others):
            continue
        weights = row[others] if row[others].sum() > 0.0 else np.ones(len(others))
        wanted = weights / weights.sum() * (parts - 1) * len(others)
        given = np.floor(wanted + 1e-9)
        left = round(wanted.sum() - given.sum())
        given[np.argsort(given - wanted, kind="stable")[:left]] += 1
        found[own, others] = given + 1
    return found


def with_bandwidth(devices: Devices, bandwidth: np.ndarray) -> Devices:
    """Return devices whose servers have [S, S] bytes/s between them."""
    return replace(devices, between=tuple(map(tuple, bandwidth.tolist())))


def with_uniform_shares(devices: Devices, network: ServerNetwork) -> Devices:
    """Return devices whose network is that of uniform shares, as links of levels, which searches take faster."""
    share = network.total / max(num_servers(devices) - 1, 1)
    inside = len(devices.units[:1])
    outside = [DeviceLink(share, link.latency_s) for link in devices.links[inside:]]
    return replace(devices, links=(*devices.links[:inside], *outside), between=None)


def excesses(network: ServerNetwork, bandwidth: np.ndarray) -> list[str]:
    """Return what an allocation of [S, S] bytes/s breaks; empty for a valid one."""
    found = [
        f"server {server} sends {sum(row)} bytes/s of {network.total}"
        for server, row in enumerate(bandwidth.tolist())
        if sum(row) > network.total
    ]
    found += [f"bandwidth from {a} to {b} is {bandwidth[a, b]}" for a, b in np.argwhere(~(bandwidth >= 0.0)).tolist()]
    return found


Pair = tuple[int, int]  # of servers, from and to


def best_bandwidth(timing: GraphTimes, network: ServerNetwork, schedule: OperatorSchedule) -> np.ndarray | None:
    """Return the [S, S] bytes/s that make a schedule shortest, each device keeping its order.

    None if no two servers exchange data, or the solver fails. What a server has is given out in full to the pairs that
    carry data; servers that send none keep uniform shares.
    """
    clarabel: Any = import_module("clarabel")  # which has no types

    graph, devices = timing.graph, timing.devices
    placement = schedule.device.tolist()
    sent = _sent(graph, devices, placement)
    pairs = sorted({pair for pair, _, _ in sent.values() if pair is not None})
    if not pairs or schedule.makespan_s <= 0.0:
        return None
    num_ops, scale = graph.num_ops, schedule.makespan_s
    # Columns: starts, the makespan, shares, inverses.
    share = {pair: num_ops + 1 + at for at, pair in enumerate(pairs)}
    inverse = {pair: column + len(pairs) for pair, column in share.items()}
    rows: list[list[tuple[int, float]]] = []
    limits: list[float] = []  # of each row

    def at_most(limit: float, *terms: tuple[int, float]) -> None:
        rows.append(list(terms))
        limits.append(limit)

    own = [timing.seconds[op][device] / scale for op, device in enumerate(placement)]
    for op in range(num_ops):
        if not graph.predecessors[op]:
            at_most(0.0, (op, -1.0))
        if not graph.successors[op]:
            at_most(-own[op], (op, 1.0), (num_ops, -1.0))
    for (source, target), (pair, fixed_s, num_bytes) in sent.items():
        more = [] if pair is None else [(inverse[pair], num_bytes / network.total / scale)]
        at_most(-own[source] - fixed_s / scale, (source, 1.0), (target, -1.0), *more)
    for one, other in _in_turn(timing, schedule):
        at_most(-own[one], (one, 1.0), (other, -1.0))
    for server in sorted({one for one, _ in pairs}):
        at_most(1.0, *((share[pair], 1.0) for pair in pairs if pair[0] == server))
    inequalities = len(rows)
    for pair in pairs:
        at_most(0.0, (inverse[pair], -1.0), (share[pair], -1.0))
        at_most(2.0)
        at_most(0.0, (inverse[pair], -1.0), (share[pair], 1.0))
    entries = [(row, column, factor) for row, terms in enumerate(rows) for column, factor in terms]
    at, columns, factors = (np.array(part) for part in zip(*entries, strict=True))
    width = num_ops + 1 + 2 * len(pairs)
    matrix = scipy.sparse.csc_matrix((factors, (at, columns)), shape=(len(rows), width))
    goal = np.zeros(width)
    goal[num_ops] = 1.0
    cones = [clarabel.NonnegativeConeT(inequalities), *(clarabel.SecondOrderConeT(3) for _ in pairs)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    nothing = scipy.sparse.csc_matrix((width, width))
    found = clarabel.DefaultSolver(nothing, goal, matrix, np.array(limits), cones, settings).solve()
    if found.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
        return None
    shares = np.zeros((num_servers(devices),) * 2)
    for pair in pairs:
        shares[pair] = max(found.x[share[pair]], 1e-9)
    return filled(network, shares)


def _sent(
    graph: OpGraph, devices: Devices, placement: Sequence[int]
) -> dict[tuple[int, int], tuple[Pair | None, float, float]]:
    """Return of each edge the pair of servers between which it goes, seconds that no share changes, and bytes."""
    found: dict[tuple[int, int], tuple[Pair | None, float, float]] = {}
    for (source, target), num_bytes in graph.edge_bytes.items():
        one, other = placement[source], placement[target]
        servers = one // devices.server_size, other // devices.server_size
        if num_bytes <= 0.0 or one == other:
            found[source, target] = None, 0.0, 0.0
        elif servers[0] == servers[1]:
            found[source, target] = None, devices.links[0].seconds(num_bytes), 0.0
        else:
            link = devices.numbered_links[devices.level[one, other]]
            found[source, target] = servers, link.latency_s, num_bytes
    return found


def _in_turn(timing: GraphTimes, schedule: OperatorSchedule) -> list[tuple[int, int]]:
    """Return the operators that follow each other on a device, without those that take no time."""
    placement = schedule.device.tolist()
    queues: list[list[int]] = [[] for _ in range(timing.devices.count)]
    for op in timing.order_of(placement, schedule.start_s.tolist()):
        if timing.seconds[op][placement[op]] > 0.0:
            queues[placement[op]].append(op)
    return [pair for queue in queues for pair in pairwise(queue)]


_LESS = 1.0 - 1e-6  # a round that shortens a schedule by less is the last one


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
        made = timing.best(placement, best.schedule.start_s.tolist())
        last = made.makespan_s > best.schedule.makespan_s * _LESS
        if made.makespan_s < best.schedule.makespan_s:
            best = Allocated(made, bandwidth)
        if last:
            break
    return best
