"""The prices of many rows with given cuts, and the least memory of any cut, compiled."""

import functools
from typing import Any

import jax
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.cut_bounds import CutBounds
from dsx.cost.step import Workload
from dsx.pricing.batch import Plans, costs, none_priced, stage_costs
from dsx.pricing.layers import KeyCosts
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows
from dsx.pricing.tiles import COMPILER, compiled_in, joined, row_tiles

_FEW_STAGES = 16  # of a tile, or as many as the chain has layers: cuts into fewer are padded with empty ones


def price_tiles(problem: Problem, table: KeyCosts, rows: Rows, cuts: np.ndarray, dtype: type) -> StepCosts:
    """Price [N] rows with one chunk per stage, with the given cuts [N, L + 1]."""
    order, most, float64 = np.argsort(rows.choices["pp"], kind="stable"), cuts.shape[1] - 1, dtype is np.float64
    tiles = [none_priced(float64)]
    for tile, plans, workload in row_tiles(problem, table, rows.take(order), dtype):
        deepest = _FEW_STAGES if plans.choices.pp[-1] <= _FEW_STAGES < most else most
        boundaries = cuts[order[tile], : deepest + 1].T[None].astype(dtype)
        with compiled_in(float64):
            tiles.append(_priced(plans, workload, boundaries))
    back = np.argsort(order, kind="stable")
    return jax.tree.map(lambda column: column[back], joined(tiles, len(order)))


def least_bytes_of_tiles(problem: Problem, table: KeyCosts, rows: Rows) -> np.ndarray:
    """Return [N] what the fullest GPU needs at least, bytes; `dsx.cost.cut_bounds` says why."""
    tiles: list[Any] = []
    for _, plans, workload in row_tiles(problem, table, rows):
        with compiled_in(True):
            tiles.append(_least_bytes(plans, workload))
    return joined(tiles, len(rows.positions))


@functools.partial(jax.jit, compiler_options=COMPILER)
def _priced(plans: Plans, workload: Workload, boundaries: Any) -> StepCosts:
    return costs(plans, workload, boundaries)


@functools.partial(jax.jit, compiler_options=COMPILER)
def _least_bytes(plans: Plans, workload: Workload) -> Any:
    return CutBounds(stage_costs(plans, workload)).peak_bytes
