"""The layer costs of shard keys: the work and the times of each layer kind in float64, from integer columns.

Layer costs are made for all hardware points of a problem at once, because the work of a layer is the same at all of
them. A kind of layer is priced once for keys that differ only in what it does not depend on.

Few keys of a strategy are priced on NumPy, before XLA would have compiled their layer; many by compiled code, padded to
a few fixed lengths, so that the layer of a strategy is compiled once per length. Padding repeats the last key and is
cut off again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from dsx.cost.effects import OF_STEP, Fields, lacked, of_steps
from dsx.cost.layer import COMM_COLUMN, OVERLAP, PASSES, TUPLES, LayerCosts, PassCosts, layer_costs
from dsx.cost.measured_times import measured_times
from dsx.cost.operator_times import measurable
from dsx.cost.recompute_modes import MAIN_MODES, Codes, modes_of
from dsx.cost.work import LayerWork, layer_work
from dsx.graph.derived import DerivedLayer
from dsx.graph.notation import AXES
from dsx.pricing.batch import pad
from dsx.pricing.devices import map_over_devices
from dsx.pricing.problem import Problem
from dsx.records import leaves as leaves_of
from dsx.space.choices import KEY_COLUMNS
from dsx.space.enumerate import Arrays, changes
from dsx.space.recompute_values import NONE_CODE
from dsx.space.schedules import SCHEDULES
from dsx.space.tiers import key_shares, may_cut_two_axes, rank_placement, units
from dsx.spec.conditions import ConditionsSpec

# The costs of a key table: one record for each layer kind.
KeyCosts = tuple[LayerCosts, ...]

# The columns of a key that decide its work.
# The columns of a key that the work of a layer depends on.
_WORK_COLUMNS = tuple(name for name in KEY_COLUMNS if not name.endswith("_nvs"))
_WORKS = 16384  # works that are evaluated together
_ON_NUMPY = 32768  # keys that are priced together on NumPy: the arrays take longer than the code between them
# Effects that conditions of the step may decide.
_EFFECTS = tuple(name for name in ConditionsSpec.model_fields if name not in OF_STEP)
# Keys of a strategy at hardware points from which on they are compiled, which halves the time of the next ones.
_COMPILED = 1 << 20
_LENGTHS = (1024, 8192)  # keys of a compiled batch
# A weight group that a strategy lacks: no bytes, over one rank.
_ABSENT = {"weight_bytes": 0.0, "group_size": 1.0, "group_share": 1.0, "group_ep": 1.0, "group_outer": 1.0}
_ABSENT |= {"tied_bytes": 0.0, "matrix_bytes": 0.0, "orthogonal_s": 0.0}

_price_layers = jax.jit(jax.vmap(layer_costs, in_axes=(None, 0, 0)))


def power_of_two(count: int) -> int:
    """Return the smallest power of two of at least `count` rows and at least 64."""
    return 1 << max(6, (count - 1).bit_length())


@dataclass(frozen=True, slots=True)
class _KeyBatch:
    """Some keys of one strategy, and their works."""

    which: np.ndarray  # [U] the work of each key, increasing from 0
    work: LayerWork
    shares: Arrays  # {axis: [U]}
    outer: tuple[Arrays, ...]  # {axis: [U]} for each tier between fast domain and outermost tier
    rank_placement: tuple[np.ndarray, ...]  # [U], as in LayerWork

    def of_keys(self, works: np.ndarray, start: int, stop: int, length: int) -> LayerWork:
        """Return the work of the keys from `start` to `stop`, which have only these `works`, padded to a length."""

        def padded(shares: Arrays) -> Arrays:
            return {axis: pad(share[start:stop], length) for axis, share in shares.items()}

        which = pad(self.which[start:stop] - self.which[start], length).astype(np.int32)
        work = self.work.of_keys(works, which, padded(self.shares), tuple(map(padded, self.outer)))
        return replace(work, rank_placement=tuple(pad(of_keys[start:stop], length) for of_keys in self.rank_placement))


def price_keys(problem: Problem, keys: Arrays) -> KeyCosts:
    """Return the costs of each layer kind for a [U] key table at all H hardware points.

    Leaves are NumPy float64, [H, U] or [H, J, U].
    """
    never_recomputed = problem.workload.stack.embedding_and_head
    values = sorted({NONE_CODE, *problem.workload.searched.recompute})
    network = problem.cluster.network
    searched = problem.workload.searched
    apart = searched.zero_replicas != (1,) or any(SCHEDULES[code].holds.num_chains > 1 for code in searched.schedule)
    numbered = problem.assumptions_spec.uneven_domains and (apart or may_cut_two_axes(keys, network.nvs.size))
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


def _price_kind(
    problem: Problem,
    layers: Sequence[DerivedLayer],
    keys: Arrays,
    modes: Sequence[Codes],
    rank_placements: Sequence[np.ndarray],
) -> LayerCosts:
    """Return the costs of one layer kind in some modes of recomputation; `layers` has its layer under each strategy."""
    conditions = of_steps(problem.assumptions.conditions, problem.workload.searched)
    sets = lacked(conditions, [name for name in _EFFECTS if any(_has_effect(layer, name) for layer in layers)])
    distinct: list[np.ndarray] = []  # per strategy, rows of its keys that this kind tells apart
    priced_as = np.zeros(len(keys["strategy"]), dtype=np.int64)  # [U] position among these
    for code, layer in enumerate(layers):
        of_strategy = np.flatnonzero(keys["strategy"] == code)
        rows, which = _distinct(problem, layer, keys, of_strategy, rank_placements)
        priced_as[of_strategy] = sum(map(len, distinct)) + which
        distinct.append(rows)
    parts: list[LayerCosts] = []
    for code, (layer, rows) in enumerate(zip(layers, distinct, strict=True)):
        batches = _batches(problem, code, layer, keys, rows, modes, sets, rank_placements)
        if problem.num_points * len(rows) < _COMPILED:
            parts += [part for batch in batches for part in _price_on_numpy(problem, batch)]
        else:
            # One thread makes all works: several threads of NumPy code would only wait for the interpreter lock.
            compiled = map_over_devices(partial(_price_compiled, problem), batches)
            parts += [part for _, made in compiled for part in made]
    return _assembled(parts, priced_as, modes)


def _distinct(
    problem: Problem, layer: DerivedLayer, keys: Arrays, rows: np.ndarray, rank_placements: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first of the `rows` [N] for each of the costs that a layer has under them, and [N] which each row has.

    Embedding and head do not depend on the axes that divide the body alone.
    """
    used = [name for name in KEY_COLUMNS if _depends(layer, name)]
    known = {name: keys[name][rows] for name in KEY_COLUMNS}
    same = all((column == column[:1]).all() for name, column in known.items() if name not in used)
    # A share of an outer tier depends on the axes within it, and so does how ranks lie.
    if same or problem.cluster.network.middle or rank_placements:
        return rows, np.arange(len(rows))
    order = [*(name for name in used if name in _WORK_COLUMNS), *(name for name in used if name not in _WORK_COLUMNS)]
    # The columns as the digits of a number, exact as long as it is below 2^53.
    number = np.zeros(len(rows))
    for name in order:
        number = number * (known[name].max() + 1.0) + known[name]
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


