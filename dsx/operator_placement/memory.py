"""Whether the memory of devices has room for a graph, and how much is short."""

from collections.abc import Sequence

import numpy as np

from dsx.errors import NothingFeasible
from dsx.operator_placement.devices import Devices
from dsx.operator_placement.op_graph import Id, OpGraph
from dsx.units import format_quantity


def check_memory(graph: OpGraph, devices: Devices, unit: np.ndarray) -> None:
    """Raise NothingFeasible for what can be seen at once: a unit larger than a device, or a graph than all of them."""
    most = devices.memory_bytes
    if most is None:
        return
    needs = np.bincount(unit, graph.memory_bytes, 1)
    largest = int(needs.argmax())
    if needs[largest] > most:
        members = [graph.ids[op] for op in np.flatnonzero(unit == largest).tolist()]
        what = f"operator {members[0]!r} needs" if len(members) == 1 else f"operators {_listed(members)} need"
        together = "" if len(members) == 1 else " on one device"
        short = _size(needs[largest] - most)
        raise NothingFeasible(
            f"{what} {_size(needs[largest])}{together}, and a device has {_size(most)}: {short} short"
        )
    total = float(needs.sum())
    if total > most * devices.count:
        raise NothingFeasible(
            f"the operators need {_size(total)}, and {devices.count} devices of {_size(most)} have "
            f"{_size(most * devices.count)}: {_size(total - most * devices.count)} short"
        )


def packed(graph: OpGraph, devices: Devices, unit: np.ndarray) -> np.ndarray:
    """Return the device of each operator, the largest units first, each where most room is left: it may not fit."""
    needs = np.bincount(unit, graph.memory_bytes)
    used, placement = np.zeros(devices.count), np.zeros(len(needs), dtype=np.int64)
    for one in np.argsort(-needs, kind="stable").tolist():
        placement[one] = used.argmin()
        used[placement[one]] += needs[one]
    return placement[unit]


def shortage(graph: OpGraph, devices: Devices, unit: np.ndarray) -> str:
    """Return why no placement fits, with how much is short in a fair one."""
    held = np.bincount(packed(graph, devices, unit), graph.memory_bytes, devices.count)
    fullest, most = int(held.argmax()), devices.memory_bytes or 0.0
    return (
        f"no placement was found that fits into {_size(most)} a device: with the largest operators spread out first, "
        f"device {fullest} needs {_size(held[fullest])}, {_size(max(held[fullest] - most, 0.0))} more"
    )


def _size(num_bytes: float) -> str:
    return format_quantity(num_bytes, "bytes")


def _listed(members: Sequence[Id]) -> str:
    shown = ", ".join(map(repr, members[:3]))
    return shown if len(members) <= 3 else f"{shown} and {len(members) - 3} more"
