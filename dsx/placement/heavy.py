"""A bound below every schedule of a graph as it is, from its K longest ("heavy") operators alone, by CP-SAT.

The relaxation keeps the heavy operators on their devices, one at a time, and what each pair must wait for; the others
("light") take up no device. It is asked whether a step can be as short as some time: if not, that time is a bound,
whatever K is. Within a short step the starts have narrow windows, so the answer comes sooner than the shortest step of
the relaxation. K grows while steps are possible.

A pair waits for the paths between both through light operators alone. If both ends are on one device, the second waits
for the longest such path. If they are not, some edge of each path is cut. Of the edges of a path that all take z or
more to send, the cut one does too. So the second operator waits for the largest sum, over all z, of z and the longest
path of such edges.

Not used: memory, and that outer links are slower than inner ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from time import monotonic

import numpy as np

from dsx.placement.cp_program import SolverEffort, place_first, placed_units, run
from dsx.placement.exact import units_to_place_first
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices
from dsx.placement.timetable import op_seconds, step_bound_s

_MOST_THRESHOLDS = 256
_HEAVY = (40, 80, 120, 160, 200, 250, 300, 400)  # operators
_TICKS = 10_000_000  # of the shortest step known; all times are rounded down, which keeps the bound one
_ASKED = (0.2, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01, 0.0)  # gaps to the shortest step known, in this order
_WITHIN = 0.999
_NARROW = 2e-3  # of the shortest step known: bounds this near count as equal
_SLICE = 0.25  # of the time that is left, for one question
_LEAST_SLICE_S = 2.0


@dataclass(frozen=True, eq=False)
class Paths:
    """Seconds between the end of one heavy operator and the start of another, [K, K]; -inf where no path is."""

    together_s: np.ndarray  # on one device
    apart_s: np.ndarray  # on two


def paths_between(graph: OpGraph, devices: Devices, heavy: Sequence[int], seconds: np.ndarray) -> Paths:
    """Return the paths between heavy operators; `seconds` of all operators are those of their best device."""
    links, sizes = devices.used_links, {*graph.edge_bytes.values()}
    # The least seconds of a transfer: those of the best link there is.
    sent_of = {size: min((link.seconds(size) for link in links), default=0.0) for size in sizes}
    # Zero and the distinct positive seconds of transfers, evenly thinned out if there are many.
    thresholds = np.unique([0.0, *sent_of.values()])
    if len(thresholds) > _MOST_THRESHOLDS + 1:
        kept = np.linspace(0, len(thresholds) - 2, _MOST_THRESHOLDS).round().astype(int) + 1
        thresholds = thresholds[[0, *kept]]
    column = {op: place for place, op in enumerate(heavy)}
    # For each operator, the longest path to its start, from each heavy one, of edges of at least each threshold.
    longest: dict[int, np.ndarray] = {}
    unread = [len(ops) for ops in graph.successors]  # successors that have not read it
    for op in graph.order:
        paths = np.full((len(heavy), len(thresholds)), -np.inf)
        for source in graph.predecessors[op]:
            sent = sent_of[graph.edge_bytes[source, op]]
            reached = int(np.searchsorted(thresholds, sent, side="right"))  # that the edge meets
            if source in column:
                np.maximum(paths[column[source], :reached], 0.0, out=paths[column[source], :reached])
            else:
                along = longest[source][:, :reached] + seconds[source]
                np.maximum(paths[:, :reached], along, out=paths[:, :reached])
            unread[source] -= 1
            if not unread[source] and source not in column:
                del longest[source]
        longest[op] = paths
    between = np.stack([longest[op] for op in heavy], axis=1)  # [from, to, threshold]
    return Paths(between[:, :, 0], (between + thresholds).max(axis=2))


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound below all schedules, and the number of heavy operators that proved it; 0: the path or the load."""

    seconds: float
    num_heavy: int


