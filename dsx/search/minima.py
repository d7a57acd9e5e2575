"""The hot loop: strips priced tile by tile, and only what is wanted of them kept.

`lax.scan` walks over tiles of strips. A strip is priced by the same function as a single plan; of the best
only the minimum of each key and run leaves it, of a front only which candidates may be on it, so XLA fuses
the whole cost model into one loop and drops every column that is not needed. (An argmin would be several
times slower on a CPU: the winners' rows are priced again instead.)

`vmap` runs the loop over hardware points.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.cost.columns import StepCosts
from dsx.cost.layer import LayerCosts
from dsx.cost.step import StepChoices, Workload, step_costs
from dsx.hardware.cluster import Cluster
from dsx.records import record
from dsx.search.strips import CHOICES


@record
class Choices:
    """The choices of a chunk; N choices over P placements."""

    placements: Any  # {column: [P]} floats
    placement: Any  # [N]
    global_batch_size: Any  # [N] float


@record
class Strips:
    """T tiles of S strips each, as `dsx.search.strips.Chunk` describes them; [T, S] each."""

    row: Any
    start: Any
    length: Any  # 0 for a strip that is padding
    microbatch_size: Any  # float


@record
class Points:
    """What differs from hardware point to hardware point; all leaves begin with H."""

    table: LayerCosts  # [H, R, KEYS], or [H, J, R, KEYS]
    hardware: Cluster
    assumptions: Assumptions


@record
class Common:
    """What is the same for all strips and points."""

    keys: Any  # {column: [R, KEYS]} floats: the columns of the key that are objectives
    workload: Workload


def _priced(point: Points, common: Common, choices: Choices, strip: Strips) -> tuple[StepCosts, StepChoices, Any]:
    """Return the costs of a tile, its choices, and which of its candidates are feasible, [S, KEYS, CHOICES]."""
    position = jnp.arange(CHOICES, dtype=jnp.int32)[None]
    last = choices.placement.shape[0] - 1
    at = jnp.minimum(strip.start[:, None] + position, last)
    place = choices.placement[at]
    columns = {name: column[place][:, None] for name, column in choices.placements.items()}
    batch = choices.global_batch_size[at][:, None]
    sequences = columns["dp"] * strip.microbatch_size[:, None, None]
    run = StepChoices(**columns, global_batch_size=batch, num_microbatches=jnp.round(batch / sequences))
    layer = jax.tree.map(lambda leaf: leaf[..., strip.row, :, None], point.table)
    costs = step_costs(layer, run, common.workload, point.hardware, point.assumptions)
    real = (position < strip.length[:, None])[:, None]
    return costs, run, (costs.peak_bytes <= point.hardware.device.hbm_capacity) & real


def _scan(tile: Callable[[Strips], Any], strips: Strips) -> Any:
    """Return what `tile` makes of each tile that is not all padding, and zeros of the others."""
    first = jax.tree.map(lambda leaf: leaf[0], strips)
    made = jax.eval_shape(tile, first)

    def step(carry: None, strip: Strips) -> tuple[None, Any]:
        def nothing(strip: Strips) -> Any:
            del strip
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), made)

        return carry, jax.lax.cond(strip.length[0] > 0, tile, nothing, strip)

    return jax.lax.scan(step, None, strips)[1]


@functools.partial(jax.jit, static_argnames="objective")
def minima(points: Points, common: Common, choices: Choices, strips: Strips, objective: str) -> tuple[Any, Any]:
    """Return the smallest feasible `objective` of each key and run, and how many of its candidates are feasible.

    Both are [H, T, S, KEYS]. Where nothing is feasible, the minimum is infinity; a tile of padding alone has
    zeros.
    """

    def at_point(point: Points) -> tuple[Any, Any]:
        def tile(strip: Strips) -> tuple[Any, Any]:
            costs, _, feasible = _priced(point, common, choices, strip)
            value = getattr(costs, objective)
            value = jnp.where(feasible, value, jnp.full_like(value, jnp.inf))
            # Kept from being fused into both sums: the cost model would be evaluated twice.
            value = jax.lax.optimization_barrier(value)
            return value.min(axis=-1), (value < jnp.inf).astype(value.dtype).sum(axis=-1)

        return _scan(tile, strips)

    return jax.vmap(at_point)(points)


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


@functools.partial(jax.jit, static_argnames="objectives")
def undominated(
    points: Points,
    common: Common,
    choices: Choices,
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
            costs, run, feasible = _priced(point, common, choices, strip)
            dominated = jnp.zeros_like(feasible)
            bounds = [_bound(objective, common, strip, costs, run) for objective in objectives]
            for reference in range(references.shape[0] if objectives else 0):
                known = references[reference]
                beats = functools.reduce(jnp.logical_and, [bound >= known[d] for d, bound in enumerate(bounds)])
                if not any(objective.tells_equal for objective in objectives):
                    beats &= functools.reduce(jnp.logical_or, [bound > known[d] for d, bound in enumerate(bounds)])
                dominated |= beats
            return feasible & ~dominated, feasible.sum(dtype=jnp.int32)

        return _scan(tile, strips)

    return jax.vmap(at_point)(points, references)


def _bound(objective: Objective, common: Common, strip: Strips, costs: StepCosts, run: StepChoices) -> Any:
    """Return the largest value of a reference that still dominates the candidates in this objective."""
    name, sign = objective.column, -1.0 if objective.maximised else 1.0
    if name in common.keys:
        return sign * common.keys[name][strip.row][..., None]
    if objective.whole:
        return sign * getattr(run, name)
    value = sign * getattr(costs, name)
    return value - _MARGIN * jnp.abs(value)
