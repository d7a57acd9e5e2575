"""The optimal cuts of few rows by probes, on NumPy, many plans side by side: nothing is compiled.

What a stage causes and what it needs grows with its layers, at either end of it. So for a bound of what each stage may
cause, filling the stages one after the other with as many layers as possible tells whether a cut keeps the bound
(chains-on-chains; Pinar and Aykanat, Fast optimal load balancing algorithms for 1D partitioning, 2004). The least bound
is between two others: a probe that reaches the end of the chain lowers the upper one to what its slowest stage causes;
one that does not raises the lower one to the least that any of its stages causes with one layer more.

Of the cuts that keep the least bound, and of those whose first stage adds so much less to the end of a step that a
slower pipeline pays, the one is taken that `dsx.pricing.optimal_cut` takes. Where layers are unlike, a filled stage may
be left without a layer. Then the least bound may be too low, and the row is left to the scan.
"""

from typing import NamedTuple

import jax
import numpy as np

from dsx.cost import xp
from dsx.cost.choices import StepChoices
from dsx.cost.cut_bounds import ROUNDING, CutBounds
from dsx.cost.headroom import usable_bytes
from dsx.cost.pipeline import Send, in_flight, through_stage_s
from dsx.cost.stage_costs import StageCosts
from dsx.cost.step import mean_stage, sends_of
from dsx.pricing.layers import KeyCosts
from dsx.pricing.optimal_cut import Contents, Segments, chain_contents, of_first_stage_s, rounding, segments
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, plans_of
from dsx.space.codes import Searched
from dsx.space.critical_path import Passes

_NEAR = 12  # layers of a stage that are tried at once, before halves
_AT_ONCE = 1 << 8  # rows that are cut together: the costs of their segments fit into the cache of a core
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


