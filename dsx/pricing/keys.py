"""The layer costs of shard keys, and keys of different strategies that are the same plan.

The work and the times of each layer kind are made in float64, from integer columns, for all hardware points of a
problem at once, because the work of a layer is the same at all of them. A kind of layer is priced once for keys that
differ only in what it does not depend on. Few keys of a strategy are priced on NumPy, before XLA would have compiled
their layer; many by compiled code, padded to a few fixed lengths, so that the layer of a strategy is compiled once per
length. Padding repeats the last key and is cut off again.

Keys are the same plan if each layer does the same work with the same collectives. A collective of a group of one does
nothing. So strategies that differ in one axis alone are the same where the degree of that axis is 1, and everywhere on
models without the layers in which they differ. Keys are compared by the work of their layers, which does not depend on
the hardware: its structure without groups of one, and its numbers. The names of strategies have no part in it. With the
same kernels and collectives, memory differs by the copies that a gather in a group of one would make. Nobody makes
them, so the plan counts as the strategy has it that needs least memory; where neither does under every recomputation,
it is left under both.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dsx.arrays import Chosen, KeyFloats
from dsx.config.stack import ConditionsSpec
from dsx.cost.context import OF_STEP, Fields, lacked, of_steps
from dsx.cost.layer import (
    BY_MODE,
    COMM_COLUMN,
    OVERLAP,
    PASSES,
    TUPLES,
    LayerCosts,
    PassCosts,
    is_data_axis,
    layer_costs,
)
from dsx.cost.layer_work import LayerWork, collective_shapes, layer_work, multiply_shapes
from dsx.cost.measured_kernels import measurable, measured_times
from dsx.cost.recomputation import MAIN_MODES, Codes, modes_of
from dsx.notation.syntax import AXES
from dsx.notation.work import BACKWARD, FORWARD, DerivedLayer
from dsx.plans.choices import KEY_COLUMNS, MODEL_AXES, NONE_CODE
from dsx.plans.enumerate import BOXES, Keys, changes
from dsx.plans.experts import ep_constraints
from dsx.plans.placement import key_shares, may_cut_two_axes, rank_placement, units
from dsx.pricing.problem import Problem, pad
from dsx.records import ArrayLike, Float, Int, Over, tree_map
from dsx.records import leaves as leaves_of
from dsx.schedules.schedules import SCHEDULES

PointCosts = Over[LayerCosts, "points ... keys modes=_"]  # of keys at hardware points
KeyCosts = tuple[PointCosts, ...]  # of a key table, for each layer kind
PartCosts = Over[LayerCosts, "points ... _"]  # of some keys

# The columns of a key that the work of a layer depends on.
_KEY_WORK_COLUMNS = tuple(name for name in KEY_COLUMNS if not name.endswith("_nvs"))
_WORKS = 16384  # works that are evaluated together
_ON_NUMPY = 32768  # keys that are priced together on NumPy: the arrays take longer than the code between them
# Effects that conditions of the step may decide.
_EFFECTS = tuple(name for name in ConditionsSpec.model_fields if name not in OF_STEP)
# Keys of a strategy at hardware points from which on they are compiled, which halves the time of the next ones.
_COMPILED = 1 << 20
# A weight group that a strategy lacks: no bytes, over one rank.
_ABSENT = {"weight_bytes": 0.0, "group_size": 1.0, "group_share": 1.0, "group_ep": 1.0, "group_outer": 1.0}
_ABSENT |= {"tied_bytes": 0.0, "frozen_bytes": 0.0, "matrix_bytes": 0.0, "orthogonal_s": 0.0}


def power_of_two(count: int) -> int:
    """Return the smallest power of two of at least `count` rows and at least 64."""
    return 1 << max(6, (count - 1).bit_length())


_Shares = dict[str, KeyFloats]  # of a fast domain, or of a tier, by axis


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """Some keys of one strategy, and their works."""

    which: Int[np.ndarray, "keys"]  # the work of each key, increasing from 0
    work: Over[LayerWork, "... keys=works"]
    shares: _Shares
    outer: tuple[_Shares, ...]  # for each tier between fast domain and outermost tier
    rank_placement: tuple[KeyFloats, ...]  # as in LayerWork

    def of_keys(self, works: Int[np.ndarray, "works"], start: int, stop: int, length: int) -> LayerWork:
        """Return the work of the keys from `start` to `stop`, which have only these `works`, padded to a length."""

        def padded(shares: _Shares) -> _Shares:
            return {axis: pad(share[start:stop], length) for axis, share in shares.items()}

        which = pad(self.which[start:stop] - self.which[start], length).astype(np.int32)
        work = self.work.of_keys(works, which, padded(self.shares), tuple(map(padded, self.outer)))
        return replace(work, rank_placement=tuple(pad(of_keys[start:stop], length) for of_keys in self.rank_placement))


def price_keys(problem: Problem, keys: Keys, uneven: bool = True) -> KeyCosts:
    """Return the costs of each layer kind for a key table at all hardware points, in NumPy float64.

    `uneven` says whether shares of some plans may not divide their degrees. If all do, no group is counted by ranks.
    """
    never_recomputed = problem.workload.stack.embedding_and_head
    searched, network = problem.workload.searched, problem.cluster.network
    values = sorted({NONE_CODE, *searched.recompute})
    apart = searched.zero_replicas != (1,) or any(SCHEDULES[code].holds.num_chains > 1 for code in searched.schedule)
    uneven = uneven and problem.assumptions_spec.uneven_domains
    numbered = uneven and (apart or may_cut_two_axes(keys, network.nvs.size))
    rank_placements = rank_placement(keys, network) if numbered else ()
    return tuple(
        _price_kind(
            problem,
            layers,
            keys,
            modes_of(layers, [NONE_CODE] if kind in never_recomputed else values),
            rank_placements,
        )
        for kind, layers in enumerate(zip(*problem.kinds, strict=True))
    )


class _KindTable(NamedTuple):
    """The keys under which a kind of layer is priced."""

    problem: Problem
    keys: Keys
    modes: Sequence[Codes]  # of recomputation
    rank_placements: Sequence[KeyFloats]  # as in LayerWork
    lacked: tuple[Fields, ...]  # as in LayerWork


def _price_kind(
    problem: Problem,
    layers: Sequence[DerivedLayer],
    keys: Keys,
    modes: Sequence[Codes],
    rank_placements: Sequence[KeyFloats],
) -> PointCosts:
    """Return the costs of one layer kind in some modes of recomputation; `layers` has its layer under each strategy."""
    conditions = of_steps(problem.assumptions.conditions, problem.workload.searched)
    sets = lacked(conditions, [name for name in _EFFECTS if any(_has_effect(layer, name) for layer in layers)])
    table = _KindTable(problem, keys, modes, rank_placements, sets)
    distinct: list[np.ndarray] = []  # per strategy, rows of its keys that this kind tells apart
    priced_as = np.zeros(len(keys["strategy"]), dtype=np.int64)  # position of each key among these
    for code, layer in enumerate(layers):
        of_strategy = np.flatnonzero(keys["strategy"] == code)
        rows, which = _distinct(table, layer, of_strategy)
        priced_as[of_strategy] = sum(map(len, distinct)) + which
        distinct.append(rows)
    parts: list[LayerCosts] = []
    for layer, rows in zip(layers, distinct, strict=True):
        batches = _batches(table, layer, rows)
        if problem.num_points * len(rows) < _COMPILED:
            parts += [part for batch in batches for part in _price_on_numpy(problem, batch)]
        else:
            from dsx.pricing.compiled import layer_costs_of

            parts += layer_costs_of(problem, batches)
    return _assembled(parts, priced_as, modes)


def _distinct(
    table: _KindTable, layer: DerivedLayer, rows: Chosen
) -> tuple[Int[np.ndarray, "distinct"], Int[np.ndarray, "chosen"]]:
    """Return the first of some rows for each of the costs that a layer has under them, and which each row has.

    Embedding and head do not depend on the axes that divide the body alone.
    """
    used = [name for name in KEY_COLUMNS if _depends(layer, name)]
    columns = {name: table.keys[name][rows] for name in KEY_COLUMNS}
    same = all((column == column[:1]).all() for name, column in columns.items() if name not in used)
    # A share of an outer tier depends on the axes within it, and so does how ranks lie.
    if same or table.problem.cluster.network.middle or table.rank_placements:
        return rows, np.arange(len(rows))
    # The columns as the digits of a number, exact as long as it is below 2^53.
    number = np.zeros(len(rows))
    for name in sorted(used, key=lambda name: name not in _KEY_WORK_COLUMNS):
        number = number * (columns[name].max() + 1.0) + columns[name]
    if number.max() >= 2.0**53:
        return rows, np.arange(len(rows))
    _, first, which = np.unique(number, return_index=True, return_inverse=True)
    return rows[first], which


def _depends(layer: DerivedLayer, column: str) -> bool:
    """Return whether the costs of a layer depend on a column of the key table."""
    axis = column.removesuffix("_nvs")
    return axis not in AXES or axis in layer.axes


def _has_effect(layer: DerivedLayer, field: str) -> bool:
    """Return whether a layer has what a field of an assumption set affects: an overlap needs an axis."""
    axes = [axis for axis, column in COMM_COLUMN.items() if OVERLAP[column] == field]
    return not axes or any(axis in layer.axes for axis in axes)


def _batches(table: _KindTable, layer: DerivedLayer, of_strategy: Chosen) -> Iterator[KeyBatch]:
    """Yield some rows of a strategy, a bounded number of works at a time."""
    problem, keys = table.problem, table.keys
    # Consecutive keys that differ only in shares have one work.
    used = [name for name in _KEY_WORK_COLUMNS if _depends(layer, name)]
    works = np.cumsum(changes(*(keys[name][of_strategy] for name in used))) - 1
    for start, stop in ranges_of(works, _WORKS, len(works)):
        rows, which = of_strategy[start:stop], works[start:stop] - works[start]
        first = rows[np.flatnonzero(np.diff(which, prepend=-1))]
        work = work_of(problem, layer, {name: column[first] for name, column in keys.items()}, table.modes)
        work = replace(work, lacked=table.lacked)
        shares = {axis: keys[f"{axis}_nvs"][rows].astype(np.float64) for axis in work.shares}
        outer = outer_shares(problem, int(keys["strategy"][rows[0]]), keys, rows, tuple(work.shares))
        yield KeyBatch(which, work, shares, outer, tuple(of_keys[rows] for of_keys in table.rank_placements))


def outer_shares(
    problem: Problem, code: int, keys: Keys, rows: Chosen, axes: Sequence[str]
) -> tuple[dict[str, Float[np.ndarray, "chosen"]], ...]:
    """Return how many members of groups share a unit of each tier between fast domain and outermost tier.

    `rows` are rows of the key table, all of the strategy `code`.
    """
    of_units: list[dict[str, np.ndarray]] = []
    for unit in units(problem.cluster.network):
        of_rows = {name: column[rows].astype(np.int64) for name, column in keys.items()}
        shares = key_shares(of_rows, unit, problem.expert_axes[code])
        of_units.append({axis: shares[axis].astype(np.float64) for axis in axes})
    return tuple(of_units)


def work_of(
    problem: Problem,
    layer: DerivedLayer,
    keys: dict[str, Int[np.ndarray, "works"]],
    modes: Sequence[Codes] = MAIN_MODES,
) -> LayerWork:
    """Return the work of a layer for some keys, with the measured operator times of the problem."""
    arguments = (layer, problem.model.dimensions, problem.assumptions_spec, problem.sequence_length, keys)
    work = layer_work(*arguments, modes)
    if problem.operator_times is None:
        return work
    times = measured_times(problem.operator_times, measurable(*arguments), work, problem.cluster.device)
    return replace(work, measured=times)


def ranges_of(works: Int[np.ndarray, "keys"], num_works: int, num_keys: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of keys with at most `num_works` works and `num_keys` keys."""
    start = 0
    while start < len(works):
        stop = min(int(np.searchsorted(works, works[start] + num_works)), start + num_keys)
        yield start, stop
        start = stop


