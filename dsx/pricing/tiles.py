"""Compiled code for many plans, in tiles of few sizes, so that it is compiled once for each.

Few plans are priced sooner on NumPy than anything is compiled.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from dsx.cost.step import Workload
from dsx.pricing.batch import Plans, pad
from dsx.pricing.layers import KeyCosts
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, plans_of

MANY = 1 << 13  # plans for which code is compiled
TILE = 1 << 11  # plans side by side: their numbers fit into the cache of a core
# Registers of 512 bits where the processor has them; XLA's default is 256.
COMPILER = {"xla_cpu_prefer_vector_width": 512}


@contextlib.contextmanager
def compiled_in(float64: bool) -> Iterator[None]:
    """Compile and run in float64 or float32. Stages are a leading axis, which what all of them share does not have."""
    with jax.enable_x64(float64), jax.numpy_rank_promotion("allow"):
        yield


def padded(plans: Any, here: slice, size: int) -> Any:
    """Return some of [N] plans as a tile."""
    return jax.tree.map(lambda leaf: pad(leaf[..., here], size), plans)


def joined(tiles: Sequence[Any], count: int) -> Any:
    """Return what was found for [N] plans, from tiles of which the last one may be padded; as NumPy arrays."""
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=-1)[..., :count], *tiles)


def row_tiles(
    problem: Problem, table: KeyCosts, rows: Rows, dtype: type = np.float64
) -> Iterator[tuple[np.ndarray, Plans, Workload]]:
    """Yield the rows of each tile, of which the last one may be repeated, as plans with the workload."""
    count = len(rows.positions)
    for start in range(0, count, TILE):
        tile = pad(np.arange(start, min(start + TILE, count)), TILE)
        plans, workload = plans_of(problem, table, rows.take(tile), dtype)
        yield tile, plans, jax.tree.map(lambda leaf: np.asarray(leaf, dtype), workload)
