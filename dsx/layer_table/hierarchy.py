"""A hierarchy of network levels: devices share a level-0 domain, such domains share a level-1 domain, and so on.

Devices are numbered so that those of one domain, of any level, follow each other. A path between two devices goes
through all levels up to the lowest one that joins them, so it is as wide as the narrowest of these. Not modelled: a
topology inside a level, and links that several paths share.
"""

from dsx.records import Array, record


@record
class Hierarchy:
    """The levels, innermost first; [Q] arrays, or of any shape that ends so."""

    devices_per_level: Array  # integers: domains (of level 0: devices) that one domain of each level joins
    bandwidth: Array  # bytes/s, of a device's link into each level
    latency: Array  # s, of one transfer through each level
