"""Optimal cuts of rows: find the cut of each row, price it, and write it down as text.

Rows are cut in tiles of plans with similar numbers of stages, so that the scan wastes few stages. All calls have one
shape and share what is compiled. Empty tiles are skipped.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.headroom import usable_bytes
from dsx.cost.stage_costs import StageCosts
from dsx.cost.step import Workload
from dsx.errors import PlanError
from dsx.pricing.batch import Plans, none_priced, pad, price
from dsx.pricing.layers import KeyCosts
from dsx.pricing.optimal_cut import Contents, Depths, boundaries, chain_contents
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, plans_of
from dsx.space.layer_layout import starts

TILE = 16  # plans side by side: their segments fit into the cache of a core
_TILES = 64  # of a call
# Registers of 512 bits where the processor has them; XLA's default is 256.
_COMPILER = {"xla_cpu_prefer_vector_width": 512}

# The cut that is best for a row: of those that fit the fastest, the one of least memory, or that if none fits.
Goal = Literal["fastest", "least memory", "fastest, else least memory"]


@dataclass(frozen=True, slots=True)
class Priced:
    """The costs of N rows as NumPy arrays, and the boundaries of their cuts [N, L + 1] of a chain of L layers."""

    costs: StepCosts
    cuts: np.ndarray


def price_best_cuts(
    problem: Problem, table: KeyCosts, rows: Rows, goal: Goal = "fastest, else least memory", float64: bool = True
) -> Priced:
    """Find and price the optimal cut of [N] rows, in float64 or float32.

    With the goal "fastest" a row that fits with no cut has no cut, and its costs are infinite.
    """
    priced, fits = _price(problem, table, rows, float64, goal == "least memory")
    rest = np.flatnonzero(~fits)
    if not len(rest):
        return priced
    if goal == "fastest":
        return replace(priced, costs=jax.tree.map(lambda column: np.where(fits, column, np.inf), priced.costs))
    smallest, _ = _price(problem, table, rows.take(rest), float64, True)

    def put(column: np.ndarray, values: np.ndarray) -> np.ndarray:
        column[rest] = values
        return column

    return Priced(jax.tree.map(put, priced.costs, smallest.costs), put(priced.cuts, smallest.cuts))


def price_cuts(problem: Problem, table: KeyCosts, rows: Rows, cuts: np.ndarray) -> Priced:
    """Price [N] rows with the given cuts [N, L + 1], in float64."""
    return Priced(price_chunks(problem, table, rows, cuts.T[None]), cuts)


def price_chunks(
    problem: Problem, table: KeyCosts, rows: Rows, boundaries: np.ndarray, dtype: type = np.float64
) -> StepCosts:
    """Price [N] rows with the given chunks, [R, S + 1, N] boundaries (`dsx.cost.stages.stages_between`)."""
    parts: list[StepCosts] = []
    for start in range(0, len(rows.positions), TILE * _TILES):
        here = slice(start, start + TILE * _TILES)
        plans, workload = plans_of(problem, table, rows.take(here), dtype)
        parts.append(price(plans, workload, boundaries[..., here], dtype is np.float64))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts) if parts else none_priced(dtype is np.float64)


def boundaries_of(layers: Sequence[int], pp: int) -> np.ndarray:
    """Return the [R, pp + 1] boundaries of R rounds of chunks with these numbers of layers, as a layout lists them."""
    ends = np.array(starts(layers))
    return np.stack([ends[first : first + pp + 1] for first in range(0, len(layers), pp)])


def layers_of_stages(cuts: np.ndarray) -> np.ndarray:
    """Return [N] cuts as text: the layers of each stage, "21,20,20,21"."""
    # Rows as bytes are sorted several times as fast as rows of numbers.
    as_bytes = np.ascontiguousarray(cuts, dtype=np.int16).view(np.dtype((np.void, 2 * cuts.shape[1]))).ravel()
    _, first, which = np.unique(as_bytes, return_index=True, return_inverse=True)
    texts = np.empty(len(first), dtype=object)
    texts[:] = [",".join(str(size) for size in row if size) for row in np.diff(cuts[first], axis=1).tolist()]
    return texts[which]


def cuts_of_text(texts: list[str], num_layers: int) -> np.ndarray:
    """Return the [N, L + 1] boundaries of cuts that `layers_of_stages` wrote.

    Raises PlanError if the stages of a text do not hold `num_layers` layers.
    """
    cuts = np.full((len(texts), num_layers + 1), num_layers)
    for cut, text in zip(cuts, texts, strict=True):
        ends = np.cumsum([0, *map(int, text.split(","))])
        if ends[-1] != num_layers:
            raise PlanError(f"stages of {text} layers hold {ends[-1]:,} layers, but the model has {num_layers:,}")
        cut[: len(ends)] = ends
    return cuts


def _price(
    problem: Problem, table: KeyCosts, rows: Rows, float64: bool, least_memory: bool
) -> tuple[Priced, np.ndarray]:
    """Return the priced rows, and the mask of rows that fit."""
    dtype = np.float64 if float64 else np.float32
    contents = chain_contents(problem.workload.stack)
    contents = Contents(contents.layers.astype(dtype), contents.of_segment)
    order = np.argsort(rows.choices["pp"], kind="stable")
    parts: list[Any] = []
    for of_call, filled in _calls(order):
        with jax.enable_x64(float64):
            here = rows.take(filled)
            plans, workload = plans_of(problem, table, here, dtype)
            stages = here.choices["pp"].reshape(-1, TILE).astype(np.int32)
            depths = Depths(stages.min(axis=1), stages.max(axis=1))
            filled_tiles = np.int32(-(-len(of_call) // TILE))
            found = _best_cuts(plans, depths, filled_tiles, workload, contents, least_memory)
        parts.append(_first(len(of_call), found))
    back = np.argsort(order, kind="stable")
    if not parts:
        none = np.zeros((0, contents.of_segment.shape[0] + 1), np.int32)
        return Priced(none_priced(float64), none), np.zeros(0, dtype=bool)
    cuts, fits = jax.tree.map(lambda *leaves: np.concatenate(leaves)[back], *parts)
    return Priced(price_chunks(problem, table, rows, cuts.T[None], dtype), cuts), fits


def _first(count: int, found: Any) -> Any:
    """Return the first rows of all leaves, as NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], found)