def _price_on_numpy(problem: Problem, batch: KeyBatch) -> list[PartCosts]:
    """Price the keys of a batch at one hardware point after the other."""
    parts: list[LayerCosts] = []
    for start, stop in ranges_of(batch.which, _ON_NUMPY, _ON_NUMPY):
        works = np.arange(batch.which[start], batch.which[stop - 1] + 1)
        work = batch.of_keys(works, start, stop, stop - start)
        at_points = [layer_costs(work, *problem.at_point(point)) for point in range(problem.num_points)]
        parts.append(tree_map(lambda *leaves: np.stack(leaves), *at_points))
    return parts


def _assembled(parts: list[PartCosts], positions: Int[np.ndarray, "keys"], modes: Sequence[Codes]) -> PointCosts:
    """Join parts, with the same number of weight groups, and return the costs at some positions."""
    groups = max((part.group_size.shape[1] for part in parts), default=1)

    def joined(name: str, leaves: Sequence[ArrayLike]) -> np.ndarray:
        leaves = [np.asarray(leaf) for leaf in leaves]
        if name in _ABSENT:
            widths = [((0, 0), (0, groups - leaf.shape[1]), (0, 0)) for leaf in leaves]
            leaves = [np.pad(leaf, w, constant_values=_ABSENT[name]) for leaf, w in zip(leaves, widths, strict=True)]
        if not leaves:
            return np.zeros((1, *[len(modes)] * (name in BY_MODE), *[groups] * (name in _ABSENT), 0))
        return np.concatenate(leaves, axis=-1)[..., positions]

    def column(name: str) -> Any:
        of_parts = [getattr(part, name) for part in parts]
        if name == "without":
            return tuple(
                PassCosts(**{field: joined(field, [getattr(passes, field) for passes in of_set]) for field in PASSES})
                for of_set in zip(*of_parts, strict=True)
            )
        if name in TUPLES:
            return tuple(joined(name, leaves) for leaves in zip(*of_parts, strict=True))
        return joined(name, of_parts)

    sets = parts[0].lacked if parts else ()
    return LayerCosts(**{name: column(name) for name in leaves_of(LayerCosts)}, modes=tuple(modes), lacked=sets)


