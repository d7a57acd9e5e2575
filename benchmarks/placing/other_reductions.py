"""Reductions of other placement systems, to compare with: each merges operators until its rule has no more to merge.

ColocRL (Mirhoseini et al., 2017) joins an operator to its only successor. Placeto (Addanki et al., 2019) merges the
cheapest operator into a neighbour until so many are left. Spotlight (Gao et al., 2018) joins operators whose names
share their first levels. All three merge along edges, and none where that would make a cycle.
"""

import heapq

import numpy as np

from dsx.errors import InputError
from dsx.placement.op_graph import Id, Merging, OpGraph

Reduced = tuple[OpGraph, np.ndarray]  # a graph of n operators, and the one of each given operator [N]

_LEVELS = 2


def into_only_successor(graph: OpGraph) -> Reduced:
    """Return a graph whose operators are joined to their only successor in the given graph (ColocRL).

    Only successors are those of the given graph: were they looked for again, a step with one last operator would
    become one operator.
    """
    merging, survivor = Merging(graph), list(range(graph.num_ops))
    for op in reversed(graph.order):
        if len(graph.successors[op]) != 1:
            continue
        target = survivor[graph.successors[op][0]]
        if merging.may_share(op, target):  # its only edge has no path beside it
            for member in merging.members[target]:
                survivor[member] = op
            merging.merge(op, target)
    return merging.reduced()


def cheapest_into_neighbour(graph: OpGraph, num_ops: int) -> Reduced:
    """Return a graph of so many operators, if edges allow it (Placeto).

    The cheapest operator is merged along its heaviest edge that has no path beside it; of equal ones, to the neighbour
    of the lowest number. Operators without such an edge stay. Raises InputError for less than one operator.
    """
    if num_ops < 1:
        raise InputError(f"num_ops: {num_ops} operators are too few; at least 1 is left")
    merging = Merging(graph)
    cheapest = [(seconds, op) for op, seconds in merging.mean_s.items()]
    heapq.heapify(cheapest)
    while cheapest and len(merging.members) > num_ops:
        seconds, op = heapq.heappop(cheapest)
        if merging.mean_s.get(op) != seconds:
            continue  # it was merged since
        edge = _heaviest_edge(merging, op)
        if edge is not None:
            merging.merge(*edge)
            heapq.heappush(cheapest, (merging.mean_s[edge[0]], edge[0]))
    return merging.reduced()


def by_name(graph: OpGraph) -> Reduced:
    """Return a graph whose operators are joined if their names, "a/b/c", share their first two levels (Spotlight).

    A name is the id of an operator, or its kind if the id has no levels; one without levels joins nothing. Operators
    that are joined may make room for others, so edges are looked at until none is left to join.
    """
    merging = Merging(graph)
    scope = [_scope(name) or _scope(kind) for name, kind in zip(graph.ids, graph.kinds, strict=True)]
    pending = [edge for edge in graph.edges if scope[edge[0]] is not None and scope[edge[0]] == scope[edge[1]]]
    pending.sort(key=lambda edge: (merging.place[edge[0]], merging.place[edge[1]]))
    changed = True
    while changed:
        changed, left = False, []
        survivor = {member: op for op, members in merging.members.items() for member in members}
        for source, target in dict.fromkeys((survivor[source], survivor[target]) for source, target in pending):
            if source == target:
                continue
            if source not in merging.after or target not in merging.after[source]:
                left.append((source, target))  # one of them was merged in this round
            elif not merging.may_share(source, target) or merging.has_detour(source, target):
                left.append((source, target))
            else:
                merging.merge(source, target)
                changed = True
        pending = left
    return merging.reduced()


def _heaviest_edge(merging: Merging, op: int) -> tuple[int, int] | None:
    """Return the heaviest edge of an operator along which it can be merged."""
    edges = [(op, other) for other in merging.after[op]] + [(other, op) for other in merging.before[op]]
    edges.sort(key=lambda edge: (-merging.edge_bytes(*edge), sum(edge) - op))
    return next((edge for edge in edges if merging.may_share(*edge) and not merging.has_detour(*edge)), None)


def _scope(name: Id) -> tuple[str, ...] | None:
    """Return the first levels of a name; None for one without so many."""
    levels = name.split("/") if isinstance(name, str) else []
    return tuple(levels[:_LEVELS]) if len(levels) >= _LEVELS else None
