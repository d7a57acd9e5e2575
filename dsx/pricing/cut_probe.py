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

import numpy as np

from dsx.cost import xp
from dsx.cost.cut_bounds import ROUNDING, CutBounds
from dsx.pricing.batch import stage_costs
from dsx.pricing.filled_stages import Chains, chains_of, first_begins, probe
from dsx.pricing.layers import KeyCosts
from dsx.pricing.optimal_cut import Contents, chain_contents, rounding
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, plans_of

_AT_ONCE = 1 << 10  # rows that are cut together: the costs of their segments fit into the cache of a core
_GAP, _GROWTH, _FAR = 2.0**-6, 4.0, 16.0  # of a bound above the lower one, until a cut is known
_MOST = np.finfo(float).max  # a bound that only a stage which does not fit exceeds
_TIES = rounding(np.float64)


class ProbedCuts(NamedTuple):
    """The boundaries [N, L + 1] of N cuts, which rows fit, and which rows a probe cannot cut."""

    cuts: np.ndarray
    fits: np.ndarray
    left: np.ndarray


def probed_cuts(problem: Problem, table: KeyCosts, rows: Rows, least_memory: bool) -> ProbedCuts:
    """Return the optimal cuts of [N] rows with one chunk per stage, in float64.

    The cut of a row that fits with none, or that is left, is arbitrary.
    """
    contents = chain_contents(problem.workload.stack)
    length = contents.of_segment.shape[0]
    order = np.argsort(rows.choices["pp"], kind="stable")
    parts = [ProbedCuts(np.zeros((0, length + 1), np.int32), np.zeros(0, dtype=bool), np.zeros(0, dtype=bool))]
    for start in range(0, len(order), _AT_ONCE):
        parts.append(_cuts(problem, table, rows.take(order[start : start + _AT_ONCE]), contents, least_memory))
    back = np.argsort(order, kind="stable")
    return ProbedCuts(*(np.concatenate(columns)[back] for columns in zip(*parts, strict=True)))


def may_take(problem: Problem, table: KeyCosts, rows: Rows, most_s: np.ndarray) -> np.ndarray:
    """Return which of [N] rows with one chunk per stage may have a cut that fits and takes at most `most_s` [N]."""
    contents, found = chain_contents(problem.workload.stack), np.ones(len(most_s), dtype=bool)
    order = np.argsort(rows.choices["pp"], kind="stable")
    for start in range(0, len(order), _AT_ONCE):
        here = order[start : start + _AT_ONCE]
        found[here] = _may_take(problem, table, rows.take(here), contents, most_s[here])
    return found


@xp.unchecked
def _may_take(problem: Problem, table: KeyCosts, rows: Rows, contents: Contents, most_s: np.ndarray) -> np.ndarray:
    chains = chains_of(*plans_of(problem, table, rows), contents, least_memory=False)
    bound = most_s - chains.first_s[1:].min(axis=0)
    return probe(chains, bound, 0, np.zeros(len(bound), dtype=np.int64)).reached


