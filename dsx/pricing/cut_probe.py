"""The optimal cuts of few rows by probes, on NumPy, many plans side by side: nothing is compiled.

A probe fills the stages up to a bound of what each may cause, which tells whether a cut keeps it
(`dsx.pricing.filled_stages`). The least bound is between two others: a probe that reaches the end of the chain lowers
the upper one to what its slowest stage causes; one that does not raises the lower one to the least that any of its
stages causes with one layer more.

Of the cuts that keep the least bound, and of those whose first stage adds so much less to the end of a step that a
slower pipeline pays, the one is taken that `dsx.pricing.optimal_cut` takes. Where layers are unlike, a filled stage may
be left without a layer. Then the least bound may be too low, and the row is left to the scan.
"""

from typing import NamedTuple

import jax
import numpy as np

from dsx.cost import xp
from dsx.cost.cut_bounds import ROUNDING, CutBounds
from dsx.cost.stage_costs import StageCosts
from dsx.cost.stages import Stage, layers_between
from dsx.cost.step import Workload
from dsx.pricing.batch import Plans, stage_costs
from dsx.pricing.fill_calls import Fills
from dsx.pricing.filled_stages import TIES, Chains, Model, causes, chains_of, filled, load_of
from dsx.pricing.layers import KeyCosts
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, plans_of

_AT_ONCE = 1 << 10  # rows that are cut together on NumPy: what their stages cause fits into the cache of a core
_MANY = 1 << 13  # rows that are cut together if stages are filled by compiled code; fewer are not worth compiling
_GAP, _GROWTH, _FAR = 2.0**-6, 4.0, 16.0  # of a bound above the lower one, until a cut is known
_MOST = np.finfo(float).max  # a bound that only a stage which does not fit exceeds


class ProbedCuts(NamedTuple):
    """The boundaries [N, L + 1] of N cuts, which rows fit, and which rows a probe cannot cut."""

    cuts: np.ndarray
    fits: np.ndarray
    left: np.ndarray


def probed_cuts(problem: Problem, table: KeyCosts, rows: Rows, least_memory: bool) -> ProbedCuts:
    """Return the optimal cuts of [N] rows with one chunk per stage, in float64.

    The cut of a row that fits with none, or that is left, is arbitrary.
    """
    stack = problem.workload.stack
    order = np.argsort(rows.choices["pp"], kind="stable")
    compiled = len(order) >= _MANY
    none = np.zeros((0, int(stack.num_layers) + 1), np.int32)
    parts = [ProbedCuts(none, np.zeros(0, dtype=bool), np.zeros(0, dtype=bool))]
    at_once = 1 << 16 if compiled else _AT_ONCE
    for start in range(0, len(order), at_once):
        here = rows.take(order[start : start + at_once])
        plans, workload = plans_of(problem, table, here)
        fills = Fills(Model(workload.stack, workload.searched, least_memory), compiled)
        parts.append(_cuts(fills, plans, workload))
    back = np.argsort(order, kind="stable")
    return ProbedCuts(*(np.concatenate(columns)[back] for columns in zip(*parts, strict=True)))


def may_take(problem: Problem, table: KeyCosts, rows: Rows, most_s: np.ndarray) -> np.ndarray:
    """Return which of [N] rows with one chunk per stage may have a cut that fits and takes at most `most_s` [N]."""
    found = np.ones(len(most_s), dtype=bool)
    order = np.argsort(rows.choices["pp"], kind="stable")
    for start in range(0, len(order), _AT_ONCE):
        here = order[start : start + _AT_ONCE]
        found[here] = _may_take(problem, table, rows.take(here), most_s[here])
    return found


@xp.unchecked
def _may_take(problem: Problem, table: KeyCosts, rows: Rows, most_s: np.ndarray) -> np.ndarray:
    plans, workload = plans_of(problem, table, rows)
    bounds, none = CutBounds(stage_costs(plans, workload)), np.zeros(len(most_s))
    fills = Fills(Model(workload.stack, workload.searched, least_memory=False), compiled=False)
    bound = most_s - np.asarray(bounds.reduction_s + bounds.update_s)
    return fills.probe(chains_of(plans, workload), bound, none, none).reached


