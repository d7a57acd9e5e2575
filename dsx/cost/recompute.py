"""What a layer costs under the recomputation of a plan: that of a mode, or a mix of a mode and none.

With `stored_layers` n above 0, n of the body layers of a stage keep everything and the others follow `recompute`
(Megatron-LM's method block). Time and saved bytes of a layer are the mean over the stage, so a step is linear in n.
Layers of the ends are never made again.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from dsx.cost.choices import StepChoices, pick
from dsx.cost.shapes import PerPlan
from dsx.cost.stages import Stack
from dsx.space.choices import CODES
from dsx.space.codes import Searched

NONE = CODES["recompute"].index("none")

OfMode = Callable[[int], PerPlan]  # what a layer has under a mode


class Recompute(NamedTuple):
    """The recomputation of plans."""

    mode: PerPlan
    modes: tuple[int, ...]  # that it may be
    stored: PerPlan | None  # share of the body layers that keep everything; None where no plan has any
    ends: frozenset[int]  # kinds that are never made again

    def mean(self, kind: int, of: OfMode) -> PerPlan:
        """Return what a layer of a kind has on average."""
        if kind in self.ends:
            return of(NONE)
        made_again = self._made_again(of)
        if self.stored is None:
            return made_again
        return (1.0 - self.stored) * made_again + self.stored * of(NONE)

    def largest(self, kind: int, of: OfMode) -> PerPlan:
        """Return the most that a layer of a kind has."""
        if kind in self.ends:
            return of(NONE)
        made_again = self._made_again(of)
        if self.stored is None:
            return made_again
        stored = jnp.where(self.stored > 0, jnp.maximum(made_again, of(NONE)), made_again)
        return jnp.where(self.stored < 1, stored, of(NONE))

    def _made_again(self, of: OfMode) -> PerPlan:
        return pick(self.modes, self.mode, {mode: of(mode) for mode in self.modes})


def recompute_of(choices: StepChoices, stack: Stack, searched: Searched) -> Recompute:
    """Return the recomputation of plans; stages that an even cut leaves unequal store the same share."""
    stored = None
    if searched.stored_layers != (0,):
        stored = jnp.minimum(choices.stored_layers * choices.pp / stack.num_body_layers, jnp.ones_like(choices.pp))
    return Recompute(choices.recompute, searched.recompute, stored, frozenset((*stack.first, *stack.last)))
