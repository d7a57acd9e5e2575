"""Devices and units that may change their names: of placements that differ in names alone, an exact search needs one.

Take of all these the placement whose devices come first, unit by unit in the order of work. It keeps the units with
most work to the first devices, since the names of two devices could be changed else; and among equal units it has no
device after a later one, since the units could be changed. So both may be asked for at once.
"""

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


def equal_units(graph: OpGraph, unit: Sequence[int]) -> list[list[int]]:
    """Return groups of units that may change places: of one operator, with equal times, memory and edges."""
    members = np.bincount(unit)
    found: dict[object, list[int]] = {}
    for op, own in enumerate(unit):
        if members[own] > 1:
            continue
        before = tuple((other, graph.edge_bytes[other, op]) for other in graph.predecessors[op])
        after = tuple((other, graph.edge_bytes[op, other]) for other in graph.successors[op])
        key = tuple(graph.seconds[op].tolist()), float(graph.memory_bytes[op]), before, after
        found.setdefault(key, []).append(own)
    return [sorted(units) for units in found.values() if len(units) > 1]


def first_of_equal(
    devices: Devices, first: Sequence[int], equal: Sequence[Sequence[int]], device_of: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the device of each unit in the placement that stands for all that differ in names, and whose place it has.

    `first` are the units that are placed first, `device_of` has the device of each unit in the given placement.
    """
    placed, place_of = list(device_of), list(range(len(device_of)))
    while True:
        before = list(placed)
        number = renumbering(devices, [placed[one] for one in first])
        placed = [number[device] for device in placed]
        for units in equal:
            ordered = sorted(units, key=lambda one: placed[one])
            moved = [(placed[one], place_of[one]) for one in ordered]
            for one, (device, place) in zip(units, moved, strict=True):
                placed[one], place_of[one] = device, place
        if placed == before:
            return placed, place_of


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
