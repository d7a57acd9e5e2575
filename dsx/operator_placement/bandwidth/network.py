"""Bandwidth between servers, as a switch or a tree gives it, or as programs allocate it.

What a server sends is limited by its network cards: the bandwidths from a server to all others add up to no more than
that of all of its cards (P2 of the sources). A transfer has all of the bandwidth of its pair.
"""

from dataclasses import dataclass, replace

import numpy as np

from dsx.errors import InputError
from dsx.operator_placement.devices import Devices, Link


@dataclass(frozen=True, slots=True)
class Network:
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


def uniform_shares(network: Network, servers: int) -> np.ndarray:
    """Return equal bandwidths from each server to all others, [S, S] bytes/s."""
    return within(network, (1.0 - np.eye(servers)) * network.total / max(servers - 1, 1))


def tree(network: Network, servers: int) -> Network:
    """Return a network whose uniform shares are those of the thesis' tree: a card's bandwidth between any two."""
    return Network(max(servers - 1, 1), network.nic_bandwidth)


def filled(network: Network, bandwidth: np.ndarray) -> np.ndarray:
    """Return shares of [S, S] bytes/s scaled to all that each server has; uniform shares for one without any."""
    sums = bandwidth.sum(axis=1, keepdims=True)
    scaled = bandwidth * network.total / np.where(sums > 0.0, sums, 1.0)
    return within(network, np.where(sums > 0.0, scaled, uniform_shares(network, len(bandwidth))))


def within(network: Network, bandwidth: np.ndarray) -> np.ndarray:
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


def with_uniform_shares(devices: Devices, network: Network) -> Devices:
    """Return devices whose network is that of uniform shares, as links of levels, which searches take faster."""
    share = network.total / max(num_servers(devices) - 1, 1)
    inside = len(devices.units[:1])
    outside = [Link(share, link.latency_s) for link in devices.links[inside:]]
    return replace(devices, links=(*devices.links[:inside], *outside), between=None)


def excesses(network: Network, bandwidth: np.ndarray) -> list[str]:
    """Return what an allocation of [S, S] bytes/s breaks; empty for a valid one."""
    found = [
        f"server {server} sends {sum(row)} bytes/s of {network.total}"
        for server, row in enumerate(bandwidth.tolist())
        if sum(row) > network.total
    ]
    found += [f"bandwidth from {a} to {b} is {bandwidth[a, b]}" for a, b in np.argwhere(~(bandwidth >= 0.0)).tolist()]
    return found
