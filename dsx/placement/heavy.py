"""A bound below every schedule of a graph as it is, from its K longest operators alone, by CP-SAT.

Paths between the longest ("heavy") operators of a graph, through the other ("light") ones alone.

If both ends are on one device, the second waits for the longest such path. If they are not, some edge of each path is
cut. Of the edges of a path that all take z or more to send, the cut one does too. So the second operator waits for the
largest sum, over all z, of z and the longest path of such edges.

A bound below every schedule of a graph as it is, from its K longest operators alone, by CP-SAT.

The relaxation keeps the heavy operators on their devices, one at a time, and what each pair must wait for
(`heavy_paths.py`); light operators take up no device. It is asked whether a step can be as short as some time: if not,
that time is a bound, whatever K is. Within a short step the starts have narrow windows, so the answer comes sooner than
the shortest step of the relaxation. K grows while steps are possible.

Not used: memory, and that outer links are slower than inner ones.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from time import monotonic

import numpy as np

from dsx.placement.capacity import run
from dsx.placement.exact import units_to_place_first
from dsx.placement.op_graph import OpGraph
from dsx.placement.servers import Devices
from dsx.placement.timetable import load_bound_s, op_seconds, path_bound_s

_MOST_THRESHOLDS = 256


@dataclass(frozen=True, eq=False)
class Paths:
    """Seconds between the end of one heavy operator and the start of another, [K, K]; -inf where no path is."""

    together_s: np.ndarray  # on one device
    apart_s: np.ndarray  # on two


@dataclass(frozen=True, eq=False)
class Ends:
    """Of each operator of a graph, [N], on the best device and without transfers."""

    seconds: np.ndarray
    head_s: np.ndarray  # the longest path from the beginning of the step to its start
    tail_s: np.ndarray  # and from its end to the end of the step


def ends_of(graph: OpGraph, devices: Devices) -> Ends:
    """Return the heads and tails of all operators."""
    seconds = op_seconds(graph, devices).min(axis=1)
    own = seconds.tolist()
    head, tail = [0.0] * graph.num_ops, [0.0] * graph.num_ops
    for op in graph.order:
        head[op] = max((head[before] + own[before] for before in graph.predecessors[op]), default=0.0)
    for op in reversed(graph.order):
        tail[op] = max((tail[after] + own[after] for after in graph.successors[op]), default=0.0)
    return Ends(seconds, np.array(head), np.array(tail))


def sent_s(graph: OpGraph, devices: Devices) -> dict[tuple[int, int], float]:
    """Return the least seconds of a transfer of each edge: those of the best link there is."""
    links = devices.used_links
    known: dict[float, float] = {}
    for num_bytes in graph.edge_bytes.values():
        known.setdefault(num_bytes, min((link.seconds(num_bytes) for link in links), default=0.0))
    return {edge: known[num_bytes] for edge, num_bytes in graph.edge_bytes.items()}


def paths_between(graph: OpGraph, devices: Devices, heavy: Sequence[int], seconds: np.ndarray) -> Paths:
    """Return the paths between heavy operators; `seconds` of all operators are those of their best device."""
    sent = sent_s(graph, devices)
    least = _thresholds(sent.values())
    column = {op: place for place, op in enumerate(heavy)}
    # For each operator, the longest path to its start, from each heavy one, of edges of at least each threshold.
    longest: dict[int, np.ndarray] = {}
    waiting = [len(after) for after in graph.successors]  # successors that have not read it
    for op in graph.order:
        found = np.full((len(heavy), len(least)), -np.inf)
        for before in graph.predecessors[op]:
            reached = int(np.searchsorted(least, sent[before, op], side="right"))  # thresholds that the edge meets
            if before in column:
                np.maximum(found[column[before], :reached], 0.0, out=found[column[before], :reached])
            else:
                along = longest[before][:, :reached] + seconds[before]
                np.maximum(found[:, :reached], along, out=found[:, :reached])
            waiting[before] -= 1
            if not waiting[before] and before not in column:
                del longest[before]
        longest[op] = found
    between = np.stack([longest[op] for op in heavy], axis=1)  # [from, to, threshold]
    return Paths(between[:, :, 0], (between + least).max(axis=2))


def _thresholds(seconds: Iterable[float]) -> np.ndarray:
    """Return zero and the distinct positive seconds of transfers, evenly thinned out if there are many."""
    distinct = np.unique(np.fromiter(seconds, dtype=float))
    distinct = distinct[distinct > 0.0]
    if len(distinct) > _MOST_THRESHOLDS:
        distinct = distinct[np.linspace(0, len(distinct) - 1, _MOST_THRESHOLDS).round().astype(int)]
    return np.concatenate([[0.0], distinct])


_HEAVY = (40, 80, 120, 160, 200, 250, 300, 400)  # operators
_TICKS = 10_000_000  # of the shortest step known; all times are rounded down, which keeps the bound one
_ASKED = (0.2, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01, 0.0)  # gaps to the shortest step known, in this order
_WITHIN = 0.999
_NARROW = 2e-3  # of the shortest step known: bounds this near are not told apart
_SLICE = 0.25  # of the time that is left, for one question
_LEAST_SLICE_S = 2.0


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
    seconds: float,
    gap: float = 0.0,
    stop: Callable[[], bool] = lambda: False,
    told: Callable[[Bound], None] = lambda bound: None,
) -> Bound:
    """Return the best bound that some seconds prove, at most the shortest step known.

    `unit` has the unit of each operator, those of which share a device. The bound need not be nearer than `gap`, a
    share of the shortest step known. `told` hears of each better bound; at Ctrl-C, which goes on, it has heard of all.
    """
    best = Bound(min(max(path_bound_s(graph, devices), load_bound_s(graph, devices)), shortest_s), 0)
    # A little more than the gap: at the gap itself, rounding would decide.
    asked_for = [shortest_s * (1.0 - one) for one in (*(one for one in _ASKED if one > gap), gap * _WITHIN)]
    until = monotonic() + seconds
    ends = ends_of(graph, devices)
    longest = np.argsort(-ends.seconds, kind="stable")[: int((ends.seconds > 0.0).sum())].tolist()
    sizes = [*(size for size in _HEAVY if size < len(longest)), *([len(longest)] if len(longest) <= _HEAVY[-1] else [])]
    if not longest or devices.count == 1:
        return best
    place = 0
    asked = _next(asked_for, best.seconds, shortest_s)
    relaxation = _Relaxation(graph, devices, unit, longest[: sizes[0]], ends)
    while asked is not None and not stop():
        left = until - monotonic()
        if left <= 0.0:
            break
        answer = relaxation.possible(asked, shortest_s, max(left * _SLICE, min(_LEAST_SLICE_S, left)), stop)
        if answer is False:
            best = Bound(asked, len(relaxation.heavy))
            told(best)
            asked = _next(asked_for, best.seconds, shortest_s)
        elif answer and place + 1 < len(sizes):
            place += 1
            relaxation = _Relaxation(graph, devices, unit, longest[: sizes[place]], ends)
        elif asked - best.seconds < _NARROW * shortest_s:
            break
        else:
            asked = (best.seconds + asked) / 2
    return best


def _next(asked_for: Sequence[float], known_s: float, shortest_s: float) -> float | None:
    """Return the next step time to ask for, given a bound; None if the bound is as good as all."""
    return next((one for one in asked_for if one > known_s + _NARROW * shortest_s), None)


class _Relaxation:
    """The relaxation to some heavy operators."""

    def __init__(self, graph: OpGraph, devices: Devices, unit: Sequence[int], heavy: Sequence[int], ends: Ends) -> None:
        self.graph, self.devices, self.heavy = graph.only(heavy), devices, heavy
        self.unit = np.unique([unit[op] for op in heavy], return_inverse=True)[1].tolist()
        chosen = list(heavy)
        self.ends = Ends(ends.seconds[chosen], ends.head_s[chosen], ends.tail_s[chosen])
        self.paths: Paths = paths_between(graph, devices, heavy, ends.seconds)

    def possible(self, step_s: float, shortest_s: float, seconds: float, stop: Callable[[], bool]) -> bool | None:
        """Return whether the heavy operators can be done in a step of `step_s`; None if that is not known in time."""
        from ortools.sat.python import cp_model

        def ticks(value: float) -> int:
            return int(np.floor(value / shortest_s * _TICKS))

        model, count, last = cp_model.CpModel(), self.devices.count, ticks(step_s)
        place = [[model.new_bool_var("") for _ in range(count)] for _ in range(max(self.unit) + 1)]
        for row in place:
            model.add_exactly_one(row)
        for number, one in enumerate(units_to_place_first(self.graph, self.devices, self.unit)):
            for literal in place[one][number + 1 :]:
                model.add(literal == 0)
        took = [ticks(own) for own in self.ends.seconds]
        head, tail = [ticks(own) for own in self.ends.head_s], [ticks(own) for own in self.ends.tail_s]
        if any(own + before + after > last for own, before, after in zip(took, head, tail, strict=True)):
            return False
        start = [
            model.new_int_var(before, last - own - after, "")
            for own, before, after in zip(took, head, tail, strict=True)
        ]
        own_s = self._device_ticks(ticks)
        for device in range(count):
            model.add_no_overlap(
                model.new_optional_fixed_size_interval_var(begin, own_s[op][device], place[self.unit[op]][device], "")
                for op, begin in enumerate(start)
            )
        for one, other in product(range(len(start)), repeat=2):
            if not np.isfinite(self.paths.together_s[one, other]):
                continue
            near, far = ticks(self.paths.together_s[one, other]), ticks(self.paths.apart_s[one, other])
            model.add(start[other] >= start[one] + took[one] + near)
            own, its = place[self.unit[one]], place[self.unit[other]]
            if far <= near or self.unit[one] == self.unit[other]:
                continue
            if head[one] + took[one] + far + took[other] + tail[other] > last:  # then they share a device
                for here, there in zip(own, its, strict=True):
                    model.add_implication(here, there)
                continue
            apart = model.new_bool_var("")
            for here, there in zip(own, its, strict=True):
                model.add_bool_or(apart, ~here, there)
            model.add(start[other] >= start[one] + took[one] + far).only_enforce_if(apart)
        answer = run(model, seconds, stop=stop)
        if answer.stopped and not stop():
            raise KeyboardInterrupt
        return True if answer.found else False if answer.infeasible else None

    def _device_ticks(self, ticks: Callable[[float], int]) -> list[list[int]]:
        """Return the ticks of each heavy operator on each device."""
        return [[ticks(own) for own in row] for row in op_seconds(self.graph, self.devices).tolist()]
