"""The optimal cuts of rows by probes, many plans side by side: on NumPy, or by compiled code for many rows.

A probe fills the stages up to a bound of what each may cause, which tells whether a cut keeps it
(`dsx.pricing.fill`). The least bound is between two others: a probe that reaches the end of the chain lowers
the upper one to what its slowest stage causes; one that does not raises the lower one to the least that any of its
stages causes with one layer more.

Of the cuts that keep the least bound (`dsx.pricing.fill`), and of those whose first stage adds so much less to the
end of a step that a slower pipeline pays, the one is taken that `dsx.pricing.optimal_cut` takes. Where layers are
unlike, a filled stage may be left without a layer. Then the least bound may be too low, and the row is left to the
scan.

Many rows share what they have in common: rows with equal pipelines have the same least bound if memory has no limit,
which is next to theirs; rows whose stages need equal memory have the same cut of least memory.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.arrays import Chosen, Cuts, PerPlan, PlanBools, PlanFloats, PlanInts
from dsx.cost.cut_bounds import ROUNDING, CutBounds
from dsx.cost.interval import room
from dsx.cost.step import Workload
from dsx.pricing.fill import (
    TIES,
    ChainModel,
    Chains,
    Fills,
    causes,
    chains_of,
    even_cut,
    first_s,
    least_step_s,
    probe,
    room_of,
)
from dsx.pricing.keys import KeyCosts
from dsx.pricing.problem import Plans, Problem, stage_costs
from dsx.pricing.row_costs import MANY, Rows, plans_of
from dsx.records import Int, Over, Shaped, tree_leaves, tree_map

_SHIFT = np.uint64(29)


def first_of_equals(columns: Sequence[Shaped[np.ndarray, "plans"]]) -> tuple[Int[np.ndarray, "distinct"], PlanInts]:
    """Return the first of the plans whose columns of numbers are equal, in order, and which of them each is.

    Hashes are sorted many times as fast as rows of numbers. Where two of them are the same by chance, all plans count
    as different.
    """
    count = len(columns[0])
    factors = np.random.default_rng(0).integers(1, 2**63, len(columns), dtype=np.uint64) | np.uint64(1)
    hashes = np.zeros(count, dtype=np.uint64)
    for column, factor in zip(columns, factors, strict=True):
        hashes = (hashes ^ np.ascontiguousarray(column, dtype=np.float64).view(np.uint64)) * factor
        hashes ^= hashes >> _SHIFT
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    if not all((column == column[first][which]).all() for column in columns):
        return np.arange(count), np.arange(count)
    order = np.argsort(first)
    return first[order], np.argsort(order)[which]


_AT_ONCE = 1 << 10  # rows that are cut together on NumPy: what their stages cause fits into the cache of a core
_MOST_AT_ONCE = 1 << 18  # that are cut together by compiled code
_GAP, _GROWTH, _FAR = 2.0**-6, 4.0, 16.0  # of a bound above the lower one, until a cut is known
_SHARES = 0.5, 0.0, 0.25  # of the way from the lower to the upper bound, at which probes are made in turn
_MOST = np.finfo(float).max  # a bound that only a stage which does not fit exceeds


class ProbedCuts(NamedTuple):
    """The cuts of rows, which of them fit, and which rows a probe cannot cut."""

    cuts: Cuts
    fits: PlanBools
    uncut: PlanBools


@xp.unchecked
def probed_cuts(problem: Problem, table: KeyCosts, rows: Rows, least_memory: bool) -> ProbedCuts:
    """Return the optimal cuts of rows with one chunk per stage, in float64.

    The cut of a row that fits with none, or that is left, is arbitrary.
    """
    workload = problem.workload
    order = np.argsort(rows.choices["pp"], kind="stable")
    model = ChainModel(workload.stack, workload.searched, least_memory)
    fills = Fills(model, compiled=len(order) >= MANY)
    no_cuts = np.zeros((0, int(model.length) + 1), np.int16)
    parts = [ProbedCuts(no_cuts, np.zeros(0, dtype=bool), np.zeros(0, dtype=bool))]
    at_once = _MOST_AT_ONCE if fills.compiled else _AT_ONCE
    for start in range(0, len(order), at_once):
        chains, low = _prepared(fills, problem, table, rows.take(order[start : start + at_once]))
        parts.append(_of_equals(fills, chains, low) if fills.compiled else _cuts(fills, chains, low))
    back = np.argsort(order, kind="stable")
    return ProbedCuts(*(np.concatenate(columns)[back] for columns in zip(*parts, strict=True)))


@xp.unchecked
def may_take(problem: Problem, table: KeyCosts, rows: Rows, most_s: PlanFloats) -> PlanBools:
    """Return which rows with one chunk per stage may have a cut that fits and takes at most `most_s`."""
    possible = np.ones(len(most_s), dtype=bool)
    order = np.argsort(rows.choices["pp"], kind="stable")
    for start in range(0, len(order), _AT_ONCE):
        part = order[start : start + _AT_ONCE]
        plans, workload = plans_of(problem, table, rows.take(part))
        fills = Fills(ChainModel(workload.stack, workload.searched, least_memory=False), compiled=False)
        usable = room(plans.cluster, plans.assumptions, plans.choices.num_gpus)
        costs, zero = stage_costs(plans, workload), np.zeros(len(part))
        bounds = CutBounds(costs)
        bound = most_s[part] - np.asarray(bounds.reduction_s + bounds.update_s)
        possible[part] = fills(probe, chains_of(costs, usable, with_first=False), bound, zero, zero).reached
    return possible


def _least_bound(
    fills: Fills, chains: Chains, low: PlanFloats, first: PlanFloats, begin: PlanFloats, near: bool = False
) -> tuple[PlanFloats, PlanBools]:
    """Return the least bound that the stages from `first` on keep, at least `low`, and whether one has no layer.

    It is infinite where the layers from `begin` on do not fit. With `near` it is likely to be `low`.
    """
    low, high = low.copy(), np.full_like(low, np.inf)
    some_empty, number, gap = np.zeros(len(low), dtype=bool), int(near), _GAP
    while len(at := np.flatnonzero(low * (1.0 + TIES) < high)):
        # The least bound is mostly next to the lower one: a cut that fits and keeps a near bound limits the others.
        farther = low[at] * (1.0 + gap) if gap < _FAR else np.full(len(at), _MOST)
        share = _SHARES[number % len(_SHARES)]
        between = np.where(high[at] < np.inf, low[at] + share * (high[at] - low[at]), farther)
        bound = np.where((share > 0.0) & (between < high[at]), between, low[at])
        probed = fills(probe, _taken(chains, at), bound, first[at], begin[at])
        high[at] = np.where(probed.reached, np.maximum(probed.slowest, low[at]), high[at])
        low[at] = np.where(
            probed.reached, np.where(bound <= low[at], high[at], low[at]), np.minimum(probed.least_next, high[at])
        )
        some_empty[at] = np.where(probed.reached, probed.some_empty, some_empty[at])
        gap, number = gap * (_GROWTH if share else 1.0), number + 1
    return high, some_empty


def _prepared(fills: Fills, problem: Problem, table: KeyCosts, rows: Rows) -> tuple[Chains, PlanFloats]:
    """Return the chains of rows, and what their slowest stage causes at least."""
    if fills.compiled:
        from dsx.pricing.compiled import of_row_tiles

        chains, low = of_row_tiles(_chains, problem, table, rows, fills.model.least_memory)
    else:
        chains, low = _chains(*plans_of(problem, table, rows), fills.model.least_memory)
    return chains, np.asarray(low)


def _chains(plans: Plans, workload: Workload, least_memory: bool) -> tuple[Chains, PerPlan]:
    costs = stage_costs(plans, workload)
    bounds, usable = CutBounds(costs), room(plans.cluster, plans.assumptions, plans.choices.num_gpus)
    low = (bounds.peak_bytes if least_memory else bounds.pipeline_s) * (1.0 - ROUNDING)
    return chains_of(costs, usable, with_first=not least_memory), low


def _of_equals(fills: Fills, chains: Chains, low: PlanFloats) -> ProbedCuts:
    """Return the cuts of many rows, of which many have the same stages but for memory, or but for seconds."""
    choices = chains.choices._replace(offload=[])
    if fills.model.least_memory:
        first, which = first_of_equals(tree_leaves((chains.bytes_of, chains.choices)))
        return ProbedCuts(*(column[which] for column in _cuts(fills, _taken(chains, first), low[first])))
    first, which = first_of_equals(tree_leaves((chains.forward_s, chains.backward_s, chains.sends, choices)))
    shared = 2 * len(first) < len(low)
    if shared:
        limited, zero = _taken(chains, first), np.zeros(len(first))
        unlimited = limited._replace(usable=tree_map(lambda most: np.full_like(most, np.inf), limited.usable))
        low = _least_bound(fills, unlimited, low[first], zero, zero)[0][which]
    return _cuts(fills, chains, low, near=shared)


def _cuts(fills: Fills, chains: Chains, low: PlanFloats, near: bool = False) -> ProbedCuts:
    """Return the cuts of rows whose slowest stage causes at least `low`; with `near` it is likely to cause no more."""
    length, zero = int(fills.model.length), np.zeros_like(low)
    least, uncut = _least_bound(fills, chains, low, zero, zero, near)
    fits = least < np.inf
    cuts = np.full((length + 1, len(low)), length, np.int16)
    cuts[0] = 0
    at = np.flatnonzero(fits & ~uncut)
    if not len(at):
        return ProbedCuts(cuts.T, fits, uncut)
    chains, least = _taken(chains, at), least[at]
    # Most rows have a cut that keeps the least bound and whose first stage adds the least that any adds.
    added = 0.0 if chains.first is None else np.asarray(chains.first.least_s)
    even = fills(even_cut, chains, least * (1.0 + TIES), (least + added) * (1.0 + TIES) - least)
    cuts[1:, at] = even.ends
    lacking = np.flatnonzero(~even.exists)
    if len(lacking):
        slower = _taken(chains, lacking)
        slowest, most_first_s, some_empty = _best_first(
            fills, slower, least[lacking], np.asarray(even.earliest)[lacking]
        )
        cuts[1:, at[lacking]] = fills(even_cut, slower, slowest * (1.0 + TIES), most_first_s).ends
        uncut[at[lacking]] |= some_empty
    return ProbedCuts(cuts.T, fits, uncut)


def _taken(chains: Chains, where: Chosen) -> Over[Chains, "... #chosen"]:
    """Return some chains."""
    return tree_map(lambda leaf: leaf[..., where], chains)


def _best_first(
    fills: Fills, chains: Chains, least: PlanFloats, earliest: PlanFloats
) -> tuple[PlanFloats, PlanFloats, PlanBools]:
    """Return what the slowest stage of the best cuts causes, what their first stages add, and whether one is empty.

    `least` is the least that the slowest stage of any cut causes. If the first stage ends before `earliest`, others are
    slower; that may pay if it adds less to the step.
    """
    model, zero, second = fills.model, np.zeros_like(least), np.ones_like(least)
    step_s = np.asarray(fills(least_step_s, chains, least, earliest))
    # It grows with the layers, but may fall with the first one of the body.
    ends_without_body = np.arange(1.0, len(model.stack.first) + 2.0)[:, None] + zero
    ahead = np.asarray(first_s(model, chains, ends_without_body)).min(axis=0)
    slowest, end, bound = least.copy(), earliest - 1.0, least.copy()
    some_empty = np.zeros(len(least), dtype=bool)
    while len(at := np.flatnonzero((end >= 1.0) & (bound + ahead < step_s))):
        earlier, last = _taken(chains, at), end[at]
        bound[at], empty = _least_bound(fills, earlier, bound[at], second[at], last)
        some_empty[at] |= empty
        caused, *needed = causes(model, earlier, 0.0, zero[at], last)
        within = [np.asarray(value <= limit) for value, limit in zip(needed, room_of(earlier), strict=True)]
        worst = np.where(np.all(within, axis=0), np.maximum(caused, bound[at]), np.inf)
        worst_step_s = worst + first_s(model, earlier, last)
        nearly = worst_step_s <= step_s[at]
        better = (worst_step_s < step_s[at] * (1.0 - TIES)) | (nearly & (worst < slowest[at]))
        slowest[at] = np.where(better, worst, slowest[at])
        step_s[at] = np.minimum(worst_step_s, step_s[at])
        end[at] = last - 1.0
    return slowest, step_s * (1.0 + TIES) - slowest, some_empty
