"""Bounds below the shortest step of a graph as it is: its critical path, and its load."""

from dsx.operator_placement.devices import Devices
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.schedule import op_seconds


def path_bound_s(graph: OpGraph, devices: Devices) -> float:
    """Return the longest path, each operator on its fastest device and without transfers."""
    least, end = op_seconds(graph, devices).min(axis=1).tolist(), [0.0] * graph.num_ops
    for op in graph.order:
        end[op] = least[op] + max((end[before] for before in graph.predecessors[op]), default=0.0)
    return max(end, default=0.0)


def load_bound_s(graph: OpGraph, devices: Devices) -> float:
    """Return the time that all devices need for all operators if none ever waits."""
    if graph.seconds.shape[1] == 1:
        return float(graph.seconds.sum() / sum(devices.speeds))
    return float(op_seconds(graph, devices).min(axis=1).sum() / devices.count)
