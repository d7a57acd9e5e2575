"""METIS as a baseline: a partition of equal work that cuts few bytes, scheduled by priority.

METIS writes remarks on stdout, where answers belong, so nothing that C code prints there meanwhile is shown. It sees no
direction of an edge, so parts may wait for each other in turn. Memory is not balanced: a partition that
does not fit counts as none.

Karypis and Kumar, A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM J. Sci. Comput. 20
(1998).
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from dsx.operator_placement.schedule import Schedule, Timing

_STDOUT = 1  # its file descriptor
_WEIGHT = 10**8  # of all vertices, and of all edges: sums stay far below 32 bits


def metis(timing: Timing, unit: Sequence[int], seed: int = 0) -> Schedule | None:
    """Return the schedule of a partition of the units of a graph; None if there is none, or a part does not fit."""
    import pymetis

    graph, devices = timing.graph, timing.devices
    count = max(unit, default=-1) + 1
    if devices.count == 1 or not count:
        return None
    between: list[dict[int, float]] = [{} for _ in range(count)]
    for (source, target), num_bytes in graph.edge_bytes.items():
        one, other = unit[source], unit[target]
        if one != other:
            between[one][other] = between[other][one] = between[one].get(other, 0.0) + num_bytes
    work = np.bincount(unit, graph.mean_s)
    if np.count_nonzero(work) < devices.count:  # a part would be empty, which METIS cannot do
        return None
    share = np.array(devices.speeds) / sum(devices.speeds)
    total = sum(sum(near.values()) for near in between) or 1.0
    with _silent():
        _, parts = pymetis.part_graph(
            devices.count,
            pymetis.CSRAdjacency(
                adj_starts=np.cumsum([0, *map(len, between)]).tolist(),
                adjacent=[other for near in between for other in near],
            ),
            vweights=[round(own / work.sum() * _WEIGHT) for own in work.tolist()],
            # Weights of edges are positive.
            eweights=[max(round(sent / total * _WEIGHT), 1) for near in between for sent in near.values()],
            tpwgts=share.tolist(),
            options=pymetis.Options(seed=seed),
        )
    placement = np.array(parts)[list(unit)]
    held = np.bincount(placement, graph.memory_bytes, devices.count)
    if devices.memory_bytes is not None and held.max() > devices.memory_bytes:
        return None
    return timing.best(placement.tolist())


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what is written to the file descriptor of stdout."""
    flush = ctypes.CDLL(None).fflush  # what C code has printed waits in a buffer of its own
    sys.stdout.flush()
    flush(None)
    kept = os.dup(_STDOUT)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), _STDOUT)
        yield
    finally:
        flush(None)
        os.dup2(kept, _STDOUT)
        os.close(kept)
