"""The backward of a layer with recomputation, as nodes: what it repeats of the forward, where it first needs it.

A repeated node writes a tensor of its own, and the backward reads that one unless the layer keeps the first
(`dsx.graph.recomputed`). Full recomputation repeats the whole forward before the backward begins.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dsx.graph.derived import DerivedLayer
from dsx.graph.nodes import Node, Transferred, Value
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
    found: list[Node] = []
    for node in graph.backward:
        # Regions that later kernels need too come first; a node without a kernel of its own never begins one.
        due = [end for end in ends if end >= node.kernel]
        for end in sorted(due, reverse=True):
            for region in ends.pop(end):
                again, made = _again(_of_region(layer, completed, region, inside), renamed)
                found += again
                renamed |= made
        found += _reading([node], _unless_kept(renamed, recomputed))
    return tuple(found)


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
