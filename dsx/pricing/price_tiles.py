"""The prices of many rows with given cuts, compiled."""

import functools
from typing import Any

import jax
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.step import Workload
from dsx.pricing.batch import Plans, costs, none_priced, pad
from dsx.pricing.layers import KeyCosts
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, plans_of
from dsx.pricing.tiles import COMPILER, TILE, joined, ranges

_STAGES = 4, 16, 64  # that the boundaries of a tile have; shorter cuts are padded with empty stages


def price_tiles(problem: Problem, table: KeyCosts, rows: Rows, cuts: np.ndarray, dtype: type) -> StepCosts:
    """Price [N] rows with one chunk per stage, with the given cuts [N, L + 1]."""
    pp, float64 = rows.choices["pp"], dtype is np.float64
    order = np.argsort(pp, kind="stable")
    tiles = [none_priced(float64)]
    for here, size in ranges(len(order), (TILE // 8, TILE)):
        tile = pad(order[here], size)
        plans, workload = plans_of(problem, table, rows.take(tile), dtype)
        most = cuts.shape[1] - 1
        deepest = min(stages for stages in (*_STAGES, most) if pp[tile[-1]] <= stages <= most)
        boundaries = cuts[tile, : deepest + 1].T[None].astype(dtype)
        workload = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), workload)
        with jax.enable_x64(float64):
            tiles.append(_priced(plans, workload, boundaries))
    back = np.argsort(order, kind="stable")
    return jax.tree.map(lambda column: column[back], joined(tiles, len(order)))


@functools.partial(jax.jit, compiler_options=COMPILER)
def _priced(plans: Plans, workload: Workload, boundaries: Any) -> StepCosts:
    return costs(plans, workload, boundaries)
