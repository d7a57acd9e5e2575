"""Best cuts of rows: find the cut of each row, price it, and write it down as text.

A row with one chunk per stage has its optimal cut (`dsx.pricing.optimal_cut`), one with several the best of a few
(`dsx.pricing.chunk_cuts`).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.cut_bounds import ROUNDING, CutBounds
from dsx.cost.headroom import Room, room
from dsx.errors import PlanError
from dsx.pricing.batch import none_priced, price, stage_costs
from dsx.pricing.chunk_cuts import chunk_cuts, distinct_rows, rounds_of
from dsx.pricing.cut_probe import probed_cuts
from dsx.pricing.cut_scan import scanned_cuts
from dsx.pricing.layers import KeyCosts
from dsx.pricing.price_tiles import least_bytes_of_tiles, price_tiles
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, machines, plans_of
from dsx.pricing.tiles import MANY
from dsx.space.layer_layout import starts

_AT_ONCE = 1 << 10  # rows that are priced together: the costs of their stages fit into the cache of a core

# The cut that is best for a row: of those that fit the fastest, the one of least memory, or that if none fits.
Goal = Literal["fastest", "least memory", "fastest, else least memory"]


class Priced(NamedTuple):
    """The costs of N rows as NumPy arrays, and the boundaries of their chunks [N, L + 1] in a chain of L layers.

    Chunk c of stage i is interval c p + i of the chain. Boundaries after the last chunk are L.
    """

    costs: StepCosts
    cuts: np.ndarray


def price_best_cuts(
    problem: Problem, table: KeyCosts, rows: Rows, goal: Goal = "fastest, else least memory", float64: bool = True
) -> Priced:
    """Find and price the best cut of [N] rows, in float64 or float32.

    With the goal "fastest" the costs of a row that fits with no cut are infinite.
    """
    dtype = np.float64 if float64 else np.float32
    several = rows.choices["vpp"] > 1
    if not several.any():
        return _optimal(problem, table, rows, goal, dtype)
    which = np.flatnonzero(~several), np.flatnonzero(several)
    of_one = _optimal(problem, table, rows.take(which[0]), goal, dtype)
    of_several = _of_chunks(problem, table, rows.take(which[1]), goal, dtype)
    back = np.argsort(np.concatenate(which))
    return jax.tree.map(lambda *columns: np.concatenate(columns)[back], of_one, of_several)


def price_cuts(problem: Problem, table: KeyCosts, rows: Rows, cuts: np.ndarray, dtype: type = np.float64) -> Priced:
    """Price [N] rows with the given cuts [N, L + 1]."""
    pp, vpp = rows.choices["pp"], rows.choices["vpp"]
    if len(pp) >= MANY and (vpp == 1).all():
        return Priced(price_tiles(problem, table, rows, cuts, dtype), cuts)
    order = np.lexsort((pp, vpp))  # rows that are priced together have about as many chunks and stages
    parts = [none_priced(dtype is np.float64)]
    for start in range(0, len(order), _AT_ONCE):
        here = order[start : start + _AT_ONCE]
        parts.append(price_chunks(problem, table, rows.take(here), rounds_of(cuts[here], pp[here], vpp[here]), dtype))
    back = np.argsort(order)
    return Priced(jax.tree.map(lambda *columns: np.concatenate(columns)[back], *parts), cuts)


def price_chunks(
    problem: Problem, table: KeyCosts, rows: Rows, boundaries: np.ndarray, dtype: type = np.float64
) -> StepCosts:
    """Price [N] rows with the given chunks, [R, S + 1, N] boundaries (`dsx.cost.stages.stages_between`)."""
    plans, workload = plans_of(problem, table, rows, dtype)
    return price(plans, workload, boundaries, dtype is np.float64)


def boundaries_of(layers: Sequence[int], pp: int) -> np.ndarray:
    """Return the [R, pp + 1] boundaries of R rounds of chunks with these numbers of layers, as a layout lists them."""
    ends = np.array(starts(layers))
    return np.stack([ends[first : first + pp + 1] for first in range(0, len(layers), pp)])


def layers_of_stages(cuts: np.ndarray) -> np.ndarray:
    """Return [N] cuts as text: the layers of each chunk, "21,20,20,21"."""
    first, which = distinct_rows(cuts.astype(np.int16))
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


def _optimal(problem: Problem, table: KeyCosts, rows: Rows, goal: Goal, dtype: type) -> Priced:
    """Price the optimal cuts of rows with one chunk per stage."""
    num_rows = len(rows.positions)
    cuts, fits = np.zeros((num_rows, int(problem.workload.stack.num_layers) + 1), np.int32), np.zeros(num_rows, bool)
    if goal != "least memory":
        here = np.flatnonzero(_may_fit(problem, table, rows))
        cuts[here], fits[here] = _optimal_cuts(problem, table, rows.take(here), least_memory=False)
    if goal != "fastest":
        rest = np.flatnonzero(~fits)
        cuts[rest], _ = _optimal_cuts(problem, table, rows.take(rest), least_memory=True)
    priced = price_cuts(problem, table, rows, cuts, dtype)
    return _finite_where(fits, priced) if goal == "fastest" else priced


def _may_fit(problem: Problem, table: KeyCosts, rows: Rows) -> np.ndarray:
    """Return which of [N] rows may have a cut that fits, by the memory of the mean stage."""
    many = len(rows.positions) >= MANY
    least = least_bytes_of_tiles(problem, table, rows) if many else _least_bytes(problem, table, rows)
    return least * (1.0 - ROUNDING) <= np.asarray(_room(problem, rows).gpu)


def _room(problem: Problem, rows: Rows) -> Room:
    return room(*machines(problem, rows.points), rows.choices["num_gpus"].astype(np.float64))


def _least_bytes(problem: Problem, table: KeyCosts, rows: Rows) -> np.ndarray:
    found = [np.zeros(0)]
    for start in range(0, len(rows.positions), _AT_ONCE):
        plans, workload = plans_of(problem, table, rows.take(slice(start, start + _AT_ONCE)))
        found.append(np.asarray(CutBounds(stage_costs(plans, workload)).peak_bytes))
    return np.concatenate(found)


def _optimal_cuts(problem: Problem, table: KeyCosts, rows: Rows, least_memory: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the boundaries [N, L + 1] of the optimal cuts of [N] rows, and which of them fit."""
    cuts, fits, left = probed_cuts(problem, table, rows, least_memory)
    rest = np.flatnonzero(left)
    if len(rest):
        cuts[rest], fits[rest] = scanned_cuts(problem, table, rows.take(rest), np.float64, least_memory)
    return cuts, fits


