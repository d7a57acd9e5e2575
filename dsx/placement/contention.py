"""A replay of a schedule in which transfers share links by max-min fair shares.

Max-min fair shares of links among the transfers that are under way, and which of these ends next.

All rates grow together until a link is full or a transfer has its most; the transfers there keep their rate, and the
rest go on (progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2). Transfers of the same route
have the same rate, so a route counts the bytes that one transfer of it would have got so far, and the first of its
queue ends first. The cost of an event grows with routes, not with transfers.

A replay of a schedule in which transfers share links, and a tensor goes once to a device.

Placement and the order on each device are those of the schedule; what takes no time runs beside others. A transfer
starts when its operator ends; after the latency of its link its bytes flow. Between servers it has its fair share
(`fair_shares.py`) of what its server sends and of what the other one receives, but never more than its link. Inside a
server, transfers share the links of both GPUs in the same way. Where pairs of servers have bandwidths of their own,
transfers share that of their pair.

Not modelled: packets, congestion control, and the switches between servers, which are never full.
"""

import heapq
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dsx.errors import InputError
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import DeviceLink, Devices
from dsx.placement.timetable import OperatorSchedule, op_seconds


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


class SharedLinks:
    """Transfers over links of some capacities, bytes/s; those that end at once end by their numbers."""

    def __init__(self, capacity: Mapping[Hashable, float]) -> None:
        self.capacity = capacity
        self._traffic: dict[Route, _Traffic] = {}
        self._rates: dict[Route, float] | None = {}

    def add(self, transfer: int, route: Route, num_bytes: float) -> None:
        """Let a transfer of some bytes begin."""
        traffic = self._traffic.setdefault(route, _Traffic())
        heapq.heappush(traffic.queue, (traffic.served + num_bytes, transfer))
        self._rates = None

    def next_end(self) -> tuple[float, Route] | None:
        """Return the seconds until the next transfer ends, and its route; None if there is none."""
        rates = self._fair()
        left = (
            (max(traffic.queue[0][0] - traffic.served, 0.0) / rates[route], traffic.queue[0][1], route)
            for route, traffic in self._traffic.items()
        )
        found = min(left, key=lambda each: each[:2], default=None)
        return None if found is None else (found[0], found[2])

    def advance(self, seconds: float) -> None:
        """Let bytes flow for some seconds, no more than until the next end."""
        rates = self._fair()
        for route, traffic in self._traffic.items():
            traffic.served += rates[route] * seconds

    def end(self, route: Route) -> int:
        """End the first transfer of a route, and return it."""
        traffic = self._traffic[route]
        _, transfer = heapq.heappop(traffic.queue)
        if not traffic.queue:
            del self._traffic[route]
        self._rates = None
        return transfer

    def _fair(self) -> dict[Route, float]:
        if self._rates is None:
            counts = {route: len(traffic.queue) for route, traffic in self._traffic.items()}
            self._rates = fair_rates(counts, self.capacity)
        return self._rates


def fair_rates(counts: Mapping[Route, int], capacity: Mapping[Hashable, float]) -> dict[Route, float]:
    """Return the rate of a transfer of each route, bytes/s, for the number of transfers of each."""
    room: dict[Hashable, float] = {}
    users: dict[Hashable, int] = {}
    for route, count in counts.items():
        for link in route.links:
            room[link] = capacity[link]
            users[link] = users.get(link, 0) + count
    found: dict[Route, float] = {}
    left = dict(counts)
    while left:
        # What each transfer could have if its fullest link were all that counts.
        share = {route: min([route.most, *(room[link] / users[link] for link in route.links)]) for route in left}
        least = min(share.values())
        for route in [route for route, value in share.items() if value <= least]:
            found[route] = least
            count = left.pop(route)
            for link in route.links:
                users[link] -= count
                room[link] = max(room[link] - count * least, 0.0)
    return found


_ENDS, _FLOWS = 0, 1  # what happens: an operator ends, the bytes of a transfer begin to flow


@dataclass(frozen=True, slots=True)
class LinkTransfer:
    """A tensor on its way to another device; the latency of the link is between its start and its bytes."""

    tensor: int
    op: int  # that makes it
    source: int
    destination: int
    start_s: float
    end_s: float
    num_bytes: float


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
    return _ContentionReplay(graph, devices, schedule, _Routes(devices, server_bandwidth)).run()


class _Routes:
    """The routes between devices, and the capacities of their links."""

    def __init__(self, devices: Devices, server_bandwidth: float | None) -> None:
        self.devices = devices
        if server_bandwidth is not None and not server_bandwidth > 0.0:
            raise InputError(f"server_bandwidth: {server_bandwidth} bytes/s are too little; it must be above 0")
        self.server_bandwidth = server_bandwidth or max(link.bandwidth for link in devices.links[bool(devices.units) :])
        self.capacity: dict[Hashable, float] = {}
        self.routes: dict[tuple[int, int], Route] = {}

    def route(self, source: int, destination: int) -> Route:
        """Return the route between two devices; equal routes share all they have."""
        if (source, destination) not in self.routes:
            self.routes[source, destination] = self._new(source, destination)
        return self.routes[source, destination]

    def _new(self, source: int, destination: int) -> Route:
        most = self._link(source, destination).bandwidth
        own, other = source // self.devices.server_size, destination // self.devices.server_size
        capacity = most
        if own == other:
            links = ("from GPU", source), ("to GPU", destination)
        elif self.devices.between is None:
            links, capacity = (("from server", own), ("to server", other)), self.server_bandwidth
        else:
            links = (("pair", own, other),)
            if not capacity > 0.0:
                raise InputError(f"server {own} sends to server {other}, but has {capacity} bytes/s to it")
        self.capacity |= dict.fromkeys(links, capacity)
        return Route(links, most)

    def latency_s(self, source: int, destination: int) -> float:
        """Return the latency of the link between two devices."""
        return self._link(source, destination).latency_s

    def _link(self, source: int, destination: int) -> DeviceLink:
        return self.devices.numbered_links[self.devices.level[source, destination]]