def _batches(
    problem: Problem,
    code: int,
    layer: DerivedLayer,
    keys: Arrays,
    of_strategy: np.ndarray,
    modes: Sequence[Codes],
    sets: tuple[Fields, ...],
    rank_placements: Sequence[np.ndarray],
) -> Iterator[_KeyBatch]:
    """Yield some rows of a strategy, a bounded number of works at a time."""
    works = _works({name: keys[name][of_strategy] for name in _WORK_COLUMNS if _depends(layer, name)})
    for start, stop in _ranges(works, _WORKS, len(works)):
        rows, which = of_strategy[start:stop], works[start:stop] - works[start]
        first = rows[np.flatnonzero(np.diff(which, prepend=-1))]
        work = work_of(problem, layer, {name: column[first] for name, column in keys.items()}, modes)
        work = replace(work, lacked=sets)
        shares = {axis: keys[f"{axis}_nvs"][rows].astype(np.float64) for axis in work.shares}
        outer = outer_shares(problem, code, keys, rows, tuple(work.shares))
        yield _KeyBatch(which, work, shares, outer, tuple(of_keys[rows] for of_keys in rank_placements))


def outer_shares(
    problem: Problem, code: int, keys: Arrays, rows: np.ndarray, axes: Sequence[str]
) -> tuple[dict[str, np.ndarray], ...]:
    """Return how many members of groups share a unit of each tier between fast domain and outermost tier.

    `rows` are rows of the key table, all of the strategy `code`.
    """
    found: list[dict[str, np.ndarray]] = []
    for unit in units(problem.cluster.network):
        of_rows = {name: column[rows].astype(np.int64) for name, column in keys.items()}
        shares = key_shares(of_rows, unit, problem.expert_axes[code])
        found.append({axis: shares[axis].astype(np.float64) for axis in axes})
    return tuple(found)


