"""Reduction of a graph: fusion, co-location and fusion inside groups in turn (QuickP, algorithm 2)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsx.operator_placement.devices import Devices
from dsx.operator_placement.fusion import fuse
from dsx.operator_placement.groups import colocated, expanded, fuse_inside
from dsx.operator_placement.merging import Merging
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.thresholds import Thresholds


@dataclass(frozen=True, eq=False)
class Reduction:
    """A reduced graph of n operators."""

    graph: OpGraph
    of_op: np.ndarray  # [N] the reduced operator of each operator of the given graph
    group: np.ndarray  # [n] the group of each reduced operator; one of its own without co-location
    num_groups: int  # those of co-location
    thresholds: Thresholds

    @property
    def num_units(self) -> int:
        """What is placed: groups, and operators without one."""
        return int(self.group.max(initial=-1)) + 1


def reduce(
    graph: OpGraph,
    devices: Devices,
    thresholds: Thresholds,
    iterate: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> Reduction:
    """Return the reduction of a graph; with one pass of fusion alone, and groups, unless told to `iterate`.

    At `stop` no further pass begins.
    """
    merging = Merging(graph)
    fuse(merging, thresholds.alpha_s)
    groups = colocated(merging, devices)
    while iterate and not stop() and fuse_inside(merging, groups, thresholds.alpha_s):
        fuse(merging, thresholds.alpha_s)
        groups = colocated(merging, devices)
    whole = expanded(merging, groups, thresholds.beta_s) if iterate else groups
    reduced, of_op = merging.reduced()
    left = [op for op in merging.order if op >= 0]
    together = reduced.together.tolist()
    keys = [("group", whole[op]) if op in whole else ("op", place) for place, op in enumerate(left)]
    return Reduction(reduced, of_op, _units(keys, together), len({*groups.values()}), thresholds)


def alone(graph: OpGraph) -> np.ndarray:
    """Return [N] the unit of each operator without groups: those of one label of co-location are one unit."""
    return np.unique(graph.together, return_inverse=True)[1]


def _units(keys: list[tuple[str, int]], together: list[int]) -> np.ndarray:
    """Return the unit of each operator: equal keys are one unit, and so are those with a label in common."""
    root: dict[object, object] = {}

    def find(key: object) -> object:
        while root.setdefault(key, key) != key:
            key = root[key]
        return key

    for key, label in zip(keys, together, strict=True):
        root[find(("label", label))] = find(key)
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(find(key), len(numbers)) for key in keys], dtype=np.int64)
