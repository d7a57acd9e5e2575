"""Recomputation of regions: what a layer keeps, what its backward repeats and where, and what it then holds.

A region is a ``recompute ... end`` of the layer definition (`dsx.notation.syntax`). If it is recomputed:

* It keeps no tensor that it makes for its own backward. It keeps what it reads from outside, as it was produced
  (Korthikanti et al., 2022, section 5: the attention core).
* A region that discards its outputs keeps none of them for the backward of others either. A redistributed copy, which
  a reader made for itself, is kept.
* The backward repeats its forward once, with the collectives that complete its partial results.
* The recomputed tensors exist from the backward of their last reader to that of the first kernel of the region.

A repeated node writes a tensor of its own, where the backward first needs it, and the backward reads that one unless
the layer keeps the first. Full recomputation keeps the inputs of the layer alone, and repeats the whole forward before
the backward begins.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dsx.notation.backward import Saved, listed_once
from dsx.notation.graph import LayerGraph, Node, Transferred, Value
from dsx.notation.sharded_layer import ALL_REDUCE, REDUCE, REDUCE_SCATTER
from dsx.notation.syntax import REGIONS_BY_NAME, outermost
from dsx.notation.work import FORWARD, DerivedLayer, KernelCosts

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
    outside = {
        saved.key for kernel, region in zip(kernels, inside, strict=True) if not region for saved in kernel.saves
    }
    lists: list[tuple[Saved, ...]] = []  # what each kernel keeps; several may list one tensor
    for kernel, region in zip(kernels, inside, strict=True):
        held = kernel.saves
        if region:
            # A copy that another kernel keeps as the region reads it is kept already.
            reads = [read for read in kernel.reads if made_in.get(read.tensor) != region and read.copy not in outside]
            held = tuple(read.produced for read in reads if read.produced)
        lists.append(tuple(saved for saved in held if not _discarded(saved, made_in)))
    kept = listed_once(lists)
    completing = [
        any(moved.kind in _COMPLETING and made_in.get(moved.tensor) for moved in kernel.collectives[FORWARD])
        for kernel in kernels
    ]
    return Recomputation(
        kept=tuple(kept),
        repeated=tuple(index for index, region in enumerate(inside) if region),
        completed=tuple(index for index, region in enumerate(inside) if completing[index] and not region),
        recomputed=_recomputed(kernels, inside, made_in, {saved.key for listed in kept for saved in listed}),
    )


def _discarded(saved: Saved, made_in: Mapping[str, _Numbered | None]) -> bool:
    """Return whether a kept tensor is the output of a recomputed region that discards it, in its produced form."""
    tensor, form = saved.key
    region = made_in.get(tensor)
    return form == "" and region is not None and REGIONS_BY_NAME[region[0]].discards_output


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
        region = inside[index]
        needed: list[_Numbered] = []
        for saved in kernel.saves:
            owner = made_in[saved.key[0]] if _discarded(saved, made_in) else region
            if owner and saved.key not in kept:
                tensors[owner][saved.key] = saved
                needed.append(owner)
        if region:
            of_reads = ((read.tensor, made_in.get(read.tensor)) for read in kernel.reads)
            needed += [owner for tensor, owner in of_reads if owner and (tensor, "") not in kept]
        for owner in needed:
            # A region that reads the tensor needs it when it is itself repeated; readers come after what they read.
            ends[owner] = max(ends[owner], ends[region] if region else index)
    return tuple(
        Recomputed(range(first, ends[region] + 1), tuple(tensors[region].values()))
        for region, first in sorted(first_of.items(), key=lambda entry: entry[1])
    )


AGAIN = "'"  # after the name of a recomputed tensor


def backward_nodes(layer: DerivedLayer, recomputed: Recomputation | None, chosen: frozenset[str]) -> tuple[Node, ...]:
    """Return the nodes of a layer's backward; `chosen` regions are recomputed, or the whole layer if that is None."""
    graph = layer.graph
    if recomputed is None:
        repeated, renamed = _again(graph.forward, {})
        return *repeated, *_reading(graph.backward, renamed)
    if not recomputed.repeated:
        return graph.backward
    inside = [outermost(kernel.regions, chosen) for kernel in layer.kernels]
    ends: dict[int, list[_Numbered]] = {}
    regions = sorted({region for region in inside if region}, key=inside.index)
    for region, of_region in zip(regions, recomputed.recomputed, strict=True):
        ends.setdefault(of_region.kernels[-1], []).append(region)
    renamed: dict[str, Value] = {}
    completed = {*recomputed.completed}  # that are not repeated yet
    gathers = _Gathers(graph, recomputed)
    nodes: list[Node] = []
    for node in graph.backward:
        # Regions that later kernels need too come first; a node without a kernel of its own never begins one.
        due = [end for end in ends if end >= node.kernel]
        for region in (region for end in sorted(due, reverse=True) for region in ends.pop(end)):
            repeated = _of_region(layer, completed, region, inside)
            nodes += _reading(gathers.due(gathers.needed_by(repeated)), _unless_kept(renamed, recomputed))
            second, of_second = _again(repeated, gathers.renamed | renamed)
            nodes += second
            renamed |= of_second
        nodes += _reading(gathers.due([node]), _unless_kept(renamed, recomputed))
    return tuple(nodes)


