"""A hierarchy of network levels: devices share a level-0 domain, such domains share a level-1 domain, and so on.

Devices are numbered so that those of one domain, of any level, follow each other. A path between two devices goes
through all levels up to the lowest one that joins them, so it is as wide as the narrowest of these. Not modelled: a
topology inside a level, and links that several paths share.
"""

import math
from itertools import accumulate
from typing import Any

from dsx.records import record, static


@record
class Hierarchy:
    """The levels, innermost first."""

    bandwidth: Any  # [Q] bytes/s, of a device's link into each level
    latency: Any  # [Q] s, of one transfer through each level
    devices_per_level: tuple[int, ...] = static()  # domains (of level 0: devices) that one domain of each level joins

    @property
    def domain_sizes(self) -> tuple[int, ...]:
        """Return the devices in one domain of each level."""
        return tuple(accumulate(self.devices_per_level, lambda inner, joined: inner * joined))

    @property
    def num_devices(self) -> int:
        """Return the devices of the whole hierarchy."""
        return math.prod(self.devices_per_level)
