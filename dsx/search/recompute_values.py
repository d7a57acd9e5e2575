"""The values of `recompute` that a search for the fastest plan needs.

A step takes no less time and memory if its layers do. So a value is dropped if another one recomputes no longer, keeps
no more and holds no more meanwhile, for every kind of layer at every shard key and hardware point, and loses no effect
of the software. It is never the only value of a fastest plan.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from dsx.cost.layer import BY_MODE, PASSES, LayerCosts, PassCosts
from dsx.plans.choices import FULL_CODE, NONE_CODE, VALUES
from dsx.plans.frameworks import compatible
from dsx.pricing.keys import KeyCosts, PointCosts
from dsx.pricing.problem import Problem
from dsx.records import Bool

_DIFFERING_KEYS = 256  # keys that most pairs of values already differ in
_BY_MODE_AND_EFFECT = tuple(name for name in BY_MODE if name in PASSES)


def undominated(problem: Problem, table: KeyCosts) -> tuple[int, ...]:
    """Return the searched values of `recompute`, by their codes, that no other one dominates.

    The other value must be one that the framework runs with the same choices, and with which its software has the same
    effects or more.
    """
    workload = problem.workload
    if not _num_keys(table):
        return workload.searched.recompute
    kinds = [costs for kind, costs in enumerate(table) if kind not in workload.stack.embedding_and_head]
    no_worse = [_no_worse(costs) for costs in kinds]
    rows = [{code: row for row, codes in enumerate(costs.modes) for code in codes} for costs in kinds]
    boxes = {code: _boxes_of(problem, code) for code in workload.searched.recompute}
    effects = {code: _effects_of(problem, code) for code in workload.searched.recompute}

    def dominates(code: int, other: int) -> bool:
        everywhere = all(matrix[row[code], row[other]] for matrix, row in zip(no_worse, rows, strict=True))
        keeps_effects = all(has or not had for has, had in zip(effects[code], effects[other], strict=True))
        return everywhere and boxes[code] == boxes[other] and keeps_effects

    kept: list[int] = []
    for value in sorted(boxes):
        if value in (NONE_CODE, FULL_CODE):
            kept.append(value)
        elif not any(dominates(other, value) for other in kept):
            kept = [other for other in kept if other in (NONE_CODE, FULL_CODE) or not dominates(value, other)]
            kept.append(value)
    return tuple(kept)


def representatives(problem: Problem) -> tuple[int, ...]:
    """Return values of `recompute` of which one goes with the same other choices as any searched value."""
    like = {(code == NONE_CODE, *_boxes_of(problem, code)): code for code in problem.workload.searched.recompute}
    return tuple(like.values())


def recomputing(problem: Problem, values: Sequence[int]) -> Problem:
    """Return the problem with some values of `recompute`, by their codes."""
    return problem.searching({"recompute": [VALUES[code] for code in values]})


def of_values(table: KeyCosts, values: Sequence[int]) -> KeyCosts:
    """Return the costs of all kinds in the modes of some values of `recompute`, and in that without recomputation."""
    return tuple(_only(costs, {NONE_CODE, *values}) for costs in table) if _num_keys(table) else table


def _num_keys(table: KeyCosts) -> int:
    return table[0].boundary_bytes.shape[-1]


def _boxes_of(problem: Problem, code: int) -> list[bool]:
    """Return whether each box of the framework has a value of `recompute`."""
    fix = {"recompute": [VALUES[code]]}
    return [] if problem.framework is None else [compatible(box, fix) for box in problem.framework.boxes(experts=True)]


def _effects_of(problem: Problem, code: int) -> list[bool]:
    """Return, for each test of a value of `recompute` by the conditions of effects, whether a value passes it."""
    needs = [need for condition in problem.assumptions.conditions for need in condition.needs]
    return [bool(test.holds({"recompute": code})) for need in needs for test in need if test.column == "recompute"]


def _no_worse(costs: PointCosts) -> Bool[np.ndarray, "modes modes"]:
    """Return whether the first mode of a kind costs no more than the second, at all points and keys."""
    fields = [np.asarray(getattr(costs, name)) for name in BY_MODE]
    fields += [np.asarray(getattr(passes, name)) for passes in costs.without for name in _BY_MODE_AND_EFFECT]
    if costs.contended_s:
        fields.append(np.stack([np.asarray(seconds) for seconds in costs.contended_s[1:]], axis=1))
    count = len(costs.modes)
    no_worse = np.ones((count, count), dtype=bool)
    for keys in (slice(0, _DIFFERING_KEYS), slice(_DIFFERING_KEYS, None)):
        for mode, other in zip(*np.nonzero(no_worse), strict=True):
            no_worse[mode, other] = all((field[:, mode, keys] <= field[:, other, keys]).all() for field in fields)
    return no_worse


def _only(costs: PointCosts, values: Collection[int]) -> PointCosts:
    """Return the costs of a kind in the modes of some values."""
    rows = [row for row, codes in enumerate(costs.modes) if any(code in values for code in codes)]

    def of_rows(record: LayerCosts | PassCosts, names: Iterable[str]) -> dict[str, np.ndarray]:
        return {name: np.asarray(getattr(record, name))[:, rows] for name in names}

    return replace(
        costs,
        **of_rows(costs, BY_MODE),
        without=tuple(replace(passes, **of_rows(passes, _BY_MODE_AND_EFFECT)) for passes in costs.without),
        contended_s=costs.contended_s and (costs.contended_s[0], *(costs.contended_s[1 + row] for row in rows)),
        modes=tuple(costs.modes[row] for row in rows),
    )
