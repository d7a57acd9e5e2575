"""The stages of the chains of many plans, on NumPy, side by side: what layers cause as a stage, and filled stages.

What a stage causes and what it needs grows with its layers, at either end of it. So for a bound of what each stage may
cause, filling the stages one after the other with as many layers as possible tells whether a cut keeps the bound
(chains-on-chains; Pinar and Aykanat, Fast optimal load balancing algorithms for 1D partitioning, 2004).
"""

from typing import NamedTuple

import jax
import numpy as np

from dsx.cost.choices import StepChoices
from dsx.cost.headroom import usable_bytes
from dsx.cost.pipeline import Send, in_flight, through_stage_s
from dsx.cost.step import Workload, mean_stage, sends_of
from dsx.pricing.batch import Plans, stage_costs
from dsx.pricing.optimal_cut import Contents, Segments, of_first_stage_s, segments
from dsx.space.codes import Searched
from dsx.space.critical_path import Passes

_NEAR = 12  # layers of a stage that are tried at once, before halves


class Chains(NamedTuple):
    """The chains of N plans; arrays of segments are [C, N] (`Contents`)."""

    segments: Segments
    forward_after: np.ndarray  # [L + 1, N] seconds of the forward of a microbatch from each layer on
    backward_after: np.ndarray
    first_s: np.ndarray  # [L + 1, N] seconds that a first stage of so many layers adds to a step
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

    def take(self, where: np.ndarray) -> "Chains":
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

    def filled(self, stage: int, begin: np.ndarray, bound: np.ndarray) -> "Filled":
        """Fill a stage from `begin` [N] on up to a bound, so that one layer is left to each later stage."""
        most = np.maximum(self.most(stage), begin)
        ends = np.minimum(begin + self._near, most)
        caused = self.causes(stage, np.broadcast_to(begin, ends.shape), ends)
        kept = np.logical_and.accumulate((caused <= bound) & (begin + self._near <= most), axis=0).sum(axis=0)
        end, plan = begin + kept, np.arange(len(begin))
        own = np.where(kept > 0, caused[np.maximum(kept, 1) - 1, plan], -np.inf)
        beyond = np.where(end < most, caused[np.minimum(kept, len(caused) - 1), plan], np.inf)
        if len(far := np.flatnonzero((kept == len(caused)) & (end < most))):
            end[far], own[far], beyond[far] = self.take(far)._filled_by_halves(stage, begin[far], most[far], bound[far])
        return Filled(end, own, beyond)

    def _filled_by_halves(self, stage: int, begin: np.ndarray, most: np.ndarray, bound: np.ndarray) -> "Filled":
        low, high = begin, most
        while (low < high).any():
            middle = (low + high + 1) // 2
            keeps = self.causes(stage, begin, middle) <= bound
            low, high = np.where(keeps, middle, low), np.where(keeps, high, middle - 1)
        beyond = np.where(low < most, self.causes(stage, begin, np.minimum(low + 1, self.length)), np.inf)
        return Filled(low, self.causes(stage, begin, low), beyond)

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


class Filled(NamedTuple):
    """A stage that is filled up to a bound, [N]."""

    end: np.ndarray
    own: np.ndarray  # what its layers cause
    beyond: np.ndarray  # what they cause with one layer more; infinite where it may not have one


class Probe(NamedTuple):
    """Stages that are filled up to a bound, [N]."""

    reached: np.ndarray  # whether they hold all layers
    slowest: np.ndarray  # what the slowest of them causes
    beyond: np.ndarray  # the least that one of them causes with one layer more
    some_empty: np.ndarray  # whether one has no layer


def probe(chains: Chains, bound: np.ndarray, first: int, begin: np.ndarray) -> Probe:
    """Fill the stages from `first` on with the layers from `begin` on."""
    slowest, beyond = np.full(len(bound), -np.inf), np.full(len(bound), np.inf)
    some_empty = np.zeros(len(bound), dtype=bool)
    for stage in range(first, int(chains.pp.max())):
        there, found = stage < chains.pp, chains.filled(stage, begin, bound)
        end = np.where(there, found.end, begin)
        beyond = np.where(there, np.minimum(beyond, found.beyond), beyond)
        slowest = np.where(there, np.maximum(slowest, found.own), slowest)
        some_empty |= there & (end == begin)
        begin = end
    return Probe(begin == chains.length, slowest, beyond, some_empty)


def first_begins(chains: Chains, bound: np.ndarray) -> list[np.ndarray]:
    """Return the first layer [N] of each stage if later stages are filled up to a bound, and the end of the chain."""
    begin = np.full(len(bound), chains.length)
    found = [begin]
    for stage in range(int(chains.pp.max()) - 1, -1, -1):
        begin = np.where(stage < chains.pp, chains.first_begin(stage, begin, bound), begin)
        found.append(begin)
    return found[::-1]


def chains_of(plans: Plans, workload: Workload, contents: Contents, least_memory: bool) -> Chains:
    """Return the chains of [N] plans; with `least_memory` a stage causes the bytes that it needs, not seconds."""
    choices, searched, stack = plans.choices, workload.searched, workload.stack
    costs = stage_costs(plans, workload)
    usable = usable_bytes(plans.cluster.device, plans.assumptions)
    found = segments(costs, contents.layers[:, :, None], usable, least_memory)
    length = contents.of_segment.shape[0]
    after = np.zeros((2, length + 1, len(choices.pp)))
    first_s = np.zeros(after[0].shape)
    if not least_memory:
        suffixes = contents.of_segment[:, -1]
        after[0, :-1], after[1, :-1] = found.forward[suffixes], (found.load - found.forward)[suffixes]
        first_s[1:] = of_first_stage_s(costs, contents)
    index = np.arange(int(choices.pp.max()), dtype=float)[:, None]
    mean = mean_stage(stack, choices, np.zeros_like(choices.pp))
    return Chains(
        segments=found,
        forward_after=after[0],
        backward_after=after[1],
        first_s=first_s,
        of_segment=contents.of_segment,
        in_flight=np.asarray(in_flight(np.minimum(index, choices.pp - 1.0), choices, searched)),
        choices=choices,
        send=sends_of(costs, mean),
        searched=searched,
    )
