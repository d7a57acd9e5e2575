"""The costs of batches of measured setups: once, or many times while a fit changes the assumptions.

Compiling pays off in a fit, which prices the same rows hundreds of times. Rows that are priced once take NumPy.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices
from dsx.cost.columns import StepCosts
from dsx.cost.layer import layer_costs
from dsx.cost.step import Workload
from dsx.cost.work import LayerWork
from dsx.hardware.cluster import Cluster
from dsx.predict.batches import Batch
from dsx.pricing.batch import Plans, costs
from dsx.pricing.batch import price as price_batch


def price(batch: Batch) -> StepCosts:
    """Return the costs of the setups of a batch, [N] NumPy arrays."""
    assumptions = batch.assumptions
    kinds = tuple(layer_costs(work, batch.hardware, assumptions) for work in batch.works)
    boundaries = None if batch.boundaries is None else np.moveaxis(batch.boundaries, 0, -1)
    return price_batch(Plans(kinds, batch.choices, batch.hardware, assumptions), batch.workload, boundaries)


def pricer(batch: Batch) -> Callable[[Assumptions], StepCosts]:
    """Return a function that prices a batch under any assumptions, [N] leaves; JAX can trace and differentiate it.

    The batch is put on the device once. Call this and the returned function under `enable_x64(True)`. Stated layouts
    whose chunks are unlike are priced by a bound below: their order is not replayed.
    """
    given = jax.tree.map(jnp.asarray, _arguments(batch))
    return lambda assumptions: _price_often(*given, assumptions)


def _arguments(batch: Batch) -> tuple[Any, ...]:
    """Return works, hardware, choices, workload and boundaries of a batch: rows first, and a last axis of size one."""
    works = jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf)[..., None], -2, 0), batch.works)
    works = tuple(_spread(work, len(batch.rows)) for work in works)
    choices = jax.tree.map(lambda leaf: leaf[:, None], batch.choices)
    boundaries = None if batch.boundaries is None else batch.boundaries[..., None]
    return works, batch.hardware, choices, batch.workload, boundaries


def _spread(work: LayerWork, count: int) -> LayerWork:
    """Return the work with its launches, which depend on no size, repeated for every row."""
    return replace(work, launches=np.repeat(work.launches, count, axis=0))


def _one(
    works: Any, hardware: Cluster, choices: StepChoices, workload: Workload, boundaries: Any, assumptions: Assumptions
) -> StepCosts:
    kinds = tuple(layer_costs(work, hardware, assumptions) for work in works)
    # The stages of a layout are an axis before those of the other values.
    with nullcontext() if boundaries is None else jax.numpy_rank_promotion("allow"):
        return costs(Plans(kinds, choices, hardware, assumptions), workload, boundaries)


def _price(
    works: Any, hardware: Cluster, choices: Any, workload: Workload, boundaries: Any, assumptions: Assumptions
) -> StepCosts:
    given = (works, hardware, choices, workload, boundaries)
    found = jax.vmap(_one, in_axes=0)(*given, assumptions)
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0]), found)


_price_often = jax.jit(_price)
