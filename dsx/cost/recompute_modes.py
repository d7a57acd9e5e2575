"""The modes of recomputation of a layer: the values of `recompute` that differ in what they do to it.

A layer without experts does not tell a value with their regions from one without. So a layer has fewer modes than
`recompute` has values, and each is priced once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsx.graph.derived import DerivedLayer
from dsx.graph.recomputed import Recomputation, recomputation
from dsx.space.recompute_values import FULL_CODE, MAIN, VALUES, regions_of

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
