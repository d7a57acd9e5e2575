"""The hot loop: prices tiles, one bundle at a time, and returns only the values that the search needs.

`lax.scan` runs over bundles of tiles. The same function prices a tile and a single plan. Little leaves the loop: for
the best plans the minimum of each key and slice, or the objective of each candidate if groups are many; for a front a
mask of candidates that may be on it. So XLA fuses the whole cost model into one loop and drops all unused columns. (An
argmin would be several times slower on a CPU; the winners are priced once more instead.)

`vmap` runs the loop over hardware points.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices
from dsx.cost.columns import StepCosts
from dsx.cost.headroom import room
from dsx.cost.layer import LayerCosts
from dsx.cost.offload import uses_host
from dsx.cost.step import Workload, step_costs
from dsx.hardware.cluster import Cluster
from dsx.records import record
from dsx.space.choices import SEARCHED_COLUMNS

# Fields of layer costs that are None if they equal those of the first kind.
SHARED = ("group_size", "group_share", "group_ep", "group_outer", "rank_placement")

# Registers of 512 bits where the processor has them; XLA's default is 256. The larger of two numbers is one instruction
# if it loses a NaN that only the second one has; padding is NaN in all stages.
_COMPILER = {"xla_cpu_prefer_vector_width": 512, "xla_cpu_enable_fast_min_max": True}
if jax.__version_info__ < (0, 11):
    # The emitter that XLA had before its fusion emitters compiles in half the time. Its code is a tenth faster with the
    # formulas of the set `default`, and a tenth slower with the few of arXiv 2410.00273.
    _COMPILER["xla_cpu_use_fusion_emitters"] = False


@record
class Slices:
    """The M slices of the choices of a chunk; padding slices are empty."""

    choices: StepChoices  # [M, CHOICES]
    length: Any  # [M]


@record
class ChunkColumns:
    """The N choices of a `dsx.search.blockwise.tiles.Chunk` and its M slices, padded."""

    placement: Any  # [N]
    global_batch_size: Any  # [N]
    start: Any  # [M]
    length: Any  # [M]
    microbatch_size: Any  # [M]


@record
class Tiles:
    """T bundles of S tiles each, [T, S]; see `dsx.search.blockwise.tiles.Chunk`."""

    row: Any
    slices: Any  # an empty slice for a padding tile


@record
class Points:
    """The data that differ between hardware points. All leaves begin with H."""

    # Per layer kind: [H, R, KEYS] or [H, J, R, KEYS]; [H, 1, 1] for a column that no result needs.
    table: tuple[LayerCosts, ...]
    hardware: Cluster
    assumptions: Assumptions


@record
class Common:
    """The data that all tiles and points share."""

    keys: Any  # {column: [R, KEYS]} the columns of the key that are objectives, as floats
    workload: Workload


@functools.partial(jax.jit, static_argnames="width")
def make_slices(placements: Any, chunk: ChunkColumns, width: int) -> Slices:
    """Return the slices of a chunk with `width` choices each, from placements {column: [P]}.

    A column of placements is [1] if it has a single value, and a tuple if it is of several tiers.
    """
    start, length = chunk.start[:, None], chunk.length[:, None]
    position = jnp.arange(width, dtype=start.dtype)[None]
    choice = jnp.maximum(start + jnp.minimum(position, length - 1), jnp.zeros_like(start))
    place, batch = chunk.placement[choice], chunk.global_batch_size[choice]
    columns = jax.tree.map(
        lambda column: column[place] if len(column) > 1 else jnp.broadcast_to(column, place.shape), placements
    )
    microbatches = jnp.round(batch / (columns["dp"] * chunk.microbatch_size[:, None]))
    return Slices(StepChoices(**columns, global_batch_size=batch, num_microbatches=microbatches), chunk.length)


def _priced(point: Points, common: Common, slices: Slices, tile: Tiles) -> tuple[StepCosts, StepChoices, Any]:
    """Return the costs of a bundle, its choices, and the mask of feasible candidates, [S, KEYS, CHOICES]."""
    choices = jax.tree.map(lambda column: column[tile.slices][:, None], slices.choices)
    # What follows from a fixed choice is computed when the code is compiled.
    values = {name: getattr(common.workload.searched, name) for name in SEARCHED_COLUMNS}
    fixed = {name: codes[0] for name, codes in values.items() if len(codes) == 1 and hasattr(choices, name)}
    choices = replace(choices, **{name: jnp.full_like(choices.pp, code) for name, code in fixed.items()})
    first, *others = jax.tree.map(lambda leaf: leaf[..., tile.row, :, None], point.table)
    kinds = [first, *(_whole(kind, first) for kind in others)]
    costs = step_costs(kinds, choices, common.workload, point.hardware, point.assumptions)
    position = jnp.arange(slices.choices.pp.shape[-1], dtype=jnp.int32)[None]
    real = position < slices.length[tile.slices][:, None]
    usable = room(point.hardware, point.assumptions, choices.num_gpus)
    fits = usable.holds(costs) if uses_host(common.workload.searched) else costs.peak_bytes <= usable.gpu
    return costs, choices, fits & real[:, None]


def _whole(kind: LayerCosts, first: LayerCosts) -> LayerCosts:
    """Return the costs of a kind with the fields that it shares with the first kind."""
    missing = [name for name in SHARED if getattr(kind, name) is None]
    return replace(kind, **{name: getattr(first, name) for name in missing})


def _scan(bundle: Callable[[Tiles], Any], slices: Slices, tiles: Tiles) -> Any:
    """Return the results of `bundle` for each bundle, and zeros for a bundle that is all padding."""
    first = jax.tree.map(lambda leaf: leaf[0], tiles)
    shapes = jax.eval_shape(bundle, first)

    def step(carry: None, tile: Tiles) -> tuple[None, Any]:
        def nothing(tile: Tiles) -> Any:
            del tile
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        return carry, jax.lax.cond(slices.length[tile.slices[0]] > 0, bundle, nothing, tile)

    return jax.lax.scan(step, None, tiles)[1]


@functools.partial(jax.jit, static_argnames="objective", compiler_options=_COMPILER)
def minima(points: Points, common: Common, slices: Slices, tiles: Tiles, objective: str) -> tuple[Any, Any]:
    """Return the smallest feasible `objective` of each key and slice, and the number of its feasible candidates.

    Both are [H, T, S, KEYS]. The minimum is infinite if no candidate is feasible, and zero in a bundle that is all
    padding.
    """

    def at_point(point: Points) -> tuple[Any, Any]:
        def bundle(tile: Tiles) -> tuple[Any, Any]:
            costs, _, feasible = _priced(point, common, slices, tile)
            value = getattr(costs, objective)
            value = jnp.where(feasible, value, jnp.full_like(value, jnp.inf))
            # Without the barrier XLA fuses the cost model into both reductions and evaluates it twice.
            value = jax.lax.optimization_barrier(value)
            return value.min(axis=-1), (value < jnp.inf).astype(value.dtype).sum(axis=-1)

        return _scan(bundle, slices, tiles)

    return jax.vmap(at_point)(points)


@functools.partial(jax.jit, static_argnames="objective", compiler_options=_COMPILER)
def values(points: Points, point: Any, common: Common, slices: Slices, tiles: Tiles, objective: str) -> tuple[Any, Any]:
    """Return the `objective` of each candidate at one point, and the number of feasible candidates.

    They are [T, S, KEYS, CHOICES] and [T]. The objective is infinite for a candidate that is not feasible, and zero in
    a bundle that is all padding.
    """
    here = jax.tree.map(lambda leaf: leaf[point], points)

    def bundle(tile: Tiles) -> tuple[Any, Any]:
        costs, _, feasible = _priced(here, common, slices, tile)
        value = getattr(costs, objective)
        return jnp.where(feasible, value, jnp.full_like(value, jnp.inf)), feasible.sum(dtype=jnp.int32)

    return _scan(bundle, slices, tiles)


@dataclass(frozen=True, slots=True)
class Objective:
    """A column of a front: minimised, or maximised."""

    column: str
    maximised: bool

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers, which float32 represents exactly."""
        return self.column not in StepCosts.__dataclass_fields__

    @property
    def never_ties(self) -> bool:
        """Whether the margin separates worse from equal values. Zero and whole numbers have no margin."""
        return self.column in _POSITIVE


