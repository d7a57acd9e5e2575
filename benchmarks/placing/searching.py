"""The best schedule that annealing of one graph finds in a fixed time, as one of the graph that it was reduced from."""

import numpy as np

from dsx.placement.annealing import Annealing
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule

_ROUNDS = 8
_HOT, _COOLING, _COLD = 3e-3, 0.5, 1e-5  # temperatures, of the makespan, as those of dsx place


def started(graph: OpGraph, devices: Devices, unit: np.ndarray) -> OperatorSchedule:
    """Return the schedule of HEFT."""
    found = GraphTimes(graph, devices).heft(unit.tolist())
    assert found is not None  # memory has no limit
    return found


def on_given(given: GraphTimes, of_op: np.ndarray, reduced: OperatorSchedule) -> OperatorSchedule:
    """Return the schedule of the given graph that has the placement of a reduced one."""
    return given.best(reduced.device[of_op].tolist(), reduced.start_s[of_op].tolist())


def annealed_s(given: GraphTimes, graph: OpGraph, of_op: np.ndarray, unit: np.ndarray, seconds: float) -> float:
    """Return the makespan on the given graph after some nominal seconds, from HEFT and from one device."""
    start = started(graph, given.devices, unit)
    annealing = Annealing(GraphTimes(graph, given.devices), unit, start, seed=0)
    best_s = on_given(given, of_op, start).makespan_s
    for number in range(_ROUNDS):
        steps = annealing.steps_in(seconds / _ROUNDS)
        made = annealing.run(steps, max(_HOT * _COOLING**number, _COLD), _COLD)
        if made is not None:
            best_s = min(best_s, on_given(given, of_op, made).makespan_s)
    return best_s
