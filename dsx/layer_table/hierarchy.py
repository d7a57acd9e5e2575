"""A hierarchy of network levels: devices form level-0 domains, level-0 domains form level-1 domains, and so on.

The devices of a domain, at any level, have consecutive numbers. A path between two devices goes through all levels up
to the lowest one that joins them; its bandwidth is the least of these levels. Not modelled: a topology inside a level,
and links that several paths share.
"""

from dsx.records import Array, record


@record
class Hierarchy:
    """The levels, innermost first; arrays of shape [..., Q]."""

    devices_per_level: Array  # integers: lower domains (at level 0: devices) in one domain of each level
    bandwidth: Array  # bytes/s, of a device's link into each level
    latency: Array  # s, of one transfer through each level
