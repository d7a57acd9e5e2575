"""The order in which ranks start their nodes where files have no program order: as soon as dependencies allow.

Each rank computes one node at a time, of those that may start the one that is first in its file. Communication and
transfers to the host start as soon as they may, a collective when all its ranks have reached it. Every rank then has
its nodes in the order of their starts, so the orders of ranks do not contradict each other.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from dsx.traces.columns import RankTrace
from dsx.traces.dag import joined
from dsx.traces.joint_events import JointEvents
from dsx.traces.joint_order import step_graph
from dsx.traces.messages import COMP


def start_orders(traces: Sequence[RankTrace], seconds: Sequence[np.ndarray], joint: JointEvents) -> list[np.ndarray]:
    """Return the rows of each trace in the order of their starts; `seconds` has those of its nodes.

    `joint` is the communication of the traces, whose dependencies have no cycle.
    """
    graph = step_graph(joint, [joined(trace.ctrl_deps, trace.data_deps) for trace in traces])
    count = len(graph.before.starts) - 1
    took = np.zeros(count)
    nodes: list[list[tuple[int, int]]] = [[] for _ in range(count)]  # of each vertex: rank by its position, row
    computes = np.zeros(count, bool)
    for at, (trace, vertices) in enumerate(zip(traces, graph.vertices, strict=True)):
        np.maximum.at(took, vertices, seconds[at])
        computes[vertices[trace.types == COMP]] = True
        for row, vertex in enumerate(vertices.tolist()):
            nodes[vertex].append((at, row))
    by_cause = np.argsort(graph.before.values, kind="stable")
    after = np.repeat(np.arange(count), np.diff(graph.before.starts))[by_cause].tolist()
    begins = np.searchsorted(graph.before.values[by_cause], np.arange(count + 1)).tolist()
    missing, lasts, on_compute = np.diff(graph.before.starts).tolist(), took.tolist(), computes.tolist()

    orders: list[list[int]] = [[] for _ in traces]
    waiting: list[list[tuple[int, int]]] = [[] for _ in traces]  # computations that may start: row, vertex
    busy = [False] * len(traces)
    ends: list[tuple[float, int]] = []  # of what has started: seconds, vertex

    def start(vertex: int, now: float) -> None:
        for at, row in nodes[vertex]:
            orders[at].append(row)
        heapq.heappush(ends, (now + lasts[vertex], vertex))

    def may_start(vertex: int, now: float) -> None:
        if on_compute[vertex]:
            at, row = nodes[vertex][0]
            heapq.heappush(waiting[at], (row, vertex))
        else:
            start(vertex, now)

    for vertex in [vertex for vertex, number in enumerate(missing) if number == 0]:
        may_start(vertex, 0.0)
    now = 0.0
    while True:
        while ends and ends[0][0] <= now:
            _, vertex = heapq.heappop(ends)
            if on_compute[vertex]:
                busy[nodes[vertex][0][0]] = False
            for other in after[begins[vertex] : begins[vertex + 1]]:
                missing[other] -= 1
                if missing[other] == 0:
                    may_start(other, now)
        for at, rows in enumerate(waiting):
            if rows and not busy[at]:
                busy[at] = True
                start(heapq.heappop(rows)[1], now)
        if not ends:
            return [np.array(order, np.int64) for order in orders]
        now = ends[0][0]
