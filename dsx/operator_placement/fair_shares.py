"""Max-min fair shares of links among the transfers that are under way, and which of these ends next.

All rates grow together until a link is full or a transfer has its most; the transfers there keep their rate, and the
rest go on (progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2). Transfers of the same route
have the same rate, so a route counts the bytes that one transfer of it would have got so far, and the first of its
queue ends first. The cost of an event grows with routes, not with transfers.
"""

import heapq
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field


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
