"""The hot loop: prices tiles, a bundle at a time, and keeps only what the search needs.

`lax.scan` walks over bundles of tiles. A tile is priced by the same function as a single plan. What leaves the loop is
little: for the best the minimum of each key and slice, or the objective alone where groups are many; for a front which
candidates may be on it. So XLA fuses the whole cost model into one loop and drops every column that nobody asked for.
(An argmin would be several times slower on a CPU: the winners are priced again instead.)

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
from dsx.cost.layer import LayerCosts
from dsx.cost.step import Workload, step_costs
from dsx.hardware.cluster import Cluster
from dsx.records import record

# Fields of layer costs that a kind may have from the first one; they are None then.
SHARED = ("group_size", "group_share", "group_wider")

# Registers of 512 bits where the processor has them; XLA's default is 256.
_COMPILER = {"xla_cpu_prefer_vector_width": 512}


@record
class Slices:
    """The slices of choices of a chunk; M of them, those behind the last one are empty."""

    choices: StepChoices  # [M, CHOICES]
    length: Any  # [M]


@record
class Tiles:
    """T bundles of S tiles each, as `dsx.search.blockwise.tiles.Chunk` describes them; [T, S] each."""

    row: Any
    slices: Any  # an empty one for a tile that is padding


@record
class Points:
    """What differs from hardware point to hardware point; all leaves begin with H."""

    table: tuple[
        LayerCosts, ...
    ]  # per layer kind, [H, R, KEYS], or [H, J, R, KEYS]; [H, 1, 1] where no result needs the column
    hardware: Cluster
    assumptions: Assumptions


@record
class Common:
    """What is the same for all tiles and points."""

    keys: Any  # {column: [R, KEYS]} floats: the columns of the key that are objectives
    workload: Workload


@functools.partial(jax.jit, static_argnames="width")
def make_slices(
    placements: Any, placement: Any, global_batch_size: Any, start: Any, length: Any, microbatch_size: Any, width: int
) -> Slices:
    """Return slices of `width`, from {column: [P]} placements, the [N] choices of a chunk, and [M] facts of its slices.

    A column of placements that are all alike is [1]; one of several tiers is a tuple.
    """
    position = jnp.arange(width, dtype=start.dtype)[None]
    choice = jnp.maximum(start[:, None] + jnp.minimum(position, length[:, None] - 1), jnp.zeros_like(start)[:, None])
    place, batch = placement[choice], global_batch_size[choice]
    columns = jax.tree.map(
        lambda column: column[place] if len(column) > 1 else jnp.broadcast_to(column, place.shape), placements
    )
    microbatches = jnp.round(batch / (columns["dp"] * microbatch_size[:, None]))
    return Slices(StepChoices(**columns, global_batch_size=batch, num_microbatches=microbatches), length)


def _priced(point: Points, common: Common, slices: Slices, tile: Tiles) -> tuple[StepCosts, StepChoices, Any]:
    """Return the costs of a bundle, its choices, and which of its candidates are feasible, [S, KEYS, CHOICES]."""
    choices = jax.tree.map(lambda column: column[tile.slices][:, None], slices.choices)
    first, *others = jax.tree.map(lambda leaf: leaf[..., tile.row, :, None], point.table)
    kinds = [first, *(_whole(kind, first) for kind in others)]
    costs = step_costs(kinds, choices, common.workload, point.hardware, point.assumptions)
    position = jnp.arange(slices.choices.pp.shape[-1], dtype=jnp.int32)[None]
    real = position < slices.length[tile.slices][:, None]
    return costs, choices, (costs.peak_bytes <= point.hardware.device.hbm_capacity) & real[:, None]


def _whole(kind: LayerCosts, first: LayerCosts) -> LayerCosts:
    """Return the costs of a kind with the fields that it has from the first one."""
    missing = [name for name in SHARED if getattr(kind, name) is None]
    return replace(kind, **{name: getattr(first, name) for name in missing})


def _scan(bundle: Callable[[Tiles], Any], slices: Slices, tiles: Tiles) -> Any:
    """Return what `bundle` makes of each bundle that is not all padding, and zeros of the others."""
    first = jax.tree.map(lambda leaf: leaf[0], tiles)
    made = jax.eval_shape(bundle, first)

    def step(carry: None, tile: Tiles) -> tuple[None, Any]:
        def nothing(tile: Tiles) -> Any:
            del tile
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), made)

        return carry, jax.lax.cond(slices.length[tile.slices[0]] > 0, bundle, nothing, tile)

    return jax.lax.scan(step, None, tiles)[1]


@functools.partial(jax.jit, static_argnames="objective", compiler_options=_COMPILER)
def minima(points: Points, common: Common, slices: Slices, tiles: Tiles, objective: str) -> tuple[Any, Any]:
    """Return the smallest feasible `objective` of each key and slice, and how many of its candidates are feasible.

    Both are [H, T, S, KEYS]. Where nothing is feasible, the minimum is infinity; a bundle of padding alone has
    zeros.
    """

    def at_point(point: Points) -> tuple[Any, Any]:
        def bundle(tile: Tiles) -> tuple[Any, Any]:
            costs, _, feasible = _priced(point, common, slices, tile)
            value = getattr(costs, objective)
            value = jnp.where(feasible, value, jnp.full_like(value, jnp.inf))
            # Kept from being fused into both sums: the cost model would be evaluated twice.
            value = jax.lax.optimization_barrier(value)
            return value.min(axis=-1), (value < jnp.inf).astype(value.dtype).sum(axis=-1)

        return _scan(bundle, slices, tiles)

    return jax.vmap(at_point)(points)


@functools.partial(jax.jit, static_argnames="objective", compiler_options=_COMPILER)
def values(points: Points, point: Any, common: Common, slices: Slices, tiles: Tiles, objective: str) -> tuple[Any, Any]:
    """Return the `objective` of every candidate at one of the points, and how many are feasible.

    They are [T, S, KEYS, CHOICES] and [T]. What is not feasible is infinite; a bundle of padding alone has zeros.
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
        """Return whether its values are whole numbers, which float32 holds exactly."""
        return self.column not in StepCosts.__dataclass_fields__

    @property
    def tells_equal(self) -> bool:
        """Return whether the margin tells what is worse from what is equal: zero and whole numbers have none."""
        return self.column in _POSITIVE