@dataclass(slots=True)
class _Underway:
    """A transfer that is not over, and the operators that wait for it."""

    tensor: int
    op: int
    destination: int
    start_s: float
    end_s: float
    waiting: list[int]


class _ContentionReplay:
    """The state of a replay."""

    def __init__(self, graph: OpGraph, devices: Devices, schedule: OperatorSchedule, network: _Routes) -> None:
        self.graph, self.network = graph, network
        self.device: list[int] = schedule.device.tolist()
        own = op_seconds(graph, devices)[np.arange(graph.num_ops), schedule.device]
        self.seconds: list[float] = own.tolist()
        self.following = _following(graph, schedule, self.seconds)
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
        for other in self.following:
            if other is not None:
                self.missing[other] += 1
        self.start, self.end = [0.0] * graph.num_ops, [0.0] * graph.num_ops
        self.events: list[tuple[float, int, int]] = []  # (s, what happens, to which operator or transfer)
        self.transfers: list[_Underway] = []
        self.links = SharedLinks(network.capacity)

    def run(self) -> Contended:
        """Return what happens."""
        now = 0.0
        for op in [op for op, number in enumerate(self.missing) if not number]:
            self._begin(op, now)
        while True:
            due, following = (self.events[0][0] if self.events else np.inf), self.links.next_end()
            if following is not None and now + following[0] <= due:
                self.links.advance(following[0])
                now += following[0]
                self._arrive(self.links.end(following[1]), now)
            elif self.events:
                self.links.advance(due - now)
                now, what, number = heapq.heappop(self.events)
                if what == _ENDS:
                    self._finish(number, now)
                else:
                    self._flow(number)
            else:
                break
        schedule = OperatorSchedule(np.array(self.device), np.array(self.start), max(self.end, default=0.0))
        return Contended(schedule, np.array(self.end), tuple(self._told(each) for each in self.transfers))

    def _begin(self, op: int, now: float) -> None:
        self.start[op], self.end[op] = now, now + self.seconds[op]
        heapq.heappush(self.events, (self.end[op], _ENDS, op))

    def _got(self, op: int, now: float) -> None:
        """Let an operator begin if nothing else is missing."""
        self.missing[op] -= 1
        if not self.missing[op]:
            self._begin(op, now)

    def _finish(self, op: int, now: float) -> None:
        made: dict[tuple[int, int], int] = {}  # (tensor, device) -> transfer
        for other in self.graph.successors[op]:
            for tensor in self.needed[op, other]:
                key = tensor, self.device[other]
                if key not in made:
                    made[key] = len(self.transfers)
                    self.transfers.append(_Underway(*key[:1], op, key[1], now, now, []))
                self.transfers[made[key]].waiting.append(other)
        for (_, destination), number in made.items():
            flows_s = now + self.network.latency_s(self.device[op], destination)
            heapq.heappush(self.events, (flows_s, _FLOWS, number))
        following = self.following[op]
        if following is not None:
            self._got(following, now)
        for other in self.graph.successors[op]:
            if not self.needed[op, other]:
                self._got(other, now)

    def _flow(self, number: int) -> None:
        found = self.transfers[number]
        route = self.network.route(self.device[found.op], found.destination)
        self.links.add(number, route, float(self.graph.tensor_bytes[found.tensor]))

    def _arrive(self, number: int, now: float) -> None:
        found = self.transfers[number]
        found.end_s = now
        for op in found.waiting:
            self._got(op, now)

    def _told(self, found: _Underway) -> LinkTransfer:
        num_bytes = float(self.graph.tensor_bytes[found.tensor])
        source = self.device[found.op]
        return LinkTransfer(found.tensor, found.op, source, found.destination, found.start_s, found.end_s, num_bytes)


def _following(graph: OpGraph, schedule: OperatorSchedule, seconds: list[float]) -> list[int | None]:
    """Return the operator that waits for each on its device: the next one of the schedule.

    What takes no time runs beside others. Starts may be rounded, so an operator counts as after those that it takes
    from even if its start is before theirs.
    """
    start, placement = schedule.start_s.tolist(), schedule.device.tolist()
    found: list[int | None] = [None] * graph.num_ops
    last: dict[int, int] = {}  # of a device
    missing = [len(before) for before in graph.predecessors]
    pending = [(start[op], op) for op, number in enumerate(missing) if not number]
    heapq.heapify(pending)
    while pending:
        _, op = heapq.heappop(pending)
        if seconds[op] > 0.0:
            if placement[op] in last:
                found[last[placement[op]]] = op
            last[placement[op]] = op
        for other in graph.successors[op]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(pending, (start[other], other))
    return found
