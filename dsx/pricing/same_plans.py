"""Shard keys of different strategies that are the same plan: each layer does the same work with the same collectives.

A collective of a group of one does nothing. So strategies that differ in one axis alone are the same where the degree
of that axis is 1, and everywhere on models without the layers in which they differ. Keys are compared by the work of
their layers, which does not depend on the hardware: its structure without groups of one, and its numbers. The names of
strategies have no part in it. With the same kernels and collectives, memory differs by the copies that a gather in a
group of one would make. Nobody makes them, so the plan counts as the strategy has it that needs least memory; where
neither does under every recomputation, it is left under both.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsx.cost.layer import is_data_axis
from dsx.cost.recompute_modes import modes_of
from dsx.cost.work import LayerWork, collective_shapes, multiply_shapes
from dsx.graph.derived import BACKWARD, FORWARD, DerivedLayer
from dsx.pricing.layers import work_of
from dsx.pricing.problem import Problem
from dsx.space.choices import KEY_COLUMNS, MODEL_AXES
from dsx.space.enumerate import BOXES, Arrays
from dsx.space.expert_nesting import ep_constraints
from dsx.space.recompute_values import NONE_CODE

_ROUNDING = 1e-12  # products of the same sizes in another order
_PLAN_COLUMNS = tuple(name for name in KEY_COLUMNS if name != "strategy")
_WORK_COLUMNS = tuple(name for name in _PLAN_COLUMNS if not name.endswith("_nvs"))


class _Structure(NamedTuple):
    """What of a layer is left without collectives in groups of one, and where it is in a `LayerWork`."""

    form: tuple[Any, ...]  # equal for layers whose numbers can be compared
    kernels: list[int]
    collectives: list[int]


def first_of_each_plan(problem: Problem, keys: Arrays) -> Arrays:
    """Return the keys with each plan once: of the strategies that need least memory for it, the first.

    The key that is left is in the boxes of all of them.
    """
    if len(problem.strategies) == 1:
        return keys
    works = numbered([keys[name] for name in _WORK_COLUMNS])
    placed = numbered([works, *(keys[name] for name in _PLAN_COLUMNS if name not in _WORK_COLUMNS)])
    nested = ep_constraints(keys, problem.expert_axes, problem.nvs_size)
    dropped = np.zeros(len(works), dtype=bool)
    boxes = keys[BOXES].copy()
    comparison = _Comparison(problem, keys, works)
    rows_of = [np.flatnonzero(keys["strategy"] == code) for code in range(len(problem.strategies))]
    for later, rows in enumerate(rows_of):
        for earlier in range(later):
            for same, kept, other in zip(
                comparison.same_works(earlier, later), (rows_of[earlier], rows), (rows, rows_of[earlier]), strict=True
            ):
                known = kept[~dropped[kept]]
                left = other[~dropped[other] & np.isin(works[other], same)]
                _, at_known, at_left = np.intersect1d(placed[known], placed[left], True, return_indices=True)
                first, second = known[at_known], left[at_left]
                alike = (nested[:, first] == nested[:, second]).all(axis=0)
                first, second = first[alike], second[alike]
                boxes[first] |= boxes[second]
                dropped[second] = True
    return {name: column[~dropped] for name, column in (keys | {BOXES: boxes}).items()}


def numbered(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return [N] numbers that are equal where all [N] columns of whole numbers from 0 on are equal."""
    number, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        seen = np.zeros(int(column.max(initial=0)) + 1, dtype=bool)
        seen[column] = True
        count = int(seen.sum()) or 1
        if size * count >= 1 << 62:
            _, number = np.unique(number, return_inverse=True)
            size = int(number.max(initial=0)) + 1
        number, size = number * count + (np.cumsum(seen) - 1)[column], size * count
    _, number = np.unique(number, return_inverse=True)
    return number