class _Chains(NamedTuple):
    """The chains of N plans; arrays of segments are [C, N] (`Contents`)."""

    segments: Segments
    forward_after: np.ndarray  # [L + 1, N] seconds of the forward of a microbatch from each layer on
    backward_after: np.ndarray
    first_s: np.ndarray  # [L + 1, N] seconds that a first stage of so many layers adds to a step
    least_s: np.ndarray  # [N] seconds that no cut is faster than
    of_segment: np.ndarray  # [L, L]
    in_flight: np.ndarray  # [S, N] microbatches in flight on each stage
    choices: StepChoices
    send: Send
    searched: Searched

    @property
    def length(self) -> int:
        """The layers of the chain."""
        return len(self.of_segment)

    @property
    def pp(self) -> np.ndarray:
        """[N] stages."""
        return np.asarray(self.choices.pp, dtype=np.int64)

    @property
    def _near(self) -> np.ndarray:
        """[W, 1] numbers of layers that are likely to be those of a stage, and more than most have."""
        return np.arange(1, min(_NEAR, 2 * self.length // int(self.pp.min()) + 1) + 1)[:, None]

    def take(self, where: np.ndarray) -> "_Chains":
        """Return the chains of some plans."""
        fixed = {"of_segment": self.of_segment, "searched": self.searched}
        varied = [getattr(self, name) for name in self._fields if name not in fixed]
        taken = jax.tree.map(lambda leaf: leaf[..., where], varied)
        return self._replace(**dict(zip((name for name in self._fields if name not in fixed), taken, strict=True)))

    def causes(self, stage: int, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return what the layers from `begin` to `end`, exclusive, cause as a stage; infinite where they do not fit.

        The arrays are [..., N]. A stage without layers causes nothing.
        """
        segment, plan = self.of_segment[np.minimum(begin, self.length - 1), end - 1], np.arange(len(self.choices.pp))
        segment = np.minimum(segment, len(self.segments.load) - 1)
        load, held = self.segments.load[segment, plan], self.in_flight[stage]
        if self.segments.forward is None or self.segments.max_in_flight is None:
            return np.where(end > begin, load + held * self.segments.per_microbatch[segment, plan], -np.inf)
        forward = self.segments.forward[segment, plan]
        own = Passes(forward, load - forward)
        after = Passes(self.forward_after[end, plan], self.backward_after[end, plan])
        whole = Passes(self.forward_after[0], self.backward_after[0])
        position = np.full_like(self.choices.pp, stage)
        seconds = through_stage_s(position, own, after, whole, self.send, self.choices, self.searched)
        fits = self.segments.max_in_flight[segment, plan] >= held
        return np.where(end > begin, np.where(fits, seconds, np.inf), -np.inf)

    def most(self, stage: int) -> np.ndarray:
        """Return [N] the last end of a stage that leaves one layer to each later one."""
        return self.length - np.maximum(self.pp - 1 - stage, 0)

    def last_end(self, stage: int, begin: np.ndarray, bound: np.ndarray) -> np.ndarray:
        """Return [N] the last end of a stage that causes at most `bound` and leaves one layer to each later one."""
        low, high = begin, np.maximum(self.most(stage), begin)
        ends = np.minimum(begin + self._near, high)
        kept = (self.causes(stage, np.broadcast_to(begin, ends.shape), ends) <= bound) & (begin + self._near <= high)
        kept = np.logical_and.accumulate(kept, axis=0).sum(axis=0)
        low, high = begin + kept, np.where(kept < len(self._near), begin + kept, high)
        while (low < high).any():
            middle = (low + high + 1) // 2
            keeps = self.causes(stage, begin, middle) <= bound
            low, high = np.where(keeps, middle, low), np.where(keeps, high, middle - 1)
        return low

    def first_begin(self, stage: int, end: np.ndarray, bound: np.ndarray) -> np.ndarray:
        """Return [N] the first begin of a stage that causes at most `bound` and leaves each earlier one a layer."""
        low, high = np.minimum(stage, end), end
        begins = np.maximum(end - self._near, low)
        kept = (self.causes(stage, begins, np.broadcast_to(end, begins.shape)) <= bound) & (end - self._near >= low)
        kept = np.logical_and.accumulate(kept, axis=0).sum(axis=0)
        low, high = np.where(kept < len(self._near), end - kept, low), end - kept
        while (low < high).any():
            middle = (low + high) // 2
            keeps = self.causes(stage, middle, end) <= bound
            low, high = np.where(keeps, low, middle + 1), np.where(keeps, middle, high)
        return high


class _Probe(NamedTuple):
    """Stages that are filled up to a bound, [N]."""

    reached: np.ndarray  # whether they hold all layers
    slowest: np.ndarray  # what the slowest of them causes
    beyond: np.ndarray  # the least that one of them causes with one layer more
    some_empty: np.ndarray  # whether one has no layer


def _probe(chains: _Chains, bound: np.ndarray, first: int, begin: np.ndarray) -> _Probe:
    """Fill the stages from `first` on with the layers from `begin` on."""
    slowest, beyond = np.full(len(bound), -np.inf), np.full(len(bound), np.inf)
    some_empty = np.zeros(len(bound), dtype=bool)
    for stage in range(first, int(chains.pp.max())):
        there = stage < chains.pp
        end = np.where(there, chains.last_end(stage, begin, bound), begin)
        one_more = there & (end < chains.most(stage))
        next_s = chains.causes(stage, begin, np.minimum(end + 1, chains.length))
        beyond = np.where(one_more, np.minimum(beyond, next_s), beyond)
        slowest = np.where(there, np.maximum(slowest, chains.causes(stage, begin, end)), slowest)
        some_empty |= there & (end == begin)
        begin = end
    return _Probe(begin == chains.length, slowest, beyond, some_empty)


def _least_bound(chains: _Chains, low: np.ndarray, first: int, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return [N] the least bound that the stages from `first` on keep, at least `low`, and whether one has no layer.

    It is infinite where the layers from `begin` on do not fit.
    """
    found = _probe(chains, np.full_like(low, _MOST), first, begin)
    high, low = np.where(found.reached, np.maximum(found.slowest, low), np.inf), low.copy()
    some_empty = found.some_empty & found.reached
    while len(here := np.flatnonzero((high < np.inf) & (high - low > _TIES * np.abs(high)))):
        bound = 0.5 * (low[here] + high[here])
        bound = np.where(bound < high[here], bound, low[here])
        found = _probe(chains.take(here), bound, first, begin[here])
        high[here] = np.where(found.reached, np.maximum(found.slowest, low[here]), high[here])
        low[here] = np.where(found.reached, low[here], np.minimum(found.beyond, high[here]))
        some_empty[here] = np.where(found.reached, found.some_empty, some_empty[here])
    return high, some_empty


@xp.unchecked
def _cuts(problem: Problem, table: KeyCosts, rows: Rows, contents: Contents, least_memory: bool) -> ProbedCuts:
    chains = _chains(problem, table, rows, contents, least_memory)
    pp, length, none = chains.pp, chains.length, np.zeros(len(chains.pp), dtype=np.int64)
    low = np.zeros(len(pp)) if least_memory else chains.least_s
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


def _first_end(chains: _Chains, least: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return [N] the end of the first stage, what the slowest stage then causes, and whether a stage has no layer.

    `least` is the least that the slowest stage of any cut causes.
    """
    num_plans, length = len(least), chains.length
    ends = np.broadcast_to(np.arange(length + 1)[:, None], (length + 1, num_plans))
    own = chains.causes(0, np.zeros_like(ends), ends)
    allowed = (ends > 0) & (length - ends >= chains.pp - 1) & ((chains.pp > 1) | (ends == length))
    own = np.where(allowed, own, np.inf)
    earliest = _first_begins(chains, least)[1]
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


def _later_ends(chains: _Chains, end: np.ndarray, slowest: np.ndarray) -> np.ndarray:
    """Return [L, N] the ends of the stages of the most even cut whose first stage ends at `end`."""
    begins = _first_begins(chains, slowest)
    found = [end]
    ends = np.arange(chains.length + 1)[:, None]
    for stage in range(1, len(begins) - 1):
        last = chains.last_end(stage, end, slowest)
        # The least value is at most that of the slowest stage, up to rounding.
        first = np.minimum(np.maximum(begins[stage + 1], end + 1), last)
        there = stage < chains.pp
        allowed = (ends >= first) & (ends <= last)
        nearest = _nearest(chains, np.minimum(end, chains.length - 1), np.maximum(chains.pp - stage, 1), allowed)
        end = np.where(there, nearest, chains.length)
        found.append(end)
    missing = chains.length - len(found)
    return np.concatenate([np.stack(found), np.full((missing, len(end)), chains.length)])


def _first_begins(chains: _Chains, bound: np.ndarray) -> list[np.ndarray]:
    """Return the first layer [N] of each stage if later stages are filled up to a bound, and the end of the chain."""
    begin = np.full(len(bound), chains.length)
    found = [begin]
    for stage in range(int(chains.pp.max()) - 1, -1, -1):
        begin = np.where(stage < chains.pp, chains.first_begin(stage, begin, bound), begin)
        found.append(begin)
    return found[::-1]


def _nearest(chains: _Chains, begin: np.ndarray, stages: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return the allowed end [L + 1, N] of a stage that is nearest to an equal share of the layers from `begin` on."""
    plan = np.arange(len(begin))
    at = np.maximum(np.arange(chains.length + 1)[:, None] - 1, begin)
    load = chains.segments.load[chains.of_segment[begin, at], plan]
    distance = np.where(allowed, np.abs(load - load[-1] / stages), np.inf)
    return (distance <= distance.min(axis=0) + _TIES * load[-1]).argmax(axis=0)


def _chains(problem: Problem, table: KeyCosts, rows: Rows, contents: Contents, least_memory: bool) -> _Chains:
    plans, workload = plans_of(problem, table, rows)
    choices, searched, stack = plans.choices, workload.searched, workload.stack
    costs = StageCosts(plans.kinds, choices, stack, searched, plans.cluster, plans.assumptions)
    usable = usable_bytes(plans.cluster.device, plans.assumptions)
    found = segments(costs, contents.layers[:, :, None], usable, least_memory)
    length = contents.of_segment.shape[0]
    after = np.zeros((2, length + 1, len(rows.positions)))
    first_s = np.zeros(after[0].shape)
    if not least_memory:
        suffixes = contents.of_segment[:, -1]
        after[0, :-1], after[1, :-1] = found.forward[suffixes], (found.load - found.forward)[suffixes]
        first_s[1:] = of_first_stage_s(costs, contents)
    index = np.arange(int(choices.pp.max()), dtype=float)[:, None]
    mean = mean_stage(stack, choices, np.zeros_like(choices.pp))
    return _Chains(
        segments=found,
        forward_after=after[0],
        backward_after=after[1],
        first_s=first_s,
        least_s=np.asarray(CutBounds(costs).pipeline_s) * (1.0 - ROUNDING),
        of_segment=contents.of_segment,
        in_flight=np.asarray(in_flight(np.minimum(index, choices.pp - 1.0), choices, searched)),
        choices=choices,
        send=sends_of(costs, mean),
        searched=searched,
    )
