"""Heterogeneous earliest finish time, with insertion (Topcuoglu et al., 2002), for operators that units keep together.

Operators are placed by their ranks, the largest first, each where it ends first, in a gap of a device if one is long
enough. The first operator of a unit places all of it.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

import numpy as np

from dsx.operator_placement.schedule import Schedule, Timing


def heft(
    timing: Timing,
    unit: Sequence[int],
    ranks: Sequence[float] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Schedule | None:
    """Return the schedule; None if memory has no room for a unit that is due, and at `stop`.

    `unit` has the unit of each operator.
    """
    graph, devices = timing.graph, timing.devices
    ranks = timing.ranks() if ranks is None else ranks
    # Operators that take no time have the rank of a successor, so the order of the graph decides.
    order = sorted(range(graph.num_ops), key=lambda op: (-ranks[op], timing.place_in_order[op]))
    needs = np.bincount(unit, graph.memory_bytes).tolist()
    room = [float("inf") if devices.memory_bytes is None else devices.memory_bytes] * devices.count
    device_of: dict[int, int] = {}
    placement, start, end = ([0] * graph.num_ops, [0.0] * graph.num_ops, [0.0] * graph.num_ops)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(devices.count)]  # (start, end), in order
    for op in order:
        if stop():
            return None
        own = unit[op]
        fixed = device_of.get(own)
        choices = [fixed] if fixed is not None else [d for d in range(devices.count) if room[d] >= needs[own]]
        best: tuple[float, float, int] | None = None
        for device in choices:
            row = timing.level_from[device]
            ready = max((end[other] + costs[row[placement[other]]] for other, costs in timing.inputs[op]), default=0.0)
            begin = _gap(busy[device], ready, timing.seconds[op][device])
            if best is None or begin + timing.seconds[op][device] < best[0]:
                best = begin + timing.seconds[op][device], begin, device
        if best is None:
            return None
        end[op], start[op], placement[op] = best
        if fixed is None:
            device_of[own] = placement[op]
            room[placement[op]] -= needs[own]
        if end[op] > start[op]:
            insort(busy[placement[op]], (start[op], end[op]))
    return Schedule(np.array(placement), np.array(start), max(end, default=0.0))


def _gap(busy: list[tuple[float, float]], ready: float, seconds: float) -> float:
    """Return the first start, not before `ready`, with so many free seconds after it."""
    place = bisect_left(busy, (ready,))
    begin = max(ready, busy[place - 1][1]) if place else ready
    while place < len(busy) and busy[place][0] - begin < seconds:
        begin = max(begin, busy[place][1])
        place += 1
    return begin
