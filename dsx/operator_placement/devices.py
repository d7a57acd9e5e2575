"""The devices of a placement and the links between them.

Devices are numbered, those of a server one after the other. A link is that of the innermost level that both devices
share: that of a server, or the network. All of its bandwidth is there for every transfer, as in the
programs of the sources: contention is not modelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, slots=True)
class Link:
    """What a transfer takes: `latency_s`, and its bytes at `bandwidth`, bytes/s."""

    bandwidth: float
    latency_s: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        """Return the seconds of a transfer; none for a dependency without data."""
        return self.latency_s + num_bytes / self.bandwidth if num_bytes > 0 else 0.0


@dataclass(frozen=True)
class Devices:
    """D devices."""

    speeds: tuple[float, ...]  # an operator takes its seconds over the speed of its device
    units: tuple[int, ...]  # devices in a unit of each level, innermost first, without the level of all devices
    links: tuple[Link, ...]  # of each level, one more than `units`
    memory_bytes: float | None = None  # of each device; None: no limit

    @property
    def count(self) -> int:
        """The number of devices."""
        return len(self.speeds)

    @property
    def alike(self) -> bool:
        """Whether all devices have the same speed."""
        return len(set(self.speeds)) == 1

    @cached_property
    def level(self) -> np.ndarray:
        """The level of the link between two devices, [D, D]; -1 for a device itself."""
        device = np.arange(self.count)
        found = np.full((self.count, self.count), len(self.units))
        for level in reversed(range(len(self.units))):
            unit = device // self.units[level]
            found[unit[:, None] == unit] = level
        found[device, device] = -1
        return found

    @property
    def used_links(self) -> tuple[Link, ...]:
        """The links that some pair of devices has."""
        return tuple(self.links[level] for level in sorted({*self.level.ravel().tolist()} - {-1}))

    def worst_s(self, num_bytes: float) -> float:
        """Return the most seconds of a transfer between two devices."""
        return max((link.seconds(num_bytes) for link in self.used_links), default=0.0)


def uniform(
    count: int, link: Link, memory_bytes: float | None = None, speeds: Sequence[float] | None = None
) -> Devices:
    """Return devices with the same link between any two."""
    return Devices(tuple(speeds or [1.0] * count), (), (link,), memory_bytes)