def work_of(problem: Problem, layer: DerivedLayer, keys: Arrays, modes: Sequence[Codes] = MAIN_MODES) -> LayerWork:
    """Return the work of a layer for [V] keys, with the measured operator times of the problem."""
    given = (layer, problem.model.dimensions, problem.assumptions_spec, problem.sequence_length, keys)
    work = layer_work(*given, modes)
    if problem.operator_times is None:
        return work
    times = measured_times(problem.operator_times, measurable(*given), work, problem.cluster.device)
    return replace(work, measured=times)


def _works(keys: Arrays) -> np.ndarray:
    """Return [U] the number of the work of each key; consecutive keys that differ only in shares have one work."""
    return np.cumsum(changes(*keys.values())) - 1


def _ranges(works: np.ndarray, num_works: int, num_keys: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of keys with at most `num_works` works and `num_keys` keys."""
    start = 0
    while start < len(works):
        stop = min(int(np.searchsorted(works, works[start] + num_works)), start + num_keys)
        yield start, stop
        start = stop


def _price_on_numpy(problem: Problem, batch: _KeyBatch) -> list[LayerCosts]:
    """Price the keys of a batch at one hardware point after the other."""
    parts: list[LayerCosts] = []
    for start, stop in _ranges(batch.which, _ON_NUMPY, _ON_NUMPY):
        works = np.arange(batch.which[start], batch.which[stop - 1] + 1)
        work = batch.of_keys(works, start, stop, stop - start)
        found = [layer_costs(work, *problem.at_point(point)) for point in range(problem.num_points)]
        parts.append(jax.tree.map(lambda *leaves: np.stack(leaves), *found))
    return parts


def _price_compiled(problem: Problem, device: Any, batch: _KeyBatch) -> list[LayerCosts]:
    """Price the keys of a batch at all hardware points, a fixed length at a time."""
    which = batch.which
    few, many = _LENGTHS
    length, num_works = (few, few) if len(which) <= few else (many, many // 4)
    parts: list[LayerCosts] = []
    with jax.default_device(device), jax.enable_x64(True):
        for start, stop in _ranges(which, num_works, length):
            works = np.minimum(which[start] + np.arange(num_works), which[stop - 1])
            costs = _price_layers(batch.of_keys(works, start, stop, length), problem.hardware, problem.assumptions)
            parts.append(jax.tree.map(lambda leaf, n=stop - start: np.asarray(leaf)[..., :n], costs))
    return parts


def _assembled(parts: list[LayerCosts], positions: np.ndarray, modes: Sequence[Codes]) -> LayerCosts:
    """Join parts, with the same number of weight groups, and return the costs at [U] positions."""
    groups = max((part.group_size.shape[1] for part in parts), default=1)

    def joined(name: str, leaves: Sequence[Any]) -> np.ndarray:
        leaves = [np.asarray(leaf) for leaf in leaves]
        if name in _ABSENT:
            widths = [((0, 0), (0, groups - leaf.shape[1]), (0, 0)) for leaf in leaves]
            leaves = [np.pad(leaf, w, constant_values=_ABSENT[name]) for leaf, w in zip(leaves, widths, strict=True)]
        return np.concatenate(leaves, axis=-1)[..., positions] if leaves else np.zeros((1, 0))

    def column(name: str) -> Any:
        found = [getattr(part, name) for part in parts]
        if name == "without":
            return tuple(
                PassCosts(**{own: joined(own, [getattr(passes, own) for passes in of_set]) for own in PASSES})
                for of_set in zip(*found, strict=True)
            )
        if name in TUPLES:
            return tuple(joined(name, leaves) for leaves in zip(*found, strict=True))
        return joined(name, found)

    sets = parts[0].lacked if parts else ()
    return LayerCosts(**{name: column(name) for name in leaves_of(LayerCosts)}, modes=tuple(modes), lacked=sets)
