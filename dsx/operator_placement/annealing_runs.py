"""Annealings of several reductions of one graph, in rounds: each gets the same time.

The best placement of each is scheduled on the graph as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.operator_placement.annealing import Annealing
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.reduction import Reduction
from dsx.operator_placement.schedule import Schedule, Timing


@dataclass(frozen=True, eq=False)
class ReducedSchedule:
    """A schedule of a reduced graph."""

    graph: OpGraph
    unit: np.ndarray  # [n] operators of a unit share a device
    of_op: np.ndarray  # [N] the reduced operator of each operator of the given graph
    schedule: Schedule


@dataclass
class Run:
    """The annealing of one reduction."""

    name: str
    of_op: np.ndarray  # [N] the reduced operator of each operator of the given graph
    annealing: Annealing
    reduction: Reduction | None = None  # None: the graph as it is
    best_s: float = np.inf  # on the given graph
    reduced: ReducedSchedule | None = None  # the best on its own


def annealed_once(
    graph: OpGraph, runs: Sequence[Run], seconds: float, hot: float, cold: float, stop: Callable[[], bool]
) -> Iterator[tuple[Run, Schedule]]:
    """Anneal each run for its share of nominal seconds; yield it with its schedule of the graph as it is.

    A run that has found nothing that fits yields nothing. Temperatures are shares of the makespan. The devices of a
    schedule are those of the annealing after it, which may have given them other bandwidths.
    """
    timing: Timing | None = None
    for run in runs:
        if stop():
            return
        annealing = run.annealing
        made = annealing.run(annealing.steps_in(seconds / len(runs)), hot, cold, stop)
        if made is None:
            continue
        if run.reduced is None or made.makespan_s < run.reduced.schedule.makespan_s:
            run.reduced = ReducedSchedule(annealing.graph, np.array(annealing.unit), run.of_op, made)
        devices = annealing.timing.devices
        if timing is None or timing.devices is not devices:
            timing = Timing(graph, devices)
        whole = timing.best(made.device[run.of_op].tolist(), made.start_s[run.of_op].tolist())
        run.best_s = min(run.best_s, whole.makespan_s)
        yield run, whole
