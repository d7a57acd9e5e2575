"""The cost of a layer under a plan's recomputation: that of one mode, or a mix of one mode and none.

With `stored_layers` n above 0, n of the body layers of a stage save all activations, and the others follow `recompute`
(Megatron-LM's recompute method "block"). Time and stash of a layer are means over the stage, so a step is linear in n.
Embedding and head are never recomputed.
"""

from collections.abc import Callable
from typing import NamedTuple

from dsx.cost import xp
from dsx.cost.choices import StepChoices, pick
from dsx.cost.shapes import PerPlan
from dsx.cost.stages import Stack
from dsx.space.codes import Searched
from dsx.space.recompute_values import NONE_CODE as NONE

_WHOLE = 1e-6  # below a whole number of chunks, so that rounding does not make it one more

ByMode = Callable[[int], PerPlan]  # (mode) -> cost of a layer under it


class Recompute(NamedTuple):
    """The recomputation of plans."""

    mode: PerPlan
    modes: tuple[int, ...]  # the values of `mode`
    stored: PerPlan | None  # share of the body layers that save all activations; None if no plan has any
    never: frozenset[int]  # kinds that are never recomputed: embedding and head

    def mean(self, kind: int, cost: ByMode) -> PerPlan:
        """Return the mean of a cost over the layers of a kind."""
        if kind in self.never:
            return cost(NONE)
        recomputed = self._recomputed(cost)
        if self.stored is None:
            return recomputed
        return (1.0 - self.stored) * recomputed + self.stored * cost(NONE)

    def mean_of_transferred(self, kind: int, cost: ByMode, kept: PerPlan, chunks: PerPlan) -> PerPlan:
        """Return the sum of a cost over the layers of a kind, but for a share `kept` of them, by their number.

        The last layer of each of the `chunks` of a stage is kept. The last layers of a stage save all activations, so
        those of its last chunks do.
        """
        if kind in self.never:
            return xp.zeros_like(cost(NONE))
        recomputed = self._recomputed(cost)
        if self.stored is None:
            return (1.0 - kept) * recomputed
        kept_stored = xp.minimum(xp.ceil(self.stored * chunks - _WHOLE) * kept / chunks, self.stored)
        return (1.0 - self.stored - (kept - kept_stored)) * recomputed + (self.stored - kept_stored) * cost(NONE)

    def largest(self, kind: int, cost: ByMode) -> PerPlan:
        """Return the largest of a cost among the layers of a kind."""
        if kind in self.never:
            return cost(NONE)
        recomputed = self._recomputed(cost)
        if self.stored is None:
            return recomputed
        mixed = xp.where(self.stored > 0, xp.maximum(recomputed, cost(NONE)), recomputed)
        return xp.where(self.stored < 1, mixed, cost(NONE))

    def _recomputed(self, cost: ByMode) -> PerPlan:
        return pick(self.modes, self.mode, {mode: cost(mode) for mode in self.modes})


def recompute_of(choices: StepChoices, stack: Stack, searched: Searched) -> Recompute:
    """Return the recomputation of plans; unequal stages of an even cut store the same share of their layers."""
    stored = None
    if searched.stored_layers != (0,):
        stored = xp.minimum(choices.stored_layers * choices.pp / stack.num_body_layers, xp.ones_like(choices.pp))
    return Recompute(choices.recompute, searched.recompute, stored, frozenset(stack.embedding_and_head))
