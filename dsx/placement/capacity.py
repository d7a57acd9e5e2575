"""Whether the memory of devices has room for a graph, where, and how much is short; runs of CP-SAT.

One run of CP-SAT: a time limit, a stop from outside, and Ctrl-C.

The solver runs in a thread of its own, so that Ctrl-C reaches Python at once and what was found so far is kept.

Whether the memory of devices has room for a graph, where, and how much is short.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from dsx.errors import NothingFeasible
from dsx.placement.op_graph import Id, OpGraph
from dsx.placement.servers import Devices
from dsx.units import format_quantity

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


_WORKERS = 8  # different searches; each alone is much weaker, even where cores are fewer
_POLL_S = 0.02


@dataclass(frozen=True)
class SolverAnswer:
    """What a run found."""

    solver: "cp_model.CpSolver"  # with the values of variables if `found`
    found: bool
    infeasible: bool
    stopped: bool  # by `stop` or Ctrl-C

    @property
    def bound(self) -> int:
        """The least value that an integer objective may have."""
        # Of an integer objective the bound is a whole number, in a float.
        return round(self.solver.best_objective_bound)


def run(
    model: "cp_model.CpModel",
    seconds: float,
    gap: float = 0.0,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> SolverAnswer:
    """Return the best of some seconds; stops early once within `gap`, if `stop` says so, and at Ctrl-C."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(seconds, 0.0)
    solver.parameters.num_search_workers = _WORKERS
    solver.parameters.relative_gap_limit = gap
    solver.parameters.random_seed = seed
    solver.parameters.catch_sigint_signal = False  # its handler would replace that of Python for good
    statuses: list[object] = []
    thread = Thread(target=lambda: statuses.append(solver.solve(model)))
    thread.start()
    stopped = False
    while thread.is_alive():
        try:
            thread.join(_POLL_S)
            stopped = stopped or stop()
            if stopped:
                solver.stop_search()
        except KeyboardInterrupt:
            stopped = True
    if not statuses or statuses[0] == cp_model.MODEL_INVALID:
        raise AssertionError(f"the program is invalid: {model.validate()}")
    found = statuses[0] in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return SolverAnswer(solver, found, statuses[0] == cp_model.INFEASIBLE, stopped)


_WHOLE = 2**50  # numbers of bytes are whole up to here


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


@dataclass(frozen=True, eq=False)
class Packing:
    """Where memory has room."""

    device: np.ndarray | None  # [N] of each operator; None: nothing was found
    impossible: bool  # which is proved


def fitting(graph: OpGraph, devices: Devices, unit: np.ndarray, seconds: float, stop: Callable[[], bool]) -> Packing:
    """Return a placement that fits, by CP-SAT, without regard to time."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    needs = np.bincount(unit, graph.memory_bytes)
    place = [[model.new_bool_var("") for _ in range(devices.count)] for _ in needs]
    for row in place:
        model.add_exactly_one(row)
    limit_memory(model, place, needs, devices.memory_bytes)
    answer = run(model, seconds, stop=stop)
    if not answer.found:
        return Packing(None, answer.infeasible)
    chosen = np.array([next(at for at, here in enumerate(row) if answer.solver.boolean_value(here)) for row in place])
    held = np.bincount(chosen, needs, devices.count)
    fits = devices.memory_bytes is None or bool((held <= devices.memory_bytes).all())
    return Packing(chosen[unit] if fits else None, False)


def limit_memory(
    model: "cp_model.CpModel", place: "Sequence[Sequence[cp_model.IntVar]]", needs: np.ndarray, limit: float | None
) -> None:
    """Limit what units need on each device; bytes that are no whole numbers are rounded down in their last places."""
    if limit is None or needs.sum() <= limit:
        return
    whole = (needs == np.floor(needs)).all() and limit == math.floor(limit) and needs.sum() < _WHOLE
    scale = 1.0 if whole else 2.0 ** math.floor(math.log2(_WHOLE / needs.sum()))
    amounts = np.floor(needs * scale).astype(np.int64).tolist()
    for device in range(len(place[0])):
        held = sum(amount * place[one][device] for one, amount in enumerate(amounts) if amount)
        model.add(held <= math.floor(limit * scale))


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


def _listed(members: Sequence[Id]) -> str:
    shown = ", ".join(map(repr, members[:3]))
    return shown if len(members) <= 3 else f"{shown} and {len(members) - 3} more"
