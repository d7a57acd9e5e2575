"""The optimal cuts of rows with one chunk per stage by the scan over stages, compiled.

Rows are cut in tiles of plans with similar numbers of stages, so that the scan wastes few stages. All calls have one
shape and share what is compiled. Empty tiles are skipped. What a first stage adds to a step would be most of what there
is to compile, so NumPy computes it.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost import xp
from dsx.cost.headroom import room
from dsx.cost.step import Workload
from dsx.pricing.batch import Plans, pad, stage_costs
from dsx.pricing.layers import KeyCosts
from dsx.pricing.optimal_cut import Contents, Depths, boundaries, chain_contents, of_first_stage_s
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, plans_of
from dsx.pricing.tiles import COMPILER

TILE = 16  # plans side by side: their segments fit into the cache of a core
_TILES = 64  # of a call


def scanned_cuts(
    problem: Problem, table: KeyCosts, rows: Rows, dtype: type, least_memory: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the boundaries [N, L + 1] of the optimal cuts of [N] rows, and which of them fit.

    The cut of a row that fits with none is arbitrary. With `least_memory` it is the one of least memory for all rows.
    """
    contents = chain_contents(problem.workload.stack)
    contents = Contents(contents.layers.astype(dtype), contents.of_segment)
    order = np.argsort(rows.choices["pp"], kind="stable")
    float64 = dtype is np.float64
    none = np.zeros((0, contents.of_segment.shape[0] + 1), np.int32)
    parts: list[tuple[np.ndarray, np.ndarray]] = [(none, np.zeros(0, dtype=bool))]
    for of_call, filled in _calls(order):
        with jax.enable_x64(float64):
            here = rows.take(filled)
            plans, workload = plans_of(problem, table, here, dtype)
            stages = here.choices["pp"].reshape(-1, TILE).astype(np.int32)
            depths = Depths(stages.min(axis=1), stages.max(axis=1))
            filled_tiles = np.int32(-(-len(of_call) // TILE))
            first_s = None
            if not least_memory:
                alone, _ = plans_of(problem, table, rows.take(of_call), dtype)
                missing = len(filled) - len(of_call)
                first_s = np.pad(_first_s(alone, workload, contents), [(0, 0), (0, missing)], mode="edge")
            cuts, fits = _best_cuts(plans, depths, first_s, filled_tiles, workload, contents, least_memory)
        parts.append((np.asarray(cuts)[: len(of_call)], np.asarray(fits)[: len(of_call)]))
    back = np.argsort(order, kind="stable")
    cuts, fits = (np.concatenate(columns)[back] for columns in zip(*parts, strict=True))
    return cuts, fits


def _calls(order: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows of each call, and the same rows padded to the length of a call with the last one."""
    length = TILE * _TILES
    for start in range(0, len(order), length):
        rows = order[start : start + length]
        yield rows, pad(rows, length)


@xp.unchecked
def _first_s(plans: Plans, workload: Workload, contents: Contents) -> np.ndarray:
    return np.asarray(of_first_stage_s(stage_costs(plans, workload), contents))


@functools.partial(jax.jit, static_argnames="least_memory", compiler_options=COMPILER)
def _best_cuts(
    plans: Plans,
    depths: Depths,
    first_s: Any,
    filled_tiles: Any,
    workload: Workload,
    contents: Contents,
    least_memory: bool,
) -> Any:
    def best(plan: Plans, of_first: Any, stages: Depths) -> Any:
        usable = room(plan.cluster, plan.assumptions, plan.choices.num_gpus)
        return boundaries(stage_costs(plan, workload), contents, usable, stages, of_first, least_memory)

    @jax.jit  # traced once for its shapes and its values
    def tile(*of_tile: Any) -> Any:
        return jax.vmap(best, in_axes=(-1, -1, None))(*of_tile)

    def empty(*of_tile: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(tile, *of_tile))

    def filled(numbered: Any) -> Any:
        number, of_tile = numbered
        return jax.lax.cond(number < filled_tiles, tile, empty, *of_tile)

    # The rows of a tile are the last axis. The tiles become the first axis, which `map` runs over.
    tiles = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], -1, TILE), -2, 0), (plans, first_s))
    found = jax.lax.map(filled, (jnp.arange(_TILES, dtype=jnp.int32), (*tiles, depths)))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)
