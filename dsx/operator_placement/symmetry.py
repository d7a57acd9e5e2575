"""Devices that may change their names: of placements that differ in names alone, an exact search needs one."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dsx.operator_placement.devices import Devices
from dsx.operator_placement.op_graph import OpGraph


def units_to_place_first(graph: OpGraph, devices: Devices, unit: Sequence[int]) -> list[int]:
    """Return units of which the k-th (from 0) may be kept to the devices up to k: some shortest schedule does.

    With one kind of link these are the units with most work, one less than there are devices. With several levels of
    links any device can be the first one, if all parts of a level are alike, so one unit is kept. Devices that differ
    allow none.
    """
    if not devices.alike or devices.between is not None or graph.seconds.shape[1] > 1 or not graph.num_ops:
        return []
    work = np.bincount(unit, graph.mean_s)
    largest = np.argsort(-work, kind="stable").tolist()
    if len({*devices.used_links}) <= 1:
        return largest[: devices.count - 1]
    sizes = [1, *devices.units, devices.count]
    nested = all(larger % size == 0 for size, larger in pairwise(sizes))
    return largest[:1] if nested else []


def renumbering(devices: Devices, first: Sequence[int]) -> list[int]:
    """Return the new number of each device, given the devices of the units that are placed first.

    These come first in the order of their units. With several levels of links, the first one is moved to the place 0
    in its part of each level.
    """
    if len({*devices.used_links}) <= 1:
        order = list(dict.fromkeys([*first, *range(devices.count)]))
        return [order.index(device) for device in range(devices.count)]
    number = [0] * devices.count
    sizes = [1, *devices.units, devices.count]
    for size, larger in pairwise(sizes):
        for device in range(devices.count):
            moved = device // size - (first[0] // size if first else 0)
            number[device] += moved % (larger // size) * size
    return number
