"""The cost of a layer under a plan's recomputation: that of one mode, or a mix of one mode and none.

The modes of a layer are the values of `recompute` that differ in what they do to it. A layer without experts does not
tell a value with their regions from one without. So it has fewer modes than `recompute` has values, and each is priced
once.

With `stored_layers` n above 0, n of the body layers of a stage save all activations, and the others follow `recompute`
(Megatron-LM's recompute method "block"). Time and stash of a layer are means over the stage, so a step is linear in n.
Embedding and head are never recomputed.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dsx import arrays as xp
from dsx.arrays import PerPlan
from dsx.cost.context import StepPlans, pick
from dsx.notation.recompute import Recomputation, recomputation
from dsx.notation.work import DerivedLayer
from dsx.plans.choices import FULL_CODE, MAIN, VALUES, regions_of
from dsx.plans.choices import NONE_CODE as NONE

Codes = tuple[int, ...]
MAIN_MODES: tuple[Codes, ...] = tuple((code,) for code in range(len(MAIN)))


@dataclass(frozen=True, slots=True)
class Mode:
    """What a layer's backward repeats under some values of `recompute`; kernels are positions among the priced ones."""

    codes: Codes
    repeated: tuple[int, ...]  # kernels whose forward it repeats
    completed: tuple[int, ...] = ()  # other kernels whose collectives it repeats


def modes_of(layers: Sequence[DerivedLayer], codes: Iterable[int]) -> tuple[Codes, ...]:
    """Return `codes` in groups that do the same to every one of the layers, those of a kind under each strategy."""
    groups: dict[tuple[frozenset[str] | None, ...], list[int]] = {}
    present = [frozenset(layer.region_names) for layer in layers]
    for code in codes:
        chosen = regions_of(code)
        key = tuple(chosen if chosen is None else chosen & regions for regions in present)
        groups.setdefault(key, []).append(code)
    return tuple(tuple(group) for group in groups.values())


def recomputation_under(layer: DerivedLayer, code: int) -> Recomputation | None:
    """Return what a value of `recompute` does to a layer; None if it recomputes the whole layer.

    It does nothing to a layer without a backward.
    """
    chosen = regions_of(code) if layer.graph.backward else frozenset()
    return None if chosen is None else recomputation(layer, chosen)


def mode(layer: DerivedLayer, codes: Codes, recomputed: Recomputation | None) -> Mode:
    """Return the structure of a mode; `recomputed` is what its codes do to the layer."""
    kernels = layer.priced_kernels
    if recomputed is None:
        return Mode(codes, tuple(range(len(kernels))))

    def priced(positions: Iterable[int]) -> tuple[int, ...]:
        of_layer = [layer.kernels[position] for position in positions]
        return tuple(index for index, kernel in enumerate(kernels) if any(kernel is other for other in of_layer))

    return Mode(codes, priced(recomputed.repeated), priced(recomputed.completed))


def values_with_effect(layers: Sequence[DerivedLayer]) -> list[int]:
    """Return the values of `recompute` that are of use for at least one of the layers.

    A value that repeats at least as much as another one, and keeps no less, is not.
    """
    present = {name for layer in layers for name in layer.region_names}
    codes = [code for code in range(len(VALUES)) if code != FULL_CODE and (regions_of(code) or set()) <= present]

    @functools.cache
    def effect(position: int, regions: frozenset[str]) -> Recomputation:
        return recomputation(layers[position], regions)

    effects = {
        code: [
            effect(position, (regions_of(code) or frozenset()).intersection(layer.region_names))
            for position, layer in enumerate(layers)
        ]
        for code in codes
    }

    def no_worse(code: int, other: int) -> bool:
        """Return whether a value repeats nothing that another one does not, and keeps nothing that it does not keep."""
        return all(
            {*effect.repeated} <= {*of_other.repeated}
            and {*effect.completed} <= {*of_other.completed, *of_other.repeated}
            and effect.kept_keys <= of_other.kept_keys
            for effect, of_other in zip(effects[code], effects[other], strict=True)
        )

    useful: list[int] = []
    for code in sorted(codes, key=lambda code: len(regions_of(code) or ())):
        if not any(no_worse(other, code) for other in useful):
            useful.append(code)
    return sorted([*useful, FULL_CODE])


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


def recompute_of(plans: StepPlans) -> Recompute:
    """Return the recomputation of plans; unequal stages of an even cut store the same share of their layers."""
    choices, stored = plans.choices, None
    if plans.searched.stored_layers != (0,):
        share = choices.stored_layers * choices.pp / plans.stack.num_body_layers
        stored = xp.minimum(share, xp.ones_like(choices.pp))
    return Recompute(choices.recompute, plans.searched.recompute, stored, frozenset(plans.stack.embedding_and_head))
