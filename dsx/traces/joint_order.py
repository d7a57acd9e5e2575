"""The order of what ranks do together: if it has a cycle, ranks wait for each other for ever.

The order of a file is the program order of its rank, unless it cannot be: a node depends on a later one, or the files
of the ranks contradict each other. Then the dependencies decide, and the order of a file counts only where it states no
dependencies at all. In a file that chains its communication both are the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsx.traces.columns import Lists
from dsx.traces.dag import cycle
from dsx.traces.faults import Fault
from dsx.traces.joint_events import JointEvents

CONTRADICTORY_ORDER = "contradictory order"
_SHOWN = 6  # events in a message


class StepGraph(NamedTuple):
    """What waits for what on all ranks: vertices are the events, then the other nodes rank after rank."""

    before: Lists  # of each vertex, those before it
    parts: np.ndarray  # of each edge in `before`, the rank that has it, by its position
    vertices: list[np.ndarray]  # of each rank, those of its nodes in file order; none where the file order counts


def step_graph(joint: JointEvents, deps: Sequence[Lists | None]) -> StepGraph:
    """Return the graph of a step; `deps` has the dependencies of each rank, None where the file order counts."""
    count = joint.num_events
    befores, afters, vertices = [], [], []
    for at, (part, lists) in enumerate(zip(joint.parts, deps, strict=True)):
        events = joint.of_part(at)
        if lists is None:
            befores.append(events[:-1])
            afters.append(events[1:])
            vertices.append(np.empty(0, np.int64))
            continue
        number = len(lists.starts) - 1
        own = np.arange(count, count + number)
        own[part.rows] = events
        count += number
        vertices.append(own)
        befores.append(own[lists.values])
        afters.append(np.repeat(own, np.diff(lists.starts)))
    parts = np.repeat(np.arange(len(befores)), [len(edges) for edges in befores])
    before, after = np.concatenate(befores), np.concatenate(afters)
    edges = np.flatnonzero(before != after)
    edges = edges[np.argsort(after[edges], kind="stable")]
    starts = np.searchsorted(after[edges], np.arange(count + 1))
    return StepGraph(Lists(starts, before[edges]), parts[edges], vertices)


def order_faults(joint: JointEvents) -> list[Fault]:
    """Return a fault if the orders of all ranks contradict each other, with the events of one cycle."""
    steps = _steps(joint, [None if part.in_order else part.deps for part in joint.parts])
    stated = [part.deps for part in joint.parts]
    if not steps or (any(deps is not None for deps in stated) and not _steps(joint, stated)):
        return []
    more = f"; and {len(steps) - _SHOWN:,} more" if len(steps) > _SHOWN else ""
    return [Fault(CONTRADICTORY_ORDER, None, None, "", f"{'; '.join(steps[:_SHOWN])}{more}")]


def _steps(joint: JointEvents, deps: Sequence[Lists | None]) -> list[str]:
    """Return which rank has which event before which, around a cycle; empty if there is none."""
    graph = step_graph(joint, deps)
    around = cycle(graph.before)
    events = [at for at, vertex in enumerate(around) if vertex < joint.num_events]
    if not events:  # of one rank, which is a fault of its file
        return []
    steps = []
    for at, then in zip(events, events[1:] + events[:1], strict=True):
        after = around[(at + 1) % len(around)]
        edges = slice(graph.before.starts[after], graph.before.starts[after + 1])
        part = int(graph.parts[edges][graph.before.values[edges] == around[at]][0])
        first, second = (_row(joint, part, around[place]) for place in (at, then))
        steps.append(f"rank {joint.parts[part].rank} has {joint.text(first)} before {joint.text(second)}")
    return steps


def _row(joint: JointEvents, part: int, event: int) -> int:
    """Return the row of an event on a rank."""
    return int(joint.begins[part]) + int(np.flatnonzero(joint.of_part(part) == event)[0])
