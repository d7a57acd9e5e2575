"""The bandwidth of each pair of servers, split over the NICs of the sending server.

The pairs with most come first. A pair goes to the NIC with most room that holds all of it, if possible one on which the
receiving server has room too; if none does, it fills the NIC with most room, and the rest goes on in the same way. Each
further part of a pair fills a NIC, so a server of N NICs has at most N parts more than pairs.

Not modelled: what a server receives is no limit, since the allocation has none. `overbooked` tells where senders
together may send more than a NIC takes in.
"""

import numpy as np

from dsx.errors import InputError
from dsx.units import format_quantity

_ROUNDING = 1e-9  # of a NIC's bandwidth


def nic_shares(bandwidth: np.ndarray, nics: int, nic_bandwidth: float) -> np.ndarray:
    """Return [S, S, N] bytes/s: what each server sends to each other one on each of its NICs.

    `bandwidth` is [S, S] bytes/s, of which the diagonal does not count. Raises InputError for another shape, for
    numbers that are no bandwidths, and for a server that sends more than all of its NICs.
    """
    bandwidth = _checked(np.array(bandwidth, dtype=float), nics, nic_bandwidth)
    servers = len(bandwidth)
    sends = np.full((servers, nics), nic_bandwidth)  # room that is left
    receives = np.full((servers, nics), nic_bandwidth)
    found = np.zeros((servers, servers, nics))
    slack = _ROUNDING * nic_bandwidth
    for pair in np.argsort(-bandwidth, axis=None, kind="stable").tolist():
        source, target = divmod(pair, servers)
        left = float(bandwidth[source, target])
        while left > slack:
            whole = min(left, nic_bandwidth)
            holds, takes = sends[source] >= whole - slack, receives[target] >= whole - slack
            nic = int(np.lexsort((-receives[target], -sends[source], ~(holds & takes), ~holds))[0])
            part = min(left, float(sends[source, nic]))
            if part <= slack:
                break  # the total is that of all NICs, but for rounding
            found[source, target, nic] += part
            sends[source, nic] -= part
            receives[target, nic] -= part
            left -= part
    return found


def overbooked(shares: np.ndarray, nic_bandwidth: float) -> list[tuple[int, int, float]]:
    """Return (server, NIC, bytes/s) where what all others may send together is more than the NIC takes in."""
    received = shares.sum(axis=0)
    return [
        (int(server), int(nic), float(received[server, nic]))
        for server, nic in np.argwhere(received > nic_bandwidth * (1 + _ROUNDING))
    ]


def _checked(bandwidth: np.ndarray, nics: int, nic_bandwidth: float) -> np.ndarray:
    """Return a bandwidth without its diagonal."""
    if bandwidth.ndim != 2 or bandwidth.shape[0] != bandwidth.shape[1]:
        raise InputError(f"bandwidth has the shape {bandwidth.shape}: a row and a column for each server are needed")
    if nics < 1:
        raise InputError(f"nics: {nics} are too few; a server has at least 1")
    if not 0.0 < nic_bandwidth < np.inf:
        raise InputError(f"nic_bandwidth: {nic_bandwidth} bytes/s is no bandwidth above 0")
    bandwidth = np.where(np.eye(len(bandwidth), dtype=bool), 0.0, bandwidth)
    for source, target in np.argwhere(~((bandwidth >= 0.0) & (bandwidth < np.inf))):
        raise InputError(f"bandwidth[{source}, {target}]: {bandwidth[source, target]} bytes/s is no bandwidth")
    for server, total in enumerate(bandwidth.sum(axis=1)):
        if total > nics * nic_bandwidth * (1 + _ROUNDING):
            rule = f"{nics} NICs have {format_quantity(nics * nic_bandwidth, 'bytes/s')}"
            raise InputError(f"bandwidth: server {server} sends {format_quantity(float(total), 'bytes/s')}, but {rule}")
    return bandwidth
