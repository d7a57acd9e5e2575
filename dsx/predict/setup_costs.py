"""The costs of batches of measured setups: once, or many times while a fit changes the assumptions.

Optimised code is ten times as fast but takes several times as long to compile, which pays off in a fit: it prices the
same rows hundreds of times. To price rows once, layers are compiled one by one without optimisation, since most
structures share layers.
"""

from collections.abc import Callable
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
from dsx.pricing.batch import Plans, costs, pad, padded_length
from dsx.pricing.batch import price as price_batch

_QUICKLY = {"xla_backend_optimization_level": 0}


def price(batch: Batch, assumptions: Assumptions) -> StepCosts:
    """Return the costs of the setups of a batch, [N] NumPy arrays."""
    works, hardware, _, _ = _arguments(batch)
    count = len(batch.rows)
    length = padded_length(count)
    padded = jax.tree.map(lambda leaf: np.moveaxis(pad(np.moveaxis(leaf, 0, -1), length), -1, 0), (works, hardware))
    kinds = tuple(_price_layers(work, padded[1], assumptions) for work in padded[0])
    # Rows last, as everywhere else; drop the axis of size one.
    rows = jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf)[:count, ..., 0], 0, -1), kinds)
    return price_batch(Plans(rows, batch.choices, hardware, assumptions), batch.workload)


def pricer(batch: Batch) -> Callable[[Assumptions], StepCosts]:
    """Return a function that prices a batch under any assumptions; JAX can trace and differentiate it.

    The batch is put on the device once. Call this and the returned function under `enable_x64(True)`.
    """
    given = jax.tree.map(jnp.asarray, _arguments(batch))
    return lambda assumptions: _price_often(*given, assumptions)


def _arguments(batch: Batch) -> tuple[Any, ...]:
    """Return works, hardware, choices and workload of a batch: rows on the first axis, and a last axis of size one."""
    works = jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf)[..., None], -2, 0), batch.works)
    works = tuple(_spread(work, len(batch.rows)) for work in works)
    choices = jax.tree.map(lambda leaf: leaf[:, None], batch.choices)
    return works, batch.hardware, choices, batch.workload


def _spread(work: LayerWork, count: int) -> LayerWork:
    """Return the work with its launches, which depend on no size, repeated for every row."""
    return replace(work, launches=np.repeat(work.launches, count, axis=0))


def _one(
    works: Any, hardware: Cluster, choices: StepChoices, workload: Workload, assumptions: Assumptions
) -> StepCosts:
    kinds = tuple(layer_costs(work, hardware, assumptions) for work in works)
    return costs(Plans(kinds, choices, hardware, assumptions), workload)


def _price(works: Any, hardware: Cluster, choices: Any, workload: Workload, assumptions: Assumptions) -> StepCosts:
    found = jax.vmap(_one, in_axes=(0, 0, 0, 0, None))(works, hardware, choices, workload, assumptions)
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0]), found)


_price_often = jax.jit(_price)
_price_layers = jax.jit(jax.vmap(layer_costs, in_axes=(0, 0, None)), compiler_options=_QUICKLY)
