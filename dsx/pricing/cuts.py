"""Rows with the best cut of each: found, priced, and written down.

Rows go through the scan in tiles of plans with about as many stages, so that few stages are scanned for nothing. All
calls have one shape, and so share what is compiled; tiles that no row fills are passed over.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.stage_costs import StageCosts
from dsx.cost.step import Workload
from dsx.errors import PlanError
from dsx.pricing.batch import Plans, none_priced, pad, price
from dsx.pricing.layers import Kinds
from dsx.pricing.optimal_cut import Contents, Depths, boundaries, contents
from dsx.pricing.plans import machines, rows_of, step_choices
from dsx.pricing.problem import Problem
from dsx.space.enumerate import Arrays

TILE = 16  # plans side by side: their segments fit into the cache of a core
_TILES = 64  # of a call
# Registers of 512 bits where the processor has them; XLA's default is 256.
_COMPILER = {"xla_cpu_prefer_vector_width": 512}


@dataclass(frozen=True, slots=True)
class Priced:
    """The costs of N rows as NumPy arrays, and the boundaries of their cuts [N, L + 1], of a chain of L layers."""

    costs: StepCosts
    cuts: np.ndarray


def price_best_cuts(
    problem: Problem,
    table: Kinds,
    points: np.ndarray,
    positions: np.ndarray,
    choices: Arrays,
    wide: bool = True,
    least_memory: bool | None = None,
) -> Priced:
    """Find and price the best cut of [N] rows, in float64 if `wide`; the other arguments are those of `price_rows`.

    Rows that no cut makes fit have the cut of least memory. With `least_memory` all have it; with False those rows have
    no cut at all, and costs that are infinite.
    """
    priced, fits = _price(problem, table, points, positions, choices, wide, bool(least_memory))
    rest = np.flatnonzero(~fits)
    if not len(rest):
        return priced
    if least_memory is False:
        return replace(priced, costs=jax.tree.map(lambda column: np.where(fits, column, np.inf), priced.costs))
    some = {name: column[rest] for name, column in choices.items()}
    smallest, _ = _price(problem, table, points[rest], positions[rest], some, wide, True)

    def put(column: np.ndarray, values: np.ndarray) -> np.ndarray:
        column[rest] = values
        return column

    return Priced(jax.tree.map(put, priced.costs, smallest.costs), put(priced.cuts, smallest.cuts))


def price_cuts(
    problem: Problem, table: Kinds, points: np.ndarray, positions: np.ndarray, choices: Arrays, cuts: np.ndarray
) -> Priced:
    """Price [N] rows with the cuts that they have, in float64."""
    return Priced(_priced(problem, table, points, positions, choices, cuts, np.float64), cuts)


def layers_of_stages(cuts: np.ndarray) -> np.ndarray:
    """Return [N] texts of cuts: the layers of each stage, "21,20,20,21"."""
    # Rows as bytes are sorted several times as fast as rows of numbers.
    as_bytes = np.ascontiguousarray(cuts, dtype=np.int16).view(np.dtype((np.void, 2 * cuts.shape[1]))).ravel()
    _, first, which = np.unique(as_bytes, return_index=True, return_inverse=True)
    texts = np.empty(len(first), dtype=object)
    texts[:] = [",".join(str(size) for size in row if size) for row in np.diff(cuts[first], axis=1).tolist()]
    return texts[which]


def cuts_of_text(texts: list[str], num_layers: int) -> np.ndarray:
    """Return the [N, L + 1] boundaries that `layers_of_stages` writes.

    Raises PlanError for a text that does not cut so many layers.
    """
    cuts = np.full((len(texts), num_layers + 1), num_layers)
    for cut, text in zip(cuts, texts, strict=True):
        ends = np.cumsum([0, *map(int, text.split(","))])
        if ends[-1] != num_layers:
            raise PlanError(f"stages of {text} layers hold {ends[-1]:,} layers, and the model has {num_layers:,}")
        cut[: len(ends)] = ends
    return cuts


def _price(
    problem: Problem,
    table: Kinds,
    points: np.ndarray,
    positions: np.ndarray,
    choices: Arrays,
    wide: bool,
    least_memory: bool,
) -> tuple[Priced, np.ndarray]:
    """Return the priced rows, and which of them fit."""
    kind = np.float64 if wide else np.float32
    held = contents(problem.workload.stack)
    held = Contents(held.layers.astype(kind), held.of_segment)
    order = np.argsort(choices["pp"], kind="stable")
    parts: list[Any] = []
    for rows, filled in _calls(order):
        with jax.enable_x64(wide):
            given = _of_rows(problem, table, points[filled], positions[filled], choices, filled, kind)
            stages = choices["pp"][filled].reshape(-1, TILE).astype(np.int32)
            depths = Depths(stages.min(axis=1), stages.max(axis=1))
            filled_tiles = np.int32(-(-len(rows) // TILE))
            found = _best_cuts(given, depths, filled_tiles, problem.workload, held, least_memory)
        parts.append(_first(len(rows), found))
    back = np.argsort(order, kind="stable")
    if not parts:
        none = np.zeros((0, held.of_segment.shape[0] + 1), np.int32)
        return Priced(none_priced(wide), none), np.zeros(0, dtype=bool)
    cuts, fits = jax.tree.map(lambda *leaves: np.concatenate(leaves)[back], *parts)
    return Priced(_priced(problem, table, points, positions, choices, cuts, kind), cuts), fits


def _priced(
    problem: Problem,
    table: Kinds,
    points: np.ndarray,
    positions: np.ndarray,
    choices: Arrays,
    cuts: np.ndarray,
    kind: type,
) -> StepCosts:
    """Return the costs of rows with their cuts."""
    made: list[StepCosts] = []
    for start in range(0, len(positions), TILE * _TILES):
        rows = np.arange(start, min(start + TILE * _TILES, len(positions)))
        plans = _of_rows(problem, table, points[rows], positions[rows], choices, rows, kind)
        made.append(price(plans, problem.workload, cuts[rows].T, wide=kind is np.float64))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *made) if made else none_priced(kind is np.float64)


def _first(count: int, found: Any) -> Any:
    """Return the first rows of all leaves, as NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], found)


