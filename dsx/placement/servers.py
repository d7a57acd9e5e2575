"""The devices of a placement and the links between them, as stated or as a cluster has them.

Devices are numbered, those of a server one after the other. A link is that of the innermost level that both devices
share: that of a server, or the network. Where each ordered pair of servers has a bandwidth of its own, the network has
a link for each. All of the bandwidth of a link is there for every transfer, as in the programs of the sources. What a
server sends is limited by its network cards: the bandwidths from a server to all others add up to no more than that of
all of its cards (P2 of the sources).

Latency and bandwidth of a cluster are those of the cost model's sends (`dsx.cost.collectives`): the latency is that of
a message without bytes, the bandwidth that of a large one. Not modelled: contention, and messages of middle size,
which no protocol of a library serves as well.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dsx import arrays as xp
from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.cluster_file import ClusterSpec, Network, cluster_from_spec
from dsx.cost.collectives import send
from dsx.cost.context import Assumptions, assumptions_from_spec
from dsx.errors import InputError

_LARGE = 2.0**30  # bytes

Pair = tuple[int, int]  # of servers, from and to


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """What a transfer takes: `latency_s`, and its bytes at `bandwidth`, bytes/s."""

    bandwidth: float
    latency_s: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        """Return the seconds of a transfer; none for a dependency without data, and no end without bandwidth."""
        if num_bytes <= 0:
            return 0.0
        return self.latency_s + num_bytes / self.bandwidth if self.bandwidth > 0 else math.inf


@dataclass(frozen=True)
class Devices:
    """D devices."""

    speeds: tuple[float, ...]  # an operator takes its seconds over the speed of its device
    units: tuple[int, ...]  # devices in a unit of each level, innermost first, without the level of all devices
    links: tuple[DeviceLink, ...]  # of each level, one more than `units`
    memory_bytes: float | None = None  # of each device; None: no limit
    # Bytes/s from each server (the innermost unit, a device if there is none) to each other one, in place of the
    # bandwidth of the link between them; None: that of the link.
    between: tuple[tuple[float, ...], ...] | None = None

    @property
    def count(self) -> int:
        """The number of devices."""
        return len(self.speeds)

    @property
    def alike(self) -> bool:
        """Whether all devices have the same speed."""
        return len(set(self.speeds)) == 1

    @property
    def server_size(self) -> int:
        """The number of devices of a server."""
        return self.units[0] if self.units else 1

    @property
    def num_servers(self) -> int:
        """The number of servers; raises InputError where devices do not fill them."""
        if self.count % self.server_size:
            raise InputError(f"{self.count} devices do not fill servers of {self.server_size}")
        return self.count // self.server_size

    @cached_property
    def level(self) -> np.ndarray:
        """The number of the link from a device (row) to another, [D, D], as of `numbered_links`; -1 to itself."""
        device = np.arange(self.count)
        level = np.full((self.count, self.count), len(self.units))
        for number in reversed(range(len(self.units))):
            unit = device // self.units[number]
            level[unit[:, None] == unit] = number
        if self.between is not None:
            server = device // self.server_size
            pair = server[:, None] * len(self.between) + server + len(self.links)
            level = np.where(server[:, None] == server, level, pair)
        level[device, device] = -1
        return level

    @cached_property
    def numbered_links(self) -> tuple[DeviceLink, ...]:
        """The links of the levels; then, with bandwidths of their own, those of pairs of servers, row by row."""
        if self.between is None:
            return self.links
        first = range(0, self.count, self.server_size)  # device of each server
        level = replace(self, between=None).level
        pairs = [
            DeviceLink(bandwidth, self.links[level[a, b]].latency_s)
            for a, row in zip(first, self.between, strict=True)
            for b, bandwidth in zip(first, row, strict=True)
        ]
        return (*self.links, *pairs)

    @property
    def used_links(self) -> tuple[DeviceLink, ...]:
        """The links that some pair of devices has."""
        return tuple(self.numbered_links[level] for level in sorted({*self.level.ravel().tolist()} - {-1}))

    def link(self, source: int, destination: int) -> DeviceLink:
        """Return the link between two different devices."""
        return self.numbered_links[self.level[source, destination]]

    def worst_s(self, num_bytes: float) -> float:
        """Return the most seconds of a transfer between two devices."""
        return max((link.seconds(num_bytes) for link in self.used_links), default=0.0)

    def networked(self, bandwidth: float) -> "Devices":
        """Return devices with the same bandwidth on all links between servers, whose latencies stay."""
        inside = len(self.units[:1])
        outside = [DeviceLink(bandwidth, link.latency_s) for link in self.links[inside:]]
        return replace(self, links=(*self.links[:inside], *outside), between=None)


def devices_of(cluster: ClusterSpec, assumptions: AssumptionsSpec, count: int) -> Devices:
    """Return the first `count` devices of a cluster, with all of their memory.

    Raises InputError for no devices, or more than the cluster has.
    """
    machine = cluster_from_spec(cluster)
    tiers = machine.network.tiers
    most = tiers[-1].size
    if count < 1 or (most and count > most):
        accepted = f"1 to {most} are wanted" if most else "1 or more are wanted"
        raise InputError(f"{count} devices of cluster {cluster.name!r}: {accepted}")
    numbers = assumptions_from_spec(assumptions)
    levels = 1 + sum(tier.size < count for tier in tiers[:-1])
    return Devices(
        speeds=(1.0,) * count,
        units=tuple(tier.size for tier in tiers[: levels - 1]),
        links=tuple(_link(level, machine.network, numbers) for level in range(levels)),
        memory_bytes=float(machine.device.hbm_capacity),
    )


@xp.unchecked
def _link(level: int, network: Network, assumptions: Assumptions) -> DeviceLink:
    """Return the link between two devices that no unit of a tier below `level` has both of."""
    shares = [np.array([2.0 if tier >= level else 1.0]) for tier in range(len(network.tiers) - 1)]
    between = send(np.array([2.0]), shares[0], network, assumptions, shares[1:])
    latency_s, single_s, double_s = (float(between(np.array([size]))[0]) for size in (0.0, _LARGE, 2.0 * _LARGE))
    return DeviceLink(_LARGE / (double_s - single_s), latency_s)


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