# Costs that are positive for every plan; the other costs are zero for many plans.
_POSITIVE = ("compute_s", "step_time_s", "peak_bytes", "mfu", "tokens_per_s", "tokens_per_s_per_gpu", "training_days")
_POSITIVE += ("gpu_hours", "cost_usd", "energy_kwh")
# The rounding of float32. Candidates within it of the front are kept, and compared in float64 later.
_MARGIN = 1e-5
# The exposed reduction is a difference of nearly equal times, once per layer.
_MARGINS = {"dp_comm_s": 1e-3}


@functools.partial(jax.jit, static_argnames="objectives", compiler_options=_COMPILER)
def undominated(
    points: Points,
    common: Common,
    slices: Slices,
    tiles: Tiles,
    references: Any,
    objectives: tuple[Objective, ...],
) -> tuple[Any, Any]:
    """Return the mask of feasible candidates that no reference dominates, and the number of feasible candidates.

    `references` are [H, R, D] points of objectives to minimise, infinite if there are fewer. The results are
    [H, T, S, KEYS, CHOICES] and [H, T]. A candidate within rounding of a reference counts as undominated.
    """

    def at_point(point: Points, references: Any) -> tuple[Any, Any]:
        def bundle(tile: Tiles) -> tuple[Any, Any]:
            costs, choices, feasible = _priced(point, common, slices, tile)
            dominated = jnp.zeros_like(feasible)
            bounds = [_bound(objective, common, tile, costs, choices) for objective in objectives]
            for reference in range(references.shape[0] if objectives else 0):
                known = references[reference]
                beats = functools.reduce(jnp.logical_and, [bound >= known[d] for d, bound in enumerate(bounds)])
                if not any(objective.never_ties for objective in objectives):
                    beats &= functools.reduce(jnp.logical_or, [bound > known[d] for d, bound in enumerate(bounds)])
                dominated |= beats
            return feasible & ~dominated, feasible.sum(dtype=jnp.int32)

        return _scan(bundle, slices, tiles)

    return jax.vmap(at_point)(points, references)


def _bound(objective: Objective, common: Common, tile: Tiles, costs: StepCosts, choices: StepChoices) -> Any:
    """Return the largest value of a reference that still dominates each candidate in this objective."""
    name, sign = objective.column, -1.0 if objective.maximised else 1.0
    if name in common.keys:
        return sign * common.keys[name][tile.row][..., None]
    if objective.whole:
        return sign * getattr(choices, name)
    value = sign * getattr(costs, name)
    return value - _MARGINS.get(name, _MARGIN) * jnp.abs(value)