_ROUNDING = 1e-12  # products of the same sizes in another order
_PLAN_COLUMNS = tuple(name for name in KEY_COLUMNS if name != "strategy")
_PLAN_WORK_COLUMNS = tuple(name for name in _PLAN_COLUMNS if not name.endswith("_nvs"))


class _Structure(NamedTuple):
    """What of a layer is left without collectives in groups of one, and where it is in a `LayerWork`."""

    form: tuple[object, ...]  # equal for layers whose numbers can be compared
    kernels: list[int]
    collectives: list[int]


def first_of_each_plan(problem: Problem, keys: Keys) -> dict[str, Int[np.ndarray, "kept"]]:
    """Return the keys with each plan once: of the strategies that need least memory for it, the first.

    The key that is left is in the boxes of all of them.
    """
    if len(problem.strategies) == 1:
        return keys
    works = numbered([keys[name] for name in _PLAN_WORK_COLUMNS])
    placed = numbered([works, *(keys[name] for name in _PLAN_COLUMNS if name not in _PLAN_WORK_COLUMNS)])
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
                kept = kept[~dropped[kept]]
                other = other[~dropped[other] & np.isin(works[other], same)]
                _, at_kept, at_other = np.intersect1d(placed[kept], placed[other], True, return_indices=True)
                first, second = kept[at_kept], other[at_other]
                equal = (nested[:, first] == nested[:, second]).all(axis=0)
                first, second = first[equal], second[equal]
                boxes[first] |= boxes[second]
                dropped[second] = True
    return {name: column[~dropped] for name, column in (keys | {BOXES: boxes}).items()}


