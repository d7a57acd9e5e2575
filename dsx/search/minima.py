"""The hot loop: the smallest step time of each shard key over a row of choices.

`lax.scan` walks over tiles, each a few keys times one row of choices. A tile is priced by the same function
as a single plan; only its minimum and its number of feasible candidates leave it, so XLA fuses the whole
cost model into one loop and drops every column that is not needed. (An argmin would be several times slower
on a CPU: the winners' rows are priced again instead.)
"""

from typing import Any

import jax
import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.cost.layer import LayerCosts
from dsx.cost.step import StepChoices, Workload, step_costs
from dsx.hardware.cluster import Cluster
from dsx.records import record


@record
class Tiles:
    """T tiles: positions of keys in the layer table, and a run of choices."""

    keys: Any  # [T, K]
    start: Any  # [T]
    length: Any  # [T] at most C


def _minima(
    table: LayerCosts,
    choices: StepChoices,
    tiles: Tiles,
    workload: Workload,
    hardware: Cluster,
    assumptions: Assumptions,
    width: int,
) -> tuple[Any, Any]:
    """Return the smallest feasible step time and the number of feasible candidates, [T, K] each.

    `table` holds [U] (or [J, U]) layer costs, `choices` [N] choices of which a tile takes `width` from its
    start on; those behind its length are masked. A key without a feasible candidate gets infinity.
    """
    position = jnp.arange(width, dtype=jnp.int32)[None]

    def tile(carry: None, entry: Tiles) -> tuple[None, tuple[Any, Any]]:
        layer = jax.tree.map(lambda leaf: leaf[..., entry.keys, None], table)
        run = jax.tree.map(lambda leaf: jax.lax.dynamic_slice(leaf, (entry.start,), (width,))[None], choices)
        costs = step_costs(layer, run, workload, hardware, assumptions)
        fits = (costs.peak_bytes <= hardware.device.hbm_capacity) & (position < entry.length)
        time = jnp.where(fits, costs.step_time_s, jnp.full_like(costs.step_time_s, jnp.inf))
        return carry, (time.min(axis=-1), fits.sum(axis=-1, dtype=jnp.int32))

    return jax.lax.scan(tile, None, tiles)[1]


minima = jax.jit(_minima, static_argnames="width")