# Costs that every plan has; of the others many plans have nothing at all.
_POSITIVE = ("compute_s", "step_time_s", "peak_bytes", "mfu", "tokens_per_s", "training_days")
# What float32 may be off by; candidates that close to the front are kept, and compared in float64 later.
_MARGIN = 1e-5
# The exposed reduction is a difference of near-equal times, taken once per layer.
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
    """Return which feasible candidates no reference dominates, and the number of feasible candidates.

    `references` are [H, R, D] points to be minimised, infinite where there is none. The results are
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
                if not any(objective.tells_equal for objective in objectives):
                    beats &= functools.reduce(jnp.logical_or, [bound > known[d] for d, bound in enumerate(bounds)])
                dominated |= beats
            return feasible & ~dominated, feasible.sum(dtype=jnp.int32)

        return _scan(bundle, slices, tiles)

    return jax.vmap(at_point)(points, references)


def _bound(objective: Objective, common: Common, tile: Tiles, costs: StepCosts, choices: StepChoices) -> Any:
    """Return the largest value of a reference that still dominates the candidates in this objective."""
    name, sign = objective.column, -1.0 if objective.maximised else 1.0
    if name in common.keys:
        return sign * common.keys[name][tile.row][..., None]
    if objective.whole:
        return sign * getattr(choices, name)
    value = sign * getattr(costs, name)
    return value - _MARGINS.get(name, _MARGIN) * jnp.abs(value)
