"""Fusion of operators along edges that no placement would cut (QuickP, algorithm 1).

An edge whose ends each have another neighbour on the other side may have a path beside it, so it is never fused. Any
other edge is, if it is the only one at both ends, or if the end with the only edge is shorter than alpha.
"""

from collections import deque
from collections.abc import Callable

from dsx.operator_placement.merging import Merging


def accepts(graph: Merging, source: int, target: int, alpha_s: float) -> bool:
    """Return whether an edge is fused."""
    only_out, only_in = len(graph.after[source]) == 1, len(graph.before[target]) == 1
    if not (only_out or only_in):
        return False
    if only_out and only_in:
        return True
    return (only_out and graph.mean_s[source] <= alpha_s) or (only_in and graph.mean_s[target] <= alpha_s)


def fuse(graph: Merging, alpha_s: float) -> int:
    """Fuse edges until none is accepted; return how many were. Edges are taken in topological order."""
    merged = 0
    pending = deque((op, other) for op in graph.order if op >= 0 for other in sorted(graph.after[op], key=_at(graph)))
    while pending:
        source, target = pending.popleft()
        if source not in graph.after or target not in graph.after[source]:
            continue
        if not accepts(graph, source, target, alpha_s) or not graph.may_share(source, target):
            continue
        graph.merge(source, target)
        merged += 1
        pending += [(source, other) for other in sorted(graph.after[source], key=_at(graph))]
        pending += [(other, source) for other in sorted(graph.before[source], key=_at(graph))]
        # Neighbours have fewer edges than before, so their other edges may be accepted now.
        pending += [(other, near) for near in graph.after[source] for other in sorted(graph.before[near])]
        pending += [(near, other) for near in graph.before[source] for other in sorted(graph.after[near])]
    return merged


def _at(graph: Merging) -> Callable[[int], int]:
    return graph.place.__getitem__
