"""When operators of a placement start: the evaluator of searches, HEFT, bounds, and a replay with shared links.

An operator runs alone on its device, without interruption; one that takes no time runs beside others. A transfer
between devices starts when its operator ends, and has the whole link. `run_in_order` is that evaluator; annealing has
its walk once more, compiled, since a scan prices many placements at once, and only their makespans in float32.

HEFT is heterogeneous earliest finish time with insertion (Topcuoglu et al., 2002), for operators that units keep
together: by their ranks, the largest first, each operator is placed where it ends first, in a gap of a device if one is
long enough. The first operator of a unit places all of it.

In the replay of a schedule, transfers share links by max-min fair shares, and a tensor goes once to a device. Placement
and the order on each device are those of the schedule; what takes no time runs beside others. A transfer starts when
its operator ends; after the latency of its link its bytes flow. Between servers it has its fair share of what its
server sends and of what the other one receives, but never more than its link. Inside a server, transfers share the
links of both GPUs in the same way. Where pairs of servers have bandwidths of their own, transfers share that of their
pair.

All rates grow together until a link is full or a transfer has its most; the transfers there keep their rate, and the
others go on (progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2). Transfers of the same route
have the same rate, so a route counts the bytes that one transfer of it would have got so far, and the first of its
queue ends first. The cost of an event grows with routes, not with transfers.

Not modelled: packets, congestion control, and the switches between servers, which are never full.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from dsx.errors import InputError
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices

_SHORTER = 1 - 1e-12  # less is rounding


@dataclass(frozen=True, eq=False)
class OperatorSchedule:
    """A placement with the start of each operator."""

    device: np.ndarray  # [N]
    start_s: np.ndarray  # [N]
    makespan_s: float


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


def run_in_order(
    order: Sequence[int],
    device: Sequence[int],
    duration: Sequence[float],
    inputs: Sequence[Sequence[tuple[int, int]]],
    sent: Sequence[float],
) -> tuple[list[float], list[float]]:
    """Return starts and ends where each device runs its operators in an order, as soon as it can.

    `duration` and `sent` are times of operators and of the transfers of edges; `inputs` has (operator, edge).
    """
    free: list[float] = [0] * (max(device, default=0) + 1)
    start, end = [*duration], [*duration]
    for op in order:
        took = duration[op]
        begin = free[device[op]] if took > 0 else 0
        for source, edge in inputs[op]:
            arrival = end[source] + sent[edge]
            if arrival > begin:
                begin = arrival
        start[op] = begin
        end[op] = begin + took
        if took > 0:
            free[device[op]] = end[op]
    return start, end


class GraphTimes:
    """A graph on devices: seconds of its operators, and of its transfers for a placement."""

    def __init__(self, graph: OpGraph, devices: Devices) -> None:
        self.graph, self.devices = graph, devices
        self.seconds: list[list[float]] = op_seconds(graph, devices).tolist()  # [N][D]
        # Of each operator, those that it takes from, or that take from it, with the number of the edge.
        self.inputs: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_ops)]
        self.outputs: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_ops)]
        for edge, (source, target) in enumerate(graph.edges):
            self.inputs[target].append((source, edge))
            self.outputs[source].append((target, edge))
        self._ends = np.array([*graph.edges], dtype=np.int64).reshape(-1, 2).T
        sizes, self._size = np.unique([*graph.edge_bytes.values()], return_inverse=True)
        # [sizes, links + 1] seconds of a transfer by the number of its link; the last is of none.
        links = devices.numbered_links
        costs = [[*(link.seconds(size) for link in links), 0.0] for size in sizes.tolist()]
        self._cost_s = np.array(costs).reshape(len(sizes), len(links) + 1)

    @property
    def times_s(self) -> set[float]:
        """All seconds of operators and transfers."""
        return {*(seconds for row in self.seconds for seconds in row), *self._cost_s.ravel().tolist()}

    @property
    def longest_s(self) -> float:
        """Seconds that no schedule without needless waiting exceeds: all operators and transfers in turn."""
        return sum(map(max, self.seconds)) + sum(map(self.devices.worst_s, self.graph.edge_bytes.values()))

    @cached_property
    def place_in_order(self) -> list[int]:
        """The place of each operator in the topological order of the graph."""
        return np.argsort(self.graph.order).tolist()

    def sent(self, placement: Sequence[int]) -> list[float]:
        """Return the seconds of the transfer of each edge."""
        source, target = np.asarray(placement, dtype=np.int64)[self._ends]
        return self._cost_s[self._size, self.devices.level[source, target]].tolist()

    def durations(self, placement: Sequence[int]) -> list[float]:
        """Return the seconds of each operator."""
        return [seconds[device] for seconds, device in zip(self.seconds, placement, strict=True)]

    def ranks(self, placement: Sequence[int] | None = None) -> list[float]:
        """Return the longest time from the start of each operator to the end of the step.

        Transfers are those of a placement; without one, each takes the mean over all pairs of devices, and an operator
        the mean over devices (HEFT: Topcuoglu et al., 2002).
        """
        if placement is None:
            durations = [sum(row) / len(row) for row in self.seconds]
            # Not all numbers are those of links that exist: one from a server to itself is endless.
            levels, counts = np.unique(self.devices.level, return_counts=True)
            shares = [*zip(levels.tolist(), (counts / self.devices.level.size).tolist(), strict=True)]
            mean = [sum(share * row[level] for level, share in shares) for row in self._cost_s.tolist()]
            sent = [mean[size] for size in self._size]
        else:
            durations, sent = self.durations(placement), self.sent(placement)
        ranks = [0.0] * self.graph.num_ops
        for op in reversed(self.graph.order):
            ranks[op] = max((ranks[target] + sent[at] for target, at in self.outputs[op]), default=0.0) + durations[op]
        return ranks

    def order_of(self, start_s: Sequence[float]) -> list[int]:
        """Return the operators by their starts, each after those that it depends on."""
        return sorted(range(self.graph.num_ops), key=lambda op: (start_s[op], self.place_in_order[op]))

    def queues(self, schedule: OperatorSchedule) -> list[list[int]]:
        """Return the operators that take time of each device, in the order of their starts."""
        queues: list[list[int]] = [[] for _ in range(self.devices.count)]
        for op in self.order_of(schedule.start_s.tolist()):
            device = int(schedule.device[op])
            if self.seconds[op][device] > 0.0:
                queues[device].append(op)
        return queues

    def in_order(self, placement: Sequence[int], order: Sequence[int]) -> OperatorSchedule:
        """Return the schedule in which each device runs its operators in an order, as soon as it can."""
        durations = self.durations(placement)
        start, end = run_in_order(order, placement, durations, self.inputs, self.sent(placement))
        return OperatorSchedule(np.asarray(placement), np.array(start, dtype=float), max(end, default=0.0))

    def by_priority(self, placement: Sequence[int], priority: Sequence[float]) -> OperatorSchedule:
        """Return the schedule in which a free device runs, of the operators that can start, that of most priority."""
        count, durations, sent = self.graph.num_ops, self.durations(placement), self.sent(placement)
        missing = [*map(len, self.inputs)]
        ready, start, end = [0.0] * count, [0.0] * count, [0.0] * count
        waiting: list[list[tuple[float, int]]] = [[] for _ in range(self.devices.count)]  # by when they can start
        runnable: list[list[tuple[float, int]]] = [[] for _ in range(self.devices.count)]  # by priority
        free = [0.0] * self.devices.count
        events: list[tuple[float, int]] = []  # when a device may start something

        def arrives(op: int) -> None:
            device = placement[op]
            heapq.heappush(waiting[device], (ready[op], op))
            heapq.heappush(events, (max(ready[op], free[device]), device))

        for op, number in enumerate(missing):
            if not number:
                arrives(op)
        while events:
            now, device = heapq.heappop(events)
            if free[device] > now:
                continue
            while waiting[device] and waiting[device][0][0] <= now:
                _, op = heapq.heappop(waiting[device])
                heapq.heappush(runnable[device], (-priority[op], op))
            if not runnable[device]:
                continue
            _, op = heapq.heappop(runnable[device])
            start[op], end[op] = now, now + durations[op]
            free[device] = end[op]
            heapq.heappush(events, (end[op], device))
            for target, edge in self.outputs[op]:
                arrival = end[op] + sent[edge]
                if arrival > ready[target]:
                    ready[target] = arrival
                missing[target] -= 1
                if not missing[target]:
                    arrives(target)
        return OperatorSchedule(np.asarray(placement), np.array(start), max(end, default=0.0))

    def best(self, placement: Sequence[int], *starts: Sequence[float]) -> OperatorSchedule:
        """Return the shortest schedule found of a placement: by priority, then in the order of starts."""
        shortest = self.by_priority(placement, self.ranks(placement))
        for start_s in (*starts, shortest.start_s.tolist()):
            schedule = self.in_order(placement, self.order_of(start_s))
            while schedule.makespan_s < shortest.makespan_s * _SHORTER:
                shortest = schedule
                schedule = self.in_order(placement, self.order_of(shortest.start_s.tolist()))
        return shortest

    def held_bytes(self, placement: Sequence[int]) -> np.ndarray:
        """Return what the operators of each device hold, [D]."""
        return np.bincount(placement, self.graph.memory_bytes, self.devices.count)

    def fits(self, placement: Sequence[int]) -> bool:
        """Return whether each device has room for its operators."""
        limit = self.devices.memory_bytes
        return limit is None or bool((self.held_bytes(placement) <= limit).all())

    def single_device(self) -> OperatorSchedule | None:
        """Return the schedule of all operators on the fastest device; None if it has no room."""
        placements = [[device] * self.graph.num_ops for device in range(self.devices.count)]
        schedules = [self.in_order(placement, self.graph.order) for placement in placements if self.fits(placement)]
        return min(schedules, key=lambda schedule: schedule.makespan_s, default=None)

    def heft(self, unit: Sequence[int], stop: Callable[[], bool] = lambda: False) -> OperatorSchedule | None:
        """Return the schedule of HEFT; None if memory has no room for a unit that is due, and at `stop`.

        `unit` has the unit of each operator.
        """
        graph, devices, ranks = self.graph, self.devices, self.ranks()
        # Operators that take no time have the rank of a successor, so the order of the graph decides.
        order = sorted(range(graph.num_ops), key=lambda op: (-ranks[op], self.place_in_order[op]))
        level, cost_s, size_of = devices.level.tolist(), self._cost_s.tolist(), self._size.tolist()
        needs = np.bincount(unit, graph.memory_bytes).tolist()
        room = [float("inf") if devices.memory_bytes is None else devices.memory_bytes] * devices.count
        device_of: dict[int, int] = {}  # unit -> device
        placement, start, end = [0] * graph.num_ops, [0.0] * graph.num_ops, [0.0] * graph.num_ops
        # (start, end) of the operators of each device, in order, and of blocks of them without a gap inside.
        runs: list[list[tuple[float, float]]] = [[] for _ in range(devices.count)]
        blocks: list[list[tuple[float, float]]] = [[] for _ in range(devices.count)]
        for op in order:
            if stop():
                return None
            fixed = device_of.get(unit[op])
            choices = [device for device in range(devices.count) if room[device] >= needs[unit[op]]]
            earliest: tuple[float, float, int] | None = None
            for device in choices if fixed is None else [fixed]:
                ready = max(
                    (end[at] + cost_s[size_of[edge]][level[placement[at]][device]] for at, edge in self.inputs[op]),
                    default=0.0,
                )
                seconds = self.seconds[op][device]
                begin = _gap((blocks if seconds > 0.0 else runs)[device], ready, seconds)
                if earliest is None or begin + seconds < earliest[0]:
                    earliest = begin + seconds, begin, device
            if earliest is None:
                return None
            end[op], start[op], placement[op] = earliest
            if fixed is None:
                device_of[unit[op]] = placement[op]
                room[placement[op]] -= needs[unit[op]]
            if end[op] > start[op]:
                insort(runs[placement[op]], (start[op], end[op]))
                _join(blocks[placement[op]], start[op], end[op])
        return OperatorSchedule(np.array(placement), np.array(start), max(end, default=0.0))

    def transfers(self, schedule: OperatorSchedule) -> list[LinkTransfer]:
        """Return a transfer for each tensor and device that it is sent to."""
        device, start = schedule.device.tolist(), schedule.start_s.tolist()
        durations = self.durations(device)
        transfers: dict[tuple[int, int], LinkTransfer] = {}
        for (source, target), tensors in self.graph.edges.items():
            ends = device[source], device[target]
            if ends[0] == ends[1]:
                continue
            begin, link = start[source] + durations[source], self.devices.link(*ends)
            for tensor in tensors:
                num_bytes = float(self.graph.tensor_bytes[tensor])
                end = begin + link.seconds(num_bytes)
                transfers[tensor, ends[1]] = LinkTransfer(tensor, source, *ends, begin, end, num_bytes)
        return [*transfers.values()]


def _gap(busy: list[tuple[float, float]], ready: float, seconds: float) -> float:
    """Return the first start, not before `ready`, with so many free seconds after it."""
    place = bisect_left(busy, (ready,))
    begin = max(ready, busy[place - 1][1]) if place else ready
    while place < len(busy) and busy[place][0] - begin < seconds:
        begin = max(begin, busy[place][1])
        place += 1
    return begin


def _join(blocks: list[tuple[float, float]], start: float, end: float) -> None:
    """Add a block; those that touch become one."""
    place = bisect_left(blocks, (start,))
    if place < len(blocks) and blocks[place][0] == end:
        end = blocks.pop(place)[1]
    if place and blocks[place - 1][1] == start:
        blocks[place - 1] = blocks[place - 1][0], end
    else:
        blocks.insert(place, (start, end))


def op_seconds(graph: OpGraph, devices: Devices) -> np.ndarray:
    """Return the seconds of each operator on each device, [N, D]."""
    return np.broadcast_to(graph.seconds, (graph.num_ops, devices.count)) / np.array(devices.speeds)


def path_bound_s(graph: OpGraph, devices: Devices) -> float:
    """Return the longest path, each operator on its fastest device and without transfers."""
    least: list[float] = op_seconds(graph, devices).min(axis=1).tolist()
    return max((head + seconds for head, seconds in zip(graph.heads(least), least, strict=True)), default=0.0)


def load_bound_s(graph: OpGraph, devices: Devices) -> float:
    """Return the time that all devices need for all operators if none ever waits."""
    if graph.seconds.shape[1] == 1:
        return float(graph.seconds.sum() / sum(devices.speeds))
    return float(op_seconds(graph, devices).min(axis=1).sum() / devices.count)


def step_bound_s(graph: OpGraph, devices: Devices) -> float:
    """Return seconds that no step is below: the longer of its critical path and its load."""
    return max(path_bound_s(graph, devices), load_bound_s(graph, devices))


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


def contended(timing: GraphTimes, schedule: OperatorSchedule, server_bandwidth: float | None = None) -> Contended:
    """Return the replay of a schedule.

    `server_bandwidth` is what a server sends, and receives, at most, bytes/s: that of its fastest link to others if it
    is not given. Where pairs of servers have bandwidths of their own, these count instead. Without levels of devices,
    each device is a server.

    Raises InputError for a bandwidth of zero, or for a pair without bandwidth that has a transfer.
    """
    if server_bandwidth is not None and not server_bandwidth > 0.0:
        raise InputError(f"server_bandwidth: {server_bandwidth} bytes/s are too little; it must be above 0")
    devices = timing.devices
    server_bandwidth = server_bandwidth or max(link.bandwidth for link in devices.links[bool(devices.units) :])
    return _ContentionReplay(timing, schedule, server_bandwidth).run()


class _ContentionReplay:
    """The state of a replay."""

    def __init__(self, timing: GraphTimes, schedule: OperatorSchedule, server_bandwidth: float) -> None:
        self.graph, self.devices, self.server_bandwidth = timing.graph, timing.devices, server_bandwidth
        self.device: list[int] = schedule.device.tolist()
        self.seconds = timing.durations(self.device)
        # The next operator on the device of each that has one; what takes no time runs beside others.
        self.following = dict(pair for queue in timing.queues(schedule) for pair in pairwise(queue))
        graph = self.graph
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
