"""The cost of a layer under a plan's recomputation.

The modes of recomputation of a layer: the values of `recompute` that differ in what they do to it.

A layer without experts does not tell a value with their regions from one without. So a layer has fewer modes than
`recompute` has values, and each is priced once.

The cost of a layer under a plan's recomputation: that of one mode, or a mix of one mode and none.

With `stored_layers` n above 0, n of the body layers of a stage save all activations, and the others follow `recompute`
(Megatron-LM's recompute method "block"). Time and stash of a layer are means over the stage, so a step is linear in n.
Embedding and head are never recomputed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dsx import arrays as xp
from dsx.cost.context import StepChoices, pick
from dsx.cost.shapes import PerPlan
from dsx.cost.stages import Stack
from dsx.notation.recompute import Recomputation, recomputation
from dsx.notation.work import DerivedLayer
from dsx.plans.choices import FULL_CODE, MAIN, VALUES, regions_of
from dsx.plans.choices import NONE_CODE as NONE
from dsx.plans.codes import SearchedCodes

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
        groups.setdefault(tuple(chosen if chosen is None else chosen & own for own in present), []).append(code)
    return tuple(tuple(group) for group in groups.values())


def recomputation_under(layer: DerivedLayer, code: int) -> Recomputation | None:
    """Return what a value of `recompute` does to a layer; None if it recomputes the whole layer."""
    chosen = regions_of(code)
    return None if chosen is None else recomputation(layer, chosen)


def mode(layer: DerivedLayer, codes: Codes, recomputed: Recomputation | None) -> Mode:
    """Return the structure of a mode; `recomputed` is what its codes do to the layer."""
    kernels = layer.priced_kernels
    if recomputed is None:
        return Mode(codes, tuple(range(len(kernels))))
    of_layer = {id(kernel): index for index, kernel in enumerate(layer.kernels)}
    at = [of_layer[id(kernel)] for kernel in kernels]
    return Mode(
        codes,
        tuple(index for index, position in enumerate(at) if position in recomputed.repeated),
        tuple(index for index, position in enumerate(at) if position in recomputed.completed),
    )


def values_with_effect(layers: Sequence[DerivedLayer]) -> list[int]:
    """Return the values of `recompute` that are of use for at least one of the layers.

    A value that repeats at least as much as another one, and keeps no less, is not.
    """
    present = {name for layer in layers for name in layer.region_names}
    codes = [code for code in range(len(VALUES)) if code != FULL_CODE and (regions_of(code) or set()) <= present]
    known: dict[tuple[int, frozenset[str]], Recomputation] = {}
    effects: dict[int, list[Recomputation]] = {code: [] for code in codes}
    for code in codes:
        for position, layer in enumerate(layers):
            chosen = (regions_of(code) or frozenset()).intersection(layer.region_names)
            if (position, chosen) not in known:
                known[position, chosen] = recomputation(layer, chosen)
            effects[code].append(known[position, chosen])
    useful: list[int] = []
    for code in sorted(codes, key=lambda code: len(regions_of(code) or ())):
        if not any(_no_worse(effects[other], effects[code]) for other in useful):
            useful.append(code)
    return sorted([*useful, FULL_CODE])


def _no_worse(one: Sequence[Recomputation], other: Sequence[Recomputation]) -> bool:
    """Return whether `one` repeats nothing that `other` does not, and keeps nothing that it does not keep."""
    return all(
        {*left.repeated} <= {*right.repeated}
        and {*left.completed} <= {*right.completed, *right.repeated}
        and left.kept_keys <= right.kept_keys
        for left, right in zip(one, other, strict=True)
    )


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


def recompute_of(choices: StepChoices, stack: Stack, searched: SearchedCodes) -> Recompute:
    """Return the recomputation of plans; unequal stages of an even cut store the same share of their layers."""
    stored = None
    if searched.stored_layers != (0,):
        stored = xp.minimum(choices.stored_layers * choices.pp / stack.num_body_layers, xp.ones_like(choices.pp))
    return Recompute(choices.recompute, searched.recompute, stored, frozenset(stack.embedding_and_head))
