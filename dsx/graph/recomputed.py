"""Recomputation of regions: what a layer keeps, what its backward repeats, and what it then holds.

A region is a ``recompute ... end`` of the layer definition (`dsx.graph.regions`). If it is recomputed:

* It keeps no tensor that it makes for its own backward. It keeps what it reads from outside, as it was produced
  (Korthikanti et al., 2022, section 5: the attention core).
* A region that discards its outputs keeps none of them for the backward of others either. A redistributed copy, which
  a reader made for itself, is kept.
* The backward repeats its forward once, with the collectives that complete its partial results.
* The recomputed tensors exist from the backward of their last reader to that of the first kernel of the region.

Full recomputation keeps the inputs of the layer alone, and repeats the whole forward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsx.graph.derived import FORWARD, DerivedLayer, KernelCosts
from dsx.graph.match import ALL_REDUCE, REDUCE, REDUCE_SCATTER
from dsx.graph.regions import BY_NAME, outermost
from dsx.graph.saved import Saved, listed_once

_COMPLETING = (ALL_REDUCE, REDUCE, REDUCE_SCATTER)
_Numbered = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The recomputed tensors of one region, which exist during the backward of some kernels."""

    kernels: range  # positions in the layer
    tensors: tuple[Saved, ...]


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A layer of which some regions are recomputed; kernels are positions in `DerivedLayer.kernels`."""

    kept: tuple[tuple[Saved, ...], ...]  # of each kernel, with each tensor once
    repeated: tuple[int, ...]  # kernels whose forward the backward repeats
    completed: tuple[int, ...]  # other kernels whose collectives it repeats, since they complete results of a region
    recomputed: tuple[Recomputed, ...]  # of each region

    @property
    def kept_keys(self) -> frozenset[tuple[str, str]]:
        """The tensors that the layer keeps."""
        return frozenset(saved.key for listed in self.kept for saved in listed)


def recomputation(layer: DerivedLayer, chosen: frozenset[str]) -> Recomputation:
    """Return the recomputation of the regions with these names; a name that the layer lacks has no effect."""
    kernels = layer.kernels
    inside = [outermost(kernel.regions, chosen) for kernel in kernels]
    made_in = {name: region for kernel, region in zip(kernels, inside, strict=True) for name in kernel.makes}
    kept = listed_once(_kept(kernels, inside, made_in))
    repeated = tuple(index for index, region in enumerate(inside) if region)
    return Recomputation(
        kept=tuple(kept),
        repeated=repeated,
        completed=tuple(
            index
            for index, kernel in enumerate(kernels)
            if not inside[index]
            and any(
                collective.kind in _COMPLETING and made_in.get(collective.tensor)
                for collective in kernel.collectives[FORWARD]
            )
        ),
        recomputed=_recomputed(kernels, inside, made_in, {saved.key for listed in kept for saved in listed}),
    )


def _kept(
    kernels: Sequence[KernelCosts], inside: Sequence[_Numbered | None], made_in: Mapping[str, _Numbered | None]
) -> list[tuple[Saved, ...]]:
    """Return what each kernel keeps; several may list one tensor."""
    outside = {
        saved.key for kernel, region in zip(kernels, inside, strict=True) if not region for saved in kernel.saves
    }
    found: list[tuple[Saved, ...]] = []
    for kernel, region in zip(kernels, inside, strict=True):
        held = kernel.saves
        if region:
            # A copy that another kernel keeps as the region reads it is kept already.
            reads = [read for read in kernel.reads if made_in.get(read.tensor) != region and read.copy not in outside]
            held = tuple(read.produced for read in reads if read.produced)
        found.append(tuple(saved for saved in held if not _discarded(saved, made_in)))
    return found


def _discarded(saved: Saved, made_in: Mapping[str, _Numbered | None]) -> bool:
    """Return whether a kept tensor is the output of a recomputed region that discards it, in its produced form."""
    tensor, form = saved.key
    region = made_in.get(tensor)
    return form == "" and region is not None and BY_NAME[region[0]].discards_output


def _recomputed(
    kernels: Sequence[KernelCosts],
    inside: Sequence[_Numbered | None],
    made_in: Mapping[str, _Numbered | None],
    kept: set[tuple[str, str]],
) -> tuple[Recomputed, ...]:
    ends = {region: index for index, region in enumerate(inside) if region}
    first_of = {region: index for index, region in reversed([*enumerate(inside)]) if region}
    tensors: dict[_Numbered, dict[tuple[str, str], Saved]] = {region: {} for region in first_of}
    for index, kernel in reversed([*enumerate(kernels)]):
        own = inside[index]
        needed: list[_Numbered] = []
        for saved in kernel.saves:
            if saved.key in kept:
                continue
            owner = made_in[saved.key[0]] if _discarded(saved, made_in) else own
            if owner:
                tensors[owner][saved.key] = saved
                needed.append(owner)
        if own:
            of_reads = ((read.tensor, made_in.get(read.tensor)) for read in kernel.reads)
            needed += [owner for tensor, owner in of_reads if owner and (tensor, "") not in kept]
        for owner in needed:
            # A region that reads the tensor needs it when it is itself repeated; readers come after what they read.
            ends[owner] = max(ends[owner], ends[own] if own else index)
    return tuple(
        Recomputed(range(first, ends[region] + 1), tuple(tensors[region].values()))
        for region, first in sorted(first_of.items(), key=lambda entry: entry[1])
    )