def _least_bound(chains: Chains, low: np.ndarray, first: int, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return [N] the least bound that the stages from `first` on keep, at least `low`, and whether one has no layer.

    It is infinite where the layers from `begin` on do not fit.
    """
    low, high = low.copy(), np.full_like(low, np.inf)
    some_empty, number, gap = np.zeros(len(low), dtype=bool), 0, _GAP
    while len(here := np.flatnonzero(low * (1.0 + _TIES) < high)):
        # The least bound is mostly next to the lower one: a cut that fits and keeps a near bound limits the others.
        near = low[here] * (1.0 + gap) if gap < _FAR else np.full(len(here), _MOST)
        between = np.where(high[here] < np.inf, 0.5 * (low[here] + high[here]), near)
        bound = between if number % 3 == 0 else low[here]
        bound = np.where(bound < high[here], bound, low[here])
        found = probe(chains.take(here), bound, first, begin[here])
        high[here] = np.where(found.reached, np.maximum(found.slowest, low[here]), high[here])
        low[here] = np.where(
            found.reached, np.where(bound <= low[here], high[here], low[here]), np.minimum(found.beyond, high[here])
        )
        some_empty[here] = np.where(found.reached, found.some_empty, some_empty[here])
        gap, number = gap * (_GROWTH if number % 3 == 0 else 1.0), number + 1
    return high, some_empty


@xp.unchecked
def _cuts(problem: Problem, table: KeyCosts, rows: Rows, contents: Contents, least_memory: bool) -> ProbedCuts:
    plans, workload = plans_of(problem, table, rows)
    chains = chains_of(plans, workload, contents, least_memory)
    pp, length, none = chains.pp, chains.length, np.zeros(len(chains.pp), dtype=np.int64)
    bounds = CutBounds(stage_costs(plans, workload))
    low = np.asarray(bounds.peak_bytes if least_memory else bounds.pipeline_s) * (1.0 - ROUNDING)
    least, left = _least_bound(chains, low, 0, none)
    fits = least < np.inf
    cuts = np.full((length + 1, len(pp)), length)
    cuts[0] = 0
    here = np.flatnonzero(fits & ~left)
    if len(here):
        chains = chains.take(here)
        end, slowest, some_empty = _first_end(chains, least[here])
        cuts[1:, here] = _later_ends(chains, end, slowest)
        left[here] |= some_empty
    return ProbedCuts(cuts.T.astype(np.int32), fits, left)


def _first_end(chains: Chains, least: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return [N] the end of the first stage, what the slowest stage then causes, and whether a stage has no layer.

    `least` is the least that the slowest stage of any cut causes.
    """
    num_plans, length = len(least), chains.length
    ends = np.broadcast_to(np.arange(length + 1)[:, None], (length + 1, num_plans))
    own = chains.causes(0, np.zeros_like(ends), ends)
    allowed = (ends > 0) & (length - ends >= chains.pp - 1) & ((chains.pp > 1) | (ends == length))
    own = np.where(allowed, own, np.inf)
    earliest = first_begins(chains, least)[1]
    # With fewer layers of the first stage than the others leave at this bound, these are slower.
    slowest = np.where(ends >= earliest, np.maximum(own, least), np.inf)
    some_empty = np.zeros(num_plans, dtype=bool)
    step = slowest + chains.first_s
    end, bound = earliest - 1, least
    while True:
        here = np.flatnonzero(end >= 1)
        ahead = np.where((ends <= end) & (ends >= 1), chains.first_s, np.inf).min(axis=0)
        here = here[(bound + ahead < step.min(axis=0))[here]]
        if not len(here):
            break
        of_rest, empty = _least_bound(chains.take(here), bound[here], 1, end[here])
        some_empty[here] |= empty
        bound = bound.copy()
        bound[here] = of_rest
        slowest[end[here], here] = np.maximum(own[end[here], here], of_rest)
        step[end[here], here] = slowest[end[here], here] + chains.first_s[end[here], here]
        end = np.where(np.isin(np.arange(num_plans), here), end - 1, 0)
    equal = np.where(step <= step.min(axis=0) * (1.0 + _TIES), slowest, np.inf)
    bound = equal.min(axis=0) * (1.0 + _TIES)
    end = _nearest(chains, np.zeros(num_plans, dtype=np.int64), chains.pp, equal <= bound)
    return end, bound, some_empty


def _later_ends(chains: Chains, end: np.ndarray, slowest: np.ndarray) -> np.ndarray:
    """Return [L, N] the ends of the stages of the most even cut whose first stage ends at `end`."""
    begins = first_begins(chains, slowest)
    found = [end]
    ends = np.arange(chains.length + 1)[:, None]
    for stage in range(1, len(begins) - 1):
        last = chains.filled(stage, end, slowest).end
        # The least value is at most that of the slowest stage, up to rounding.
        first = np.minimum(np.maximum(begins[stage + 1], end + 1), last)
        there = stage < chains.pp
        allowed = (ends >= first) & (ends <= last)
        nearest = _nearest(chains, np.minimum(end, chains.length - 1), np.maximum(chains.pp - stage, 1), allowed)
        end = np.where(there, nearest, chains.length)
        found.append(end)
    missing = chains.length - len(found)
    return np.concatenate([np.stack(found), np.full((missing, len(end)), chains.length)])


def _nearest(chains: Chains, begin: np.ndarray, stages: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return the allowed end [L + 1, N] of a stage that is nearest to an equal share of the layers from `begin` on."""
    plan = np.arange(len(begin))
    at = np.maximum(np.arange(chains.length + 1)[:, None] - 1, begin)
    load = chains.segments.load[chains.of_segment[begin, at], plan]
    distance = np.where(allowed, np.abs(load - load[-1] / stages), np.inf)
    return (distance <= distance.min(axis=0) + _TIES * load[-1]).argmax(axis=0)
