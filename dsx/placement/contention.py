"""A replay of a schedule in which transfers share links by max-min fair shares, and a tensor goes once to a device.

Placement and the order on each device are those of the schedule; what takes no time runs beside others. A transfer
starts when its operator ends; after the latency of its link its bytes flow. Between servers it has its fair share of
what its server sends and of what the other one receives, but never more than its link. Inside a server, transfers share
the links of both GPUs in the same way. Where pairs of servers have bandwidths of their own, transfers share that of
their pair.

All rates grow together until a link is full or a transfer has its most; the transfers there keep their rate, and the
others go on (progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2). Transfers of the same route
have the same rate, so a route counts the bytes that one transfer of it would have got so far, and the first of its
queue ends first. The cost of an event grows with routes, not with transfers.

Not modelled: packets, congestion control, and the switches between servers, which are never full.
"""

import heapq
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dsx.errors import InputError
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices
from dsx.placement.timetable import LinkTransfer, OperatorSchedule, op_seconds

_ENDS, _FLOWS = 0, 1  # what happens: an operator ends, the bytes of a transfer begin to flow


@dataclass(frozen=True, slots=True)
class Route:
    """The links of a transfer, and the most bytes/s that it has."""

    links: tuple[Hashable, ...]
    most: float


@dataclass(slots=True)
class _Traffic:
    """The transfers of a route."""

    served: float = 0.0  # bytes of a transfer that has been there since there were any
    queue: list[tuple[float, int]] = field(default_factory=list)  # (`served` when a transfer ends, its number)


def fair_rates(counts: Mapping[Route, int], capacity: Mapping[Hashable, float]) -> dict[Route, float]:
    """Return the rate of a transfer of each route, bytes/s, for the number of transfers of each."""
    room: dict[Hashable, float] = {}
    users: dict[Hashable, int] = {}
    for route, count in counts.items():
        for link in route.links:
            room[link] = capacity[link]
            users[link] = users.get(link, 0) + count
    rates: dict[Route, float] = {}
    growing = dict(counts)
    while growing:
        # What each transfer could have if its fullest link were all that counts.
        share = {route: min([route.most, *(room[link] / users[link] for link in route.links)]) for route in growing}
        least = min(share.values())
        for route in [route for route, value in share.items() if value <= least]:
            rates[route] = least
            count = growing.pop(route)
            for link in route.links:
                users[link] -= count
                room[link] = max(room[link] - count * least, 0.0)
    return rates


@dataclass(frozen=True, eq=False)
class Contended:
    """The replay of a schedule."""

    schedule: OperatorSchedule
    end_s: np.ndarray  # [N] of the operators
    transfers: tuple[LinkTransfer, ...]  # by their starts


def contended(
    graph: OpGraph, devices: Devices, schedule: OperatorSchedule, server_bandwidth: float | None = None
) -> Contended:
    """Return the replay of a schedule.

    `server_bandwidth` is what a server sends, and receives, at most, bytes/s: that of its fastest link to others if it
    is not given. Where pairs of servers have bandwidths of their own, these count instead. Without levels of devices,
    each device is a server.

    Raises InputError for a bandwidth of zero, or for a pair without bandwidth that has a transfer.
    """
    if server_bandwidth is not None and not server_bandwidth > 0.0:
        raise InputError(f"server_bandwidth: {server_bandwidth} bytes/s are too little; it must be above 0")
    server_bandwidth = server_bandwidth or max(link.bandwidth for link in devices.links[bool(devices.units) :])
    return _ContentionReplay(graph, devices, schedule, server_bandwidth).run()


