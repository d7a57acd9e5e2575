"""The hot loop: strips priced tile by tile, and only what is wanted of them kept.

`lax.scan` walks over tiles of strips. A strip is priced by the same function as a single plan; of the best
only the minimum of each key and run leaves it, or the objective where groups are many, of a front only which
candidates may be on it, so XLA fuses the whole cost model into one loop and drops every column that is not
needed. (An argmin would be several times slower on a CPU: the winners' rows are priced again instead.)

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
class Runs:
    """The runs of choices of a chunk; M of them, those behind the last one are empty."""

    choices: StepChoices  # [M, CHOICES]
    length: Any  # [M]


@record
class Strips:
    """T tiles of S strips each, as `dsx.search.blockwise.strips.Chunk` describes them; [T, S] each."""

    row: Any
    run: Any  # an empty one for a strip that is padding


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
    """What is the same for all strips and points."""

    keys: Any  # {column: [R, KEYS]} floats: the columns of the key that are objectives
    workload: Workload


@functools.partial(jax.jit, static_argnames="width")
def make_runs(
    placements: Any, placement: Any, global_batch_size: Any, start: Any, length: Any, microbatch_size: Any, width: int
) -> Runs:
    """Return runs of `width`, from {column: [P]} placements, the [N] choices of a chunk, and [M] facts of its runs.

    A column of placements that are all alike is [1]; one of several tiers is a tuple.
    """
    position = jnp.arange(width, dtype=start.dtype)[None]
    choice = jnp.maximum(start[:, None] + jnp.minimum(position, length[:, None] - 1), jnp.zeros_like(start)[:, None])
    place, batch = placement[choice], global_batch_size[choice]
    columns = jax.tree.map(
        lambda column: column[place] if len(column) > 1 else jnp.broadcast_to(column, place.shape), placements
    )
    microbatches = jnp.round(batch / (columns["dp"] * microbatch_size[:, None]))
    return Runs(StepChoices(**columns, global_batch_size=batch, num_microbatches=microbatches), length)


def _priced(point: Points, common: Common, runs: Runs, strip: Strips) -> tuple[StepCosts, StepChoices, Any]:
    """Return the costs of a tile, its choices, and which of its candidates are feasible, [S, KEYS, CHOICES]."""
    run = jax.tree.map(lambda column: column[strip.run][:, None], runs.choices)
    first, *others = jax.tree.map(lambda leaf: leaf[..., strip.row, :, None], point.table)
    kinds = [first, *(_whole(kind, first) for kind in others)]
    costs = step_costs(kinds, run, common.workload, point.hardware, point.assumptions)
    position = jnp.arange(runs.choices.pp.shape[-1], dtype=jnp.int32)[None]
    real = position < runs.length[strip.run][:, None]
    return costs, run, (costs.peak_bytes <= point.hardware.device.hbm_capacity) & real[:, None]


def _whole(kind: LayerCosts, first: LayerCosts) -> LayerCosts:
    """Return the costs of a kind with the fields that it has from the first one."""
    missing = [name for name in SHARED if getattr(kind, name) is None]
    return replace(kind, **{name: getattr(first, name) for name in missing})


def _scan(tile: Callable[[Strips], Any], runs: Runs, strips: Strips) -> Any:
    """Return what `tile` makes of each tile that is not all padding, and zeros of the others."""
    first = jax.tree.map(lambda leaf: leaf[0], strips)
    made = jax.eval_shape(tile, first)

    def step(carry: None, strip: Strips) -> tuple[None, Any]:
        def nothing(strip: Strips) -> Any:
            del strip
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), made)

        return carry, jax.lax.cond(runs.length[strip.run[0]] > 0, tile, nothing, strip)

    return jax.lax.scan(step, None, strips)[1]


@functools.partial(jax.jit, static_argnames="objective", compiler_options=_COMPILER)
def minima(points: Points, common: Common, runs: Runs, strips: Strips, objective: str) -> tuple[Any, Any]:
    """Return the smallest feasible `objective` of each key and run, and how many of its candidates are feasible.

    Both are [H, T, S, KEYS]. Where nothing is feasible, the minimum is infinity; a tile of padding alone has
    zeros.
    """

    def at_point(point: Points) -> tuple[Any, Any]:
        def tile(strip: Strips) -> tuple[Any, Any]:
            costs, _, feasible = _priced(point, common, runs, strip)
            value = getattr(costs, objective)
            value = jnp.where(feasible, value, jnp.full_like(value, jnp.inf))
            # Kept from being fused into both sums: the cost model would be evaluated twice.
            value = jax.lax.optimization_barrier(value)
            return value.min(axis=-1), (value < jnp.inf).astype(value.dtype).sum(axis=-1)

        return _scan(tile, runs, strips)

    return jax.vmap(at_point)(points)


@functools.partial(jax.jit, static_argnames="objective", compiler_options=_COMPILER)
def values(points: Points, point: Any, common: Common, runs: Runs, strips: Strips, objective: str) -> tuple[Any, Any]:
    """Return the `objective` of every candidate at one of the points, and how many are feasible.

    They are [T, S, KEYS, CHOICES] and [T]. What is not feasible is infinite; a tile of padding alone has zeros.
    """
    here = jax.tree.map(lambda leaf: leaf[point], points)

    def tile(strip: Strips) -> tuple[Any, Any]:
        costs, _, feasible = _priced(here, common, runs, strip)
        value = getattr(costs, objective)
        return jnp.where(feasible, value, jnp.full_like(value, jnp.inf)), feasible.sum(dtype=jnp.int32)

    return _scan(tile, runs, strips)


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
    runs: Runs,
    strips: Strips,
    references: Any,
    objectives: tuple[Objective, ...],
) -> tuple[Any, Any]:
    """Return which feasible candidates no reference dominates, and the number of feasible candidates.

    `references` are [H, R, D] points to be minimised, infinite where there is none. The results are
    [H, T, S, KEYS, CHOICES] and [H, T]. A candidate within rounding of a reference counts as undominated.
    """

    def at_point(point: Points, references: Any) -> tuple[Any, Any]:
        def tile(strip: Strips) -> tuple[Any, Any]:
            costs, run, feasible = _priced(point, common, runs, strip)
            dominated = jnp.zeros_like(feasible)
            bounds = [_bound(objective, common, strip, costs, run) for objective in objectives]
            for reference in range(references.shape[0] if objectives else 0):
                known = references[reference]
                beats = functools.reduce(jnp.logical_and, [bound >= known[d] for d, bound in enumerate(bounds)])
                if not any(objective.tells_equal for objective in objectives):
                    beats &= functools.reduce(jnp.logical_or, [bound > known[d] for d, bound in enumerate(bounds)])
                dominated |= beats
            return feasible & ~dominated, feasible.sum(dtype=jnp.int32)

        return _scan(tile, runs, strips)

    return jax.vmap(at_point)(points, references)


def _bound(objective: Objective, common: Common, strip: Strips, costs: StepCosts, run: StepChoices) -> Any:
    """Return the largest value of a reference that still dominates the candidates in this objective."""
    name, sign = objective.column, -1.0 if objective.maximised else 1.0
    if name in common.keys:
        return sign * common.keys[name][strip.row][..., None]
    if objective.whole:
        return sign * getattr(run, name)
    value = sign * getattr(costs, name)
    return value - _MARGINS.get(name, _MARGIN) * jnp.abs(value)