class _Comparison:
    """Compares the works of strategies; works are evaluated once, and only those that may be the same."""

    def __init__(self, problem: Problem, keys: Arrays, works: np.ndarray) -> None:
        self._problem, self._keys, self._works = problem, keys, works
        self._firsts = [self._first_rows(code) for code in range(len(problem.strategies))]
        self._evaluated: dict[int, list[LayerWork]] = {}
        self._structures: dict[tuple[int, tuple[str, ...]], list[_Structure]] = {}

    def _first_rows(self, code: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the works of a strategy, and a key of each."""
        rows = np.flatnonzero(self._keys["strategy"] == code)
        works, first = np.unique(self._works[rows], return_index=True)
        return works, rows[first]

    def same_works(self, earlier: int, later: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the works that both strategies have, with the same numbers.

        They are those of which the earlier one needs no more memory, and those of which the later one needs less.
        """
        works, at_earlier, at_later = np.intersect1d(
            self._firsts[earlier][0], self._firsts[later][0], True, return_indices=True
        )
        rows = self._firsts[later][1][at_later]
        divided = np.stack([self._keys[axis][rows] > 1 for axis in MODEL_AXES])
        same = np.zeros(len(works), dtype=bool)
        for pattern in np.unique(divided, axis=1).T:
            here = np.flatnonzero((divided == pattern[:, None]).all(axis=0))
            axes = tuple(axis for axis, more in zip(MODEL_AXES, pattern, strict=True) if more)
            if self._form(earlier, axes) == self._form(later, axes):
                same[here] = self._equal(earlier, later, axes, at_earlier[here], at_later[here])
        more, less = self._memory(earlier, later, at_earlier, at_later)
        return works[same & ~more], works[same & more & ~less]

    def _memory(
        self, earlier: int, later: int, at_earlier: np.ndarray, at_later: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return whether the earlier of two strategies needs more memory, and less, of any layer under any value."""
        more, less = np.zeros(len(at_earlier), dtype=bool), np.zeros(len(at_earlier), dtype=bool)
        for first, second in zip(self._of(earlier), self._of(later), strict=True):
            for name in ("stash", "working", "scattered"):
                left, right = getattr(first, name)[:, at_earlier], getattr(second, name)[:, at_later]
                more |= (left > right * (1 + _ROUNDING)).any(axis=0)
                less |= (left < right * (1 - _ROUNDING)).any(axis=0)
        return more, less

    def _form(self, code: int, axes: tuple[str, ...]) -> list[tuple[Any, ...]]:
        if (code, axes) not in self._structures:
            self._structures[code, axes] = [_structure(layer, axes) for layer in self._problem.kinds[code]]
        return [structure.form for structure in self._structures[code, axes]]

    def _equal(
        self, earlier: int, later: int, axes: tuple[str, ...], at_earlier: np.ndarray, at_later: np.ndarray
    ) -> np.ndarray:
        same = np.ones(len(at_later), dtype=bool)
        for kind in range(len(self._problem.kinds[later])):
            numbers = [
                _numbers(self._of(code)[kind], self._structures[code, axes][kind], at)
                for code, at in ((earlier, at_earlier), (later, at_later))
            ]
            for name, left in numbers[0].items():
                right = numbers[1][name]
                close = (np.abs(left - right) <= _ROUNDING * np.abs(left)) | (np.isnan(left) & np.isnan(right))
                same &= close.reshape(-1, len(same)).all(axis=0)
        return same

    def _of(self, code: int) -> list[LayerWork]:
        """Return the works of a strategy, per layer kind."""
        if code not in self._evaluated:
            rows = {name: column[self._firsts[code][1]] for name, column in self._keys.items()}
            values = {NONE_CODE, *self._problem.workload.searched.recompute}
            self._evaluated[code] = [
                work_of(self._problem, layer, rows, modes_of(of_strategies, values))
                for layer, of_strategies in zip(
                    self._problem.kinds[code], zip(*self._problem.kinds, strict=True), strict=True
                )
            ]
        return self._evaluated[code]


def _structure(layer: DerivedLayer, axes: Sequence[str]) -> _Structure:
    """Return the structure of a layer whose groups of `axes` have several members, and no others."""
    shapes = collective_shapes(layer)
    collectives = [index for index, shape in enumerate(shapes) if shape.axis in axes]
    communicating = {shapes[index].kernel for index in collectives}
    kernels = [
        index
        for index, kernel in enumerate(layer.priced_kernels)
        if index in communicating
        or any(
            amount != 0
            for direction in (FORWARD, BACKWARD)
            for work in [kernel.work[direction]]
            for amount in (work.matrix, work.vector, work.bytes, work.unfused)
        )
    ]
    position = {index: number for number, index in enumerate(kernels)}
    weights = tuple(
        (
            tuple(sorted(axis for axis in weight.reduced_over if axis in axes and is_data_axis(axis))),
            tuple(sorted(axis for axis in weight.reduced_over if axis in axes and not is_data_axis(axis))),
            weight.over_ep,
        )
        for weight in layer.weights
    )
    form = (
        tuple(
            (
                *(position[shape.kernel], shape.direction, shape.kind, shape.axis, shape.panelled, shape.ring),
                None if shape.beside is None else position.get(shape.beside),
            )
            for shape in (shapes[index] for index in collectives)
        ),
        tuple(
            (
                *(position[shape.kernel], shape.direction, shape.linear, shape.fused),
                *(shape.of_weight, shape.grouped, shape.wide),
            )
            for shape in multiply_shapes(layer)
        ),
        tuple(layer.priced_kernels[index].regions for index in kernels),
        weights,
    )
    return _Structure(form, kernels, collectives)


def _numbers(work: LayerWork, structure: _Structure, at: np.ndarray) -> Mapping[str, np.ndarray]:
    """Return the numbers of works [..., V] that a price depends on."""
    kernels = np.array(structure.kernels, dtype=int)
    found = {name: getattr(work, name)[:, kernels] for name in ("matrix", "vector", "bytes", "unfused")}
    found["launches"] = np.broadcast_to(work.launches[:, kernels], found["matrix"].shape)
    found["volumes"] = work.volumes[np.array(structure.collectives, dtype=int)]
    found |= {name: getattr(work, name) for name in ("weights", "boundary")}
    found |= {name: getattr(work.multiplies, name) for name in work.multiplies.__dataclass_fields__}
    if work.measured is not None:
        found |= {"measured": work.measured.kernels[:, kernels], "measured_multiplies": work.measured.multiplies}
    return {name: np.asarray(numbers)[..., at] for name, numbers in found.items()}