class _ContentionReplay:
    """The state of a replay."""

    def __init__(self, graph: OpGraph, devices: Devices, schedule: OperatorSchedule, server_bandwidth: float) -> None:
        self.graph, self.devices, self.server_bandwidth = graph, devices, server_bandwidth
        self.device: list[int] = schedule.device.tolist()
        self.seconds: list[float] = op_seconds(graph, devices)[np.arange(graph.num_ops), schedule.device].tolist()
        self.following = self._following(schedule.start_s.tolist())
        # What is handed on with bytes to another device is waited for; else the end of the operator is.
        self.needed = {
            (source, target): [tensor for tensor in sorted(tensors) if graph.tensor_bytes[tensor] > 0.0]
            if self.device[source] != self.device[target]
            else []
            for (source, target), tensors in graph.edges.items()
        }
        self.missing = [0] * graph.num_ops
        for (_, target), tensors in self.needed.items():
            self.missing[target] += len(tensors) or 1
        for op in self.following.values():
            self.missing[op] += 1
        self.start, self.end = [0.0] * graph.num_ops, [0.0] * graph.num_ops
        self.events: list[tuple[float, int, int]] = []  # (s, what happens, to which operator or transfer)
        self.transfers: list[LinkTransfer] = []
        self.waiting: list[list[int]] = []  # the operators that wait for each transfer
        self.capacity: dict[Hashable, float] = {}  # of links that were used, bytes/s
        self.traffic: dict[Route, _Traffic] = {}

    def _following(self, start: list[float]) -> dict[int, int]:
        """Return the next operator on the device of each that has one.

        What takes no time runs beside others. Starts may be rounded, so an operator counts as after those that it
        takes from even if its start is before theirs.
        """
        following: dict[int, int] = {}
        last: dict[int, int] = {}  # of a device
        missing = [*map(len, self.graph.predecessors)]
        pending = [(start[op], op) for op, number in enumerate(missing) if not number]
        heapq.heapify(pending)
        while pending:
            _, op = heapq.heappop(pending)
            if self.seconds[op] > 0.0:
                if self.device[op] in last:
                    following[last[self.device[op]]] = op
                last[self.device[op]] = op
            for successor in self.graph.successors[op]:
                missing[successor] -= 1
                if not missing[successor]:
                    heapq.heappush(pending, (start[successor], successor))
        return following

    def run(self) -> Contended:
        """Return what happens; transfers that end at once end by their numbers."""
        now, rates = 0.0, dict[Route, float]()
        for op in [op for op, number in enumerate(self.missing) if not number]:
            self._got(op, now, 0)
        while self.events or self.traffic:
            due = self.events[0][0] if self.events else np.inf
            if self.traffic and not rates:
                rates = fair_rates({route: len(of.queue) for route, of in self.traffic.items()}, self.capacity)
            ends = [
                (max(of.queue[0][0] - of.served, 0.0) / rates[route], of.queue[0][1], route)
                for route, of in self.traffic.items()
            ]
            after_s, number, route = min(ends, key=lambda end: end[:2], default=(np.inf, -1, Route((), 0.0)))
            ends_next = bool(ends) and now + after_s <= due
            for of_route, traffic in self.traffic.items():
                traffic.served += rates[of_route] * (after_s if ends_next else due - now)
            if ends_next:
                now, rates = now + after_s, {}
                heapq.heappop(self.traffic[route].queue)
                if not self.traffic[route].queue:
                    del self.traffic[route]
                self.transfers[number] = replace(self.transfers[number], end_s=now)
                for op in self.waiting[number]:
                    self._got(op, now)
                continue
            now, what, number = heapq.heappop(self.events)
            if what == _ENDS:
                self._finish(number, now)
            else:
                transfer, rates = self.transfers[number], {}
                traffic = self.traffic.setdefault(self._route(transfer.source, transfer.destination), _Traffic())
                heapq.heappush(traffic.queue, (traffic.served + transfer.num_bytes, number))
        schedule = OperatorSchedule(np.array(self.device), np.array(self.start), max(self.end, default=0.0))
        return Contended(schedule, np.array(self.end), tuple(self.transfers))

    def _got(self, op: int, now: float, what: int = 1) -> None:
        """Let an operator begin if nothing is missing but `what` it got now."""
        self.missing[op] -= what
        if not self.missing[op]:
            self.start[op], self.end[op] = now, now + self.seconds[op]
            heapq.heappush(self.events, (self.end[op], _ENDS, op))

    def _finish(self, op: int, now: float) -> None:
        source = self.device[op]
        begun: dict[tuple[int, int], int] = {}  # (tensor, device) -> transfer
        for successor in self.graph.successors[op]:
            destination = self.device[successor]
            for tensor in self.needed[op, successor]:
                if (tensor, destination) not in begun:
                    begun[tensor, destination] = number = len(self.transfers)
                    num_bytes = float(self.graph.tensor_bytes[tensor])
                    self.transfers.append(LinkTransfer(tensor, op, source, destination, now, now, num_bytes))
                    self.waiting.append([])
                    flows_s = now + self.devices.link(source, destination).latency_s
                    heapq.heappush(self.events, (flows_s, _FLOWS, number))
                self.waiting[begun[tensor, destination]].append(successor)
        if op in self.following:
            self._got(self.following[op], now)
        for successor in self.graph.successors[op]:
            if not self.needed[op, successor]:
                self._got(successor, now)

    def _route(self, source: int, destination: int) -> Route:
        """Return the route between two devices, whose links now have a capacity; equal routes share all they have."""
        most = capacity = self.devices.link(source, destination).bandwidth
        size = self.devices.server_size
        servers = source // size, destination // size
        if servers[0] == servers[1]:
            links: tuple[Hashable, ...] = ("from GPU", source), ("to GPU", destination)
        elif self.devices.between is None:
            links, capacity = (("from server", servers[0]), ("to server", servers[1])), self.server_bandwidth
        else:
            links = (("pair", *servers),)
            if not capacity > 0.0:
                raise InputError(f"server {servers[0]} sends to server {servers[1]}, but has {capacity} bytes/s to it")
        self.capacity |= dict.fromkeys(links, capacity)
        return Route(links, most)