class _Gathers:
    """Copies that the backward gathers again, which repeated regions read in place of those that are not kept."""

    def __init__(self, graph: LayerGraph, recomputed: Recomputation) -> None:
        self.done: set[Value] = set()  # copies that are there; some before the backward of a kernel needs them
        self.renamed: dict[str, Value] = {}  # the second copy, by the name of the first
        self.first = {
            value.name: value
            for node in graph.forward
            if isinstance(node, Transferred)
            for value in node.writes
            if value.saved_as not in recomputed.kept_keys
        }
        self.again: dict[tuple[str, str], list[Transferred]] = {}  # chains by tensor and distribution
        for node in graph.backward:
            if isinstance(node, Transferred) and not node.after_kernel:
                key = (node.collective.tensor, str(node.writes[0].distribution))
                self.again.setdefault(key, []).append(node)

    def needed_by(self, repeated: Sequence[Node]) -> list[Node]:
        """Return the gathers of what some repeated nodes read of others, and note what they read then."""
        written = {value.name for node in repeated for value in node.writes}
        gathers: list[Node] = []
        for read in (read for node in repeated for read in node.reads):
            copy = None if read.name in written else self.first.get(read.name)
            chain = self.again.get(copy.saved_as, []) if copy and copy.saved_as else []
            if chain and read.name not in self.renamed:
                gathers += chain
                self.renamed[read.name] = chain[-1].writes[0]
        return gathers

    def due(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes without gathers that have run."""
        due = [node for node in nodes if not self.done.issuperset(node.writes) or not isinstance(node, Transferred)]
        self.done |= {value for node in due for value in node.writes}
        return due


def _of_region(
    layer: DerivedLayer, completed: set[int], region: _Numbered, inside: list[_Numbered | None]
) -> list[Node]:
    """Return the forward nodes of a region, and the collectives of kernels that complete its results.

    These kernels are taken from `completed`, so that their collectives are repeated once.
    """
    results = {name for kernel, at in zip(layer.kernels, inside, strict=True) if at == region for name in kernel.makes}
    moves = [node for node in layer.graph.forward if isinstance(node, Transferred) and node.kernel in completed]
    completing = {node.kernel for node in moves if node.collective.tensor in results}
    completed -= completing
    return [
        node
        for node in layer.graph.forward
        if inside[node.kernel] == region or (node.kernel in completing and isinstance(node, Transferred))
    ]


def _again(nodes: Iterable[Node], renamed_before: Mapping[str, Value]) -> tuple[list[Node], dict[str, Value]]:
    """Return nodes that write tensors of their own, and these by the name of the first ones."""
    renamed: dict[str, Value] = {}
    repeated: list[Node] = []
    for node in nodes:
        reads = tuple(renamed.get(value.name, renamed_before.get(value.name, value)) for value in node.reads)
        writes = tuple(replace(value, name=value.name + AGAIN) for value in node.writes)
        renamed |= {value.name: second for value, second in zip(node.writes, writes, strict=True)}
        repeated.append(replace(node, name=node.name + AGAIN, reads=reads, writes=writes))
    return repeated, renamed


def _unless_kept(renamed: Mapping[str, Value], recomputed: Recomputation) -> dict[str, Value]:
    kept = recomputed.kept_keys
    return {name: value for name, value in renamed.items() if value.saved_as not in kept}


def _reading(nodes: Iterable[Node], renamed: Mapping[str, Value]) -> list[Node]:
    return [
        replace(node, reads=tuple(renamed.get(value.name, value) for value in node.reads)) if renamed else node
        for node in nodes
    ]
