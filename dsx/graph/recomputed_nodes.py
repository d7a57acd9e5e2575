"""The backward of a layer with recomputation, as nodes: what it repeats of the forward, where it first needs it.

A repeated node writes a tensor of its own, and the backward reads that one unless the layer keeps the first
(`dsx.graph.recomputed`). Full recomputation repeats the whole forward before the backward begins.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dsx.graph.derived import DerivedLayer
from dsx.graph.nodes import LayerGraph, Node, Transferred, Value
from dsx.graph.recomputed import Recomputation
from dsx.graph.regions import outermost

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
    ends: dict[int, list[tuple[str, int]]] = {}
    regions = sorted({region for region in inside if region}, key=inside.index)
    for region, one in zip(regions, recomputed.recomputed, strict=True):
        ends.setdefault(one.kernels[-1], []).append(region)
    renamed: dict[str, Value] = {}
    completed = {*recomputed.completed}  # that are not repeated yet
    gathers = _Gathers(graph, recomputed)
    found: list[Node] = []
    for node in graph.backward:
        # Regions that later kernels need too come first; a node without a kernel of its own never begins one.
        due = [end for end in ends if end >= node.kernel]
        for end in sorted(due, reverse=True):
            for region in ends.pop(end):
                repeated = _of_region(layer, completed, region, inside)
                found += _reading(gathers.due(gathers.needed_by(repeated)), _unless_kept(renamed, recomputed))
                again, made = _again(repeated, gathers.renamed | renamed)
                found += again
                renamed |= made
        found += _reading(gathers.due([node]), _unless_kept(renamed, recomputed))
    return tuple(found)


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
        made = {value.name for node in repeated for value in node.writes}
        found: list[Node] = []
        for read in (read for node in repeated for read in node.reads):
            copy = None if read.name in made else self.first.get(read.name)
            chain = self.again.get(copy.saved_as, []) if copy and copy.saved_as else []
            if chain and read.name not in self.renamed:
                found += chain
                self.renamed[read.name] = chain[-1].writes[0]
        return found

    def due(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes without gathers that have run."""
        found = [node for node in nodes if not self.done.issuperset(node.writes) or not isinstance(node, Transferred)]
        self.done |= {value for node in found for value in node.writes}
        return found


def _of_region(
    layer: DerivedLayer, completed: set[int], region: tuple[str, int], inside: list[tuple[str, int] | None]
) -> list[Node]:
    """Return the forward nodes of a region, and the collectives of kernels that complete its results.

    These kernels are taken from `completed`, so that their collectives are repeated once.
    """
    made = {name for kernel, own in zip(layer.kernels, inside, strict=True) if own == region for name in kernel.makes}
    completing = {
        node.kernel
        for node in layer.graph.forward
        if isinstance(node, Transferred) and node.kernel in completed and node.collective.tensor in made
    }
    completed -= completing
    return [
        node
        for node in layer.graph.forward
        if inside[node.kernel] == region or (node.kernel in completing and isinstance(node, Transferred))
    ]


def _again(nodes: Iterable[Node], known: Mapping[str, Value]) -> tuple[list[Node], dict[str, Value]]:
    """Return nodes that write tensors of their own, and these by the name of the first ones."""
    renamed: dict[str, Value] = {}
    found: list[Node] = []
    for node in nodes:
        reads = tuple(renamed.get(value.name, known.get(value.name, value)) for value in node.reads)
        writes = tuple(replace(value, name=value.name + AGAIN) for value in node.writes)
        renamed |= {value.name: own for value, own in zip(node.writes, writes, strict=True)}
        found.append(replace(node, name=node.name + AGAIN, reads=reads, writes=writes))
    return found, renamed


def _unless_kept(renamed: Mapping[str, Value], recomputed: Recomputation) -> dict[str, Value]:
    kept = recomputed.kept_keys
    return {name: value for name, value in renamed.items() if value.saved_as not in kept}


def _reading(nodes: Iterable[Node], renamed: Mapping[str, Value]) -> list[Node]:
    return [
        replace(node, reads=tuple(renamed.get(value.name, value) for value in node.reads)) if renamed else node
        for node in nodes
    ]