def numbered(columns: Sequence[Int[np.ndarray, "rows"]]) -> Int[np.ndarray, "rows"]:
    """Return numbers that are equal where all columns of whole numbers from 0 on are equal."""
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


class _SharedWorks(NamedTuple):
    """Works that two strategies have, with the same axes divided and with layers of the same form."""

    axes: tuple[str, ...]
    works: Int[np.ndarray, "shared"]
    at_earlier: Int[np.ndarray, "shared"]  # positions among the works of the earlier strategy
    at_later: Int[np.ndarray, "shared"]


class _Comparison:
    """Compares the works of strategies; works are evaluated once, and only those that may be the same."""

    def __init__(self, problem: Problem, keys: Keys, works: Int[np.ndarray, "keys"]) -> None:
        self._problem, self._keys = problem, keys
        self._firsts: list[tuple[np.ndarray, np.ndarray]] = []  # the works of each strategy, and a key of each
        for code in range(len(problem.strategies)):
            rows = np.flatnonzero(keys["strategy"] == code)
            distinct, first = np.unique(works[rows], return_index=True)
            self._firsts.append((distinct, rows[first]))
        self._structures: dict[tuple[int, tuple[str, ...]], list[_Structure]] = {}
        codes = range(len(problem.strategies))
        self._shared = {pair: [*self._of_one_form(*pair)] for pair in itertools.combinations(codes, 2)}
        compared: list[list[np.ndarray]] = [[np.zeros(0, dtype=np.int64)] for _ in codes]
        for (earlier, later), groups in self._shared.items():
            compared[earlier] += [group.at_earlier for group in groups]
            compared[later] += [group.at_later for group in groups]
        self._compared = [np.unique(np.concatenate(of_strategy)) for of_strategy in compared]  # that are evaluated
        self._evaluated: dict[int, list[LayerWork]] = {}

    def _of_one_form(self, earlier: int, later: int) -> "Iterator[Over[_SharedWorks, '...']]":
        works, at_earlier, at_later = np.intersect1d(
            self._firsts[earlier][0], self._firsts[later][0], True, return_indices=True
        )
        rows = self._firsts[later][1][at_later]
        divided = np.stack([self._keys[axis][rows] > 1 for axis in MODEL_AXES])
        for pattern in np.unique(divided, axis=1).T:
            axes = tuple(axis for axis, several in zip(MODEL_AXES, pattern, strict=True) if several)
            if self._form(earlier, axes) == self._form(later, axes):
                matching = np.flatnonzero((divided == pattern[:, None]).all(axis=0))
                yield _SharedWorks(axes, works[matching], at_earlier[matching], at_later[matching])

    def same_works(self, earlier: int, later: int) -> tuple[Int[np.ndarray, "same"], Int[np.ndarray, "less"]]:
        """Return the works that both strategies have, with the same numbers.

        They are those of which the earlier one needs no more memory, and those of which the later one needs less.
        """
        no_more, only_less = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for group in self._shared[earlier, later]:
            of_strategies = (self._of(earlier, group.at_earlier), self._of(later, group.at_later))
            same = np.ones(len(group.works), dtype=bool)
            # Whether the earlier one needs more memory, and less, of any layer under any value of recomputation.
            more, less = np.zeros_like(same), np.zeros_like(same)
            for kind, (first, second) in enumerate(zip(*(works for works, _ in of_strategies), strict=True)):
                at_first, at_second = (at for _, at in of_strategies)
                numbers = _numbers(first, self._structures[earlier, group.axes][kind], at_first)
                of_second = _numbers(second, self._structures[later, group.axes][kind], at_second)
                for name, number in numbers.items():
                    close = np.abs(number - of_second[name]) <= _ROUNDING * np.abs(number)
                    close |= np.isnan(number) & np.isnan(of_second[name])
                    same &= close.reshape(-1, len(same)).all(axis=0)
                for name in ("stash", "working", "scattered"):
                    of_earlier, of_later = getattr(first, name)[:, at_first], getattr(second, name)[:, at_second]
                    more |= (of_earlier > of_later * (1 + _ROUNDING)).any(axis=0)
                    less |= (of_earlier < of_later * (1 - _ROUNDING)).any(axis=0)
            no_more.append(group.works[same & ~more])
            only_less.append(group.works[same & more & ~less])
        return np.concatenate(no_more), np.concatenate(only_less)

    def _form(self, code: int, axes: tuple[str, ...]) -> list[tuple[object, ...]]:
        if (code, axes) not in self._structures:
            self._structures[code, axes] = [_structure(layer, axes) for layer in self._problem.kinds[code]]
        return [structure.form for structure in self._structures[code, axes]]

    def _of(self, code: int, at: Chosen) -> tuple[list[Over[LayerWork, "..."]], Chosen]:
        """Return the compared works of a strategy, per layer kind, and the positions of some works in these."""
        compared = self._compared[code]
        if code not in self._evaluated:
            rows = {name: column[self._firsts[code][1][compared]] for name, column in self._keys.items()}
            values = {NONE_CODE, *self._problem.workload.searched.recompute}
            self._evaluated[code] = [
                work_of(self._problem, layer, rows, modes_of(of_strategies, values))
                for layer, of_strategies in zip(
                    self._problem.kinds[code], zip(*self._problem.kinds, strict=True), strict=True
                )
            ]
        return self._evaluated[code], np.searchsorted(compared, at)


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
            *(weight.over_ep, weight.frozen),
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


def _numbers(work: LayerWork, structure: _Structure, at: Chosen) -> Mapping[str, Float[np.ndarray, "*_ chosen"]]:
    """Return the numbers of works that a price depends on."""
    kernels = np.array(structure.kernels, dtype=int)
    numbers = {name: getattr(work, name)[:, kernels] for name in ("matrix", "vector", "bytes", "unfused")}
    numbers["launches"] = np.broadcast_to(work.launches[:, kernels], numbers["matrix"].shape)
    numbers["volumes"] = work.volumes[np.array(structure.collectives, dtype=int)]
    numbers |= {name: getattr(work, name) for name in ("weights", "boundary")}
    numbers |= {name: getattr(work.multiplies, name) for name in work.multiplies.__dataclass_fields__}
    if work.measured is not None:
        numbers |= {"measured": work.measured.kernels[:, kernels], "measured_multiplies": work.measured.multiplies}
    return {name: np.asarray(values)[..., at] for name, values in numbers.items()}