def _least_bound(
    fills: Fills, chains: Chains, low: np.ndarray, first: np.ndarray, begin: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return [N] the least bound that the stages from `first` on keep, at least `low`, and whether one has no layer.

    It is infinite where the layers from `begin` on do not fit.
    """
    low, high = low.copy(), np.full_like(low, np.inf)
    some_empty, number, gap = np.zeros(len(low), dtype=bool), 0, _GAP
    while len(here := np.flatnonzero(low * (1.0 + TIES) < high)):
        # The least bound is mostly next to the lower one: a cut that fits and keeps a near bound limits the others.
        near = low[here] * (1.0 + gap) if gap < _FAR else np.full(len(here), _MOST)
        between = np.where(high[here] < np.inf, 0.5 * (low[here] + high[here]), near)
        bound = between if number % 3 == 0 else low[here]
        bound = np.where(bound < high[here], bound, low[here])
        found = fills.probe(_taken(chains, here), bound, first[here], begin[here])
        high[here] = np.where(found.reached, np.maximum(found.slowest, low[here]), high[here])
        low[here] = np.where(
            found.reached, np.where(bound <= low[here], high[here], low[here]), np.minimum(found.beyond, high[here])
        )
        some_empty[here] = np.where(found.reached, found.some_empty, some_empty[here])
        gap, number = gap * (_GROWTH if number % 3 == 0 else 1.0), number + 1
    return high, some_empty


@xp.unchecked
def _cuts(fills: Fills, plans: Plans, workload: Workload) -> ProbedCuts:
    chains, costs = chains_of(plans, workload), stage_costs(plans, workload)
    length, none = int(fills.model.length), np.zeros(len(chains.choices.pp))
    bounds = CutBounds(costs)
    low = np.asarray(bounds.peak_bytes if fills.model.least_memory else bounds.pipeline_s) * (1.0 - ROUNDING)
    least, left = _least_bound(fills, chains, low, none, none)
    fits = least < np.inf
    cuts = np.full((length + 1, len(none)), length, np.int32)
    cuts[0] = 0
    here = np.flatnonzero(fits & ~left)
    if len(here):
        found = fills.even_cut(_taken(chains, here), least[here] * (1.0 + TIES), none[here], none[here])
        cuts[1:, here] = found.ends
        if not fills.model.least_memory:
            later = _may_gain(costs, bounds, cuts[1]) & fits & ~left & (chains.choices.pp > 1)
            again = np.flatnonzero(later)
            if len(again):
                alone, few = stage_costs(_taken(plans, again), workload), _taken(chains, again)
                end, slowest, some_empty = _first_end(fills, alone, few, least[again], found.earliest[later[here]])
                cuts[1:, again] = fills.even_cut(few, slowest, none[again] + 1.0, end).ends
                left[again] |= some_empty
    return ProbedCuts(cuts.T, fits, left)


def _taken(of_plans, where):
    """Return some of [N] plans."""
    return jax.tree.map(lambda leaf: leaf[..., where], of_plans)


def _may_gain(costs: StageCosts, bounds: CutBounds, end: np.ndarray) -> np.ndarray:
    """Return which of [N] rows may have a first stage that adds less to a step than the one with layers up to `end`."""
    return _first_s(costs, end.astype(float)) > np.asarray(bounds.reduction_s + bounds.update_s)


def _first_s(costs: StageCosts, end: np.ndarray) -> np.ndarray:
    """Return the seconds that a first stage with layers up to `end` [..., N] adds to the end of a step."""
    first = Stage(np.zeros_like(end), layers_between(costs.stack, np.zeros_like(end), end), even=False)
    return np.asarray(sum(costs.reduction_and_update_s(first)))


def _first_end(
    fills: Fills, costs: StageCosts, chains: Chains, least: np.ndarray, earliest: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return [N] the end of the first stage, what the slowest stage then causes, and whether a stage has no layer.

    `least` is the least that the slowest stage of any cut causes. With fewer layers of the first stage than `earliest`,
    which the others leave at this bound, these are slower.
    """
    zero, one, length, num_plans = np.zeros_like(least), np.ones_like(least), fills.model.length, len(least)
    latest = filled(fills.model, chains, zero, zero, least * (1.0 + TIES), earliest).count
    # With more layers than these and one, a stage causes more, and adds as much or more to the step.
    ends = np.arange(1.0, min(latest.max() + 1.0, length) + 1.0)[:, None] + zero
    own, *needed = causes(fills.model, chains, zero, np.zeros_like(ends), ends)
    fits = (needed[0] <= chains.usable_bytes) & (length - ends >= chains.choices.pp - 1.0)
    own = np.where(fits, own, np.inf)
    slowest = np.where(ends >= earliest, np.maximum(own, least), np.inf)
    first_s = _first_s(costs, ends)
    step, some_empty = slowest + first_s, np.zeros(num_plans, dtype=bool)
    end, bound = earliest - 1.0, least.copy()
    ahead = np.minimum.accumulate(first_s, axis=0)
    plan = np.arange(num_plans)
    while True:
        row = np.maximum(end, 1.0).astype(int) - 1
        here = np.flatnonzero((end >= 1.0) & (bound + ahead[row, plan] < step.min(axis=0)))
        if not len(here):
            break
        at = row[here], here
        bound[here], empty = _least_bound(fills, _taken(chains, here), bound[here], one[here], end[here])
        some_empty[here] |= empty
        slowest[at] = np.maximum(own[at], bound[here])
        step[at] = slowest[at] + first_s[at]
        end = np.where(np.isin(plan, here), end - 1.0, 0.0)
    equal = np.where(step <= step.min(axis=0) * (1.0 + TIES), slowest, np.inf)
    bound = equal.min(axis=0) * (1.0 + TIES)
    load = load_of(fills.model, chains, np.zeros_like(ends), ends)
    whole = load_of(fills.model, chains, zero, zero + length)
    distance = np.where(equal <= bound, np.abs(load - whole / chains.choices.pp), np.inf)
    nearest = (distance <= distance.min(axis=0) + TIES * whole).argmax(axis=0)
    return nearest + 1.0, bound, some_empty