def _calls(order: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows that are priced in one call, and the same, the last one repeated, up to the length of a call."""
    length = TILE * _TILES
    for start in range(0, len(order), length):
        rows = order[start : start + length]
        yield rows, pad(rows, length)


def _of_rows(
    problem: Problem,
    table: Kinds,
    points: np.ndarray,
    positions: np.ndarray,
    choices: Arrays,
    rows: np.ndarray,
    kind: type,
) -> Plans:
    """Return some rows as plans."""
    layers = jax.tree.map(lambda leaf: rows_of(np.asarray(leaf), points, positions).astype(kind), table)
    hardware, assumptions = jax.tree.map(lambda leaf: leaf.astype(kind), machines(problem, points))
    tiers = [tier.name for tier in problem.cluster.network.middle]
    return Plans(layers, step_choices(choices, lambda column: column[rows].astype(kind), tiers), hardware, assumptions)


@functools.partial(jax.jit, static_argnames="least_memory", compiler_options=_COMPILER)
def _best_cuts(
    given: Plans, depths: Depths, filled_tiles: Any, workload: Workload, held: Contents, least_memory: bool
) -> Any:
    def best(plan: Plans, stages: Depths) -> Any:
        costs = StageCosts(plan.kinds, plan.choices, workload.stack, workload.open, plan.cluster, plan.assumptions)
        return boundaries(costs, held, plan.cluster.device.hbm_capacity, stages, least_memory)

    @jax.jit  # traced once for its shapes and its values
    def tile(*of_tile: Any) -> Any:
        return jax.vmap(best, in_axes=(-1, None))(*of_tile)

    def empty(*of_tile: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(tile, *of_tile))

    def filled(numbered: Any) -> Any:
        number, of_tile = numbered
        return jax.lax.cond(number < filled_tiles, tile, empty, *of_tile)

    # The rows of a tile are the last axis; the tiles become the first one, over which `map` goes.
    tiles = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], -1, TILE), -2, 0), given)
    found = jax.lax.map(filled, (jnp.arange(_TILES, dtype=jnp.int32), (tiles, depths)))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)