def _calls(order: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows of each call, and the same rows padded to the length of a call with the last one."""
    length = TILE * _TILES
    for start in range(0, len(order), length):
        rows = order[start : start + length]
        yield rows, pad(rows, length)


@functools.partial(jax.jit, static_argnames="least_memory", compiler_options=_COMPILER)
def _best_cuts(
    plans: Plans, depths: Depths, filled_tiles: Any, workload: Workload, contents: Contents, least_memory: bool
) -> Any:
    def best(plan: Plans, stages: Depths) -> Any:
        costs = StageCosts(plan.kinds, plan.choices, workload.stack, workload.searched, plan.cluster, plan.assumptions)
        usable = usable_bytes(plan.cluster.device, plan.assumptions)
        return boundaries(costs, contents, usable, stages, least_memory)

    @jax.jit  # traced once for its shapes and its values
    def tile(*of_tile: Any) -> Any:
        return jax.vmap(best, in_axes=(-1, None))(*of_tile)

    def empty(*of_tile: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(tile, *of_tile))

    def filled(numbered: Any) -> Any:
        number, of_tile = numbered
        return jax.lax.cond(number < filled_tiles, tile, empty, *of_tile)

    # The rows of a tile are the last axis. The tiles become the first axis, which `map` runs over.
    tiles = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], -1, TILE), -2, 0), plans)
    found = jax.lax.map(filled, (jnp.arange(_TILES, dtype=jnp.int32), (tiles, depths)))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)
