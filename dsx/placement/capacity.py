"""Whether the memory of devices has room for a graph, where, and how much is short."""

import numpy as np

from dsx.errors import NothingFeasible
from dsx.placement.cp_program import SolverEffort, limit_memory, placed_units, run
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices
from dsx.placement.timetable import GraphTimes
from dsx.units import format_quantity

_SHOWN = 3  # operators of a message


def check_memory(graph: OpGraph, devices: Devices, unit: np.ndarray) -> None:
    """Raise NothingFeasible for what can be seen at once: a unit larger than a device, or a graph than all of them."""
    most = devices.memory_bytes
    if most is None:
        return
    needs = np.bincount(unit, graph.memory_bytes, 1)
    largest = int(needs.argmax())
    if needs[largest] > most:
        members = [repr(graph.ids[op]) for op in np.flatnonzero(unit == largest).tolist()]
        what, together = f"operator {members[0]} needs", ""
        if len(members) > 1:
            more = f" and {len(members) - _SHOWN} more" if len(members) > _SHOWN else ""
            what, together = f"operators {', '.join(members[:_SHOWN])}{more} need", " on one device"
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
    for number in np.argsort(-needs, kind="stable").tolist():
        placement[number] = used.argmin()
        used[placement[number]] += needs[number]
    return placement[unit]


def fitting(graph: OpGraph, devices: Devices, unit: np.ndarray, effort: SolverEffort) -> np.ndarray | None:
    """Return a placement that fits, [N], by CP-SAT, without regard to time; None if none was found.

    Raises NothingFeasible where there is none.
    """
    from ortools.sat.python import cp_model

    model, needs = cp_model.CpModel(), np.bincount(unit, graph.memory_bytes)
    place = placed_units(model, len(needs), devices.count)
    limit_memory(model, place, needs, devices.memory_bytes)
    answer = run(model, effort)
    if answer.infeasible:
        raise NothingFeasible(shortage(graph, devices, unit, proved=True))
    if not answer.solved:
        return None
    placement = np.array(answer.chosen(place))[unit]
    return placement if GraphTimes(graph, devices).fits(placement.tolist()) else None


def shortage(graph: OpGraph, devices: Devices, unit: np.ndarray, proved: bool) -> str:
    """Return why no placement fits, with how much is short in a fair one; not `proved`: none was found."""
    held = np.bincount(packed(graph, devices, unit), graph.memory_bytes, devices.count)
    fullest, most = int(held.argmax()), devices.memory_bytes or 0.0
    what = "no placement fits" if proved else "no placement was found that fits"
    return (
        f"{what} into {_size(most)} a device: with the largest operators spread out first, "
        f"device {fullest} needs {_size(held[fullest])}, {_size(max(held[fullest] - most, 0.0))} more"
    )


def _size(num_bytes: float) -> str:
    return format_quantity(num_bytes, "bytes")
