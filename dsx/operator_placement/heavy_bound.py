"""A bound below every schedule of a graph as it is, from its K longest operators alone, by CP-SAT.

The relaxation keeps the heavy operators on their devices, one at a time, and what each pair must wait for
(`heavy_paths.py`); light operators take up no device. It is asked whether a step can be as short as some time: if not,
that time is a bound, whatever K is. Within a short step the starts have narrow windows, so the answer comes sooner than
the shortest step of the relaxation. K grows while steps are possible.

Not used: memory, and that outer links are slower than inner ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from time import monotonic

import numpy as np

from dsx.operator_placement.bounds import load_bound_s, path_bound_s
from dsx.operator_placement.cp_sat import run
from dsx.operator_placement.devices import Devices
from dsx.operator_placement.heavy_paths import Ends, Paths, ends_of, paths_between
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.schedule import op_seconds
from dsx.operator_placement.symmetry import units_to_place_first

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
