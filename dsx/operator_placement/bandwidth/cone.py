"""The best bandwidths for a placement and the order on each device: a program over second-order cones, by Clarabel.

Over starts s, the makespan, the share b of each pair of servers and its inverse r,

    minimise the makespan, so that   s_j >= s_i + p_i + latency + bytes r   for an edge between two servers,
                                     s_j >= s_i + p_i                       for operators in turn on a device,
                                     the b from each server add up to 1,  and  r b >= 1,

which is convex (P2 of the sources with fixed x): r b >= 1 is the cone |(2, r - b)| <= r + b. Times are shares of the
makespan known before, bandwidths shares of the total of a server.
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse

from dsx.operator_placement.bandwidth.network import Network, filled, num_servers
from dsx.operator_placement.devices import Devices
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.schedule import Schedule, Timing

Pair = tuple[int, int]  # of servers, from and to


def best_bandwidth(timing: Timing, network: Network, schedule: Schedule) -> np.ndarray | None:
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


def _in_turn(timing: Timing, schedule: Schedule) -> list[tuple[int, int]]:
    """Return the operators that follow each other on a device, without those that take no time."""
    placement = schedule.device.tolist()
    queues: list[list[int]] = [[] for _ in range(timing.devices.count)]
    for op in timing.order_of(placement, schedule.start_s.tolist()):
        if timing.seconds[op][placement[op]] > 0.0:
            queues[placement[op]].append(op)
    return [pair for queue in queues for pair in pairwise(queue)]