def heavy_bound(
    graph: OpGraph,
    devices: Devices,
    unit: Sequence[int],
    shortest_s: float,
    effort: SolverEffort,
    report: Callable[[Bound], None] = lambda bound: None,
) -> Bound:
    """Return the best bound that an effort proves, at most the shortest step known.

    `unit` has the unit of each operator; operators of one unit share a device. The bound need not be nearer than the
    gap of the effort. `report` hears of each better bound; at Ctrl-C, which goes on, it has heard of all.
    """
    best = Bound(min(step_bound_s(graph, devices), shortest_s), 0)
    # A little more than the gap: at the gap itself, rounding would decide.
    gaps = [*(gap for gap in _ASKED if gap > effort.gap), effort.gap * _WITHIN]

    def next_target_s() -> float | None:
        """Return the next step time to ask for; None if the bound is as good as all."""
        steps = (shortest_s * (1.0 - gap) for gap in gaps)
        return next((step_s for step_s in steps if step_s > best.seconds + _NARROW * shortest_s), None)

    until = monotonic() + effort.seconds
    seconds = op_seconds(graph, devices).min(axis=1)
    longest = np.argsort(-seconds, kind="stable")[: int((seconds > 0.0).sum())].tolist()
    sizes = [*(size for size in _HEAVY if size < len(longest)), *([len(longest)] if len(longest) <= _HEAVY[-1] else [])]
    if not longest or devices.count == 1:
        return best
    place, target_s = 0, next_target_s()
    relaxation = _Relaxation(graph, devices, unit, longest[: sizes[0]])
    while target_s is not None and not effort.stop() and (left_s := until - monotonic()) > 0.0:
        slice_s = max(left_s * _SLICE, min(_LEAST_SLICE_S, left_s))
        possible = relaxation.possible(target_s, shortest_s, replace(effort, seconds=slice_s))
        if possible is False:
            best = Bound(target_s, len(relaxation.heavy))
            report(best)
            target_s = next_target_s()
        elif possible and place + 1 < len(sizes):
            place += 1
            relaxation = _Relaxation(graph, devices, unit, longest[: sizes[place]])
        elif target_s - best.seconds < _NARROW * shortest_s:
            break
        else:
            target_s = (best.seconds + target_s) / 2
    return best


class _Relaxation:
    """The relaxation to some heavy operators."""

    def __init__(self, graph: OpGraph, devices: Devices, unit: Sequence[int], heavy: Sequence[int]) -> None:
        self.graph, self.devices, self.heavy = graph.only(heavy), devices, heavy
        self.unit = np.unique([unit[op] for op in heavy], return_inverse=True)[1].tolist()
        seconds = op_seconds(graph, devices).min(axis=1)
        head_s, tail_s = graph.heads(seconds.tolist()), graph.tails(seconds.tolist())
        self.windows_s = [(head_s[op], float(seconds[op]), tail_s[op]) for op in heavy]
        self.paths = paths_between(graph, devices, heavy, seconds)

    def possible(self, step_s: float, shortest_s: float, effort: SolverEffort) -> bool | None:
        """Return whether the heavy operators can be done in a step of `step_s`; None if that is not known in time."""
        from ortools.sat.python import cp_model

        def ticks(value: float) -> int:
            return int(np.floor(value / shortest_s * _TICKS))

        model, count, last = cp_model.CpModel(), self.devices.count, ticks(step_s)
        place = placed_units(model, max(self.unit) + 1, count)
        place_first(model, place, units_to_place_first(self.graph, self.devices, self.unit))
        windows = [(ticks(head), ticks(seconds), ticks(tail)) for head, seconds, tail in self.windows_s]
        if any(sum(window) > last for window in windows):
            return False
        start = [model.new_int_var(head, last - seconds - tail, "") for head, seconds, tail in windows]
        durations = [[ticks(seconds) for seconds in row] for row in op_seconds(self.graph, self.devices).tolist()]
        for device in range(count):
            model.add_no_overlap(
                model.new_optional_fixed_size_interval_var(begin, row[device], place[unit][device], "")
                for begin, row, unit in zip(start, durations, self.unit, strict=True)
            )
        for a, b in product(range(len(start)), repeat=2):
            if not np.isfinite(self.paths.together_s[a, b]):
                continue
            (head, seconds, _), (_, seconds_after, tail) = windows[a], windows[b]
            near, far = ticks(self.paths.together_s[a, b]), ticks(self.paths.apart_s[a, b])
            model.add(start[b] >= start[a] + seconds + near)
            if far <= near or self.unit[a] == self.unit[b]:
                continue
            same_device = [*zip(place[self.unit[a]], place[self.unit[b]], strict=True)]
            if head + seconds + far + seconds_after + tail > last:  # then they share a device
                for of_a, of_b in same_device:
                    model.add_implication(of_a, of_b)
                continue
            apart = model.new_bool_var("")
            for of_a, of_b in same_device:
                model.add_bool_or(apart, ~of_a, of_b)
            model.add(start[b] >= start[a] + seconds + far).only_enforce_if(apart)
        answer = run(model, replace(effort, gap=0.0, seed=0))
        if answer.stopped and not effort.stop():
            raise KeyboardInterrupt
        return True if answer.solved else False if answer.infeasible else None