def _of_chunks(problem: Problem, table: KeyCosts, rows: Rows, goal: Goal, dtype: type) -> Priced:
    """Price the best of the cuts of rows with several chunks per stage.

    Where none fits, it is the one that needs least memory.
    """
    usable = jax.tree.map(np.asarray, _room(problem, rows))
    cuts, row = chunk_cuts(problem, table, rows)
    found = _each_best(price_cuts(problem, table, rows.take(row), cuts, dtype), row, usable, goal)
    return _finite_where(np.asarray(usable.holds(found.costs)), found) if goal == "fastest" else found


def _each_best(priced: Priced, row: np.ndarray, usable: Room, goal: Goal) -> Priced:
    """Return the best of the cuts of each row: by seconds if one of them fits, else by memory; the first of equals."""
    costs = priced.costs
    fits = jax.tree.map(lambda most: most[row], usable).holds(costs)
    step_s = np.where(fits & (goal != "least memory"), costs.step_time_s, np.inf)
    order = np.lexsort((np.where(np.isinf(step_s), costs.peak_bytes, 0.0), step_s, row))
    best = order[np.flatnonzero(np.diff(row[order], prepend=-1))]
    return jax.tree.map(lambda column: column[best], priced)


def _finite_where(fits: np.ndarray, priced: Priced) -> Priced:
    return priced._replace(costs=jax.tree.map(lambda column: np.where(fits, column, np.inf), priced.costs))
